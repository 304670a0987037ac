"""One partition on one broker: its role, its high watermark, what happens to each batch. Pure.

    append(header, now)     decides about a batch: Append | Duplicate | Refuse | Verify
    on_appended             the leader's log has grown; called only without fsync
    on_flushed              the log was synced, or has failed
    on_follower_fetch       a follower has everything below an offset
    lead, follow, resign    the metadata gives this broker another role, or takes it away
    wait_for_commit, wait_for_own_disk    a request waits; `Answer` names it when it is due

All events except `append` return effects. The shell (`broker/partitions/hosted_partition`) carries
them out in order. The machine reads the log and never changes it.

A leadership with followers begins only when its leader epoch is synced to disk. So no record and no
response has an epoch that the log could forget. Two kinds of leadership do not write their epoch
first: one without followers, and the first one of a partition, which has no predecessor to be
distinguished from.

The high watermark outlives the role: it is passed on when a follower becomes the leader, and when a
leader becomes a follower. It also survives a restart, up to the value that was last checkpointed:
readers get the records that were committed then, even if no other replica is available. The broker
learns what was committed after that from the leader or from the followers' fetches. Until the high
watermark has reached the start offset of the leadership, the leader does not report where the
partition ends. So clients never see the end go back.

Requests that wait for an offset form a queue, because offsets are committed in order. All times are
from a clock that never goes back, except for the `now_ms` of `append`, which is wall-clock time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, NoReturn

from penstock.metadata.model import Partition
from penstock.partition.decisions import (
    Answer,
    Append,
    Decision,
    Do,
    Effect,
    NoteEpoch,
    PartitionLog,
    Refuse,
    Verify,
    W,
)
from penstock.partition.follower import BACKOFF_MS, Follower, FollowerRules
from penstock.partition.guards import Verification
from penstock.partition.leadership import AlterIsr, InSyncRules, Leadership
from penstock.partition.producer_errors import ProducerRefused
from penstock.partition.retry_window import RetryWindow
from penstock.partition.sequence_gate import check_sequence
from penstock.records.batch import TRANSACTIONAL, BatchHeader, HeaderFields
from penstock.wire.errors import ErrorCode, KafkaError

_NOTHING: Final = ()
_PRODUCER_ID: Final = BatchHeader._fields.index("producer_id")
TELL_READERS: Final = (Do.TELL_READERS,)
"""What `on_appended` usually returns. The shell compares it by identity, and does nothing if no
reader waits: this is on the path of every append."""
_TELL_ALL: Final = (Do.TELL_READERS, Do.TELL_FOLLOWERS)


class _PendingLeadership(NamedTuple):
    """What is known of a leadership before it begins."""

    broker_id: int
    broker_epoch: int
    partition: Partition
    brokers: Mapping[int, int]
    now_ms: int


class PartitionMachine(Generic[W]):
    """See the module's docstring.

    `counts_synced` says that records count once they are synced (`durability=fsync`), and not when
    they are written.
    """

    __slots__ = (
        "_accepted",
        "_backoff_ms",
        "_beginning",
        "_follower_rules",
        "_lag_max_ms",
        "_led_records",
        "_log",
        "_min_insync_replicas",
        "_restored_high_watermark",
        "_waiting",
        "_waiting_for_own_disk",
        "counts_synced",
        "follower",
        "leadership",
        "retry_window",
    )

    def __init__(
        self,
        log: PartitionLog,
        *,
        high_watermark: int,
        counts_synced: bool,
        min_insync_replicas: int,
        follower_rules: Callable[[int], FollowerRules],
    ) -> None:
        self._log = log
        self.leadership: Leadership | None = None
        self.follower: Follower | None = None
        self.retry_window = RetryWindow()
        self.counts_synced = counts_synced
        self._accepted = Append(-1)
        """The decision for every batch that is accepted in this leadership."""
        self._min_insync_replicas = min_insync_replicas
        self._follower_rules = follower_rules
        self._lag_max_ms = 0
        self._backoff_ms = BACKOFF_MS
        self._beginning: _PendingLeadership | None = None
        self._restored_high_watermark = high_watermark
        self._led_records = 0
        self._waiting: deque[tuple[int, W]] = deque()
        self._waiting_for_own_disk: deque[tuple[int, W]] = deque()

    # What others read

    @property
    def high_watermark(self) -> int:
        leadership = self.leadership
        if leadership is not None:
            return leadership.high_watermark
        return (
            self._restored_high_watermark if self.follower is None else self.follower.high_watermark
        )

    @property
    def last_stable_offset(self) -> int:
        log = self._log
        return log.producers.last_stable_offset(self.high_watermark, log.log_start_offset)

    @property
    def counted_end(self) -> int:
        """The end of what counts: everything written, or with `counts_synced` what is synced."""
        return self._log.recovery_point if self.counts_synced else self._log.end_offset

    @property
    def is_beginning(self) -> bool:
        """Whether a leadership waits for its epoch to be synced."""
        return self._beginning is not None

    @property
    def appended_records(self) -> int:
        """Records that this broker appended as leader. Nothing else makes a leader's log longer."""
        leadership = self.leadership
        if leadership is None:
            return self._led_records
        return self._led_records + self._log.end_offset - leadership.start_offset

    def require_leader(self, current_epoch: int = -1) -> Leadership:
        """Returns the leadership, if this broker leads and the client's epoch matches (KIP-320)."""
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(self.why_not_leader())
        if current_epoch >= 0 and current_epoch != leadership.epoch:
            _refuse_epoch(current_epoch, leadership.epoch)
        return leadership

    def require_reader(self, current_epoch: int = -1) -> Leadership | Follower:
        """Returns the role that serves consumers: the leader, or a follower (KIP-392)."""
        if self.follower is None:
            return self.require_leader(current_epoch)
        if current_epoch >= 0 and current_epoch != self.follower.epoch:
            _refuse_epoch(current_epoch, self.follower.epoch)
        return self.follower

    def why_not_leader(self) -> ErrorCode:
        if self._log.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    # Appending

    def append(
        self, header: HeaderFields, now_ms: int, verification: Verification | None = None
    ) -> Decision:
        """Decides about a client's batch, which has been validated.

        A batch that is not appended may still change two things, and nothing else: the retry window
        (the sequence that must come first), and a guard that `Verify` has taken. Both are only in
        memory, and asking again gives the same answer.
        """
        leadership = self.leadership
        if leadership is None:
            return Refuse(KafkaError(self.why_not_leader()))
        if header[_PRODUCER_ID] < 0:
            return self._accepted
        return self._in_sequence(BatchHeader._make(header), leadership, now_ms, verification)

    def _in_sequence(
        self,
        header: BatchHeader,
        leadership: Leadership,
        now_ms: int,
        verification: Verification | None,
    ) -> Decision:
        """Decides about a batch of an idempotent or transactional producer."""
        producers = self._log.producers
        if verification is None and header.attributes & TRANSACTIONAL:
            begin = partial(producers.begin_verification, header, now_ms)
            # Batches of a producer share a guard, and verification takes it again. It is taken now
            # so that it knows the lowest sequence.
            if begin() is not None:
                return Verify(header.producer_id, header.producer_epoch, begin)
            verification = Verification()
        try:
            seen = check_sequence(
                header, producers, self.retry_window, leadership, now_ms, verification
            )
        except ProducerRefused as error:
            return Refuse(error)
        return self._accepted if seen is None else seen

    def on_appended(self, end_offset: int) -> Sequence[Effect[W]]:
        """The leader has written up to `end_offset`."""
        leadership = self.leadership
        if self.counts_synced or leadership is None or not leadership.on_own_end(end_offset):
            return _NOTHING
        return self._commit_effects(leadership) if self._waiting else TELL_READERS

    def wait_for_commit(self, end_offset: int, wait: W) -> ErrorCode | None:
        """Returns the outcome of a write up to `end_offset` with acks=all, if it is known.

        If not, it is None, and an `Answer` names `wait` later.
        """
        leadership = self.leadership
        if leadership is None:
            return self.why_not_leader()
        outcome = leadership.outcome(end_offset)
        if outcome is None:
            self._waiting.append((end_offset, wait))
        return outcome

    def waits_for_own_flush(self, end_offset: int) -> bool:
        """Returns whether a write up to `end_offset` with acks=1 must wait for this leader's flush.

        It must if the leader may be the only in-sync replica: perhaps no other disk will have the
        record.
        """
        leadership = self.leadership
        return leadership is not None and leadership.may_be_alone and self.counted_end < end_offset

    def wait_for_own_disk(self, end_offset: int, wait: W) -> ErrorCode | None:
        """Returns NONE if this leader's log counts up to `end_offset`, or why it never will.

        If neither, it is None, and an `Answer` names `wait` later. A request with acks=1 does not
        wait for the high watermark: a replica that joins the ISR meanwhile would delay a response
        that does not depend on it.
        """
        if self.leadership is None:
            return self.why_not_leader()
        if self.counted_end >= end_offset:
            return ErrorCode.NONE
        self._waiting_for_own_disk.append((end_offset, wait))
        return None

    # Roles

    def lead(
        self,
        broker_id: int,
        broker_epoch: int,
        partition: Partition,
        brokers: Mapping[int, int],
        now_ms: int,
        lag_max_ms: int,
    ) -> Sequence[Effect[W]]:
        """Begins a leadership, or updates the current one, as the metadata says.

        `brokers` are the broker epochs of all brokers that are registered and not about to stop. A
        leadership with followers begins later, in `on_flushed`.
        """
        self._lag_max_ms = lag_max_ms
        pending = _PendingLeadership(broker_id, broker_epoch, partition, brokers, now_ms)
        leadership, beginning = self.leadership, self._beginning
        if leadership is not None and _is_of(pending, leadership.epoch, leadership.broker_epoch):
            return self._go_on(leadership, pending)
        if beginning is not None and _is_of(
            pending, beginning.partition.leader_epoch, beginning.broker_epoch
        ):
            self._beginning = pending
            return _NOTHING
        self._leave_role()
        if len(partition.replicas) > 1 and partition.leader_epoch > 0:
            self._beginning = pending
            return [*_TELL_ALL, NoteEpoch(partition.leader_epoch), Do.FLUSH]
        effects = [*_TELL_ALL, *self._begin(pending)]
        if self.counts_synced and self._log.needs_flush:
            effects.append(Do.FLUSH)
        return effects

    def _go_on(self, leadership: Leadership, pending: _PendingLeadership) -> Sequence[Effect[W]]:
        effects: list[Effect[W]] = []
        if len(pending.partition.replicas) > 1:
            # A leadership that had no followers so far may not have recorded its epoch.
            effects.append(NoteEpoch(leadership.epoch))
        moved = leadership.on_partition(pending.partition, pending.now_ms)
        moved = leadership.on_brokers(pending.brokers) or moved
        if leadership.configure(self._insync_rules()) or moved:
            effects += self._commit_effects(leadership)
        return effects

    def _begin_if_noted(self, pending: _PendingLeadership) -> Sequence[Effect[W]]:
        epoch = pending.partition.leader_epoch
        if self._log.epochs.latest != epoch:
            # The log was being truncated when its epoch was recorded, and lost the entry.
            return [NoteEpoch(epoch), Do.FLUSH]
        if self._log.needs_flush:
            # This was an earlier flush, and the requested one is still to come.
            return _NOTHING
        return self._begin(pending)

    def _begin(self, pending: _PendingLeadership) -> Sequence[Effect[W]]:
        self._beginning = None
        self._accepted = Append(pending.partition.leader_epoch)
        self.leadership = Leadership(
            pending.broker_id,
            pending.broker_epoch,
            pending.partition,
            high_watermark=max(self._restored_high_watermark, self._log.log_start_offset),
            start_offset=self._log.end_offset,
            own_end=self.counted_end,
            rules=self._insync_rules(),
            brokers=pending.brokers,
            now_ms=pending.now_ms,
        )
        return self._commit_effects(self.leadership)

    def follow(self, partition: Partition, backoff_ms: int = BACKOFF_MS) -> Sequence[Effect[W]]:
        """Follows the leader of the metadata: a new `Follower` per leader epoch or after a halt."""
        follower = self.follower
        if follower and follower.epoch == partition.leader_epoch and not follower.is_released:
            return _NOTHING
        effects = self.resign()
        self._backoff_ms = backoff_ms
        self.follower = Follower(
            partition.leader,
            partition.leader_epoch,
            high_watermark=min(self._restored_high_watermark, self._log.end_offset),
            rules=self._follower_rules(backoff_ms),
        )
        return effects

    def resign(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> Sequence[Effect[W]]:
        """Gives up the role. Requests that wait fail with `code`."""
        waits = [wait for _, wait in (*self._waiting, *self._waiting_for_own_disk)]
        self._waiting, self._waiting_for_own_disk = deque(), deque()
        self._leave_role()
        return [*_TELL_ALL, Answer(waits, code)] if waits else _TELL_ALL

    def _leave_role(self) -> None:
        """Ends the role, but not the requests that wait. If this broker leads again, their batches
        are still in its log and may be committed. If these requests failed instead, some clients
        would send the batches again, and the log would have them twice."""
        self._led_records = self.appended_records
        # A follower may have been about to start its log again at a higher offset.
        self._restored_high_watermark = min(self.high_watermark, self._log.end_offset)
        self.leadership = self.follower = self._beginning = None

    # Other events

    def configure(
        self,
        *,
        counts_synced: bool,
        min_insync_replicas: int,
        follower_rules: Callable[[int], FollowerRules],
    ) -> Sequence[Effect[W]]:
        """The topic's settings have changed."""
        effects: list[Effect[W]] = []
        if counts_synced and not self.counts_synced:
            # From now on, elections assume that whatever counted is synced on every replica.
            effects.append(Do.FLUSH)
        self.counts_synced = counts_synced
        self._min_insync_replicas = min_insync_replicas
        self._follower_rules = follower_rules
        if self.follower is not None:
            self.follower.configure(follower_rules(self._backoff_ms))
        leadership = self.leadership
        if leadership is not None:
            moved = leadership.configure(self._insync_rules())
            if leadership.on_own_end(self.counted_end) or moved:
                effects += self._commit_effects(leadership)
            effects += self._own_disk_reached()
        return effects

    def on_flushed(self) -> Sequence[Effect[W]]:
        """A flush of the log has ended: more is synced, or the log has failed."""
        effects: Sequence[Effect[W]] = _NOTHING
        leadership = self.leadership
        if self._log.failure is not None:
            return self.resign(ErrorCode.KAFKA_STORAGE_ERROR)
        if self._beginning is not None:
            effects = self._begin_if_noted(self._beginning)
        elif (
            leadership is not None
            and self.counts_synced
            and leadership.on_own_end(self._log.recovery_point)
        ):
            effects = self._commit_effects(leadership)
        if self._waiting_for_own_disk:
            effects = [*effects, *self._own_disk_reached()]
        return effects

    def on_follower_fetch(
        self,
        replica: int,
        broker_epoch: int,
        fetch_offset: int,
        now_ms: int,
        log_start_offset: int,
    ) -> Sequence[Effect[W]]:
        """A follower has fetched, and so has everything below `fetch_offset`. The caller has
        checked that the logs do not diverge (`partition.epochs.diverging_epoch`)."""
        leadership = self.require_leader()
        moved = leadership.on_follower_fetch(
            replica, broker_epoch, fetch_offset, self._log.end_offset, now_ms, log_start_offset
        )
        return self._commit_effects(leadership) if moved else _NOTHING

    def on_replicated(self) -> Sequence[Effect[W]]:
        """This follower's log has grown or was truncated, or its high watermark has moved."""
        follower = self.follower
        if follower is None or follower.high_watermark == self._restored_high_watermark:
            return _NOTHING
        self._restored_high_watermark = follower.high_watermark
        return TELL_READERS

    def on_brokers(self, brokers: Mapping[int, int]) -> Sequence[Effect[W]]:
        """The registered brokers changed: the epochs of those that are not about to stop."""
        if self._beginning is not None:
            self._beginning = self._beginning._replace(brokers=brokers)
        leadership = self.leadership
        if leadership is None or not leadership.on_brokers(brokers):
            return _NOTHING
        return self._commit_effects(leadership)

    def on_isr_answer(
        self, leadership: Leadership, partition: Partition, now_ms: int
    ) -> Sequence[Effect[W]]:
        """An ISR proposal of this leadership was answered: `partition` is the new state."""
        moved = leadership is self.leadership and leadership.on_isr_answer(partition, now_ms)
        return self._commit_effects(leadership) if moved else _NOTHING

    def on_isr_refused(
        self, leadership: Leadership, proposal: AlterIsr, reason: ErrorCode, now_ms: int
    ) -> Sequence[Effect[W]]:
        if leadership is not self.leadership:
            return _NOTHING
        moved = leadership.on_isr_refused(proposal, reason, now_ms)
        return self._commit_effects(leadership) if moved else _NOTHING

    def _insync_rules(self) -> InSyncRules:
        return InSyncRules(self._min_insync_replicas, self._lag_max_ms)

    def _commit_effects(self, leadership: Leadership) -> Sequence[Effect[W]]:
        """The effects of a high watermark that may have moved: answers for requests that are
        due."""
        waiting, high_watermark = self._waiting, leadership.high_watermark
        if not waiting or waiting[0][0] > high_watermark:
            return _TELL_ALL
        # All of them have the same outcome: there were enough in-sync replicas, or not.
        outcome = leadership.outcome(waiting[0][0])
        due = _taken(waiting, high_watermark)
        return [Answer(due, None if outcome == ErrorCode.NONE else outcome), *_TELL_ALL]

    def _own_disk_reached(self) -> Sequence[Effect[W]]:
        if self.leadership is None:
            return _NOTHING
        due = _taken(self._waiting_for_own_disk, self.counted_end)
        return [Answer(due, None)] if due else _NOTHING


def _taken(waiting: deque[tuple[int, W]], reached: int) -> list[W]:
    """Takes the requests out of the queue that wait for this offset or a lower one."""
    due = []
    while waiting and waiting[0][0] <= reached:
        due.append(waiting.popleft()[1])
    return due


def _is_of(pending: _PendingLeadership, leader_epoch: int, broker_epoch: int) -> bool:
    return pending.partition.leader_epoch == leader_epoch and pending.broker_epoch == broker_epoch


def _refuse_epoch(asked: int, current: int) -> NoReturn:
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    )
