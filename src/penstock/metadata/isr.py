"""Who holds all that is committed, and how that set changes when a leader asks for it.

The in-sync set of a partition changes in two ways. The controller takes out whoever died
(`elections`). The leader asks for the rest, to take in who has caught up and to leave out who lags
(KIP-497): `alter_isrs` answers it. Every request names the leader epoch and the partition epoch it
rests on, and the incarnation of every member, so that of two requests on the same state one fails,
and so that a replica that restarted after it had caught up does not slip in with what it lost
(KIP-903). Whoever is not registered, or is about to stop, is not taken in (KIP-841).

Members of the in-sync set and eligible leaders are noted with the incarnation that was known to
hold everything. A later incarnation holds it too if it has proved that it lost nothing, or if the
topic counts only what is on disk and the disk is the same. Otherwise it is out until it has caught
up under its new epoch. Should that leave nobody at all, then every copy may lack something; the
last leader is as good as any and stays, rather than leaving the partition dead for ever. But not
with a new data directory, which holds nothing, as long as there are other replicas to ask.

A topic can be switched from `durability=replicated` to `fsync` while it is in use. A member that
was noted before the switch may have counted records that it has not flushed since: if it loses
power now, it has lost them, although its disk is the same. So the same commit notes the revision of
the switch: in `Topic.synced_from` for a topic's own setting, in `ClusterImage.default_synced_from`
for the default of all topics without one. The disk is trusted only for members that are noted with
a broker epoch above the switch. That is safe, because such a member has counted only what was
synced:

- When it takes up its first role, its image shows its own registration, and so the switch before
  it. All it counts from then on, as leader or by its fetches, is synced.
- What it had from earlier lives was synced when its logs were opened. If it is the same process
  that registered anew, the leader notes it for a fetch, which tells of synced records only, and a
  term as leader begins with a flush. If the controller alone takes it over from a life before the
  switch, because it has provably lost nothing, it keeps the epoch that was noted.

A life from before the switch counts as under `replicated` until the broker has registered again,
also for topics that are created after a switch of the default.

Where neither the topic nor the default in the store says anything, each broker goes by its own
config file, which may differ from that of the controller and may have changed at a restart. So each
broker says when it registers since which of its lives the file has asked for fsync
(`BrokerInfo.fsync_since`), and its disk is trusted for those lives only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.metadata.decisions import Decision, Guard
from penstock.metadata.edits import NO_STATIC, SyncedFrom, TopicEdits
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import broker_key
from penstock.metadata.model import NO_LEADER, BrokerInfo, Partition
from penstock.wire.errors import ErrorCode, KafkaError

_NOBODY: Final[frozenset[int]] = frozenset()


# What a partition becomes


def sound_members(
    partition: Partition, brokers: Mapping[int, BrokerInfo], *, synced_from: SyncedFrom | None
) -> dict[int, int]:
    """Members of the ISR and eligible leaders that hold all that is committed, by incarnation.

    The dead are among them: what they hold is found out when they return. `synced_from` says since
    when the topic has counted only what is on disk: a broker that registered after it and restarts
    with the same disk loses nothing that counted. None if the topic counts what is in memory.
    """
    kept: dict[int, int] = {}
    lost: dict[int, int] = {}
    for each in partition.isr + partition.eligible_leaders:
        noted = partition.member_epoch(each)
        broker = brokers.get(each)
        if broker is None:
            kept[each] = noted
        elif noted == -1 or broker.has_kept(noted):
            is_judged = noted != -1 and synced_from is not None
            has_unsynced = is_judged and not _counted_synced(broker, noted, synced_from)
            kept[each] = noted if has_unsynced else broker.broker_epoch
        elif _counted_synced(broker, noted, synced_from) and broker.has_synced(noted):
            kept[each] = broker.broker_epoch
        elif broker.has_synced(noted) or len(partition.replicas) == 1:
            lost[each] = broker.broker_epoch
    if kept or not lost:
        return kept
    last = partition.leader
    if last not in lost:
        last = next(each for each in partition.replicas if each in lost)
    return {last: lost[last]}


def _counted_synced(broker: BrokerInfo, noted: int, synced_from: SyncedFrom | None) -> bool:
    """Whether the life of that epoch, and all since, counted only what was synced."""
    if synced_from is None or noted < synced_from.revision:
        return False
    return not synced_from.by_file or broker.has_asked_for_fsync(noted)


def with_members(
    partition: Partition,
    isr: Iterable[int],
    members: Mapping[int, int],
    min_insync_replicas: int,
) -> Partition:
    """The partition with this in-sync set, of `members`, which hold all that is committed.

    While fewer than min.insync.replicas are in sync nothing more is committed, so the other
    members go on to hold everything and stay eligible (KIP-966). Epochs are the caller's.
    """
    in_sync = tuple(isr)
    eligible: tuple[int, ...] = ()
    if len(in_sync) < min_insync_replicas:
        eligible = tuple(
            each for each in partition.replicas if each in members and each not in in_sync
        )
    epochs = tuple(members[each] for each in in_sync + eligible)
    return replace(partition, isr=in_sync, eligible_leaders=eligible, member_epochs=epochs)


def led_by(partition: Partition, leader: int, brokers: Mapping[int, BrokerInfo]) -> Partition:
    """The partition under a new leader, or under none. The partition epoch is the caller's."""
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        leader_broker_epoch=brokers[leader].broker_epoch if leader != NO_LEADER else -1,
    )


