"""Requests that wait: for the high watermark, for data, or for their time to run out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Generic, TypeVar

from penstock.broker.hosted import HostedPartition
from penstock.wire.errors import ErrorCode

T = TypeVar("T")

_keys = count(1)


class CommitWait(Generic[T]):
    """A produce with acks=all: done when every partition has committed, or time is up.

    `finish` is told what each partition came to: None if committed, else its code.
    """

    __slots__ = ("_finish", "_left", "_outcomes", "_timer", "future")

    def __init__(
        self,
        waits: Sequence[tuple[HostedPartition, int]],
        timeout_s: float,
        finish: Callable[[Sequence[ErrorCode | None]], T],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = loop.create_future()
        self._finish = finish
        self._outcomes: list[ErrorCode | None] = [ErrorCode.REQUEST_TIMED_OUT] * len(waits)
        self._left = len(waits)
        self._timer = loop.call_later(timeout_s, self._end)
        for number, (hosted, end_offset) in enumerate(waits):
            tell = self._teller(number)
            if hosted.when_committed(end_offset, tell):
                tell(None)

    def _teller(self, number: int) -> Callable[[ErrorCode | None], None]:
        def tell(code: ErrorCode | None) -> None:
            self._outcomes[number] = code
            self._left -= 1
            if self._left == 0:
                self._end()

        return tell

    def _end(self) -> None:
        self._timer.cancel()
        if not self.future.done():
            self.future.set_result(self._finish(self._outcomes))


class DataWait(Generic[T]):
    """A fetch with too little to answer yet: done when enough bytes were committed, when a
    partition changed hands, or when time is up. `finish` reads what there is by then."""

    __slots__ = ("_bytes_due", "_finish", "_key", "_partitions", "_timer", "future")

    def __init__(
        self,
        partitions: Iterable[HostedPartition],
        bytes_due: int,
        timeout_s: float,
        finish: Callable[[], T],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = loop.create_future()
        self._finish = finish
        self._key = next(_keys)
        self._partitions = list(partitions)
        self._bytes_due = bytes_due + sum(held.committed_bytes for held in self._partitions)
        for hosted in self._partitions:
            hosted.listen(self._key, self._on_news)
        self._timer = loop.call_later(timeout_s, self._end)
        self.future.add_done_callback(self._forget)

    def _on_news(self, hosted: HostedPartition) -> None:
        if hosted.leadership is None or (
            sum(held.committed_bytes for held in self._partitions) >= self._bytes_due
        ):
            self._end()

    def _end(self) -> None:
        if self.future.done():
            return
        try:
            self.future.set_result(self._finish())
        except Exception as error:  # noqa: BLE001 - the answer's business
            self.future.set_exception(error)

    def _forget(self, _: object) -> None:
        self._timer.cancel()
        for hosted in self._partitions:
            hosted.unlisten(self._key)
