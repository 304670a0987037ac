"""Compares the leaders of share partitions with the log of their states, and waits in the end until
every record is settled.

I22  A leader has in memory what the log says, or something that is not stored yet: nothing is done
     there that is not done in the log. It keeps nothing of a leadership that has ended.

After all faults members accept everything that they get. Then every record must be settled. Once
the last one is due, the members must make progress within the time that locks last, and some more,
until none is left. Each that was given up must have its dead letter, and each that has expired must
be gone. Every group must have exactly the members that run, and each partition must be assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from penstock.broker.shares.led_partition import LedPartition
from penstock.client.errors import ClientError
from penstock.coordination.invariants import InvariantViolated
from penstock.metadata.image import ClusterImage
from penstock.shares.states import DONE, RecordState
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.checkers.metadata_invariants import broken
from penstock.sim.checkers.share_states import TrueShareStates
from penstock.sim.history import INFO, OK, Probe
from penstock.sim.world import World
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupDescribeRequest, ShareGroupDescribeResponse


class LeaderAudit:
    """Compares all share partitions in memory with the log from time to time."""

    def __init__(self, world: World, truth: TrueShareStates) -> None:
        self._world = world
        self._truth = truth
        self.compared = 0

    def check(self) -> None:
        for node in self._world.brokers:
            if node.broker is not None:
                for led in node.broker.shares:
                    self._compare(node.id, led)

    def _compare(self, broker: int, led: LedPartition) -> None:
        name = f"{led.hosted.topic}-{led.hosted.index}"
        if led.hosted.leadership is not led.term:
            text = f"broker {broker} has locks of leader epoch {led.term.epoch}, which has ended"
            raise broken("I22", name, text)
        for group in led.groups:
            partition = led.partition(group)
            try:
                partition.verify()
            except InvariantViolated as error:
                raise broken("I22", name, f"group {group}: {error}") from error
            state = self._truth.states.get((group, name))
            if state is None or state.leader_epoch != led.term.epoch:
                continue
            self.compared += 1
            is_ahead = any(
                not (state.is_settled(offset) or state.is_far(offset))
                and not self._may_drop(name, offset)
                for offset in range(max(state.start, 0), partition.start_offset)
            )
            if is_ahead:
                text = f"broker {broker} has start {partition.start_offset}, the log {state.start}"
                raise broken("I22", name, f"group {group}: {text}")
            window = [(span, False) for span in partition.spans if span.state in DONE]
            promoted = [(span, True) for span in partition.promoted if span.state in DONE]
            for span, is_promoted in (*window, *promoted):
                for offset in range(span.first, span.last + 1):
                    if (
                        state.is_far(offset) == is_promoted
                        and not state.is_settled(offset)
                        and not self._may_drop(name, offset)
                    ):
                        text = f"{offset} is done on broker {broker}, and not in the log"
                        raise broken("I22", name, f"group {group}: {text}", offset)

    def _may_drop(self, name: str, offset: int) -> bool:
        return self._truth.records.may_be_dropped(name, offset, self._world.now * 1000)


def leader_of(
    world: World, image: Callable[[], ClusterImage], broker_id: int, partition_name: str
) -> tuple[int | None, int]:
    """Returns the leader epoch in which a broker leads a partition, by its own account, and the
    leader epoch of the metadata."""
    topic, _, index = partition_name.rpartition("-")
    partition = image().partition(topic, int(index))
    epoch = -1 if partition is None else partition.leader_epoch
    broker = world.brokers[broker_id].broker
    hosted = None if broker is None else broker.replicas.get(topic, int(index))
    term = None if hosted is None else hosted.leadership
    return None if term is None else term.epoch, epoch


async def probe_shares(
    world: World,
    shared: SharedState,
    truth: TrueShareStates,
    committed_end: Callable[[str], int],
) -> None:
    """Waits until every record is settled. Then lets the members end."""
    plan = shared.scenario.shares
    if plan is None:
        return
    begun_ms, records = shared.now_ms(), truth.records

    def wall_ms() -> int:
        return max(node.wall_ms() for node in world.brokers)

    def unsettled() -> list[Unsettled]:
        return [
            _unsettled(truth, group, name, committed_end(name), wall_ms())
            for group in plan.names
            for name in shared.scenario.partition_names
        ]

    with suppress(TimeoutError):
        await world.until_none_left(
            lambda: sum(each.left for each in unsettled()),
            timeout_s=plan.settle_s + max(0.0, records.last_due_ms - wall_ms()) / 1000,
            patience_s=plan.settle_s,
        )
    found = next((str(each) for each in unsettled() if each.left), "")
    _add_probe(shared, "settling every record", begun_ms, found)
    begun_ms = shared.now_ms()
    node = world.client("probe-shares")
    actor = Actor(shared, node.env, "probe-shares", world.draws("probe-shares"))
    error, until_ms = "not looked at", begun_ms + plan.settle_s * 1000
    while error and shared.now_ms() < until_ms:
        await world.sleep(0.5)
        error = await node.spawn(_describe(actor, plan.names))
    _add_probe(shared, "assigning every partition of the share groups", begun_ms, error)
    shared.shares.done.set()


class Unsettled(NamedTuple):
    """What a group has not settled of a partition."""

    group: str
    partition_name: str
    left: int
    text: str

    def __str__(self) -> str:
        return f"group {self.group}, {self.partition_name}: {self.text}"


def _unsettled(truth: TrueShareStates, group: str, name: str, end: int, wall_ms: int) -> Unsettled:
    state, records = truth.states.get((group, name)), truth.records
    if state is None or state.start < 0:
        return Unsettled(group, name, 2 * end, "the group has not begun")
    left = [offset for offset in range(end) if not state.is_settled(offset)]
    if not records.has_letters:
        left = [offset for offset in left if not records.is_expired(name, offset, wall_ms)]
    unwritten = [
        offset
        for offset, stored in (*state.records.items(), *state.promoted.items())
        if stored.state is RecordState.ARCHIVING
    ]
    # A record without a letter counts half: it is settled, and there is still something to do.
    weight = 2 * len(left) + len(unwritten)
    text = f"records have no dead letter yet: {unwritten[:10]}"
    if left:
        text = f"{len(left)} records are not settled: {left[:10]}"
    return Unsettled(group, name, weight, text)


def _add_probe(shared: SharedState, what: str, begun_ms: float, error: str) -> None:
    shared.history.add(
        Probe(
            process="shares",
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            what=what,
        )
    )


async def _describe(actor: Actor, names: tuple[str, ...]) -> str:
    """Describes the groups as an administrator does. Returns what is wrong."""
    shared = actor.shared
    for name in names:
        try:
            async with actor.cluster() as cluster:
                answer = await cluster.ask_coordinator(
                    name,
                    ShareGroupDescribeRequest([name]),
                    ShareGroupDescribeResponse,
                    lambda found: [each.error_code for each in found.groups],
                )
        except ClientError as error:
            return str(error)
        group = answer.groups[0]
        if group.error_code or group.group_state != "Stable":
            told = f"{ErrorCode(group.error_code).name}, {group.group_state}"
            return f"group {name} is described as {told}"
        members = sorted(member.member_id for member in group.members)
        live = sorted(each for at, each in shared.shares.members.values() if at == name)
        if members != live:
            return f"group {name} has the members {members}, but {live} run"
        assigned = {
            f"{topic.topic_name}-{index}"
            for member in group.members
            for topic in member.assignment.topic_partitions
            for index in topic.partitions
        }
        if assigned != {*shared.scenario.partition_names}:
            return f"group {name} has assigned {sorted(assigned)}"
    return ""
