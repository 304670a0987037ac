"""What became of the jobs of a queue, as its workers wrote it down, and what is wrong with that."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Place = tuple[int, int]
"""A partition and an offset."""


class EventFile:
    """The events of one worker, read as they are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def read(self) -> list[list[Any]]:
        """Returns the events since the last call. A line that is not whole yet is left."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


@dataclass
class JobLedger:
    taken: dict[Place, list[float]] = field(default_factory=dict)
    """When each job was delivered."""
    done: dict[Place, float] = field(default_factory=dict)
    """When a worker knew first that the job was done."""
    counts: Counter[str] = field(default_factory=Counter)
    """Events by their kind."""
    failures: list[str] = field(default_factory=list)

    def add(self, events: Iterable[list[Any]]) -> None:
        for kind, *rest in events:
            self.counts[kind] += 1
            if kind == "taken":
                partition, offset, at = rest
                self.taken.setdefault((partition, offset), []).append(at)
            elif kind == "done":
                partition, offset, at = rest
                before = self.done.get((partition, offset), math.inf)
                self.done[partition, offset] = min(before, at)
            elif kind == "fatal":
                self.failures.append(f"a worker failed: {rest[0]}")

    @property
    def redelivered(self) -> int:
        return sum(len(times) - 1 for times in self.taken.values())

    def complaints(self, put: Collection[Place]) -> list[str]:
        """`put` are the jobs whose producer knows that they are stored."""
        found = list(self.failures)
        lost = sorted(set(put) - self.taken.keys())
        if lost:
            found.append(f"{len(lost)} jobs were never delivered to a worker: {lost[:5]}")
        again = sorted(
            place
            for place, at in self.done.items()
            if any(taken > at for taken in self.taken.get(place, ()))
        )
        if again:
            found.append(f"{len(again)} jobs were delivered after they were done: {again[:5]}")
        strange = sorted(self.done.keys() - self.taken.keys())
        if strange:
            found.append(f"{len(strange)} jobs are done that nobody has taken: {strange[:5]}")
        return found
