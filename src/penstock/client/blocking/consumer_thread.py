"""The async consumer of a sync consumer, which runs on a thread of its own, and the calls to it.

Every call runs on the event loop's thread, even simple lookups, because that thread changes the
state they read. Only one thread at a time may call. While a call waits, the calling thread runs the
user's listeners, offset stores and handlers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from penstock.client.blocking.caller_callbacks import listener_on_caller
from penstock.client.blocking.caller_executor import CallerExecutor
from penstock.client.blocking.lifecycle import Lifecycle
from penstock.client.blocking.thread_guard import ThreadGuard
from penstock.client.consumer import Consumer as AsyncConsumer
from penstock.client.errors import ClientError, Closed
from penstock.client.model import Record
from penstock.client.processing.contracts import RunSummary

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

_CLOSE_TURN_S: Final = 30.0
"""How long `close` waits for another thread to return from its call."""


class Kept:
    """The records of a poll whose caller was interrupted before it received them.

    It does not refer to the sync consumer, so that the records can be put back when the garbage
    collector has removed that consumer.
    """

    def __init__(self, core: AsyncConsumer[Any, Any]) -> None:
        self._async = core
        self.records: list[Record[Any, Any]] = []

    async def put_back(self) -> None:
        records, self.records = self.records, []
        assigned = self._async.assignment()
        for record in reversed(records):
            if record.topic_partition in assigned:
                self._async.seek(record.topic_partition, record.offset)

    async def close(self, timeout_s: float | None) -> None:
        """Puts the records back, so that they are not committed, and closes the consumer."""
        await self.put_back()
        await self._async.close(timeout_s)


class ConsumerThread:
    """Runs an async consumer on its own thread, from the first call until `close`."""

    def __init__(self, core: AsyncConsumer[Any, Any], on_caller: CallerExecutor) -> None:
        self.core = core
        self.on_caller = on_caller
        self._turns = ThreadGuard()
        self._kept = Kept(core)
        self._life = Lifecycle("consumer", core.env.clock, core.start, self._kept.close)
        self._iteration: asyncio.Task[Any] | None = None
        self._closing = threading.Event()
        self._listeners: list[tuple[object, object]] = []
        self._life.watch(self)

    def start(self) -> None:
        self._life.portal()

    def close(self, timeout_s: float | None) -> None:
        """Ends a call of another thread and closes the consumer."""
        if self._turns.is_mine:
            raise ClientError(
                "close() was called from a listener or handler of this consumer, which is still "
                "running: return from it first"
            )
        self._closing.set()
        if self._life.is_closed or not self._life.is_started or self._life.is_forked:
            self._life.close()
            return
        self._life.portal().tell(self._interrupt)
        outermost = self._turns.wait(_CLOSE_TURN_S if timeout_s is None else timeout_s)
        try:
            self._life.close(timeout_s, on_caller=self.on_caller if outermost else None)
        finally:
            self._turns.end(outermost)

    def _interrupt(self) -> None:
        self.core.wakeup()
        if self._iteration is not None:
            self._iteration.cancel()

    def wakeup(self) -> None:
        if self._life.is_started and not self._life.is_closed:
            self._life.portal().tell(self.core.wakeup)

    def check_open(self) -> None:
        if self._closing.is_set():
            raise Closed("the consumer has been closed: make a new one")

    # -- calls on the event loop ----------------------------------------------------------------

    def wait(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout_s: float | None = None,
        watch: Callable[[], object] | None = None,
    ) -> T:
        """Runs a coroutine on the loop while holding the turn. Meanwhile this thread runs listeners
        and handlers."""
        try:
            outermost = self._turns.begin()
        except ClientError:
            coroutine.close()
            raise
        try:
            # A listener may call its consumer: a wait within a wait, which needs its own queue.
            on_caller = self.on_caller if outermost else None
            if self._kept.records:
                self._life.call(self._kept.put_back())
            return self._life.call(coroutine, timeout_s, on_caller=on_caller, watch=watch)
        finally:
            self._turns.end(outermost)

    def do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a plain function on the event loop's thread."""

        async def call() -> T:
            return function(*args, **kwargs)

        return self.wait(call())

    def until(
        self,
        stop: threading.Event | None,
        work: Callable[[asyncio.Event], Coroutine[Any, Any, RunSummary]],
    ) -> RunSummary:
        """Waits for work that ends some time after it was asked to stop, by `stop` or by
        `close`."""
        self.check_open()
        stopping = asyncio.Event()
        portal = self._life.portal()

        def look() -> None:
            if self._closing.is_set() or (stop is not None and stop.is_set()):
                portal.tell(stopping.set)

        return self.wait(work(stopping), watch=look)

    def add_listener(self, listener: object) -> None:
        wrapper = listener_on_caller(self.on_caller, listener)
        assert wrapper is not None
        self._listeners.append((listener, wrapper))
        self.do(self.core.add_listener, wrapper)

    def remove_listener(self, listener: object) -> None:
        for pair in [pair for pair in self._listeners if pair[0] is listener]:
            self._listeners.remove(pair)
            self.do(self.core.remove_listener, pair[1])

    # -- records --------------------------------------------------------------------------------

    def poll(self, timeout_ms: int, max_records: int | None) -> list[Record[Any, Any]]:
        self.check_open()
        self.wait(self._poll(timeout_ms, max_records))
        records, self._kept.records = self._kept.records, []
        return records

    async def _poll(self, timeout_ms: int, max_records: int | None) -> None:
        # Kept in an attribute rather than returned, because Ctrl-C may interrupt the caller between
        # the end of this coroutine and the arrival of its result.
        self._kept.records = await self.core.poll(timeout_ms, max_records)

    def check_iterator(self, thread: int | None) -> None:
        """Raises an error if `thread`, which has iterated so far, has left records to iterate over,
        and `StopIteration` after `close`."""
        if self._closing.is_set():
            raise StopIteration
        reading = self.core._reading
        if reading.at < len(reading.run) and thread is not None:
            raise ClientError(
                "another thread is iterating over this consumer: give each thread its own consumer"
            )

    def next_index(self) -> int:
        """Returns the index of the next record to iterate over. Waits for records if there is none.

        Raises `StopIteration` after `close`.
        """
        reading = self.core._reading
        if reading.at < len(reading.run):
            return reading.at
        if not self.wait(self._next_run()):
            raise StopIteration
        return 0

    async def _next_run(self) -> bool:
        """Prepares the next records to iterate over. Returns False once the consumer is closed."""
        if self._closing.is_set():
            return False
        self._iteration = asyncio.current_task()
        try:
            return await self.core._poller.next_run()
        except asyncio.CancelledError:
            if self._closing.is_set():
                return False
            raise
        finally:
            self._iteration = None

    def batches(self, batches: AsyncIterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        async def following() -> pa.RecordBatch | None:
            return await anext(batches, None)

        async def end() -> None:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

        try:
            while (batch := self.wait(following())) is not None:
                yield batch
        finally:
            # The generator may be closed early, perhaps by the garbage collector while another call
            # is running. `wait` would refuse that, so this call bypasses it.
            with suppress(Closed, RuntimeError):
                self._life.call(end())
