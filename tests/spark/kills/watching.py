"""Watches pipelines from outside: how far their checkpoints are, and which processes run them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from penstock.testing.slowness import patient

from .pipelines import EVENTS, WITNESS_FILE

_LOOK_S = 0.25


# -- progress --------------------------------------------------------------------------------------


def committed(storage: Path) -> int:
    """Returns how many records the checkpoints in a storage folder have committed."""
    return sum(_committed(folder) for folder in storage.glob("_checkpoints/**/commits"))


def _committed(commits: Path) -> int:
    try:
        numbers = [int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal()]
        if not numbers:
            return 0
        text = (commits.parent / "offsets" / str(max(numbers))).read_text()
    except OSError:
        return 0  # Spark deletes old files while they are read.
    for line in text.splitlines():
        if line.startswith("{") and EVENTS in (content := json.loads(line)):
            return sum(content[EVENTS].values())
    return 0


@dataclass(frozen=True)
class Stop:
    """A time in which a pipeline committed nothing."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Progress:
    """The advances of one pipeline."""

    position: int = 0
    advanced: float = 0.0
    stops: list[Stop] = field(default_factory=list)

    def note(self, position: int, now: float) -> None:
        if position > self.position:
            if self.position:
                self.stops.append(Stop(self.advanced, now))
            self.position, self.advanced = position, now

    def greatest(self, began: float = 0.0, ended: float = float("inf")) -> float:
        """Returns the longest stop that overlaps a time."""
        return max(
            (each.seconds for each in self.stops if each.ended > began and each.began < ended),
            default=0.0,
        )


# -- owners ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    session: int
    state: str
    """One letter, as in /proc."""
    started: int


def processes() -> dict[int, Process]:
    """Returns the processes of this machine that have not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                pid = int(entry.name)
                found[pid] = Process(
                    pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19])
                )
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def marked_overlaps(text: str) -> list[str]:
    """Returns pairs of drivers that marked the same time, from what witnesses wrote. Each line has
    a process id, when it began, and a time."""
    last: dict[tuple[int, float], float] = {}
    for line in text.splitlines():
        pid, began, at = line.split()
        last[int(pid), float(began)] = float(at)
    spans = sorted((began, ended, pid) for (pid, began), ended in last.items())
    return [
        f"drivers {a[2]} and {b[2]} ran at once for {min(a[1], b[1]) - b[0]:.3f} s"
        for a, b in combinations(spans, 2)
        if b[0] <= a[1]
    ]


class Owners:
    """Which driver sessions have run a pipeline, and whether two of them were alive at once."""

    def __init__(self, storage: Path) -> None:
        self._file = storage / WITNESS_FILE
        self._read = 0
        self.sessions: list[int] = []
        """The drivers that have marked, in their order."""
        self.overlaps: list[str] = []
        self._told: set[tuple[int, int]] = set()

    def look(self, running: Mapping[int, set[str]]) -> None:
        """`running` has the states of the processes of each session."""
        self._read_marks()
        alive = [
            each for each in self.sessions if any(state != "T" for state in running.get(each, ()))
        ]
        for pair in combinations(alive, 2):
            if pair not in self._told:
                self._told.add(pair)
                self.overlaps.append(f"processes of drivers {pair[0]} and {pair[1]} ran at once")

    @property
    def driver(self) -> int:
        """The process that marked last; 0 if there is none."""
        return self.sessions[-1] if self.sessions else 0

    def all_overlaps(self) -> list[str]:
        text = self._file.read_text() if self._file.exists() else ""
        return [*self.overlaps, *marked_overlaps(text)]

    def _read_marks(self) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            pid = int(line.split()[0])
            if self.driver != pid:
                if pid in self.sessions:
                    self.sessions.remove(pid)
                self.sessions.append(pid)


class Watch:
    """A thread that looks at all pipelines four times a second."""

    def __init__(self, storages: Mapping[str, Path]) -> None:
        self._storages = dict(storages)
        self.progress = {name: Progress() for name in storages}
        self.owners = {name: Owners(storage) for name, storage in storages.items()}
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(patient(60))

    def have_reached(self, position: int, names: Iterable[str] | None = None) -> bool:
        return not self.behind(position, names)

    def behind(self, position: int, names: Iterable[str] | None = None) -> list[str]:
        """Returns the pipelines that have committed less than this."""
        chosen = self.progress if names is None else names
        return [name for name in chosen if self.progress[name].position < position]

    def _run(self) -> None:
        try:
            while not self._stop.wait(_LOOK_S):
                self.look()
        except BaseException as error:
            self.error = error
            raise

    def look(self) -> None:
        running: dict[int, set[str]] = {}
        for process in processes().values():
            running.setdefault(process.session, set()).add(process.state)
        for name, storage in self._storages.items():
            self.progress[name].note(committed(storage), time.monotonic())
            self.owners[name].look(running)
