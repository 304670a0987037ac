"""Runs procedures on an object store.

A throttled request is tried again, with back-off and jitter. So is a delete without an answer: a
name that is deleted is never used again. Every request has a deadline, also in a directory whose
mount hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.ports import Clock, Random
from penstock.tier.errors import OutcomeUnknown, StoreError, Throttled
from penstock.tier.object_store import ObjectStore
from penstock.tier.requests import (
    BackOff,
    Create,
    Delete,
    Head,
    List,
    Procedure,
    Read,
    ReadRange,
    Request,
    Together,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long requests are tried again."""

    attempts_max: int = 8
    first_wait_s: float = 0.1
    wait_max_s: float = 10.0
    request_s: float = 120.0
    """The deadline of one request, above that of the HTTP client."""

    def wait_s(self, attempt: int, jitter: float) -> float:
        """Returns the wait before the attempt after `attempt`. `jitter` is in [0, 1)."""
        longest = min(self.wait_max_s, self.first_wait_s * 2.0 ** min(attempt, 30))
        return longest * (0.5 + jitter / 2)


class Driver:
    """Runs procedures on one store."""

    def __init__(
        self, store: ObjectStore, clock: Clock, random: Random, patience: Patience | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._patience = patience or Patience()

    async def run(self, procedure: Procedure[T]) -> T:
        """Returns the result of the procedure, or raises its error."""
        request, error, result = None, None, None
        while True:
            try:
                request = procedure.throw(error) if error else procedure.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            error, result = None, None
            try:
                result = await self._carry_out(request)
            except StoreError as failure:
                error = failure

    async def _carry_out(self, request: Request) -> Any:
        if isinstance(request, BackOff):
            return await self._wait(request.attempt)
        if isinstance(request, Together):
            return await self._together(request.requests)
        for attempt in range(self._patience.attempts_max):
            try:
                return await self._once(request)
            except (Throttled, OutcomeUnknown) as error:
                is_safe = isinstance(error, Throttled) or isinstance(request, Delete)
                if not is_safe or attempt + 1 == self._patience.attempts_max:
                    raise
            await self._wait(attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, request: Request) -> Any:
        try:
            async with asyncio.timeout(self._patience.request_s):
                return await _once(self._store, request)
        except TimeoutError as error:
            what = f"{request[0]}: no answer within {self._patience.request_s} s"
            if isinstance(request, Create | Delete):
                raise OutcomeUnknown(what) from error
            raise Throttled(what) from error

    async def _wait(self, attempt: int) -> None:
        await self._clock.sleep(self._patience.wait_s(attempt, self._random.uniform()))

    async def _together(self, requests: Sequence[Request]) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._outcome(request)) for request in requests]
        return [task.result() for task in tasks]

    async def _outcome(self, request: Request) -> Any:
        try:
            return await self._carry_out(request)
        except StoreError as error:
            return error


async def _once(store: ObjectStore, request: Request) -> Any:
    match request:
        case Create(key, data):
            return await store.create(key, data)
        case Read(key):
            return await store.get(key)
        case ReadRange(key, start, size):
            return await store.get_range(key, start, size)
        case Head(key):
            return await store.head(key)
        case List(prefix, start_after, limit):
            return await store.list_objects(prefix, start_after=start_after, limit=limit)
        case Delete(key):
            return await store.delete(key)
    raise AssertionError(f"{request} is not for a store")
