"""Checks the drivers of deployed pipelines.

E28  A pipeline never has two drivers at the same time.
E29  A driver never runs after the end of its worker's lease.
E30  When a worker renews its lease, the lease ends before the coordinator of the group can remove
     the worker.

After all faults, each deployment must have a driver again within the time of E14.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress

from penstock.groups.group import Group
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.sim.actors.shared_state import SharedState
from penstock.sim.checkers.logs import Violation
from penstock.sim.history import INFO, OK, DriverRun, Entry, LeaseRenewal, Probe
from penstock.sim.loop import START_S
from penstock.sim.world import World
from penstock.spark.deployments.topics import WORKERS_GROUP
from penstock.wire.errors import KafkaError
from penstock.wire.java import partition_of


def check_pipelines(entries: Iterable[Entry]) -> Iterator[Violation]:
    runs: dict[str, list[DriverRun]] = {}
    for entry in entries:
        if isinstance(entry, DriverRun):
            runs.setdefault(entry.pipeline, []).append(entry)
        elif isinstance(entry, LeaseRenewal) and entry.lease_ms > entry.removal_ms:
            text = (
                f"at {entry.begun_ms:.0f} ms it got a lease until {entry.lease_ms:.0f} ms, but its "
                f"group may remove it at {entry.removal_ms:.0f} ms"
            )
            yield Violation("E30", entry.process, text)
    for pipeline, of_pipeline in runs.items():
        yield from _check_leases(of_pipeline)
        yield from _check_alone(pipeline, of_pipeline)


def _check_leases(runs: Iterable[DriverRun]) -> Iterator[Violation]:
    for run in runs:
        if run.ended_ms > run.lease_ms:
            text = (
                f"the driver of {run.process} ran until {run.ended_ms:.0f} ms, and its lease ended "
                f"at {run.lease_ms:.0f} ms"
            )
            yield Violation("E29", run.pipeline, text)


def _check_alone(pipeline: str, runs: Iterable[DriverRun]) -> Iterator[Violation]:
    last: DriverRun | None = None
    for run in sorted(runs, key=lambda each: each.begun_ms):
        if last is not None and run.begun_ms < last.ended_ms:
            text = (
                f"{run.process} started a driver at {run.begun_ms:.0f} ms, while the one of "
                f"{last.process} ran from {last.begun_ms:.0f} ms to {last.ended_ms:.0f} ms"
            )
            yield Violation("E28", pipeline, text)
        if last is None or run.ended_ms > last.ended_ms:
            last = run


def removal_ms(world: World, image: ClusterImage, member_id: str) -> float | None:
    """Returns when the coordinator of the group of workers removes a member from which it hears
    nothing more: 0 if it has done so. None if no broker coordinates the group at the moment."""
    offsets = image.topics.get(OFFSETS_TOPIC)
    if offsets is None:
        return None
    index = partition_of(WORKERS_GROUP, len(offsets.partitions))
    partition = offsets.partitions[index]
    broker = None if partition.leader < 0 else world.brokers[partition.leader].broker
    if broker is None or broker.services is None:
        return None
    try:
        shell = broker.services.groups.require_at(index)
    except KafkaError:
        return None
    leadership = shell.hosted.leadership
    if leadership is None or leadership.epoch != partition.leader_epoch:
        return None
    group = shell.shard.state.classic(WORKERS_GROUP)
    if group is None or member_id not in group.members:
        return 0.0
    return _removal_ticks(group, member_id) - START_S * 1000


def _removal_ticks(group: Group, member_id: str) -> float:
    ends = [math.inf]
    if member_id not in group.joining and member_id not in group.syncing:
        ends.append(group.members[member_id].session_ends_ms)
        if group.join_timer_at_ms is not None:
            ends.append(group.join_timer_at_ms)
        if group.sync_timer_at_ms is not None and member_id in group.pending_syncs:
            ends.append(group.sync_timer_at_ms)
    return min(ends)


async def probe_pipelines(world: World, shared: SharedState) -> None:
    """Waits until each deployment has one driver. Then lets the workers end."""
    if not shared.scenario.workers:
        return
    board, begun_ms = shared.pipelines, shared.now_ms()

    def missing() -> list[str]:
        return sorted(name for name in board.existing if len(board.running(name)) != 1)

    with suppress(TimeoutError):
        await world.until(
            lambda: not missing(),
            timeout_s=shared.scenario.mend_s,
            poll_s=0.25,
            what="every pipeline runs",
        )
    error = f"not exactly one driver: {', '.join(missing())}" if missing() else ""
    shared.history.add(
        Probe(
            process="workers",
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            what="running every pipeline",
        )
    )
    board.done.set()
