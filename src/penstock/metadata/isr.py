"""Decides which replicas are in sync, and answers a leader's requests to change the ISR.

The ISR of a partition changes in two ways. The controller removes brokers that died (`elections`).
The leader requests all other changes: it adds replicas that have caught up and removes replicas
that lag (KIP-497). `alter_isrs` answers these requests. Each request names the leader epoch and the
partition epoch that it is based on, and the broker epoch of every member. So if two requests are
based on the same state, one of them fails, and a replica that restarted after it had caught up
cannot join with what it lost (KIP-903). A broker that is not registered, or is about to stop,
cannot join (KIP-841).

Members of the ISR and eligible leaders are stored with the broker epoch under which they were known
to hold everything. After a restart, a member still holds everything if the broker has proved that
it lost nothing, or if the topic counts only synced records and the disk is the same. Otherwise it
is removed until it has caught up under its new broker epoch. If that would remove every member,
every copy may lack something. The last leader is then as good as any other replica and stays,
because otherwise the partition would have no leader forever. But a broker with a new data
directory, which holds nothing, does not stay if there are other replicas.

A topic can be switched from `durability=replicated` to `fsync` while it is in use. A member that
was stored before the switch may have counted records that it has not synced since. If it now loses
power, they are lost, although its disk is the same. So the commit that makes the switch also stores
its revision: in `Topic.synced_from` for a topic's own setting, and in
`ClusterImage.default_synced_from` for the default of all topics that have none. The disk is trusted
only for members that are stored with a broker epoch above the switch. That is safe, because such a
member has counted only synced records:

- When the broker takes its first role, its image contains its own registration, and therefore the
  switch before it. Everything that it counts from then on, as leader or through its fetches, is
  synced.
- Records from its earlier runs were synced when its logs were opened. If the same process has
  registered again, the leader makes it a member because of a fetch, and fetches report only synced
  records; and a leadership begins with a flush. If only the controller takes the member over from a
  run before the switch, because the broker provably lost nothing, the member keeps its stored
  epoch.

A run of a broker that began before the switch counts as under `replicated` until the broker
registers again. This also applies to topics that are created after a switch of the default.

If neither the topic nor the default in the store sets the durability, each broker uses its own
config file. That file may differ from the controller's, and may have changed at a restart. So each
broker reports when it registers since which of its runs the file has set fsync
(`BrokerInfo.fsync_since`), and its disk is trusted for those runs only.
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


# The state of a partition


def sound_members(
    partition: Partition, brokers: Mapping[int, BrokerInfo], *, synced_from: SyncedFrom | None
) -> dict[int, int]:
    """Returns the members of the ISR and eligible leaders that hold everything committed, with
    their broker epochs.

    Dead brokers are included: what they hold is checked when they return. `synced_from` is when the
    topic began to count only synced records; a broker that registered after it and restarts with
    the same disk has lost nothing that counted. None if the topic counts records that are only
    written.
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
    """Whether the run with that broker epoch, and all later runs, counted only synced records."""
    if synced_from is None or noted < synced_from.revision:
        return False
    return not synced_from.by_file or broker.has_asked_for_fsync(noted)


def with_members(
    partition: Partition,
    isr: Iterable[int],
    members: Mapping[int, int],
    min_insync_replicas: int,
) -> Partition:
    """Returns the partition with this ISR. `members` hold everything that is committed.

    While fewer than min.insync.replicas are in sync, nothing more is committed. The other members
    therefore still hold everything and stay eligible (KIP-966). The caller sets the epochs.
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
    """Returns the partition with a new leader, or with none. The caller sets the partition
    epoch."""
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        leader_broker_epoch=brokers[leader].broker_epoch if leader != NO_LEADER else -1,
    )


def completed(partition: Partition) -> Partition:
    """Ends a reassignment if all its targets are in sync, by dropping the old replicas. Otherwise
    returns the partition unchanged.

    `relead` then chooses the leader.
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
    """Starts a new leader epoch if the leader or any replica was dropped. Keeps the leader if
    possible.

    A dropped replica that has not yet been notified continues to fetch. If it were added back in
    the meantime, it would count as in sync, and would then delete its log when the notification
    arrives. Under a new leader epoch it must process the notification before it can fetch.
    """
    stays = before.leader in after.isr
    if before.leader == NO_LEADER or (stays and {*before.replicas} <= {*after.replicas}):
        return after
    able = [each for each in after.replicas if each in after.isr and each in brokers]
    if stays and before.leader in brokers:
        able.insert(0, before.leader)
    return led_by(after, able[0] if able else NO_LEADER, brokers)


# Requests of a leader


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The change of one partition in an AlterPartition request. `isr` are pairs of broker id and
    broker epoch. An epoch of -1 means unknown, which is accepted for brokers that are already in
    sync."""

    topic_id: bytes
    index: int
    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """The answer for one partition. `partition` is its state after the change, None if it was
    refused."""

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
    """Carries out the ISR changes that a leader requests. Each partition is accepted or refused
    separately.

    `stopping` are the brokers that are handing over their partitions in order to stop.
    """
    asker = image.brokers.get(broker_id)
    if asker is None or asker.broker_epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} is not registered with broker epoch {broker_epoch}: it has "
            "registered again since then, or its session has expired.",
        )
    edits = TopicEdits(image, static)
    request = _Request(image, edits, broker_id, broker_epoch, stopping)
    answers = tuple(request.answer(change) for change in changes)
    return edits.decision(answers, request.guards())


class _Request:
    """Answers the partitions one by one, and collects the brokers that join."""

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
        # The requester must not act on the ISR if another leadership has begun.
        changed_hands = partition.leader_epoch != change.leader_epoch
        code = ErrorCode.NEW_LEADER_ELECTED if changed_hands else ErrorCode.NONE
        return IsrAnswer(change.topic_id, change.index, code, partition)

    def guards(self) -> tuple[Guard, ...]:
        """Returns the conditions of the commit: each broker that joins must still have its broker
        epoch."""
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
                ErrorCode.NOT_CONTROLLER,
                "The leader has newer metadata of the partition than this broker.",
            )
        if change.leader_epoch < before.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if before.leader != self._broker_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Broker {before.leader} is the leader of the partition."
            )
        if before.leader_broker_epoch != self._broker_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                "The leader was elected with an earlier broker epoch.",
            )
        if change.partition_epoch < before.partition_epoch:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)

    def _check_members(self, before: Partition, change: IsrChange) -> dict[int, int]:
        """Returns the broker epoch of each member of the new ISR."""
        members = dict(change.isr)
        if (
            len(members) != len(change.isr)
            or not members.keys() <= {*before.replicas}
            or self._broker_id not in members
        ):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The ISR {sorted(members)} must contain the leader, and only replicas of the "
                "partition, each once.",
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
                    f"Broker {each} is not registered with broker epoch {epoch}, or it is "
                    "stopping.",
                )
        return members
