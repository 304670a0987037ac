"""Brokers and workers of a queue are killed with SIGKILL again and again, and no job may be lost.

Three brokers serve one topic that a share group reads. Workers (`queue_worker`) are processes of
our `Queue`. A feeder puts jobs at a steady rate. Victims are chosen by role when they are killed:
the leader of a partition of the queue, a share coordinator, a group coordinator, any broker, or a
worker. Victims start again.

At the end every job that was put must have been delivered to a worker at least once, and be
settled: the depth of the queue is 0, which counts jobs that workers hold, too. No job may have been
delivered after a worker knew that it was done.

For a long run: `make chaos-queues KILLS=100 SEED=1`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import aio
from penstock.errors import ClientError
from penstock.metadata.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from penstock.testing.slowness import patient

from .broker_processes import BrokerProcesses, Node, NotInTime, pause, wait_for
from .queue_ledger import EventFile, JobLedger, Place

TOPIC = "jobs"
PARTITIONS = 3
WORKERS = 3
PER_SECOND = 60
AT_A_TIME = 20
PROGRESS_S = 120.0
SETTLE_S = 240.0
STOP_S = 60.0
SYNC_S = 120.0
SESSION_S = 4.0
AWAY_SESSIONS = 1.5
"""How many sessions of a broker one is away: others take over."""
ROLES = (TOPIC, SHARE_STATE_TOPIC, OFFSETS_TOPIC, "any")
PATH = [
    str(Path(__file__).resolve().parents[1]),
    *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
]


def settings(session_s: float) -> dict[str, object]:
    return {
        "broker.session.timeout.ms": int(1_000 * session_s),
        "group.share.session.timeout.ms": int(1_000 * min(45.0, 1.5 * session_s)),
        "group.share.heartbeat.interval.ms": 1_000,
        "group.share.record.lock.duration.ms": int(1_000 * min(60.0, 2.5 * session_s)),
        # A worker that is killed has taken deliveries with it. No job is to be given up for that.
        "group.share.delivery.count.limit": 25,
        "share.coordinator.state.topic.num.partitions": 3,
    }


@dataclass
class Report:
    kills: Counter[str] = field(default_factory=Counter)
    put: int = 0
    puts_failed: int = 0
    delivered: int = 0
    done: int = 0
    redelivered: int = 0
    locks_lost: int = 0
    gap_max_s: float = 0.0
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        kills = sum(self.kills.values())
        return {**vars(self), "kills": kills, "killed": dict(sorted(self.kills.items()))}


class Worker:
    """One worker: its current or last process. All its processes write to one file."""

    def __init__(self, name: str, directory: Path, *arguments: str) -> None:
        """`arguments` are those of the program: the brokers, the topic, and how it works."""
        self.name = name
        self.events = EventFile(directory / f"{name}.events")
        self.errors = directory / f"{name}.errors"
        bootstrap, topic, *how = arguments
        program = [sys.executable, "-m", "chaos.queue_worker"]
        self._command = [*program, bootstrap, topic, str(self.events.path), *how]
        self._process: subprocess.Popen[bytes] | None = None
        self._begun: set[int] = set()

    def read(self) -> list[list[Any]]:
        """Returns the events since the last call."""
        events = self.events.read()
        self._begun |= {event[1] for event in events if event[0] == "began"}
        return events

    def launch(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATH)}
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )

    @property
    def has_begun(self) -> bool:
        """Whether its current process takes jobs. Before that, SIGTERM would end it at once."""
        return self._process is not None and self._process.pid in self._begun

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap()

    def freeze(self) -> None:
        """Returns when all threads of the process are stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Sends SIGTERM, and returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(patient(STOP_S))
        except subprocess.TimeoutExpired:
            raise NotInTime(f"{self.name} does not end") from None
        finally:
            if self._process.stdin is not None:
                self._process.stdin.close()

    def said(self) -> str:
        return self.errors.read_text(errors="replace")[-2_000:] if self.errors.exists() else ""


class Feeder:
    """Puts jobs from its own thread until it is stopped."""

    def __init__(self, bootstrap: str, per_second: int) -> None:
        self.put: set[Place] = set()
        self.failed = 0
        """Puts that raised. Whether these jobs are stored is unknown."""
        self._bootstrap = bootstrap
        self._pause_s = 1 / per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="feeder")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    async def _run(self) -> None:
        async with aio.Queue(self._bootstrap, TOPIC) as queue, asyncio.TaskGroup() as tasks:
            room = asyncio.Semaphore(AT_A_TIME)
            number = 0
            while not self._stopping.is_set():
                await room.acquire()
                tasks.create_task(self._put(queue, number, room))
                number += 1
                await asyncio.sleep(self._pause_s)

    async def _put(self, queue: aio.Queue[bytes], number: int, room: asyncio.Semaphore) -> None:
        try:
            stored = await queue.put(b"%d" % number, key=b"%d" % number)
            self.put.add((stored.partition, stored.offset))
        except ClientError:
            self.failed += 1
        finally:
            room.release()


