"""Stops all processes of a test run for moments, as a host does that has other work to do.

A virtual machine does not notice such a moment: a client's timeout of 300 ms has passed when its
processor comes back, although nothing was slow before. Busy loops (`starve.py`) rarely show the
tests that fail then. A frozen cgroup finds them within a few runs.

The processes that a test starts are stopped, too. The process that pauses them is not.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
SHORTEST_S = 0.1
SHARE = 0.2
"""The share of the time that the pauses take."""


def _parent(root: Path) -> Path:
    return root if (root / "cgroup.controllers").exists() else root / "freezer"


def can_freeze(root: Path = ROOT) -> bool:
    """Returns whether this process may make cgroups here."""
    return os.access(_parent(root), os.W_OK)


class Freezer:
    """A cgroup whose processes can be stopped. Needs root."""

    def __init__(self, root: Path = ROOT) -> None:
        self.directory = _parent(root) / f"pauses-{os.getpid()}"
        if (root / "cgroup.controllers").exists():
            self._file, self._words = "cgroup.freeze", {True: "1", False: "0"}
        else:
            self._file, self._words = "freezer.state", {True: "FROZEN", False: "THAWED"}
        self._members = self.directory / "cgroup.procs"
        self.directory.mkdir()

    def around(self, command: Sequence[str]) -> list[str]:
        """Returns a command that runs this one in the cgroup."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._members), *command]

    def stop(self) -> None:
        self._write(is_frozen=True)

    def resume(self) -> None:
        self._write(is_frozen=False)

    def _write(self, *, is_frozen: bool) -> None:
        (self.directory / self._file).write_text(self._words[is_frozen])

    def remove(self) -> None:
        """Lets every process go on, in the parent cgroup."""
        self.resume()
        for process in self._members.read_text().split():
            with suppress(ProcessLookupError):
                (self.directory.parent / "cgroup.procs").write_text(process)
        self.directory.rmdir()


class _Pausing:
    """Stops the processes of a freezer at random moments, until it is told to end."""

    def __init__(self, freezer: Freezer, longest_s: float, seed: int) -> None:
        self._freezer = freezer
        self._longest_s = longest_s
        self._random = random.Random(seed)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._next_s()):
            self._freezer.stop()
            time.sleep(self._random.uniform(SHORTEST_S, self._longest_s))
            self._freezer.resume()

    def end(self) -> None:
        self._ended.set()

    def _next_s(self) -> float:
        """Returns a time until the next pause with which pauses take `SHARE` of the time."""
        pause_s = (SHORTEST_S + self._longest_s) / 2
        return self._random.expovariate(SHARE / (1 - SHARE) / pause_s)


@contextmanager
def pauses(longest_s: float, seed: int) -> Generator[Freezer, None, None]:
    """Yields a freezer, whose processes have pauses while the context lasts."""
    freezer = Freezer()
    try:
        pausing = _Pausing(freezer, longest_s, seed)
        thread = threading.Thread(target=pausing.run)
        thread.start()
        try:
            yield freezer
        finally:
            pausing.end()
            thread.join()
    finally:
        freezer.remove()