def completed(partition: Partition) -> Partition:
    """Drop the old replicas if all targets of a move are in sync; else the partition as it is.

    Who leads it then is for `relead`.
    """
    targets = tuple(each for each in partition.replicas if each not in partition.removing_replicas)
    if not partition.is_moving or not {*targets} <= {*partition.isr}:
        return partition
    return replace(
        partition,
        replicas=targets,
        isr=targets,
        eligible_leaders=(),
        member_epochs=tuple(partition.member_epoch(each) for each in targets),
        adding_replicas=(),
        removing_replicas=(),
    )


def relead(before: Partition, after: Partition, brokers: Mapping[int, BrokerInfo]) -> Partition:
    """A new leader epoch, if a leader or any replica was dropped; the same leader where it can.

    A dropped replica that has not heard of it goes on to fetch. Should it be taken back meanwhile,
    it would count as in sync, only to delete its log when the news arrives. Under a new epoch it
    must hear the news first.
    """
    stays = before.leader in after.isr
    if before.leader == NO_LEADER or (stays and {*before.replicas} <= {*after.replicas}):
        return after
    able = [each for each in after.replicas if each in after.isr and each in brokers]
    if stays and before.leader in brokers:
        able.insert(0, before.leader)
    return led_by(after, able[0] if able else NO_LEADER, brokers)


# What a leader asks for


@dataclass(frozen=True, slots=True)
class IsrChange:
    """One partition's part of an AlterPartition request. `isr` are pairs of broker and epoch;
    an epoch of -1 stands for not known, which will do for who is in sync already."""

    topic_id: bytes
    index: int
    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """`partition` is the state after the change, None where it was refused."""

    topic_id: bytes
    index: int
    error: ErrorCode
    partition: Partition | None = None


def alter_isrs(
    image: ClusterImage,
    broker_id: int,
    broker_epoch: int,
    changes: Sequence[IsrChange],
    *,
    stopping: Collection[int] = _NOBODY,
    static: Mapping[str, str] = NO_STATIC,
) -> Decision[tuple[IsrAnswer, ...]]:
    """Carry out what a leader asks for; each partition is granted or refused on its own.

    `stopping` are the brokers that are handing their partitions over to stop.
    """
    asker = image.brokers.get(broker_id)
    if asker is None or asker.broker_epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} is not registered under the epoch {broker_epoch}: it has been "
            "replaced by a later incarnation, or its session has run out.",
        )
    edits = TopicEdits(image, static)
    request = _Request(image, edits, broker_id, broker_epoch, stopping)
    answers = tuple(request.answer(change) for change in changes)
    return edits.decision(answers, request.guards())


class _Request:
    """Answers the partitions one by one, and collects who joins where."""

    def __init__(
        self,
        image: ClusterImage,
        edits: TopicEdits,
        broker_id: int,
        broker_epoch: int,
        stopping: Collection[int],
    ) -> None:
        self._image = image
        self._edits = edits
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._stopping = stopping
        self._joined: dict[int, int] = {}

    def answer(self, change: IsrChange) -> IsrAnswer:
        try:
            partition = self._grant(change)
        except KafkaError as error:
            return IsrAnswer(change.topic_id, change.index, error.code)
        # The leader is not to act on a set that is another leader's.
        changed_hands = partition.leader_epoch != change.leader_epoch
        code = ErrorCode.NEW_LEADER_ELECTED if changed_hands else ErrorCode.NONE
        return IsrAnswer(change.topic_id, change.index, code, partition)

    def guards(self) -> tuple[Guard, ...]:
        """Who is taken in must still be the incarnation it was when the change is committed."""
        return tuple(Guard(broker_key(each), epoch) for each, epoch in self._joined.items())

    def _grant(self, change: IsrChange) -> Partition:
        brokers = self._image.brokers
        name = self._image.require_topic_id(change.topic_id).name
        before = self._edits.partition(name, change.index)
        self._check_epochs(before, change)
        members = self._check_members(before, change)
        settings = self._edits.settings(name)
        since = self._edits.synced_from(name)
        held = sound_members(before, brokers, synced_from=since) | members
        isr = (each for each, _ in change.isr)
        after = with_members(before, isr, held, settings.min_insync_replicas)
        after = relead(before, completed(after), brokers)
        granted = self._edits.put(name, change.index, after)
        self._joined.update(
            (each, epoch) for each, epoch in members.items() if each not in before.isr
        )
        return granted

    def _check_epochs(self, before: Partition, change: IsrChange) -> None:
        if (
            change.leader_epoch > before.leader_epoch
            or change.partition_epoch > before.partition_epoch
        ):
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, "The leader knows more than this broker does as yet."
            )
        if change.leader_epoch < before.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if before.leader != self._broker_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Broker {before.leader} leads the partition."
            )
        if before.leader_broker_epoch != self._broker_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, "It was an earlier incarnation that was elected."
            )
        if change.partition_epoch < before.partition_epoch:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)

    def _check_members(self, before: Partition, change: IsrChange) -> dict[int, int]:
        """The incarnation of each member of the new set."""
        members = dict(change.isr)
        if (
            len(members) != len(change.isr)
            or not members.keys() <= {*before.replicas}
            or self._broker_id not in members
        ):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The in-sync set {sorted(members)} must name the leader, and replicas only, each "
                "once.",
            )
        for each, epoch in change.isr:
            stays = each in before.isr
            broker = self._image.brokers.get(each)
            if stays and epoch == -1:
                members[each] = before.member_epoch(each)
            elif (
                broker is None
                or broker.broker_epoch != epoch
                or (each in self._stopping and not stays)
            ):
                raise KafkaError(
                    ErrorCode.INELIGIBLE_REPLICA,
                    f"Broker {each} is not registered under the epoch {epoch}, or it is stopping.",
                )
        return members
