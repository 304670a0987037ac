"""The port to an object store.

An object store holds immutable bytes under names. The names are keys as `keys` makes them. What
Penstock requires:

- of several creates of one name, exactly one succeeds, and a created object is complete;
- a read sees every write and delete that was answered before it began;
- a listing may be late: it may show deleted objects and miss new ones.

A store raises the errors in `errors`, and no others, for what the outside world does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from penstock.records.batch import Buffer

_KEY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
KEY_SIZE_MAX: Final = 512


class ObjectInfo(NamedTuple):
    key: str
    size: int
    modified_ms: int
    """When the object was written, by the clock of the store."""


class ObjectStore(Protocol):
    """A bucket, or a directory that is used as one."""

    async def create(self, key: str, data: Sequence[Buffer]) -> None:
        """Writes a new object from parts. Raises `AlreadyExists` if there is one of this name."""

    async def put(self, key: str, data: Sequence[Buffer]) -> None:
        """Writes an object from parts, and replaces one of this name."""

    async def get(self, key: str) -> bytes: ...

    async def get_range(self, key: str, start: int, size: int) -> bytes:
        """Returns up to `size` bytes from `start`: fewer only at the end of the object."""

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Does the same as `get_range` for several ranges (start, size), in as few requests as
        is sensible."""

    async def head(self, key: str) -> ObjectInfo: ...

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = 1000
    ) -> Sequence[ObjectInfo]:
        """Returns objects whose keys begin with a prefix, a folder that ends in `/`, sorted by
        key: those after `start_after`, and at most `limit`."""

    async def delete(self, key: str) -> None:
        """Deletes an object. It is not an error if there is none."""

    async def close(self) -> None: ...


def check_key(key: str) -> str:
    """Returns the key. Raises `ValueError` if it is not safe as a path and as a part of a URL."""
    if len(key) > KEY_SIZE_MAX or not _KEY.fullmatch(key):
        raise ValueError(f"{key[:200]!r} is not a key: use letters, digits, . _ - and /")
    return key


def check_prefix(prefix: str) -> str:
    """Returns the prefix. Raises `ValueError` unless it is empty or a folder that ends in `/`."""
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(
                f"the prefix {prefix!r} must end in /: only a whole folder can be listed"
            )
        check_key(prefix[:-1])
    return prefix


def check_range(start: int, size: int) -> None:
    """Raises `ValueError` for a range that no object has. Servers disagree about those."""
    if start < 0 or size < 1:
        raise ValueError(f"cannot read {size} bytes from {start}: ask for at least one byte")
