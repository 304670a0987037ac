"""How long does it take until the jobs of a worker that died are delivered to another worker?

A worker (`queue_worker`, a process) takes jobs and settles none, while its client extends their
locks. A second worker waits for more. Then the first one dies:

- killed: by SIGKILL. Its connection ends, and the broker need not wait for the locks.
- frozen: by SIGSTOP, as on a machine that hangs. Its connection stays, and only the end of the
  locks tells the broker. Afterwards it goes on, and must find that its locks are lost.

The figures are the seconds from the death until the second worker had each job. All jobs must come
again, and a worker that goes on while another one has its jobs must not get them done.

For a measurement: `make chaos-redelivery`
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from penstock import Admin, Queue

from .broker_processes import BrokerProcesses, NotInTime, wait_for
from .queue_ledger import JobLedger, Place
from .queues import Worker

WAYS = ("killed", "frozen")
LOCK_S = 30.0
"""Kafka's default."""
ROUNDS = 5
JOBS = 20
STEP_S = 120.0


@dataclass
class Report:
    lock_s: float
    waits: dict[str, list[float]] = field(default_factory=dict)
    """The seconds until each job was delivered again, by the way of dying."""
    complaints: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {
            "lock_s": self.lock_s,
            **{way: figures(waits, self.lock_s) for way, waits in self.waits.items() if waits},
            "complaints": self.complaints,
        }


def figures(waits: list[float], lock_s: float) -> dict[str, object]:
    return {
        "jobs": len(waits),
        "median_s": round(median(waits), 2),
        "max_s": round(max(waits), 2),
        "within_lock": max(waits) <= lock_s,
    }


class Round:
    """One death of a worker with as many jobs as it may hold."""

    def __init__(self, bootstrap: str, directory: Path, topic: str, lock_s: float) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._step_s = STEP_S + min(lock_s, 60.0)
        self._holder = Worker(f"{topic}-holder", directory, bootstrap, topic, "hold", str(JOBS))
        # It has a job of its own, too, which shows that it gets jobs.
        self._other = Worker(f"{topic}-other", directory, bootstrap, topic, "hold", str(JOBS + 1))
        self._dead: set[Worker] = set()
        self._ledger = JobLedger()
        self._held: dict[Place, float] = {}
        self._taken: dict[Place, list[float]] = {}
        self.complaints: list[str] = []

    def run(self, way: str) -> list[float]:
        """Returns the seconds until each job was delivered to the other worker."""
        try:
            self._take_and_hold()
            self._dead.add(self._holder)
            died_at = time.monotonic()
            if way == "killed":
                self._holder.kill()
            else:
                self._holder.freeze()
            wait_for("all jobs are delivered again", self._all_came_again, self._step_s)
            if way == "frozen":
                self._go_on()
            self._dead.add(self._other)
            if self._other.stop():
                self.complaints.append(f"the other worker failed: {self._other.said()}")
            self._read()
        finally:
            self._holder.kill()
            self._other.kill()
        self.complaints += self._ledger.complaints(self._held)
        undone = sorted(self._held.keys() - self._ledger.done.keys())
        if undone:
            self.complaints.append(f"the other worker did not get the jobs {undone[:5]} done")
        return [min(self._taken[place]) - died_at for place in sorted(self._held)]

    def _take_and_hold(self) -> None:
        """Returns when the holder has all jobs but one, which the other worker has."""
        with Admin(self._bootstrap) as admin:
            admin.create_topic(self._topic, partitions=1)
        self._holder.launch()
        with Queue(self._bootstrap, self._topic) as queue:
            queue.put_all([b"%d" % number for number in range(JOBS)])
            wait_for("one worker holds all jobs", self._holds_all, self._step_s)
            self._other.launch()
            queue.put(b"for the other")
            wait_for("the other worker takes jobs", self._other_takes, self._step_s)

    def _holds_all(self) -> bool:
        self._read()
        return len(self._held) == JOBS

    def _other_takes(self) -> bool:
        self._read()
        return bool(self._taken)

    def _all_came_again(self) -> bool:
        self._read()
        return self._held.keys() <= self._taken.keys()

    def _go_on(self) -> None:
        """Lets the frozen worker finish its jobs: it must find that another one has them."""
        self._holder.thaw()
        if self._holder.stop():
            self.complaints.append(f"the frozen worker failed: {self._holder.said()}")
        events = self._holder.read()
        self._add(events, self._held)
        lost = {(event[1], event[2]) for event in events if event[0] == "lost"}
        if lost != self._held.keys():
            missed = sorted(self._held.keys() - lost)
            self.complaints.append(f"the frozen worker did not lose its jobs {missed[:5]}")

    def _read(self) -> None:
        """Reads what the workers have written. Raises `NotInTime` if one has ended by itself."""
        self._add(self._holder.read(), self._held)
        events = self._other.read()
        self._ledger.add(events)
        for kind, *rest in events:
            if kind == "taken":
                self._taken.setdefault((rest[0], rest[1]), []).append(rest[2])

        for worker in (self._holder, self._other):
            if worker.has_begun and not worker.is_running and worker not in self._dead:
                raise NotInTime(f"{worker.name} has ended by itself: {worker.said()}")

    def _add(self, events: list[list[Any]], held: dict[Place, float]) -> None:
        self._ledger.add(events)
        held.update(((rest[0], rest[1]), rest[2]) for kind, *rest in events if kind == "taken")


def settings(lock_s: float) -> dict[str, object]:
    return {
        "group.share.record.lock.duration.ms": int(1_000 * lock_s),
        "offsets.topic.replication.factor": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
    }


def run(
    directory: Path,
    lock_s: float,
    rounds: int = 1,
    ways: tuple[str, ...] = WAYS,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Lets workers die, and returns how long their jobs took to the next worker."""
    report = Report(lock_s)
    fleet = BrokerProcesses(directory, 1, settings=settings(lock_s))
    try:
        bootstrap = fleet.start()
        for number in range(rounds):
            for way in ways:
                played = Round(bootstrap, directory, f"{way}-{number}", lock_s)
                waits = played.run(way)
                report.waits.setdefault(way, []).extend(waits)
                report.complaints += played.complaints
                say(f"{way}: the last job came after {max(waits):.2f} s")
    except NotInTime as late:
        report.complaints.append(str(late))
    finally:
        fleet.close()
    report.complaints += fleet.complaints()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="deaths of each kind")
    parser.add_argument("--lock", type=float, default=LOCK_S, help="how long a lock lasts, in s")
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")
    given = parser.parse_args()
    # Ending this process ends its brokers and workers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def say(text: str) -> None:
        if not given.json:
            print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="penstock-redelivery-") as directory:
        report = run(Path(directory), given.lock, given.rounds, say=say)
    print(json.dumps(report.as_json()))
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
