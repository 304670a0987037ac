"""One leadership of a partition: tracks followers, computes the high watermark, proposes the ISR.

The leader learns how far each replica's log goes from the offset that the replica fetches from: a
follower asks for the first offset it does not have. What "have" means depends on the topic's
durability (written, or synced). The high watermark, below which everything is committed, follows
from these log ends:

    high watermark = the lowest log end of the MAXIMAL in-sync set

The committed in-sync set is the one in the metadata store. The leader proposes changes to it. A
proposal may be in force from the moment it is sent, so until its outcome is known, the members of
both sets count: that union is the maximal set (KIP-497). Three more rules protect what is
committed:

- The high watermark does not advance while the committed set has fewer than min.insync.replicas
  members, nor while there are eligible leaders outside of it (KIP-966): one of those may be
  elected, and would lack what is committed without it. The second rule holds even if leader and
  controller briefly disagree on the value of min.insync.replicas.
- A replica joins only once it has reached both the high watermark and the start offset of this
  leadership: below that it may lack what earlier leaders committed. It must also join under the
  broker epoch that it fetched with (KIP-903), and that broker must be registered and not shutting
  down (KIP-841).
- A proposal with an unknown outcome may still be committed later. Its members count until the
  partition epoch has moved on; after that it can no longer be committed. If nothing else is to be
  changed, the leader proposes the unchanged set, only to get a new partition epoch.

The high watermark also waits for a replica that is not in sync but keeps up, so that it can join
under load: otherwise the high watermark might stay ahead of it forever.

A new leader starts with the high watermark that it knew as a follower, which may be lower than the
one its predecessor gave to clients. `latest_offset` therefore raises an error until the high
watermark has reached the start offset of the leadership, so no client sees the end of a partition
go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.metadata.model import Partition
from penstock.partition.replica_progress import UNKNOWN, ReplicaProgress
from penstock.wire.errors import ErrorCode, KafkaError

RETRY_MS: Final = 100
"""How long the leader waits after a refused proposal before it proposes again."""

_MOVED_ON: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The partition has changed since the proposal was made; the metadata will bring the new state."""
_REFUSED: Final = frozenset(
    {
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
"""Nothing was changed. After an error in neither set, the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class InSyncRules:
    min_insync_replicas: int
    lag_max_ms: int
    """replica.lag.time.max.ms"""


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """A proposed in-sync set: pairs of a broker id and the broker epoch it fetched under.

    `attempt` numbers the proposals, so that a late answer is not mistaken for the answer to
    another.
    """

    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int
    attempt: int


class Leadership:
    """The state of one broker that leads one partition in one leader epoch.

    `high_watermark` is the one this broker knew before, capped at its own log end. `start_offset`
    is where its log ended when the leadership began, and `own_end` the part of it that counts
    (written, or synced). `brokers` maps each broker that is registered and not shutting down to its
    broker epoch.
    """

    __slots__ = (
        "_attempts",
        "_awaits_metadata",
        "_began_ms",
        "_brokers",
        "_eligible",
        "_followers",
        "_is_only_replica",
        "_leader_end",
        "_maximal",
        "_member_epochs",
        "_now_ms",
        "_own_end",
        "_proposal",
        "_replicas",
        "_retry_ms",
        "_rules",
        "_unresolved",
        "broker_epoch",
        "broker_id",
        "epoch",
        "high_watermark",
        "isr",
        "may_be_alone",
        "partition_epoch",
        "start_offset",
    )

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        partition: Partition,
        *,
        high_watermark: int,
        start_offset: int,
        own_end: int,
        rules: InSyncRules,
        brokers: Mapping[int, int],
        now_ms: int,
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.epoch = partition.leader_epoch
        self.start_offset = start_offset
        self.high_watermark = min(high_watermark, own_end)
        self.isr: frozenset[int] = frozenset()
        """The committed in-sync set, as in the metadata."""
        self.partition_epoch = -1
        self._eligible: frozenset[int] = frozenset()
        self._own_end = own_end
        """How far the leader's own log counts (written, or synced)."""
        self._leader_end = start_offset
        """The highest known end of the leader's log, which followers try to reach."""
        self._followers: dict[int, ReplicaProgress] = {}
        self._replicas: tuple[int, ...] = ()
        self._rules = rules
        self._brokers = dict(brokers)
        self._proposal: AlterIsr | None = None
        self._unresolved: frozenset[int] = frozenset()
        """Members of proposals whose outcome is unknown."""
        self._maximal: frozenset[int] = frozenset()
        self._member_epochs: dict[int, int] = {}
        """The broker epochs under which the members joined the in-sync set."""
        self._awaits_metadata = False
        """Whether the partition has changed, and the metadata will bring its new state."""
        self._attempts = 0
        self._retry_ms = now_ms
        self._began_ms = self._now_ms = now_ms
        self._is_only_replica = False
        self.may_be_alone = False
        """Whether the in-sync set may consist of the leader only: now, or by a proposal that is
        undecided."""
        self.on_partition(partition, now_ms)

    @property
    def age_ms(self) -> int:
        """How long the leadership has lasted, as of the last follower fetch or `propose` call."""
        return self._now_ms - self._began_ms

    # Events

    def on_own_end(self, end_offset: int) -> bool:
        """Notes how far the leader's own log counts. Returns True if the high watermark moved."""
        self._own_end = end_offset
        if not self._is_only_replica:
            self._leader_end = max(self._leader_end, end_offset)
            return self._advance()
        if end_offset <= self.high_watermark:
            return False
        self.high_watermark = end_offset
        return True

    def on_follower_fetch(
        self,
        replica: int,
        broker_epoch: int,
        fetch_offset: int,
        leader_end: int,
        now_ms: int,
        log_start_offset: int = 0,
    ) -> bool:
        """Notes that a follower has everything below `fetch_offset`.

        Returns True if the high watermark moved. Call it only for an offset within the log for
        which `epochs.diverging_epoch` has found no divergence.
        """
        follower = self._followers.get(replica)
        if follower is None:
            # The follower may have learned of its assignment before the leader did.
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"Broker {replica} is not among the replicas {list(self._replicas)} that this "
                "leader knows.",
            )
        if broker_epoch < max(follower.broker_epoch, self._brokers.get(replica, UNKNOWN)):
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Broker {replica} has registered again since broker epoch {broker_epoch}.",
            )
        self._now_ms = max(self._now_ms, now_ms)
        self._leader_end = max(self._leader_end, leader_end)
        follower.note_fetch(broker_epoch, fetch_offset, log_start_offset, leader_end, now_ms)
        return self._advance()

    def on_partition(self, partition: Partition, now_ms: int) -> bool:
        """Applies metadata of the partition in this leader epoch, if its partition epoch is newer.

        Returns True if the high watermark moved.
        """
        assert partition.leader_epoch == self.epoch
        if partition.partition_epoch <= self.partition_epoch:
            return False
        self._replicas = partition.replicas
        for each in partition.replicas:
            if each != self.broker_id and each not in self._followers:
                in_sync = each in partition.isr
                # An in-sync replica gets the full lag time; any other counts as lagging.
                lagged_ms = 0 if in_sync else self._rules.lag_max_ms + 1
                self._followers[each] = ReplicaProgress(now_ms - lagged_ms)
        for each in [each for each in self._followers if each not in partition.replicas]:
            del self._followers[each]
        for each in self.isr.difference(partition.isr).intersection(self._followers):
            # It left the in-sync set or was removed from it. Only a new fetch can bring it back,
            # and until then the high watermark does not wait for it.
            self._followers[each].forget_fetches()
        self.partition_epoch = partition.partition_epoch
        self.isr = frozenset(partition.isr)
        self._eligible = frozenset(partition.eligible_leaders)
        self._member_epochs = {each: partition.member_epoch(each) for each in partition.isr}
        # A proposal on an earlier partition epoch is part of this state, or void.
        self._proposal = None
        self._unresolved = frozenset()
        self._awaits_metadata = False
        self._recompute_maximal_set()
        return self._advance()

    def on_brokers(self, brokers: Mapping[int, int]) -> bool:
        """Sets the brokers that are registered and not shutting down, with their epochs."""
        self._brokers = dict(brokers)
        return self._advance()

    def configure(self, rules: InSyncRules) -> bool:
        """Applies changed settings of the topic or the broker."""
        self._rules = rules
        self._recompute_maximal_set()
        return self._advance()

    # Changes to the in-sync set

    def propose(self, now_ms: int) -> AlterIsr | None:
        """Returns the in-sync set to propose, or None if nothing is to be proposed now.

        Call it after fetches by replicas that are not in sync, and periodically to find lagging
        members.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if self._proposal is not None or self._awaits_metadata or now_ms < self._retry_ms:
            return None
        wanted = [each for each in self._replicas if self._belongs(each)]
        if frozenset(wanted) == self.isr and not self._unresolved:
            return None
        self._attempts += 1
        self._proposal = AlterIsr(
            tuple((each, self._epoch_of(each)) for each in wanted),
            self.epoch,
            self.partition_epoch,
            self._attempts,
        )
        self._recompute_maximal_set()
        return self._proposal

    def on_isr_answer(self, partition: Partition, now_ms: int) -> bool:
        """Applies the partition state that resulted from a proposal.

        Returns True if the high watermark moved. The answer carries the whole partition state, as
        the metadata does: a change that completes a reassignment changes more than the in-sync set.
        The answer and the metadata update may arrive in either order, and the first one counts.
        """
        if partition.leader_epoch != self.epoch:
            # The change moved the leadership away: the metadata will end this one.
            self._awaits_metadata = True
            return False
        return self.on_partition(partition, now_ms)

    def on_isr_refused(self, proposal: AlterIsr, reason: ErrorCode, now_ms: int) -> bool:
        """Handles a proposal that failed or whose outcome is unknown.

        Returns True if the high watermark moved.
        """
        held = self._proposal
        if held is None or held.attempt != proposal.attempt:
            return False
        self._proposal = None
        self._retry_ms = now_ms + RETRY_MS
        self._awaits_metadata = reason in _MOVED_ON
        if reason not in _REFUSED:
            self._unresolved |= {each for each, _ in held.isr}
        self._recompute_maximal_set()
        return self._advance()

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that may be in the in-sync set, whatever the outcome of the proposals."""
        return self._maximal

    def _belongs(self, replica: int) -> bool:
        """Returns whether a replica should be in the in-sync set, judged by its current state."""
        if replica == self.broker_id:
            return True
        follower = self._followers[replica]
        if replica in self.isr and not self._has_new_life(replica, follower):
            return follower.keeps_up(self._leader_end, self._now_ms, self._rules.lag_max_ms)
        return self._may_join(replica, follower) and self._has_enough(follower)

    def _has_new_life(self, replica: int, follower: ReplicaProgress) -> bool:
        """Returns whether a member fetches under another broker epoch than it joined the ISR with.

        How well it kept up before a restart says nothing about what its log holds now: it must join
        again.
        """
        noted = self._member_epochs.get(replica, UNKNOWN)
        return UNKNOWN not in (noted, follower.broker_epoch) and noted != follower.broker_epoch

    def _may_join(self, replica: int, follower: ReplicaProgress) -> bool:
        """Returns whether the replica fetched under the broker epoch that is registered."""
        return self._brokers.get(replica, UNKNOWN) == follower.broker_epoch != UNKNOWN

    def _has_enough(self, follower: ReplicaProgress) -> bool:
        """Returns whether the replica has everything that this or earlier leaders committed."""
        return follower.end_offset >= max(self.high_watermark, self.start_offset)

    def _epoch_of(self, replica: int) -> int:
        if replica == self.broker_id:
            return self.broker_epoch
        return self._followers[replica].broker_epoch

    # What is committed

    def _min_insync(self) -> int:
        # No more replicas can be in sync than there are: a larger setting means all of them.
        return min(self._rules.min_insync_replicas, len(self._replicas))

    def _may_commit(self) -> bool:
        """Returns whether enough replicas are in sync, and no eligible leader is outside
        the ISR."""
        return len(self.isr) >= self._min_insync() and not self._eligible

    def _recompute_maximal_set(self) -> None:
        """Recomputes the maximal set, and whether the leader may be alone in sync."""
        held, own = self._proposal, {self.broker_id}
        proposed = frozenset[int]() if held is None else {each for each, _ in held.isr}
        self._maximal = self.isr | self._unresolved | proposed
        self.may_be_alone = own in (self.isr, self._unresolved, proposed)
        self._is_only_replica = (
            len(self._replicas) == 1 and self._maximal == own and self._may_commit()
        )

    def _advance(self) -> bool:
        """Moves the high watermark as far as the rules allow. Returns True if it moved."""
        if not self._may_commit():
            return False
        committed = self._own_end
        for each, follower in self._followers.items():
            if follower.end_offset < committed and (
                each in self._maximal or self._waits_for(each, follower)
            ):
                committed = follower.end_offset
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _waits_for(self, replica: int, follower: ReplicaProgress) -> bool:
        """Returns whether the high watermark waits for a replica that is about to join."""
        return (
            self._may_join(replica, follower)
            and self._has_enough(follower)
            and follower.keeps_up(self._leader_end, self._now_ms, self._rules.lag_max_ms)
        )

    # What clients get

    def require_insync(self) -> None:
        """Raises NOT_ENOUGH_REPLICAS if too few replicas are in sync for a write with acks=all."""
        if not self._is_only_replica and len(self.isr) < self._min_insync():
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"only {len(self.isr)} replica(s) are in sync, but min.insync.replicas is "
                f"{self._rules.min_insync_replicas}",
            )

    def outcome(self, end_offset: int) -> ErrorCode | None:
        """Returns the result of a write with acks=all up to this offset; None while it
        must wait."""
        if self.high_watermark < end_offset:
            return None
        if len(self.isr) < self._min_insync():
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def latest_offset(self) -> int:
        """Returns the high watermark, once it is known not to be lower than an earlier leader's."""
        if self.high_watermark < self.start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"The high watermark {self.high_watermark} is below offset {self.start_offset}, "
                "where this leader epoch began: try again after the followers have fetched.",
            )
        return self.high_watermark

    def preferred_read_replica(
        self, rack: str | None, racks: Mapping[int, str | None], fetch_offset: int
    ) -> int | None:
        """Returns the replica that a client in this rack should read from (KIP-392), or None.

        None stands for the leader. Another replica must be in sync and have the requested offset.
        Among several, the one with the highest log end is chosen.
        """
        if not rack or racks.get(self.broker_id) == rack:
            return None
        near = [
            (follower.end_offset, -each)
            for each, follower in self._followers.items()
            if each in self.isr
            and each in self._brokers
            and racks.get(each) == rack
            and follower.log_start_offset <= fetch_offset <= follower.end_offset
        ]
        return -max(near)[1] if near else None

    def is_behind(self, replica: int) -> bool:
        """Returns whether the follower has not received the current high watermark yet."""
        follower = self._followers.get(replica)
        return follower is not None and follower.told_offset < self.high_watermark

    def on_told(self, replica: int) -> None:
        """Notes that a response to this follower carries the current high watermark."""
        follower = self._followers.get(replica)
        if follower is not None:
            follower.told_offset = self.high_watermark

    def low_watermark(self, log_start_offset: int) -> int:
        """Returns the lowest log start of the leader, the live followers and the other replicas
        that may lead next; -1 while unknown."""
        counted = self._brokers.keys() | self.isr | self._eligible
        starts = [
            follower.log_start_offset
            for each, follower in self._followers.items()
            if each in counted
        ]
        return min([log_start_offset, *starts])

    def ends(self) -> dict[int, int]:
        """Returns the known log end of each replica, the leader included; -1 if it never
        fetched."""
        ends = {self.broker_id: self._own_end}
        ends.update((each, follower.end_offset) for each, follower in self._followers.items())
        return ends
