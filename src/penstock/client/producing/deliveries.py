"""The outcome of a record that was sent, to await on an event loop or to wait for in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from penstock.client.errors import ClientError, RequestTimedOut
from penstock.client.model import RecordMetadata
from penstock.client.producing.batch_outcome import BatchOutcome, DeliveryCallback


class Delivery:
    """The outcome of a record that was sent: its metadata, or the error with which it failed.

    `send` returns it. Call `result()` in a thread, `await` it on an event loop, or drop it: a
    delivery that nothing waits for costs nothing more. All methods may be called from any thread.

    Example:
        deliveries = [producer.send("orders", value) for value in (b"bread", b"salt")]
        print([delivery.result(timeout_s=10).offset for delivery in deliveries])
        #> [3, 4]
    """

    __slots__ = ("_index", "_outcome", "_timestamp")

    def __init__(self, outcome: BatchOutcome, index: int, timestamp: int) -> None:
        self._outcome = outcome
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._outcome.leaf(self._index)[0].settled

    def outcome(self) -> RecordMetadata:
        """Returns the metadata or raises the error. Raises `RuntimeError` unless the delivery is
        done.
        """
        outcome, index = self._outcome.leaf(self._index)
        if not outcome.settled:
            raise RuntimeError("the record is still on its way: await the delivery first")
        if outcome.error is not None:
            raise outcome.error
        return outcome.metadata(index, self._timestamp)

    def error(self) -> ClientError | None:
        """Returns the error, or None if the record was delivered.

        Raises `RuntimeError` unless the delivery is done.
        """
        outcome, _ = self._outcome.leaf(self._index)
        if not outcome.settled:
            raise RuntimeError("the record is still on its way: await the delivery first")
        return outcome.error

    def add_callback(self, callback: DeliveryCallback) -> None:
        """Registers a callback for the metadata or the error. It is called on the event loop, or
        immediately if the outcome is already known."""
        self._outcome.watch_record(self._index, self._timestamp, callback)

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Blocks until the outcome is known. Returns the metadata or raises the error.

        Raises `RequestTimedOut` after `timeout_s`; the record is still on its way. Without a
        timeout it waits at most `delivery_timeout_ms`. This is for threads without an event loop.
        On an event loop, await the delivery instead.
        """
        if not self.done():
            wait_in_thread(lambda wake: self.add_callback(lambda *_: wake()), timeout_s)
        return self.outcome()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            told = waiter(lambda wake: self.add_callback(lambda *_: wake()))
            yield from told.__await__()
        return self.outcome()

    def __repr__(self) -> str:
        state = "done" if self.done() else "on its way"
        return f"<Delivery to {self._outcome.topic_partition}: {state}>"


Watch = Callable[[Callable[[], None]], None]
"""Registers a function to be called when something has completed."""


def waiter(watch: Watch) -> asyncio.Future[None]:
    """Returns a future of the running loop that is done on completion, on whichever thread that
    happens."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        if asyncio._get_running_loop() is loop:
            finish()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(finish)

    watch(wake)
    return future


def wait_in_thread(watch: Watch, timeout_s: float | None) -> None:
    """Blocks this thread until completion, or raises `RequestTimedOut`."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("this thread runs an event loop: await the delivery instead")
    over = threading.Event()
    watch(over.set)
    if not over.wait(timeout_s):
        raise RequestTimedOut(f"not delivered within {timeout_s:g} s; it is still on its way")


async def all_over(outcomes: Sequence[BatchOutcome]) -> None:
    """Waits until the outcome of every record is known."""
    if not outcomes:
        return
    waiting = len(outcomes)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_over() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting and not over.done():
            over.set_result(None)

    for outcome in outcomes:
        outcome.watch_batch(one_over)
    await over
