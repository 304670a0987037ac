"""Records a run as a hash and as readable lines.

Two runs of one seed must be the same run. Every step of the loop goes into the hash with its time,
its process and the lengths of the queues, so that any difference shows in the hash. Events of the
world (arriving bytes, commits, crashes) go in with their size.

Lines cost time, so a run keeps only the last few hundred. With `keep` it keeps all of them, and
with `steps` the callback of every step: comparing the steps of two runs shows where they diverge.
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
"""Packs a step, which the loop appends to the buffer: time, process, queued callbacks, timers."""
_MARK: Final = Struct("<dBHi").pack


class Trace:
    def __init__(
        self, now: Callable[[], float], *, keep: bool = False, steps: bool = False
    ) -> None:
        self._now = now
        self._hash = blake2b(digest_size=16)
        self.buffer = bytearray()
        """Bytes that go into the hash next."""
        self._kinds: dict[str, int] = {}
        self.keep = keep
        self.lines: deque[str] = deque(maxlen=None if keep else _LAST_LINES)
        self.steps: list[tuple[float, int, str]] | None = [] if steps else None
        """With `steps`: the time, the process and the callback of every step."""

    def flush(self) -> None:
        """Adds the buffered bytes to the hash."""
        self._hash.update(self.buffer)
        self.buffer.clear()

    def mark(self, kind: str, who: int, size: int, detail: str = "") -> None:
        """Notes an event of the world. Cheap enough for every arrival of bytes."""
        number = self._kinds.setdefault(kind, len(self._kinds))
        self.buffer += _MARK(self._now(), number, who, size)
        if self.keep:
            self.lines.append(f"{self._now():10.4f} {kind} {detail or who} {size}")

    def tell(self, text: str) -> None:
        """Adds a line, and includes it in the hash."""
        line = f"{self._now():10.4f} {text}"
        self.buffer += line.encode()
        self.lines.append(line)

    def show(self, text: str) -> None:
        """Adds a line that is not hashed, because it may contain something accidental, such as
        an address."""
        self.lines.append(f"{self._now():10.4f} {text}")

    def hexdigest(self) -> str:
        self.flush()
        return self._hash.hexdigest()
