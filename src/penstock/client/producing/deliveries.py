"""A record that was sent, as something to await, from a loop or from a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from penstock.client.errors import ClientError, RequestTimedOut
from penstock.client.model import RecordMetadata
from penstock.client.producing.tickets import DeliveryCallback, Ticket


class Delivery:
    """`await` it for the record's metadata, or for the error that kept it from being written.

    Nobody needs to: a delivery that is dropped costs nothing more. Everything but awaiting may be
    done from any thread.
    """

    __slots__ = ("_index", "_ticket", "_timestamp")

    def __init__(self, ticket: Ticket, index: int, timestamp: int) -> None:
        self._ticket = ticket
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        return self._ticket.leaf(self._index)[0].settled

    def outcome(self) -> RecordMetadata:
        """The metadata, or raises the error; only of a delivery that is done."""
        ticket, index = self._ticket.leaf(self._index)
        if not ticket.settled:
            raise RuntimeError("the record is still on its way: await the delivery first")
        if ticket.error is not None:
            raise ticket.error
        return ticket.metadata(index, self._timestamp)

    def error(self) -> ClientError | None:
        """What went wrong, if something did; only of a delivery that is done."""
        ticket, _ = self._ticket.leaf(self._index)
        if not ticket.settled:
            raise RuntimeError("the record is still on its way: await the delivery first")
        return ticket.error

    def add_callback(self, callback: DeliveryCallback) -> None:
        """Call with the metadata or the error once it is known: on the event loop, or at once."""
        self._ticket.watch_record(self._index, self._timestamp, callback)

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Block until the fate is known: the metadata, or raises the error.

        For threads without an event loop; on a loop, await the delivery instead."""
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
        return f"<Delivery to {self._ticket.place}: {state}>"


Watch = Callable[[Callable[[], None]], None]
"""Arranges for a function to be called when something is over."""


def waiter(watch: Watch) -> asyncio.Future[None]:
    """A future of the running loop that is done when it is over, whichever thread says so."""
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
    """Block this thread until it is over, or `RequestTimedOut`."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("this thread runs an event loop: await the delivery instead")
    over = threading.Event()
    watch(over.set)
    if not over.wait(timeout_s):
        raise RequestTimedOut(f"not delivered within {timeout_s:g} s; it is still on its way")


async def all_over(tickets: Sequence[Ticket]) -> None:
    """Wait until the fate of every record is known."""
    if not tickets:
        return
    waiting = len(tickets)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_over() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting and not over.done():
            over.set_result(None)

    for ticket in tickets:
        ticket.watch_batch(one_over)
    await over
