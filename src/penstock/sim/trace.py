"""What happened in a run, as a hash and as lines to read.

Two runs of one seed must be the same run. Every step of the loop goes into the hash with its time,
its process and how much was queued at that moment, so the first difference shows in the hash
whatever it was; what the world does (bytes that arrive, commits, crashes) goes in with its size.

Lines cost time, so a run keeps the last few hundred; a run that is to be read keeps all of them
and, on request, one for every step: comparing the steps of two runs finds where they part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Final

FLUSH_BYTES: Final = 1 << 16
_LAST_LINES: Final = 400
pack_step: Final = Struct("<dHHI").pack
"""A step, which the loop appends to the buffer: time, process, callbacks and timers that wait."""
_MARK: Final = Struct("<dBHi").pack


class Trace:
    def __init__(
        self, now: Callable[[], float], *, keep: bool = False, steps: bool = False
    ) -> None:
        self._now = now
        self._hash = blake2b(digest_size=16)
        self.buffer = bytearray()
        """What goes into the hash next."""
        self._kinds: dict[str, int] = {}
        self.keep = keep
        self.lines: deque[str] = deque(maxlen=None if keep else _LAST_LINES)
        self.steps: list[tuple[float, int, str]] | None = [] if steps else None
        """With `steps`: the time, the process and the callback of every step."""

    def flush(self) -> None:
        """Put what was noted so far into the hash."""
        self._hash.update(self.buffer)
        self.buffer.clear()

    def mark(self, kind: str, who: int, size: int, detail: str = "") -> None:
        """Something the world did: cheap enough for every arrival of bytes."""
        number = self._kinds.setdefault(kind, len(self._kinds))
        self.buffer += _MARK(self._now(), number, who, size)
        if self.keep:
            self.lines.append(f"{self._now():10.4f} {kind} {detail or who} {size}")

    def tell(self, text: str) -> None:
        """A line that is read and hashed."""
        line = f"{self._now():10.4f} {text}"
        self.buffer += line.encode()
        self.lines.append(line)

    def show(self, text: str) -> None:
        """A line that is only read: what may name things by chance, such as an address."""
        self.lines.append(f"{self._now():10.4f} {text}")

    def hexdigest(self) -> str:
        self.flush()
        return self._hash.hexdigest()
