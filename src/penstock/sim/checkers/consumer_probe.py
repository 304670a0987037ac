"""Compares the coordinators of consumer groups with the log of the groups, and waits in the end
until every group is stable.

I18  A coordinator has in memory what the log says: also one that has just loaded it.

After all faults each group must become stable within the time of E14. Every partition of every
topic that a member subscribes to belongs to one of its subscribers, and that member reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.broker.coordinators.groups import GroupShell
from penstock.client.errors import ClientError
from penstock.coordination.invariants import InvariantViolated
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.consumer.stored_group import StoredGroup
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import INTERNAL_TOPICS, OFFSETS_TOPIC
from penstock.sim.actors.consumer_board import LiveMember
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.checkers.consumer_groups import Owner, TrueConsumerGroups, TrueGroup
from penstock.sim.checkers.metadata_invariants import broken
from penstock.sim.history import INFO, OK, Probe
from penstock.sim.scenario import consumer_group_name
from penstock.sim.world import World
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.java import partition_of
from penstock.wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

AUDIT_EVERY_STEPS: Final = 500


class CoordinatorAudit:
    """Compares all coordinators with the log from time to time."""

    def __init__(
        self,
        world: World,
        image: Callable[[], ClusterImage],
        truth: TrueConsumerGroups,
        committed_end: Callable[[str], int],
    ) -> None:
        """`committed_end` returns up to where a partition is committed."""
        self._world = world
        self._image = image
        self.truth: Final = truth
        self._committed_end = committed_end
        self.compared = 0

    def counters(self) -> dict[str, int]:
        return {
            "coordinators_compared": self.compared,
            "groups_upgraded": self.truth.upgrades,
            "groups_downgraded": self.truth.downgrades,
        }

    def check(self) -> None:
        offsets = self._image().topics.get(OFFSETS_TOPIC)
        for index in range(0 if offsets is None else len(offsets.partitions)):
            shell = coordinator(self._world, self._image(), index)
            if shell is not None:
                self._compare(shell, index)

    def _compare(self, shell: GroupShell, index: int) -> None:
        name, state = f"{OFFSETS_TOPIC}-{index}", shell.shard.state
        try:
            shell.shard.verify()
        except InvariantViolated as error:
            raise broken("I18", name, str(error).partition("; it is ")[0]) from error
        hosted = shell.hosted
        committed = self._committed_end(name)
        if len(state.appends) or not hosted.log.end_offset == hosted.high_watermark == committed:
            return
        self.compared += 1
        for group_id, group in self.truth.groups.items():
            stored = state.image.consumer_groups.get(group_id)
            held = state.groups.get(group_id)
            if stored is None or not isinstance(held, ConsumerGroup):
                continue
            text = _difference(group, stored)
            if not text and not held.is_writing and held.stored != stored:
                text = f"it decides by {held.stored}, but has stored {stored}"
            if text:
                raise broken("I18", name, f"group {group_id}: {text}")


def _difference(group: TrueGroup, stored: StoredGroup) -> str:
    """Returns how the state of a coordinator differs from the log."""
    epochs = (
        0 if stored.epoch is None else stored.epoch.epoch,
        0 if stored.target_epoch is None else stored.target_epoch.epoch,
    )
    if epochs != (group.epoch, group.target_epoch):
        return f"it has the epochs {epochs}, the log has {group.epoch}, {group.target_epoch}"
    if stored.members.keys() != group.members.keys():
        return f"it has the members {[*stored.members]}, the log has {[*group.members]}"
    owners = {
        member_id: Owner(
            each.epoch,
            each.previous_epoch,
            int(each.state),
            dict(each.assigned),
            dict(each.pending),
        )
        for member_id, each in stored.currents.items()
    }
    if owners != group.owners:
        return f"it has {owners}, the log has {group.owners}"
    if stored.targets != group.targets:
        return f"it has the targets {stored.targets}, the log has {group.targets}"
    return ""


def coordinator(world: World, image: ClusterImage, index: int) -> GroupShell | None:
    """Returns the shard of a partition on the broker that leads it; None if it is not loaded."""
    partition = image.partition(OFFSETS_TOPIC, index)
    if partition is None or partition.leader < 0:
        return None
    broker = world.brokers[partition.leader].broker
    if broker is None or broker.services is None:
        return None
    try:
        shell = broker.services.groups.require_at(index)
    except KafkaError:
        return None
    leadership = shell.hosted.leadership
    is_current = leadership is not None and leadership.epoch == partition.leader_epoch
    return shell if is_current and shell.loaded else None


async def probe_consumer_groups(
    world: World, shared: SharedState, image: Callable[[], ClusterImage], truth: TrueConsumerGroups
) -> None:
    """Waits until every group is stable. Then lets the members end."""
    scenario = shared.scenario
    if not scenario.consumer_groups:
        return
    begun_ms = shared.now_ms()
    names = [consumer_group_name(number) for number in range(len(scenario.consumer_groups))]

    def wrong() -> str:
        if shared.consumers.retiring:
            return f"members have not left yet: {[*shared.consumers.retiring]}"
        for name in names:
            index = partition_of(name, scenario.offsets_partitions)
            if coordinator(world, image(), index) is None:
                return f"group {name} has no coordinator"
        return "; ".join(filter(None, (_unstable(name, shared, image(), truth) for name in names)))

    node = world.client("probe-consumers")
    actor = Actor(shared, node.env, "probe-consumers", world.draws("probe-consumers"))
    until_ms = begun_ms + scenario.mend_s * 1000
    error = "not looked at"
    # A member may change its subscription between a look at the log and the description.
    while error and shared.now_ms() < until_ms:
        with suppress(TimeoutError):
            await world.until(
                lambda: not wrong(),
                timeout_s=(until_ms - shared.now_ms()) / 1000,
                poll_s=0.25,
                what="every consumer group is stable",
            )
        of_new_protocol = [name for name in names if truth.groups[name].classic is None]
        error = wrong() or await node.spawn(_describe(actor, of_new_protocol))
    shared.history.add(
        Probe(
            process="consumers",
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            what="assigning every partition of the consumer groups",
        )
    )
    shared.consumers.done.set()


def _unstable(
    name: str, shared: SharedState, image: ClusterImage, truth: TrueConsumerGroups
) -> str:
    """Returns why a group is not stable. Empty if it is."""
    group = truth.groups.get(name, TrueGroup())
    live = {
        member.member_id: member
        for member in shared.consumers.members.values()
        if member.group == name
    }
    members = group.members if group.classic is None else group.classic
    if live.keys() != members.keys():
        return f"group {name} has the members {[*members]}, but {[*live]} run"
    if group.target_epoch != group.epoch:
        return f"group {name} has epoch {group.epoch} and target epoch {group.target_epoch}"
    owned: dict[TopicIdPartition, str] = {}
    for member_id, owner in group.current_owners.items():
        epoch = group.epoch if group.classic is None else group.generation
        if owner.epoch != epoch or owner.state or owner.pending:
            return f"member {member_id} is {owner} in epoch {epoch}"
        if {*live[member_id].held} != {*owner.assigned}:
            return f"member {member_id} reads {live[member_id].held}, and has {owner.assigned}"
        owned |= dict.fromkeys(owner.assigned, member_id)
    return _unassigned(name, live, image, owned)


def _unassigned(
    name: str,
    live: dict[str, LiveMember],
    image: ClusterImage,
    owned: dict[TopicIdPartition, str],
) -> str:
    due: dict[TopicIdPartition, str] = {}
    for topic in image.topics.values():
        takers = [each for each, member in live.items() if _subscribes(member, topic.name)]
        for index in range(len(topic.partitions) if takers else 0):
            partition = TopicIdPartition(topic.topic_id, index)
            due[partition] = f"{topic.name}-{index}"
            if owned.get(partition) not in takers:
                return (
                    f"{topic.name}-{index} belongs to {owned.get(partition)} in group {name}, and "
                    f"{takers} subscribe to it"
                )
    if owned.keys() != due.keys():
        return f"group {name} has partitions that nobody subscribes to: {owned}"
    return ""


def _subscribes(member: LiveMember, topic: str) -> bool:
    if topic in member.names:
        return True
    matches = bool(member.regex) and re.fullmatch(member.regex, topic) is not None
    return matches and topic not in INTERNAL_TOPICS


async def _describe(actor: Actor, names: list[str]) -> str:
    """Describes the groups as an administrator does. Returns what is wrong."""
    for name in names:
        request = ConsumerGroupDescribeRequest([name])
        try:
            async with actor.cluster() as cluster:
                answer = await cluster.ask_coordinator(
                    name,
                    request,
                    ConsumerGroupDescribeResponse,
                    lambda found: [each.error_code for each in found.groups],
                )
        except ClientError as error:
            return str(error)
        group = answer.groups[0]
        epochs = {group.group_epoch, group.assignment_epoch}
        epochs |= {member.member_epoch for member in group.members}
        if group.error_code or group.group_state != "Stable" or len(epochs) != 1:
            state = f"{ErrorCode(group.error_code).name}, {group.group_state}, epochs {epochs}"
            return f"group {name} is described as {state}"
    return ""
