"""Kills and freezes processes at random, one after the other. A seed decides what and when.

Each pass goes through all kinds in a new order. The next strike waits until the cluster has
recovered from the last one: brokers are in sync, all workers report, all pipelines work, and each
has committed what was acknowledged after the killed process was back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from chaos.broker_processes import NotInTime, pause, wait_for
from penstock.testing.slowness import patient

from .cluster import Cluster
from .load import Load
from .pipelines import COPIES, EVENTS, SCRIPTED
from .watching import Watch, command_line, processes

KINDS = (
    "worker killed",
    "worker frozen",
    "driver killed",
    "driver frozen",
    "executor killed",
    "executor frozen",
    "broker killed",
    "broker frozen",
)
RECOVERY_S = 300.0
LEASE_S = 18.0
CALM_S = (1.0, 6.0)
"""How long the cluster is left alone after it has recovered."""


@dataclass
class Strike:
    kind: str
    target: str
    at: float
    """On the monotonic clock."""
    at_ms: int
    stopped: list[str] = field(default_factory=list)
    """The pipelines whose driver cannot have survived."""
    away_s: float = 0.0
    """How long it was frozen, or how long until it was started again."""
    recovered: float = 0.0
    recovered_ms: int = 0


class Killer:
    def __init__(
        self, cluster: Cluster, watch: Watch, load: Load, random: Random, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._watch = watch
        self._load = load
        self._random = random
        self._say = say
        self.strikes: list[Strike] = []
        self.complaints: list[str] = []

    def kinds(self) -> Iterator[str]:
        """Yields kinds for ever: all that are possible, in a new order in each pass."""
        possible = [kind for kind in KINDS if self._cluster.spark or "executor" not in kind]
        while True:
            yield from self._random.sample(possible, len(possible))

    def strike(self, kind: str) -> Strike:
        """Strikes once, brings back what was killed, and waits until all have recovered."""
        victim, _, how = kind.partition(" ")
        work = {
            "worker": self._worker,
            "driver": self._driver,
            "executor": self._executor,
            "broker": self._broker,
        }[victim]
        done = Strike(kind, "", time.monotonic(), round(time.time() * 1000))
        self.strikes.append(done)
        work(done, frozen=how == "frozen")
        self._recover(done)
        return done

    # -- the kinds ------------------------------------------------------------------------------

    def _worker(self, done: Strike, *, frozen: bool) -> None:
        worker = self._random.choice(self._cluster.workers)
        done.target = worker.name
        assert self._cluster.deployments is not None
        owned = self._cluster.deployments.run_by(worker.id)
        if frozen:
            done.away_s = self._random.uniform(3, 30)
            if done.away_s > LEASE_S + 1:
                done.stopped = owned
            self._freeze([worker.pid], done.away_s)
            return
        done.stopped = owned
        done.away_s = self._random.uniform(2, 25)
        worker.kill()
        pause(done.away_s)
        worker.start()
        worker.wait_ready()

    def _driver(self, done: Strike, *, frozen: bool) -> None:
        running = processes()
        drivers = {name: owners.driver for name, owners in self._watch.owners.items()}
        name = self._random.choice([name for name, pid in drivers.items() if pid in running])
        session = [each for each in running.values() if each.session == drivers[name]]
        if frozen:
            done.target = name
            done.away_s = self._random.uniform(3, 12)
            self._freeze([each.pid for each in session], done.away_s)
            return
        done.stopped = [name]
        java = [each.pid for each in session if "java" in command_line(each.pid).split(" ")[0]]
        part = self._random.choice(["Python", "JVM", "all processes"])
        done.target = f"{name} ({part})"
        if part == "all processes":
            _send([each.pid for each in session], signal.SIGKILL)
        elif part == "JVM" and java:
            _send(java, signal.SIGKILL)
        else:
            _send([drivers[name]], signal.SIGKILL)

    def _executor(self, done: Strike, *, frozen: bool) -> None:
        wait_for("an executor runs", lambda: bool(self._cluster.executors()), patient(RECOVERY_S))
        pid = self._random.choice(self._cluster.executors()).pid
        done.target = f"process {pid}"
        if frozen:
            done.away_s = self._random.uniform(3, 15)
            self._freeze([pid], done.away_s)
        else:
            _send([pid], signal.SIGKILL)

    def _broker(self, done: Strike, *, frozen: bool) -> None:
        node = self._random.choice(list(self._cluster.brokers.nodes.values()))
        done.target = f"broker {node.broker_id}"
        if frozen:
            done.away_s = self._random.uniform(3, 15)
            node.freeze()
            pause(done.away_s)
            node.thaw()
            return
        done.away_s = self._random.uniform(1, 15)
        node.kill()
        pause(done.away_s)
        self._cluster.brokers.restart(node.broker_id)

    def _freeze(self, pids: list[int], seconds: float) -> None:
        began = processes()
        _send(pids, signal.SIGSTOP)
        pause(seconds)
        now = processes()
        # A process that was killed meanwhile may have left its number to another one.
        same = [pid for pid in pids if pid in now and now[pid].started == began[pid].started]
        _send(same, signal.SIGCONT)

    # -- recovery -------------------------------------------------------------------------------

    def _recover(self, done: Strike) -> None:
        position = len(self._load.acknowledged)
        deployments = self._cluster.deployments
        assert deployments is not None
        left: list[str] = []

        def has_recovered() -> bool:
            behind = self._watch.behind(position)
            left[:] = [f"{name} is behind" for name in behind]
            left.extend(deployments.not_working(len(self._cluster.workers)))
            return not left

        try:
            for topic in (EVENTS, COPIES, SCRIPTED):
                self._cluster.brokers.wait_in_sync(topic, patient(RECOVERY_S))
            wait_for("all pipelines work", has_recovered, patient(RECOVERY_S), 0.5)
        except NotInTime as late:
            self.complaints.append(f"after {done.kind} {done.target}: {late}: {left}")
            self._say(self.complaints[-1])
        done.recovered = time.monotonic()
        done.recovered_ms = round(time.time() * 1000)
        pause(self._random.uniform(*CALM_S))


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
