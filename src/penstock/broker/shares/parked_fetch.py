"""A share fetch that waits until it can acquire something, or until its time is up.

It is registered at all its partitions. A partition that may have something attempts it: then the
fetch reads this partition alone, and ends if it got records or an error. When its time is up, it
reads all of them, because fewer bytes than it asked for will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from penstock.broker.shares.led_partition import LedPartition

T = TypeVar("T")


class ParkedFetch(Generic[T]):
    """`read` reads one partition, and returns None if the fetch goes on waiting."""

    __slots__ = ("_group_id", "_led", "_nothing", "_read", "_read_all", "_timer", "future")

    def __init__(
        self,
        group_id: str,
        led: Iterable[LedPartition],
        timeout_s: float,
        read: Callable[[LedPartition], T | None],
        read_all: Callable[[], T],
        nothing: T,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = loop.create_future()
        self._group_id = group_id
        self._led = list(led)
        self._read = read
        self._read_all = read_all
        self._nothing = nothing
        for each in self._led:
            each.wait(group_id, self)
        self._timer = loop.call_later(timeout_s, self._on_time_up)
        self.future.add_done_callback(self._forget)

    def attempt(self, woken: LedPartition) -> None:
        if not self.future.done():
            self._end_with(lambda: self._read(woken))

    def end_without_records(self) -> None:
        """The session has ended: nobody would acknowledge records."""
        self._end_with(lambda: self._nothing)

    def _on_time_up(self) -> None:
        self._end_with(self._read_all)

    def _end_with(self, read: Callable[[], T | None]) -> None:
        if self.future.done():
            return
        try:
            result = read()
        except Exception as error:  # noqa: BLE001 - raised in the waiting request
            self.future.set_exception(error)
        else:
            if result is not None:
                self.future.set_result(result)

    def _forget(self, _: object) -> None:
        self._timer.cancel()
        for each in self._led:
            each.end_wait(self._group_id, self)
