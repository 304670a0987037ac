"""A bucket in memory. Its listings may be late. Everything else is as `ObjectStore` demands.

`SimulatedStore` is the same bucket as an `ObjectStore`. What else goes wrong (throttling, lost
answers, requests that arrive late) is drawn by `chain_world`, which decides when a request is
carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from penstock.records.batch import Buffer
from penstock.tier.errors import AlreadyExists, NotFound
from penstock.tier.object_store import ObjectInfo, check_key, check_prefix, check_range
from penstock.tier.requests import Create, Delete, Head, List, Read, ReadRange, Request


class SimulatedBucket:
    def __init__(self, random: Random | None = None) -> None:
        self._random = random
        """None: listings are never late."""
        self.objects: dict[str, bytes] = {}
        self.written_ms: dict[str, int] = {}
        self._recent: list[tuple[str, ObjectInfo | None]] = []
        """The last changes: the key, and what it was before."""
        self.now_ms = 0
        self.counts: dict[str, int] = {}

    def apply(self, request: Request) -> Any:
        match request:
            case Create(key, data):
                return self._create(key, b"".join(data))
            case Read(key):
                return self._object(key)
            case ReadRange(key, start, size):
                check_range(start, size)
                return self._object(key)[start : start + size]
            case Head(key):
                self._object(key)
                return self._info(key)
            case List(prefix, start_after, limit):
                return self._list(prefix, start_after, limit)
            case Delete(key):
                return self._delete(key)
        raise AssertionError(request)

    def put(self, key: str, data: bytes) -> None:
        self._note(key)
        self.objects[key] = data
        self.written_ms[key] = self.now_ms

    def _create(self, key: str, data: bytes) -> None:
        if check_key(key) in self.objects:
            raise AlreadyExists(key)
        self.put(key, data)

    def _object(self, key: str) -> bytes:
        try:
            return self.objects[check_key(key)]
        except KeyError:
            raise NotFound(key) from None

    def _info(self, key: str) -> ObjectInfo | None:
        if key not in self.objects:
            return None
        return ObjectInfo(key, len(self.objects[key]), self.written_ms[key])

    def _delete(self, key: str) -> None:
        if check_key(key) in self.objects:
            self._note(key)
            del self.objects[key], self.written_ms[key]

    def _note(self, key: str) -> None:
        self._recent.append((key, self._info(key)))
        del self._recent[:-20]

    def _list(self, prefix: str, start_after: str, limit: int) -> list[ObjectInfo]:
        check_prefix(prefix)
        shown = {key: self._info(key) for key in self.objects}
        if self._random is not None:
            for key, before in reversed(self._recent):
                if self._random.random() < 0.1:
                    self.counts["late_listing"] = self.counts.get("late_listing", 0) + 1
                    shown[key] = before
        infos = [
            info
            for key, info in sorted(shown.items())
            if info is not None and key.startswith(prefix) and key > start_after
        ]
        return infos[:limit]


class SimulatedStore:
    """The bucket as an `ObjectStore`, without faults."""

    def __init__(self) -> None:
        self.bucket = SimulatedBucket()

    async def create(self, key: str, data: Sequence[Buffer]) -> None:
        self.bucket.apply(Create(key, data))

    async def put(self, key: str, data: Sequence[Buffer]) -> None:
        self.bucket.put(check_key(key), b"".join(data))

    async def get(self, key: str) -> bytes:
        found: bytes = self.bucket.apply(Read(key))
        return found

    async def get_range(self, key: str, start: int, size: int) -> bytes:
        found: bytes = self.bucket.apply(ReadRange(key, start, size))
        return found

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [await self.get_range(key, start, size) for start, size in ranges]

    async def head(self, key: str) -> ObjectInfo:
        info: ObjectInfo = self.bucket.apply(Head(key))
        return info

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = 1000
    ) -> Sequence[ObjectInfo]:
        found: list[ObjectInfo] = self.bucket.apply(List(prefix, start_after, limit))
        return found

    async def delete(self, key: str) -> None:
        self.bucket.apply(Delete(key))

    async def close(self) -> None:
        pass
