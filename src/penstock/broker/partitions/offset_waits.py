"""Requests that wait until a partition's log has reached an offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.wire.errors import ErrorCode

Tell = Callable[[ErrorCode | None], None]


class OffsetWaits(deque[tuple[int, Tell]]):
    """A queue of end offsets and callbacks. Offsets are reached in order, so the first entry is due
    first.

    A callback gets None for success, or the error code of the answer.
    """

    __slots__ = ()

    def are_due(self, reached: int) -> bool:
        return bool(self) and self[0][0] <= reached

    def tell_due(self, reached: int, code: ErrorCode | None) -> None:
        while self and self[0][0] <= reached:
            self.popleft()[1](code)
