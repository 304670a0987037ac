"""Measures how long a coroutine keeps the event loop busy."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def timed(
    work: Coroutine[Any, Any, T],
    now: Callable[[], float],
    spends: Sequence[Callable[[float], None]],
) -> Generator[Any, Any, T]:
    """Runs a coroutine step by step, and passes the seconds of each step to all `spends`. A step
    ends where the coroutine waits for something."""
    error: BaseException | None = None
    sent: Any = None
    try:
        while True:
            began = now()
            try:
                waited_for = work.send(sent) if error is None else work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                seconds = now() - began
                for spend in spends:
                    spend(seconds)
            error = sent = None
            try:
                sent = yield waited_for
            except GeneratorExit:
                raise
            except BaseException as thrown:  # noqa: BLE001 - passed on to the coroutine
                error = thrown
    finally:
        work.close()
