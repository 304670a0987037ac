"""One term of one leader with followers: who is in sync, what is committed, what may be read.

The leader knows of every replica how far its log goes, by the offset it fetches from: a follower
asks for the first offset it does not have, in the way the topic counts (written, or on disk). From
these ends comes the high watermark, the offset below which everything is committed.

    high watermark = the least end over the MAXIMAL in-sync set

The committed in-sync set is what the metadata store says. A change is proposed to the controller
and may be in force from the moment it is sent, so until it is known what became of it, everybody in
either set counts: that is the maximal set (KIP-497). Three more rules keep what is committed safe:

- The high watermark stands still while fewer than min.insync.replicas are in the committed set,
  and while there are eligible leaders outside of it (KIP-966): these may be elected, and would lack
  what is committed without them. The second rule holds even where leader and controller differ for
  a moment in what min.insync.replicas is.
- A replica joins only at or beyond the high watermark and the start of this term: below that it
  may lack what earlier leaders committed. And only in the incarnation that fetched (KIP-903), while
  that is registered and not about to stop (KIP-841).
- A proposal whose outcome is unknown may still be committed later. Its members count until the
  partition epoch has moved on, since only then can it no longer be. If nothing else is to be
  changed, the set is proposed as it is, for the sake of the new partition epoch alone.

A replica that is not in sync but keeps up is waited for, so that it can join under load: otherwise
the high watermark might run ahead of it for ever.

The high watermark of a new leader is what it knew as a follower, and may be behind what its
predecessor had told clients. `latest_offset` says nothing until it has reached the start of the
term, so no client sees the end of a partition go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.metadata.model import Partition
from penstock.partition.epochs import UNDEFINED_EPOCH, EpochEnd, LeaderEpochs
from penstock.wire.errors import ErrorCode, KafkaError

RETRY_MS: Final = 100
"""How long a refused proposal is not repeated."""
_UNKNOWN: Final = -1

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
"""The partition is no longer what the proposal rested on: news of it is on its way."""
_REFUSED: Final = frozenset(
    {
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
"""Nothing was changed. Whatever is in neither set leaves it open whether anything was."""


@dataclass(frozen=True, slots=True)
class InSyncRules:
    min_insync_replicas: int
    lag_max_ms: int
    """replica.lag.time.max.ms"""


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """A proposal for the controller: pairs of broker and the epoch it fetched under.

    `attempt` tells proposals apart, so that a late answer is not taken for another one's.
    """

    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int
    attempt: int


class Replica:
    """What the leader knows of a follower."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "fetched_ms",
        "leader_end",
        "log_start_offset",
        "told_offset",
    )

    def __init__(self, caught_up_ms: int) -> None:
        self.broker_epoch = _UNKNOWN
        self.end_offset = _UNKNOWN
        self.log_start_offset = _UNKNOWN
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = caught_up_ms
        self.leader_end = _UNKNOWN
        """Where the leader's log ended at the last fetch."""
        self.told_offset = _UNKNOWN
        """The high watermark in the last answer."""

    def note_fetch(
        self, broker_epoch: int, offset: int, log_start: int, leader_end: int, now_ms: int
    ) -> None:
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end >= 0 and broker_epoch == self.broker_epoch:
            # It has by now all there was when it last asked: so it had caught up then.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.broker_epoch = broker_epoch
        self.end_offset = offset
        self.log_start_offset = log_start
        self.fetched_ms = now_ms
        self.leader_end = leader_end

    def forget_fetches(self) -> None:
        """What it asked for so far does not make it a member of the in-sync set any more."""
        self.broker_epoch = self.leader_end = _UNKNOWN

    def keeps_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.end_offset >= leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class Leadership:
    """One term of one leader.

    `high_watermark` is what the leader knew before, at most its own end; `start_offset` is where
    its log ended when the term began, `own_end` how far it counts. `brokers` are the epochs of all
    brokers that are registered and not about to stop.
    """

    __slots__ = (
        "_alone",
        "_attempts",
        "_awaits_metadata",
        "_began_ms",
        "_brokers",
        "_eligible",
        "_followers",
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
        "counts_alone",
        "epoch",
        "high_watermark",
        "isr",
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
        self.partition_epoch = -1
        self._eligible: frozenset[int] = frozenset()
        self._own_end = own_end
        self._leader_end = start_offset
        self._followers: dict[int, Replica] = {}
        self._replicas: tuple[int, ...] = ()
        self._rules = rules
        self._brokers = dict(brokers)
        self._proposal: AlterIsr | None = None
        self._unresolved: frozenset[int] = frozenset()
        self._maximal: frozenset[int] = frozenset()
        self._member_epochs: dict[int, int] = {}
        self._awaits_metadata = False
        self._attempts = 0
        self._retry_ms = now_ms
        self._began_ms = self._now_ms = now_ms
        self._alone = False
        self.counts_alone = False
        """The leader is the only one that is, or may be, in the in-sync set."""
        self.on_partition(partition, now_ms)

    @property
    def age_ms(self) -> int:
        """For how long the term lasts, when a follower or the clock was last heard of."""
        return self._now_ms - self._began_ms

    # What the leader hears

    def on_own_end(self, end_offset: int) -> bool:
        """The leader's own log counts up to here; True when the high watermark moved."""
        self._own_end = end_offset
        if not self._alone:
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
        """A follower has everything below `fetch_offset`; True when the high watermark moved.

        Call it only for an offset within the log that `diverging_epoch` finds nothing against.
        """
        follower = self._followers.get(replica)
        if follower is None:
            # The follower may know of its assignment before the leader does.
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"Broker {replica} is none of the replicas {list(self._replicas)} known here.",
            )
        if broker_epoch < max(follower.broker_epoch, self._brokers.get(replica, _UNKNOWN)):
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Broker {replica} has registered again since its epoch {broker_epoch}.",
            )
        self._now_ms = max(self._now_ms, now_ms)
        self._leader_end = max(self._leader_end, leader_end)
        follower.note_fetch(broker_epoch, fetch_offset, log_start_offset, leader_end, now_ms)
        return self._advance()

    def on_partition(self, partition: Partition, now_ms: int) -> bool:
        """The metadata shows the partition so, in this leader's term. The newest state wins."""
        assert partition.leader_epoch == self.epoch
        if partition.partition_epoch <= self.partition_epoch:
            return False
        self._replicas = partition.replicas
        for each in partition.replicas:
            if each != self.broker_id and each not in self._followers:
                in_sync = each in partition.isr
                # Who is in sync at the start has its time from now on; who is not, has lagged.
                lagged_ms = 0 if in_sync else self._rules.lag_max_ms + 1
                self._followers[each] = Replica(now_ms - lagged_ms)
        for each in [each for each in self._followers if each not in partition.replicas]:
            del self._followers[each]
        for each in self.isr.difference(partition.isr).intersection(self._followers):
            # It has left, or lagged. Only a fetch from now on can bring it back, and until then
            # the high watermark does not wait for it.
            self._followers[each].forget_fetches()
        self.partition_epoch = partition.partition_epoch
        self.isr = frozenset(partition.isr)
        self._eligible = frozenset(partition.eligible_leaders)
        self._member_epochs = {each: partition.member_epoch(each) for each in partition.isr}
        # What was proposed on an earlier partition epoch is in here, or can never be.
        self._proposal = None
        self._unresolved = frozenset()
        self._awaits_metadata = False
        self._settle()
        return self._advance()

    def on_brokers(self, brokers: Mapping[int, int]) -> bool:
        """These brokers are registered, by their epochs, and not about to stop."""
        self._brokers = dict(brokers)
        return self._advance()

    def configure(self, rules: InSyncRules) -> bool:
        """The topic's or the broker's settings have changed."""
        self._rules = rules
        self._settle()
        return self._advance()

    # Changes of the in-sync set

    def propose(self, now_ms: int) -> AlterIsr | None:
        """What to ask the controller for, None when there is nothing, or nothing as yet.

        Ask after fetches of who is not in sync, and from time to time for who lags.
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
        self._settle()
        return self._proposal

    def on_isr_answer(self, partition: Partition, now_ms: int) -> bool:
        """The controller has made this of a proposal; True when the high watermark moved.

        It takes the whole state, as the metadata does: a change that completes a move of replicas
        changes more than the in-sync set, and whichever comes first is the one that counts.
        """
        if partition.leader_epoch != self.epoch:
            # Granted, and this leader moved away with it: the metadata will end the term.
            self._awaits_metadata = True
            return False
        return self.on_partition(partition, now_ms)

    def on_isr_refused(self, proposal: AlterIsr, reason: ErrorCode, now_ms: int) -> bool:
        """A proposal failed, or nobody knows; True when the high watermark moved."""
        held = self._proposal
        if held is None or held.attempt != proposal.attempt:
            return False
        self._proposal = None
        self._retry_ms = now_ms + RETRY_MS
        self._awaits_metadata = reason in _MOVED_ON
        if reason not in _REFUSED:
            self._unresolved |= {each for each, _ in held.isr}
        self._settle()
        return self._advance()

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Everybody who may be in the in-sync set, whatever became of what was proposed."""
        return self._maximal

    def _belongs(self, replica: int) -> bool:
        """Whether a replica is to be in the in-sync set by what is known of it now."""
        if replica == self.broker_id:
            return True
        follower = self._followers[replica]
        if replica in self.isr and not self._has_new_life(replica, follower):
            return follower.keeps_up(self._leader_end, self._now_ms, self._rules.lag_max_ms)
        return self._may_join(replica, follower) and self._has_enough(follower)

    def _has_new_life(self, replica: int, follower: Replica) -> bool:
        """Whether a member fetches in another life than it is in the set for.

        How well it kept up before says nothing of what its new life has: it must join anew.
        """
        noted = self._member_epochs.get(replica, _UNKNOWN)
        return _UNKNOWN not in (noted, follower.broker_epoch) and noted != follower.broker_epoch

    def _may_join(self, replica: int, follower: Replica) -> bool:
        return self._brokers.get(replica, _UNKNOWN) == follower.broker_epoch != _UNKNOWN

    def _has_enough(self, follower: Replica) -> bool:
        return follower.end_offset >= max(self.high_watermark, self.start_offset)

    def _epoch_of(self, replica: int) -> int:
        if replica == self.broker_id:
            return self.broker_epoch
        return self._followers[replica].broker_epoch

    # What is committed

    def _min_insync(self) -> int:
        # More than there are replicas can never be in sync: then all of them will do.
        return min(self._rules.min_insync_replicas, len(self._replicas))

    def _may_commit(self) -> bool:
        return len(self.isr) >= self._min_insync() and not self._eligible

    def _settle(self) -> None:
        """After every change of the sets: who counts, and whether it is the leader alone."""
        proposed = () if self._proposal is None else self._proposal.isr
        self._maximal = self.isr | self._unresolved | {each for each, _ in proposed}
        self.counts_alone = self._maximal == {self.broker_id}
        self._alone = len(self._replicas) == 1 and self.counts_alone and self._may_commit()

    def _advance(self) -> bool:
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

    def _waits_for(self, replica: int, follower: Replica) -> bool:
        return (
            self._may_join(replica, follower)
            and self._has_enough(follower)
            and follower.keeps_up(self._leader_end, self._now_ms, self._rules.lag_max_ms)
        )

    # What clients get

    def waits_only_for_leader(self, end_offset: int) -> bool:
        """Whether the high watermark reaches this offset once the leader's own log counts as far.

        This is so where the leader is the only in-sync replica, and no other is about to join.
        """
        if self._alone or not self.counts_alone:
            return self._alone
        return self._may_commit() and all(
            follower.end_offset >= end_offset or not self._waits_for(each, follower)
            for each, follower in self._followers.items()
        )

    def require_insync(self) -> None:
        """Enough replicas to take a write with acks=all."""
        if not self._alone and len(self.isr) < self._min_insync():
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas are in sync and min.insync.replicas is "
                f"{self._rules.min_insync_replicas}",
            )

    def outcome(self, end_offset: int) -> ErrorCode | None:
        """What to answer to a write with acks=all that ends there; None while it must wait."""
        if self.high_watermark < end_offset:
            return None
        if len(self.isr) < self._min_insync():
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def latest_offset(self) -> int:
        """The high watermark, once it is sure to be no less than an earlier leader's."""
        if self.high_watermark < self.start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"The high watermark is {self.high_watermark} and this leader's term began at "
                f"{self.start_offset}: ask again when the followers have fetched.",
            )
        return self.high_watermark

    def preferred_read_replica(
        self, rack: str | None, racks: Mapping[int, str | None], fetch_offset: int
    ) -> int | None:
        """Another replica for a client in this rack to read from (KIP-392); None for the leader.

        It is in sync, has what is asked for, and of several is the one that is furthest on.
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
        """Whether a follower has not been told the high watermark as it is now."""
        follower = self._followers.get(replica)
        return follower is not None and follower.told_offset < self.high_watermark

    def on_told(self, replica: int) -> None:
        """An answer leaves for a follower, with the high watermark in it."""
        follower = self._followers.get(replica)
        if follower is not None:
            follower.told_offset = self.high_watermark

    def low_watermark(self, log_start_offset: int) -> int:
        """Where the lowest log of the leader and the living followers starts; -1 while unknown."""
        starts = [
            follower.log_start_offset
            for each, follower in self._followers.items()
            if each in self._brokers
        ]
        return min([log_start_offset, *starts])

    def ends(self) -> dict[int, int]:
        """How far each replica is known to go, the leader included; -1 for not heard from."""
        ends = {self.broker_id: self._own_end}
        ends.update((each, follower.end_offset) for each, follower in self._followers.items())
        return ends


def diverging_epoch(
    epochs: LeaderEpochs, fetch_offset: int, last_fetched_epoch: int, log_end_offset: int
) -> EpochEnd | None:
    """Where a log that ends at `fetch_offset`, in that epoch, parts from this one; None if nowhere.

    The leader has noted its own epoch in `epochs` at the start of its term. An epoch that this log
    cannot place is `OFFSET_OUT_OF_RANGE`: there is nothing in common.
    """
    if last_fetched_epoch == UNDEFINED_EPOCH:
        return None
    found = epochs.end_offset_for(last_fetched_epoch, log_end_offset)
    if found.epoch == UNDEFINED_EPOCH:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Epoch {last_fetched_epoch} is not known here: the log has "
            f"{[entry.epoch for entry in epochs.entries]}.",
        )
    if found.epoch < last_fetched_epoch or found.end_offset < fetch_offset:
        return found
    return None
