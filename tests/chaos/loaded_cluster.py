"""A cluster under load and its faults: each fault is a function that takes a `LoadedCluster`.

A fault chooses its victim by role at the moment it happens (the leader of partition 0, one of its
followers, the controller), so repeated bounces follow a role from broker to broker. Writes must
continue while the victim is down or, if it is restarted at once, soon after. The time in which a
partition led by the victim acknowledged nothing is recorded as a write gap.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .broker_processes import BrokerProcesses, Node, pause, wait_for
from .ledger import Verdict
from .workload import PARTITIONS, TOPIC, Workload, create_topic

PROGRESS_S = 90.0
SYNC_S = 120.0
AWAY_S = 1.0
FREEZE_S = 13.0
"""Longer than a session: the cluster considers the frozen broker dead."""
ROLES = ("leader", "follower", "controller")


@dataclass
class Tally:
    """What was done to the cluster, and how long writers had to wait."""

    kills: int = 0
    clean_stops: int = 0
    freezes: int = 0
    hard_gaps_s: list[float] = field(default_factory=list)
    clean_gaps_s: list[float] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        self.kills += other.kills
        self.clean_stops += other.clean_stops
        self.freezes += other.freezes
        self.hard_gaps_s += other.hard_gaps_s
        self.clean_gaps_s += other.clean_gaps_s
        return self


@dataclass
class LoadedCluster:
    fleet: BrokerProcesses
    workload: Workload
    tally: Tally = field(default_factory=Tally)

    def victim(self, role: str) -> Node:
        """Returns the broker that has the role now."""

        def is_led() -> bool:
            return self.fleet.partitions(TOPIC)[0].leader_id >= 0 and self.fleet.controller() >= 0

        wait_for("a leader and a controller", is_led, PROGRESS_S)
        partition = self.fleet.partitions(TOPIC)[0]
        match role:
            case "leader":
                chosen = partition.leader_id
            case "follower":
                others = [b for b in partition.replica_nodes if b != partition.leader_id]
                in_sync = [b for b in others if b in partition.isr_nodes]
                chosen = (in_sync or others)[-1]
            case _:
                chosen = self.fleet.controller()
        return self.fleet.nodes[chosen]

    def led_by(self, node: Node) -> list[int]:
        found = self.fleet.partitions(TOPIC)
        return [index for index, p in found.items() if p.leader_id == node.broker_id]

    @contextlib.contextmanager
    def gaps(self, node: Node, into: list[float]) -> Iterator[None]:
        """Records how long the partitions that the node leads acknowledge nothing in this block."""
        led = self.led_by(node)
        self.workload.ledger.mark()
        yield
        into += [self.workload.ledger.gap_s(index) for index in led]

    def progress(self, within_s: float = PROGRESS_S) -> None:
        self.workload.wait_for_progress(within_s)

    def settle(self) -> None:
        """Waits until all replicas are in sync and all acknowledged records were read."""
        self.fleet.wait_in_sync(TOPIC, SYNC_S)
        self.progress()
        self.workload.wait_for_readers(SYNC_S)


def hard_stop(loaded: LoadedCluster, role: str) -> None:
    """Kills a broker, and restarts it after others have taken over."""
    node = loaded.victim(role)
    with loaded.gaps(node, loaded.tally.hard_gaps_s):
        node.kill()
        loaded.tally.kills += 1
        loaded.progress()
    loaded.fleet.restart(node.broker_id)


def hard_bounce(loaded: LoadedCluster, role: str, times: int) -> None:
    """Kills and restarts the broker that has the role, several times."""
    for _ in range(times):
        node = loaded.victim(role)
        with loaded.gaps(node, loaded.tally.hard_gaps_s):
            node.kill()
            loaded.tally.kills += 1
            node.launch()
            loaded.progress()
        node.wait_ready()


def clean_stop(loaded: LoadedCluster, role: str) -> None:
    """Stops a broker as an administrator would, and restarts it after a while."""
    node = loaded.victim(role)
    with loaded.gaps(node, loaded.tally.clean_gaps_s):
        node.stop()
        loaded.tally.clean_stops += 1
        loaded.progress()
    pause(AWAY_S)
    loaded.fleet.restart(node.broker_id)


def clean_bounce(loaded: LoadedCluster, role: str, times: int) -> None:
    """Stops and restarts the broker that has the role, several times."""
    for _ in range(times):
        node = loaded.victim(role)
        with loaded.gaps(node, loaded.tally.clean_gaps_s):
            node.stop()
            loaded.tally.clean_stops += 1
            loaded.progress()
        loaded.fleet.restart(node.broker_id)


def freeze(loaded: LoadedCluster, role: str, seconds: float = FREEZE_S) -> None:
    """Freezes a broker, by default for longer than its session; then it continues."""
    node = loaded.victim(role)
    node.freeze()
    loaded.tally.freezes += 1
    try:
        pause(seconds)
        if seconds > FREEZE_S - 1:
            loaded.progress()
    finally:
        node.thaw()


def rolling_restart(loaded: LoadedCluster) -> None:
    """Restarts one broker after the other, each when the previous one is in sync again."""
    for node in loaded.fleet.nodes.values():
        with loaded.gaps(node, loaded.tally.clean_gaps_s):
            node.stop()
            loaded.tally.clean_stops += 1
            loaded.fleet.restart(node.broker_id)
            loaded.progress()
        loaded.fleet.wait_in_sync(TOPIC, SYNC_S)


def store_outage(loaded: LoadedCluster, seconds: float) -> None:
    """Makes the store unresponsive: no session can be renewed, and no change can be made."""
    server = loaded.fleet.store_server
    if server is None:
        with contextlib.closing(sqlite3.connect(loaded.fleet.store, isolation_level=None)) as held:
            held.execute("PRAGMA busy_timeout = 30000")
            held.execute("BEGIN IMMEDIATE")
            pause(seconds)
            held.execute("ROLLBACK")
        return
    for member in server.members:
        member.freeze()
    try:
        pause(seconds)
    finally:
        for member in server.members:
            member.thaw()


Fault = Callable[[LoadedCluster], None]


def open_loaded(
    fleet: BrokerProcesses,
    *,
    partitions: int = PARTITIONS,
    ours: bool = True,
    per_second: int = 300,
    size: int = 0,
) -> LoadedCluster:
    """Starts brokers and load, and waits until all replicas are in sync."""
    bootstrap = fleet.start()
    create_topic(bootstrap, partitions=partitions)
    fleet.wait_in_sync(TOPIC)
    workload = Workload(
        bootstrap, partitions=partitions, ours=ours, per_second=per_second, size=size
    )
    workload.start()
    loaded = LoadedCluster(fleet, workload)
    loaded.progress()
    return loaded


def close_loaded(loaded: LoadedCluster) -> Verdict:
    """Ends the load, waits for readers, stops the brokers, compares their logs, and judges."""
    workload, fleet = loaded.workload, loaded.fleet
    troubles = []
    try:
        workload.stop_senders()
        fleet.wait_in_sync(TOPIC, SYNC_S)
        workload.wait_for_readers(SYNC_S)
    except AssertionError as late:
        troubles.append(str(late))
    finally:
        workload.stop()
    for node in fleet.nodes.values():
        if node.answers:
            node.stop()
    verdict = workload.ledger.verdict()
    verdict.complaints += troubles + fleet.complaints()
    for number in (*verdict.lost_numbers[:3], *verdict.duplicated_numbers[:3]):
        partition = workload.ledger.partition_of(number)
        verdict.complaints += fleet.find(TOPIC, partition, number)
    for partition in range(workload.ledger.partitions):
        verdict.complaints += fleet.differences(TOPIC, partition)
    return verdict


@contextlib.contextmanager
def with_loaded(
    directory: Path, store: str, *, ours: bool = True, per_second: int = 300
) -> Iterator[LoadedCluster]:
    """Yields a cluster with three brokers. At the end no process is left, whatever happens."""
    fleet = BrokerProcesses(directory, 3, store)
    loaded = None
    try:
        loaded = open_loaded(fleet, ours=ours, per_second=per_second)
        yield loaded
    finally:
        if loaded is not None:
            loaded.workload.stop()
        fleet.close()
