"""Elects partition leaders when brokers come and go.

`elected` takes one partition and the registered brokers, and returns what the partition must
become:

- A dead broker is removed from the ISR. While fewer than min.insync.replicas remain, nothing more
  is committed. The removed replicas therefore still hold everything that is committed, and stay
  eligible (KIP-966). If min.insync.replicas is lowered so that enough remain, no other replica
  stays eligible.
- A leader that is alive, with the broker epoch that was elected, stays leader.
- Otherwise the leader is the first live replica, in assignment order, that is in sync; if there is
  none, the first that is eligible; and if there is none and unclean.leader.election.enable is set,
  the first one. If no replica is left, the partition has no leader.
- A member that restarted, leader or not, stays in the ISR only if it has lost nothing that was
  committed (`isr`).
- A leader that restarted may have lost records that were not committed. If another in-sync replica
  is alive, that one leads. The restarted one stays in sync, because the other may be dead too, and
  its death not yet noticed. If no other replica is in sync, it leads again, under a new leader
  epoch.
- A broker that is about to stop leads only if no other replica can.

The leader epoch increases with each change of leader, including a change to no leader, and never
decreases. The partition epoch increases with every change. The result depends only on the present
state. A controller that dies halfway leaves nothing that its successor would not find.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from penstock.metadata.configs import BrokerConfigs, TopicSettings
from penstock.metadata.decisions import Change, Decision, Guard
from penstock.metadata.edits import NO_STATIC, Slice, SyncedFrom, in_decisions, synced_from
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import led_by, sound_members, with_members
from penstock.metadata.model import NO_LEADER, BrokerInfo, Partition
from penstock.metadata.topic_keys import alteration


def elect_leaders(
    image: ClusterImage,
    *,
    static: Mapping[str, str] = NO_STATIC,
    stopping: Collection[int] = frozenset(),
) -> tuple[Decision[tuple[str, ...]], ...]:
    """Returns the elections that are due, as independent decisions; empty if there are none.

    `static` are the controller's own broker configs. Topic configs and dynamic defaults override
    them. The result of each decision is the names of its topics.
    """
    portions = in_decisions(image.topics.values())
    decisions = (
        elect_among(image, portion, static=static, stopping=stopping) for portion in portions
    )
    return tuple(decision for decision in decisions if decision.changes)


def elect_among(
    image: ClusterImage,
    parts: Iterable[Slice],
    *,
    static: Mapping[str, str] = NO_STATIC,
    stopping: Collection[int] = frozenset(),
) -> Decision[tuple[str, ...]]:
    """Returns the elections that are due among these topics. Topics that no longer exist are
    skipped."""
    configs = BrokerConfigs(static, image.default_broker_configs)
    edited: dict[str, list[Partition]] = {}
    for part in parts:
        topic = image.topics.get(part.topic.name)
        if topic is None:
            continue
        settings = configs.settings(topic.configs)
        since = synced_from(image, topic, settings)
        for index in range(part.start, min(part.stop, len(topic.partitions))):
            after = elected(topic.partitions[index], image.brokers, settings, since, stopping)
            if after is not None:
                edited.setdefault(topic.name, list(topic.partitions))[index] = after
    changes: list[Change] = []
    guards: list[Guard] = []
    for name, partitions in edited.items():
        before = image.topics[name]
        made = alteration(image, before, replace(before, partitions=tuple(partitions)))
        changes += made.changes
        guards += made.guards
    return Decision(tuple(changes), tuple(edited), tuple(guards))


def elected(
    partition: Partition,
    brokers: Mapping[int, BrokerInfo],
    settings: TopicSettings,
    since: SyncedFrom | None,
    stopping: Collection[int] = frozenset(),
) -> Partition | None:
    """Returns what the partition must become; None if it can stay as it is.

    `since` is when the topic began to count only synced records, as for `sound_members`.
    """
    if _is_settled(partition, brokers):
        return None
    restarted = _leader_restarted(partition, brokers)
    members = sound_members(partition, brokers, synced_from=since)
    isr = tuple(each for each in partition.isr if each in brokers and each in members)
    min_insync = settings.min_insync_replicas
    after = with_members(partition, isr, members, min_insync)
    leader = partition.leader
    if leader not in isr or restarted:
        unclean = settings.unclean_leader_election_enable
        last = partition.leader if restarted else NO_LEADER
        leader = choose_leader(after, brokers, stopping, unclean=unclean, last=last)
        if leader != NO_LEADER and leader not in isr:
            if leader not in members:
                # After an unclean election no other replica is known to have the new leader's
                # records.
                members = {leader: brokers[leader].broker_epoch}
            after = with_members(partition, (leader,), members, min_insync)
    if leader != partition.leader or restarted:
        after = led_by(after, leader, brokers)
    if after == partition:
        return None
    return replace(after, partition_epoch=partition.partition_epoch + 1)


def _is_settled(partition: Partition, brokers: Mapping[int, BrokerInfo]) -> bool:
    """Whether every member of the ISR still has the broker epoch that was stored. This is a fast
    path: it holds for almost all partitions."""
    isr = partition.isr
    if len(partition.member_epochs) != len(isr) or partition.leader not in isr:
        return False
    for each, epoch in zip(isr, partition.member_epochs, strict=True):
        broker = brokers.get(each)
        if broker is None or broker.broker_epoch != epoch:
            return False
    return brokers[partition.leader].broker_epoch == partition.leader_broker_epoch


def _leader_restarted(partition: Partition, brokers: Mapping[int, BrokerInfo]) -> bool:
    broker = brokers.get(partition.leader)
    return broker is not None and broker.broker_epoch != partition.leader_broker_epoch


def choose_leader(
    partition: Partition,
    brokers: Mapping[int, BrokerInfo],
    stopping: Collection[int],
    *,
    unclean: bool,
    last: int = NO_LEADER,
) -> int:
    """Chooses the leader of a partition that has none; NO_LEADER if no broker can lead.

    `last` is chosen only if no other replica is in sync.
    """
    living = [each for each in partition.replicas if each in brokers]
    candidates = [each for each in living if each in partition.isr]
    candidates.sort(key=lambda each: each == last)
    candidates += [each for each in living if each in partition.eligible_leaders]
    if unclean:
        candidates += living
    staying = [each for each in candidates if each not in stopping]
    return next(iter(staying or candidates), NO_LEADER)
