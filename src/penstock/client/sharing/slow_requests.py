"""Calls a function again and again while a request takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SLOW_S: Final = 2.0
"""After this time without an answer, another broker may lead the partitions."""


class _Timer:
    def __init__(self, look: Callable[[], None], first_s: float) -> None:
        self._look = look
        self._set(first_s)

    def _set(self, after_s: float) -> None:
        self._handle = asyncio.get_running_loop().call_later(after_s, self._fire)

    def _fire(self) -> None:
        self._set(SLOW_S)
        self._look()

    def cancel(self) -> None:
        self._handle.cancel()


@contextmanager
def while_slow(look: Callable[[], None], wait_s: float = 0.0) -> Iterator[None]:
    """Calls `look` every two seconds, beginning two seconds after `wait_s`, until the block ends.

    `wait_s` is how long the broker may wait before it answers.
    """
    timer = _Timer(look, wait_s + SLOW_S)
    try:
        yield
    finally:
        timer.cancel()
