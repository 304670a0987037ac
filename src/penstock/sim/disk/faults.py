"""Decides when a simulated disk fails: at random in seeded runs, or on a cue in a single test.

The disk asks its `FaultPlan` before each operation. The plan returns, and nothing happens, or it
raises the `OSError` that a real disk would raise. The disk decides what an error does to the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from errno import EIO

from penstock.sim.disk.power_loss import Draws

OPERATIONS = (
    "open",
    "create",
    "pread",
    "pwrite",
    "truncate",
    "fsync",
    "close",
    "stat",
    "listdir",
    "mkdir",
    "rename",
    "unlink",
    "rmdir",
    "sync_directory",
    "free_bytes",
    "total_bytes",
)


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """The chance of each fault, per call of the operation that it affects."""

    fsync_eio: float = 0.0
    sync_directory_eio: float = 0.0
    read_eio: float = 0.0
    write_eio: float = 0.0
    short_write: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            chance = getattr(self, field.name)
            if not 0.0 <= chance <= 1.0:
                raise ValueError(f"{field.name} is a probability in [0, 1], got {chance}")


@dataclass(slots=True)
class _Cue:
    """A fault that waits for its call: an errno for a failure, else the maximum size of a
    short write."""

    operation: str
    path_contains: str
    skip: int
    times: int
    code: int = 0
    size: int = 0


class FaultPlan:
    """Decides which calls fail. `active` is False when none can: the hot path checks only that."""

    def __init__(self, faults: DiskFaults, draws: Draws, counters: dict[str, int]) -> None:
        self._draws = draws
        self._counters = counters
        self._cues: list[_Cue] = []
        self._observer: Callable[[str, str], None] | None = None
        self.set_faults(faults)

    def set_faults(self, faults: DiskFaults) -> None:
        self._short_write = faults.short_write
        chances = {
            "fsync": faults.fsync_eio,
            "sync_directory": faults.sync_directory_eio,
            "pread": faults.read_eio,
            "pwrite": faults.write_eio,
        }
        self._chances = {operation: chance for operation, chance in chances.items() if chance}
        self._refresh()

    def observe(self, observer: Callable[[str, str], None] | None) -> None:
        self._observer = observer
        self._refresh()

    def fail_next(
        self, operation: str, code: int, *, path_contains: str, skip: int, times: int
    ) -> None:
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}; choose one of {', '.join(OPERATIONS)}")
        self._cues.append(_Cue(operation, path_contains, skip, times, code=code))
        self._refresh()

    def shorten_next(self, size: int, *, path_contains: str, skip: int, times: int) -> None:
        if size < 1:
            raise ValueError("a short write takes at least 1 byte; to take none, use fail_next")
        self._cues.append(_Cue("pwrite", path_contains, skip, times, size=size))
        self._refresh()

    def forget_cues(self) -> None:
        self._cues.clear()
        self._refresh()

    def check(self, operation: str, path: str) -> None:
        """Raises an error if this call must fail."""
        if self._observer is not None:
            self._observer(operation, path)
        code = self._due(operation, path, failing=True)
        if code == 0 and self._draws_true(self._chances.get(operation, 0.0)):
            code = EIO
        if code:
            self._counters["fault_" + operation] += 1
            message = f"{os.strerror(code)} ({operation} fault injected by the simulated disk)"
            raise OSError(code, message, path)

    def accepted_bytes(self, path: str, size: int) -> int:
        """Returns how many bytes of a write of this size the disk accepts."""
        accepted = self._due("pwrite", path, failing=False) or size
        if size > 1 and self._draws_true(self._short_write):
            accepted = min(accepted, 1 + self._draws.randrange(size - 1))
        if accepted < size:
            self._counters["fault_short_write"] += 1
        return min(accepted, size)

    def _draws_true(self, chance: float) -> bool:
        return chance > 0.0 and self._draws.random() < chance

    def _due(self, operation: str, path: str, *, failing: bool) -> int:
        """Returns the errno or size of the first cue for this call, or 0."""
        for index, cue in enumerate(self._cues):
            matches = cue.operation == operation and cue.path_contains in path
            if not matches or (cue.code != 0) != failing:
                continue
            if cue.skip > 0:
                cue.skip -= 1
                continue
            cue.times -= 1
            if cue.times == 0:
                del self._cues[index]
                self._refresh()
            return cue.code or cue.size
        return 0

    def _refresh(self) -> None:
        self.active = bool(
            self._chances or self._short_write or self._cues or self._observer is not None
        )
