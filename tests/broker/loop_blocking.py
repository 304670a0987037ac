"""Measures how long one request blocks the event loop.

It measures the CPU time of the loop's thread for each callback, and keeps the longest while a
request is served. It is CPU time because machines that run tests may give a process a tenth of a
core. Work that a broker sends to threads runs on the loop here, and is not counted.

The budget is 20 ms on a machine that does a fixed piece of work in `_REFERENCE_S`. On a slower
machine it grows in proportion to the time that this piece takes here and now. The garbage collector
is off meanwhile, because its time depends on all objects of the process, and most of them belong to
the tests.
"""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio.events import Handle
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from penstock.net.outbox import in_memory
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.messages.base import Request, Response

from . import harness as harness_module
from .harness import BrokerHarness, InTurn

T = TypeVar("T")
R = TypeVar("R", bound=Response)
BUDGET_S = 0.020
_REFERENCE_S = 0.008
_NOISE = 3.0
"""The CPU time of a virtual machine is not exact. It may include what the host does meanwhile."""
_ATTEMPTS = 5
_PAUSE_S = 2.0
_PIECE = 20_000
_DUTIES = ("ControllerRuntime.watch_over",)
"""Regular duties of a broker that look at all its partitions. No request causes them."""


class Occupied(AssertionError):
    """A callback took longer than the budget."""


def piece_of_work_s() -> float:
    """Returns the CPU time of a fixed piece of work, of the kind that handlers do."""
    took = []
    for _ in range(5):
        began = time.thread_time()
        {number: (number, str(number)) for number in range(_PIECE)}
        took.append(time.thread_time() - began)
    return sorted(took)[len(took) // 2]


class Meter:
    """The longest callback of the running event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.what = ""
        self.off_loop_s = 0.0

    def note(self, took_s: float, handle: Handle) -> None:
        if took_s > self.longest_s:
            what = _describe(handle)
            if not any(name in what for name in _DUTIES):
                self.longest_s, self.what = took_s, what[:300]


def _describe(handle: Handle) -> str:
    """Describes the callback and its owner, which is a task for most callbacks."""
    owner = getattr(getattr(handle, "_callback", None), "__self__", None)
    return f"{handle!r} of {owner!r}"


class _CountedInTurn(InTurn):
    """Measures the work that a real broker does on threads, so that it can be subtracted."""

    meter: Meter | None = None

    async def run(self, work: Callable[[], T]) -> T:
        def counted() -> T:
            began = time.thread_time()
            try:
                return work()
            finally:
                if self.meter is not None:
                    self.meter.off_loop_s += time.thread_time() - began

        return await super().run(counted)


@contextmanager
def metered() -> Iterator[Meter]:
    """Measures every callback of event loops while the block runs."""
    meter = Meter()
    run = Handle._run

    def timed(handle: Handle) -> None:
        began, off_loop_s = time.thread_time(), meter.off_loop_s
        try:
            run(handle)
        finally:
            off_loop_s = meter.off_loop_s - off_loop_s
            meter.note(time.thread_time() - began - off_loop_s, handle)

    gc.collect()
    gc.disable()
    Handle._run = timed  # type: ignore[method-assign, assignment]
    _CountedInTurn.meter = meter
    try:
        yield meter
    finally:
        gc.enable()
        Handle._run = run  # type: ignore[method-assign]
        _CountedInTurn.meter = None


@contextmanager
def counted_executor() -> Iterator[None]:
    """Makes stages that are created in the block measure what they would do on threads."""
    held = harness_module.InTurn
    harness_module.InTurn = _CountedInTurn  # type: ignore[misc]
    try:
        yield
    finally:
        harness_module.InTurn = held  # type: ignore[misc]


async def occupation(
    harness: BrokerHarness,
    request: Request,
    version: int,
    response: type[R],
    *,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
    afterwards: Callable[[], Awaitable[None]] | None = None,
) -> tuple[R, Meter]:
    """Returns the response, and the meter with the longest callback until the response came.

    `meanwhile` runs while the request waits, `afterwards` when it is answered. Both are measured.
    """
    frame = memoryview(bytearray(b"".join(encode_request(request, version, 1, "harness"))))[4:]
    session = harness.broker.server.new_session(harness_module.HarnessPeer())
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[object] = loop.create_future()
    with metered() as meter:
        loop.call_soon(lambda: begun.set_result(session.on_frame(frame)))
        answer = await begun
        if meanwhile is not None:
            await meanwhile()
        parts = await answer if isinstance(answer, asyncio.Future) else answer
        await asyncio.sleep(0)
        if afterwards is not None:
            await afterwards()
    assert parts is not None
    data = b"".join(in_memory(parts))[4:]  # type: ignore[arg-type]
    return decode_response(response, memoryview(data), version)[1], meter


def check(meter: Meter, before_s: float) -> None:
    """Raises `Occupied` if the longest callback exceeds the budget.

    `before_s` is `piece_of_work_s` from before: the machine may be slower by now.
    """
    slowness = max(1.0, max(before_s, piece_of_work_s()) / _REFERENCE_S)
    limit_s = BUDGET_S * slowness * _NOISE
    if meter.longest_s > limit_s:
        raise Occupied(
            f"the loop was occupied for {meter.longest_s * 1000:.1f} ms of CPU time; at most "
            f"{limit_s * 1000:.1f} ms are allowed here: {meter.what}"
        )


def at_best(run_case: Callable[[Path], Coroutine[Any, Any, None]], folder: Path) -> None:
    """Runs a scenario, each time in a new folder, until it stays within the budget.

    A request that really takes too long does so every time. A virtual machine also counts time
    during which its host does not run it; that does not happen every time.
    """
    for attempt in range(_ATTEMPTS):
        own = folder / f"attempt-{attempt}"
        own.mkdir()
        try:
            asyncio.run(run_case(own))
        except Occupied:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