class Play:
    """One run."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        workers: int,
        per_second: int,
        say: Callable[[str], None],
    ) -> None:
        self.report = Report()
        self._chance = random.Random(seed)
        self._say = say
        self._session_s = patient(SESSION_S)
        self._fleet = BrokerProcesses(directory, 3, settings=settings(self._session_s))
        bootstrap = self._fleet.bootstrap
        self._workers = [
            Worker(f"worker-{number}", directory, bootstrap, TOPIC) for number in range(workers)
        ]
        self._feeder = Feeder(bootstrap, per_second)
        self._ledger = JobLedger()

    def run(self, kills: int) -> Report:
        began = time.monotonic()
        try:
            self._begin()
            for number in range(1, kills + 1):
                self._progress()
                pause(self._chance.uniform(0.05, 1.0))
                if number % 3 == 2:
                    self._kill_worker()
                else:
                    self._kill_broker()
                self._say(
                    f"{time.monotonic() - began:.0f} s: {number} kills, "
                    f"{len(self._ledger.done)} jobs done, the longest gap was "
                    f"{self.report.gap_max_s} s"
                )
            self._end()
        except NotInTime as late:
            self.report.complaints.append(str(late))
        finally:
            self._clean_up()
        self._judge()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _begin(self) -> None:
        self._fleet.start()
        asyncio.run(self._create_topic())
        for worker in self._workers:
            worker.launch()
        self._feeder.start()

    async def _create_topic(self) -> None:
        async with aio.Admin(self._fleet.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)

    # -- kills -------------------------------------------------------------------------------------

    def _kill_worker(self) -> None:
        worker = self._chance.choice(self._workers)
        worker.kill()
        self.report.kills["worker"] += 1
        worker.launch()

    def _kill_broker(self) -> None:
        role = self._chance.choice(ROLES)
        node = self._victim(role)
        node.kill()
        self.report.kills["broker" if role == "any" else f"leader of {role}"] += 1
        if self._chance.random() < 0.5:
            pause(self._chance.uniform(0.0, AWAY_SESSIONS * self._session_s))
        node.launch()
        node.wait_ready()
        if self._chance.random() < 0.5:
            self._fleet.wait_in_sync(TOPIC, SYNC_S)

    def _victim(self, role: str) -> Node:
        """Returns the broker that leads a partition of the topic now."""
        nodes = self._fleet.nodes
        chosen = self._chance.randrange(len(nodes))
        if role != "any":
            index = self._chance.randrange(PARTITIONS)

            def is_led() -> bool:
                found = self._fleet.partitions(role)
                return index in found and found[index].leader_id >= 0

            wait_for(f"{role}-{index} has a leader", is_led, PROGRESS_S)
            chosen = self._fleet.partitions(role)[index].leader_id
        return nodes[chosen]

    def _progress(self) -> None:
        """Waits until workers have done more jobs, and restarts none: they must go on alone."""
        self._read()
        before = len(self._ledger.done)

        def has_grown() -> bool:
            self._read()
            return len(self._ledger.done) > before

        took_s = wait_for(f"more than {before} jobs are done", has_grown, PROGRESS_S)
        self.report.gap_max_s = round(max(self.report.gap_max_s, took_s), 1)

    def _read(self) -> None:
        for worker in self._workers:
            self._ledger.add(worker.read())
            if not worker.is_running:
                raise NotInTime(f"{worker.name} has ended by itself: {worker.said()}")

    def _all_have_begun(self) -> bool:
        self._read()
        return all(worker.has_begun for worker in self._workers)

    # -- the end -----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._progress()
        self._feeder.stop()
        asyncio.run(self._until_empty())
        wait_for("every worker takes jobs", self._all_have_begun, PROGRESS_S)
        for worker in self._workers:
            code = worker.stop()
            if code:
                self.report.complaints.append(f"{worker.name} ended with {code}: {worker.said()}")

    async def _until_empty(self) -> None:
        depth = -1
        async with aio.Queue(self._fleet.bootstrap, TOPIC) as queue:
            try:
                async with asyncio.timeout(patient(SETTLE_S)):
                    while depth:
                        with contextlib.suppress(ClientError):
                            depth = (await queue.stats()).depth
                        await asyncio.sleep(0.1)
            except TimeoutError:
                raise NotInTime(f"{depth} jobs are not settled after {SETTLE_S:g} s") from None

    def _clean_up(self) -> None:
        if self._feeder._thread.is_alive():
            self._feeder.stop()
        for worker in self._workers:
            worker.kill()
        self._fleet.close()

    def _judge(self) -> None:
        report, ledger = self.report, self._ledger
        for worker in self._workers:
            ledger.add(worker.read())
        report.complaints += ledger.complaints(self._feeder.put)
        report.complaints += self._fleet.complaints()
        report.put, report.puts_failed = len(self._feeder.put), self._feeder.failed
        report.delivered, report.done = len(ledger.taken), len(ledger.done)
        report.redelivered, report.locks_lost = ledger.redelivered, ledger.counts["lost"]


def run(
    directory: Path,
    kills: int,
    seed: int,
    workers: int = WORKERS,
    per_second: int = PER_SECOND,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Kills brokers and workers under load, and checks the result."""
    return Play(directory, seed, workers, per_second, say).run(kills)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="for who is killed, and when")
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")
    parser.add_argument("--directory", type=Path, help="keep the files of the run here")
    given = parser.parse_args()
    # Ending this process ends its brokers and workers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def say(text: str) -> None:
        if not given.json:
            print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="penstock-queues-") as directory:
        where = given.directory or Path(directory)
        report = run(where, given.kills, given.seed, say=say)
    print(json.dumps(report.as_json()))
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
