"""Hosts one partition on this broker: its log, and its role as leader, as follower or neither.

`partition.replication.Leadership` decides what is committed, and `partition.follower.Follower`
decides what to do with a leader's response. This module connects them to the log and to the
requests that wait.

A leadership with followers begins only when its leader epoch is synced to disk. So no record and no
response has an epoch that the log could forget. Two kinds of leadership do not write their epoch
first: one without followers, and the first one of a partition, which has no predecessor to be
distinguished from.

The high watermark outlives the role: it is passed on when a follower becomes the leader, and when a
leader becomes a follower. It also survives a restart, up to the value that was last checkpointed
(`offset_checkpoints`): readers get the records that were committed then, even if no other replica
is available. The broker learns what was committed after that from the leader or from the followers'
fetches. Until the high watermark has reached the start offset of the leadership, the leader does
not report where the partition ends. So clients never see the end go back.

Batches are appended for clients (`append`) and for the broker itself (`append_own`, for the
coordinators). A request that waits for the high watermark registers a callback. Offsets are
committed in order, so the callbacks form a queue. All times are from `Replicas.now_ms`, a clock
that never goes back, except for the `now_ms` of appends, which is wall-clock time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, NoReturn

from penstock.broker.partitions.offset_waits import OffsetWaits, Tell
from penstock.broker.partitions.topic_rules import (
    append_rules,
    counts_by_disk,
    follower_rules,
    log_config,
)
from penstock.broker.partitions.txn_appends import require_open
from penstock.metadata.configs import TopicSettings
from penstock.metadata.model import Partition
from penstock.partition.follower import BACKOFF_MS, Follower, LogView
from penstock.partition.leader import INVALID_RECORD, BatchRefused
from penstock.partition.producers import Verification
from penstock.partition.record_validation import Validated, validate_batch
from penstock.partition.replication import AlterIsr, InSyncRules, Leadership
from penstock.partition.retry_window import RetryWindow
from penstock.partition.sequence_gate import check_sequence
from penstock.records.batch import (
    LOG_APPEND_TIME,
    BatchHeader,
    HeaderFields,
    stamp_append_time,
    validate_fields,
)
from penstock.storage.errors import LogOffline
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.wire.errors import ErrorCode, KafkaError

_NEVER: Final = 2**63 - 1
_make: Final = tuple.__new__


class Written(NamedTuple):
    base_offset: int
    end_offset: int
    """The records are committed when the high watermark has reached this offset."""
    append_time_ms: int
    """-1 unless the topic uses log append time."""


class _Term(NamedTuple):
    """What is known of a leadership before it begins."""

    broker_id: int
    broker_epoch: int
    partition: Partition
    brokers: Mapping[int, int]
    now_ms: int


class HostedPartition:
    __slots__ = (
        "_append_listeners",
        "_backoff_ms",
        "_beginning",
        "_counted_bytes",
        "_counted_offset",
        "_flush_listeners",
        "_flusher",
        "_flushes_by_policy",
        "_high_watermark",
        "_lag_max_ms",
        "_led_records",
        "_listeners",
        "_rules",
        "_settings",
        "_stamps_time",
        "_waiting",
        "_waiting_for_own_disk",
        "appended_bytes",
        "follower",
        "index",
        "leadership",
        "log",
        "refused",
        "replicated_bytes",
        "sent_bytes",
        "topic",
        "topic_id",
        "waits_for_disk",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log,
        settings: TopicSettings,
        flusher: Flusher,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.refused = RetryWindow()
        self.leadership: Leadership | None = None
        self.follower: Follower | None = None
        self.appended_bytes = 0
        """Bytes that this broker appended as leader since it started."""
        self._led_records = 0
        self.sent_bytes = 0
        """Bytes sent to consumers. `replicated_bytes` were sent to followers."""
        self.replicated_bytes = 0
        self._counted_bytes = 0
        self._high_watermark = max(log.log_start_offset, log.restored_high_watermark)
        self._counted_offset = self._high_watermark
        self._beginning: _Term | None = None
        self._lag_max_ms = 0
        self._backoff_ms = BACKOFF_MS
        self._flusher = flusher
        self._waiting = OffsetWaits()
        self._waiting_for_own_disk = OffsetWaits()
        self._listeners: dict[int, Callable[[HostedPartition], None]] = {}
        self._append_listeners: dict[int, Callable[[HostedPartition], None]] = {}
        self._flush_listeners: dict[int, Callable[[HostedPartition], None]] = {}
        self.waits_for_disk = True
        """The topic has `durability=fsync`: records count once they are synced."""
        self.configure(settings)

    def configure(self, settings: TopicSettings) -> None:
        """Applies the topic's settings, at the start and whenever they change."""
        waited_for_disk = self.waits_for_disk
        self._settings = settings
        self._stamps_time = settings.message_timestamp_type == "LogAppendTime"
        self.waits_for_disk = counts_by_disk(self.topic, settings)
        self._flushes_by_policy = min(settings.flush_messages, settings.flush_ms) < _NEVER
        self._rules = append_rules(settings)
        self.log.reconfigure(log_config(settings))
        if self.waits_for_disk and not waited_for_disk:
            # From now on, elections assume that whatever counted is synced on every replica.
            self._flusher.request(self.log)
        if self.follower is not None:
            self.follower.configure(follower_rules(self._settings, self._backoff_ms))
        if self.leadership is not None:
            moved = self.leadership.configure(self._insync_rules())
            if self.leadership.on_own_end(self.counted_end) or moved:
                self._tell(self.leadership)
            self._tell_own_disk()

    @property
    def settings(self) -> TopicSettings:
        return self._settings

    def _insync_rules(self) -> InSyncRules:
        return InSyncRules(self._settings.min_insync_replicas, self._lag_max_ms)

    # Roles

    def lead(
        self,
        broker_id: int,
        broker_epoch: int,
        partition: Partition,
        brokers: Mapping[int, int],
        now_ms: int,
        lag_max_ms: int,
    ) -> None:
        """Begins a leadership, or updates the current one, as the metadata says.

        `brokers` are the broker epochs of all brokers that are registered and not about to stop. A
        leadership with followers begins later, in `on_flushed`.
        """
        self._lag_max_ms = lag_max_ms
        term = _Term(broker_id, broker_epoch, partition, brokers, now_ms)
        held, beginning = self.leadership, self._beginning
        if held is not None and _is_of(term, held.epoch, held.broker_epoch):
            self._go_on(held, term)
        elif beginning is not None and _is_of(
            term, beginning.partition.leader_epoch, beginning.broker_epoch
        ):
            self._beginning = term
        elif len(partition.replicas) == 1 or partition.leader_epoch == 0:
            self._leave_role()
            self._begin(term)
            if self.waits_for_disk and self.log.needs_flush:
                self._flusher.request(self.log)
        else:
            self._leave_role()
            self.log.note_epoch(partition.leader_epoch)
            self._beginning = term
            self._flusher.request(self.log)

    def _begin_if_noted(self, term: _Term) -> None:
        epoch = term.partition.leader_epoch
        if self.log.epochs.latest != epoch:
            # The log was being truncated when its epoch was recorded, and lost the entry.
            self.log.note_epoch(epoch)
            self._flusher.request(self.log)
        elif not self.log.needs_flush:
            # Otherwise this was an earlier flush, and the requested one is still to come.
            self._begin(term)

    def _go_on(self, held: Leadership, term: _Term) -> None:
        if len(term.partition.replicas) > 1:
            # A leadership that had no followers so far may not have recorded its epoch.
            self.log.note_epoch(held.epoch)
        moved = held.on_partition(term.partition, term.now_ms)
        moved = held.on_brokers(term.brokers) or moved
        if held.configure(self._insync_rules()) or moved:
            self._tell(held)

    def _begin(self, term: _Term) -> None:
        self._beginning = None
        self.leadership = Leadership(
            term.broker_id,
            term.broker_epoch,
            term.partition,
            high_watermark=max(self._high_watermark, self.log.log_start_offset),
            start_offset=self.log.end_offset,
            own_end=self.counted_end,
            rules=self._insync_rules(),
            brokers=term.brokers,
            now_ms=term.now_ms,
        )
        self._tell(self.leadership)

    @property
    def is_beginning(self) -> bool:
        """Whether a leadership waits for its epoch to be synced."""
        return self._beginning is not None

    def follow(self, partition: Partition, backoff_ms: int = BACKOFF_MS) -> None:
        """Follows the leader of the metadata: a new `Follower` per leader epoch or after a halt."""
        held = self.follower
        if held and held.epoch == partition.leader_epoch and not held.is_released:
            return
        self.rest()
        self._backoff_ms = backoff_ms
        self.follower = Follower(
            partition.leader,
            partition.leader_epoch,
            high_watermark=min(self._high_watermark, self.log.end_offset),
            rules=follower_rules(self._settings, self._backoff_ms),
        )

    def rest(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Gives up the role. Requests that wait fail with `code`."""
        waiting = [*self._waiting, *self._waiting_for_own_disk]
        self._waiting, self._waiting_for_own_disk = OffsetWaits(), OffsetWaits()
        self._leave_role()
        for _, tell in waiting:
            tell(code)

    def _leave_role(self) -> None:
        """Ends the role, but not the requests that wait. If this broker leads again, their batches
        are still in its log and may be committed. If these requests failed instead, some clients
        would send the batches again, and the log would have them twice."""
        self._led_records = self.appended_records
        # A follower may have been about to start its log again at a higher offset.
        self._high_watermark = min(self.high_watermark, self.log.end_offset)
        self.leadership = self.follower = self._beginning = None
        self._notify(self._listeners)
        self._notify(self._append_listeners)

    def require_leader(self, current_epoch: int = -1) -> Leadership:
        """Returns the leadership, if this broker leads and the client's epoch matches (KIP-320)."""
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(self._why_not_leader())
        if current_epoch >= 0 and current_epoch != leadership.epoch:
            _refuse_epoch(current_epoch, leadership.epoch)
        return leadership

    def _why_not_leader(self) -> ErrorCode:
        if self.log.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def require_reader(self, current_epoch: int = -1) -> Leadership | Follower:
        """Returns the role that serves consumers: the leader, or a follower (KIP-392)."""
        if self.follower is None:
            return self.require_leader(current_epoch)
        if current_epoch >= 0 and current_epoch != self.follower.epoch:
            _refuse_epoch(current_epoch, self.follower.epoch)
        return self.follower

    def require_log(self) -> Log:
        """Returns the log of this replica in any role. Raises `KafkaError` if the log failed."""
        if self.log.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.log

    def require_insync(self) -> None:
        """Raises `KafkaError` if the ISR is smaller than `min.insync.replicas`, for acks=all."""
        held = self.leadership
        if held is not None:
            held.require_insync()

    @property
    def high_watermark(self) -> int:
        held = self.leadership
        if held is not None:
            return held.high_watermark
        return self._high_watermark if self.follower is None else self.follower.high_watermark

    @property
    def appended_records(self) -> int:
        """Records that this broker appended as leader. Nothing else makes a leader's log longer."""
        held = self.leadership
        return self._led_records + (0 if held is None else self.log.end_offset - held.start_offset)

    @property
    def last_stable_offset(self) -> int:
        log = self.log
        return log.producers.last_stable_offset(self.high_watermark, log.log_start_offset)

    @property
    def counted_end(self) -> int:
        """The end of what counts: everything written, or with `durability=fsync` what is synced."""
        return self.log.recovery_point if self.waits_for_disk else self.log.end_offset

    def log_view(self) -> LogView:
        log = self.log
        return LogView(log.log_start_offset, log.end_offset, self.counted_end, log.epochs)

    # Events of a leadership

    def on_brokers(self, brokers: Mapping[int, int]) -> None:
        """The registered brokers changed: the epochs of those that are not about to stop."""
        if self._beginning is not None:
            self._beginning = self._beginning._replace(brokers=brokers)
        held = self.leadership
        if held is not None and held.on_brokers(brokers):
            self._tell(held)

    def on_follower_fetch(
        self,
        replica: int,
        broker_epoch: int,
        fetch_offset: int,
        now_ms: int,
        log_start_offset: int,
    ) -> None:
        """A follower has fetched, and so has everything below `fetch_offset`. The caller has
        checked that the logs do not diverge (`partition.replication.diverging_epoch`)."""
        held = self.require_leader()
        if held.on_follower_fetch(
            replica, broker_epoch, fetch_offset, self.log.end_offset, now_ms, log_start_offset
        ):
            self._tell(held)

    def on_isr_answer(self, held: Leadership, partition: Partition, now_ms: int) -> None:
        """An ISR proposal of the leadership `held` was answered: `partition` is the new state."""
        if held is self.leadership and held.on_isr_answer(partition, now_ms):
            self._tell(held)

    def on_isr_refused(
        self, held: Leadership, proposal: AlterIsr, reason: ErrorCode, now_ms: int
    ) -> None:
        if held is self.leadership and held.on_isr_refused(proposal, reason, now_ms):
            self._tell(held)

    # Appending

    def append(
        self,
        records: memoryview | None,
        now_ms: int,
        *,
        zstd_allowed: bool = True,
        verification: Verification | None = None,
        validated: Validated | None = None,
    ) -> Written:
        """Appends one batch of a client. Offset, epoch and timestamp are written into the batch.

        Raises `NotVerified` if the batch would begin a transaction and `verification` is missing,
        and `LargeBatch` if validation would take long and `validated` is missing.
        """
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(self._why_not_leader())
        if not records:
            raise BatchRefused(INVALID_RECORD, "the request has no records for this partition")
        batch, fields = validated or validate_batch(
            records, self._rules, now_ms, zstd_allowed, True
        )
        append_time_ms = -1
        if self._stamps_time:
            if validated is None or not fields[5] & LOG_APPEND_TIME:
                fields = stamp_append_time(batch, 0, now_ms)
            append_time_ms = fields[8]
        if fields[9] >= 0:
            header = BatchHeader._make(fields)
            if verification is None and header.is_transactional:
                verification = require_open(self.log.producers, header, now_ms)
            seen = check_sequence(
                header, self.log.producers, self.refused, leadership, now_ms, verification
            )
            if seen is not None:
                stamped = seen.timestamp if self._stamps_time else -1
                return Written(seen.base_offset, seen.last_offset + 1, stamped)
        return self._write(batch, fields, leadership, now_ms, append_time_ms)

    def validation(
        self, records: memoryview, now_ms: int, *, zstd_allowed: bool
    ) -> Callable[[], Validated]:
        """Returns a function that validates a `LargeBatch` on a thread, for `append`."""
        rules, stamps_time = self._rules, self._stamps_time

        def validate() -> Validated:
            batch, fields = validate_batch(records, rules, now_ms, zstd_allowed, False)
            if stamps_time:
                # This takes long as well, because the CRC must be computed again.
                fields = stamp_append_time(batch, 0, now_ms)
            return Validated(batch, fields)

        return validate

    def append_own(self, batch: bytearray, now_ms: int) -> Written:
        """Appends a batch that this broker built."""
        leadership = self.require_leader()
        return self._write(batch, validate_fields(batch), leadership, now_ms, -1)

    def _write(
        self,
        batch: memoryview | bytearray,
        fields: HeaderFields,
        leadership: Leadership,
        now_ms: int,
        append_time_ms: int,
    ) -> Written:
        log = self.log
        try:
            base_offset, last_offset = log.append(batch, leadership.epoch, now_ms, fields)
        except LogOffline:
            # The flusher notifies everything that depends on the log.
            self._flusher.request(log)
            raise
        self.appended_bytes += len(batch)
        if self.waits_for_disk:
            self._flusher.request(log)
        else:
            if self._flushes_by_policy and log.flush_due(now_ms):
                self._flusher.request(log)
            if leadership.on_own_end(last_offset + 1) and (self._waiting or self._listeners):
                self._tell(leadership)
        if self._append_listeners:
            self._notify(self._append_listeners)
        return _make(Written, (base_offset, last_offset + 1, append_time_ms))

    # Waiting for appended records

    def when_committed(self, end_offset: int, tell: Tell) -> bool:
        """Returns True if all below `end_offset` is committed. If not, calls `tell` once."""
        if self.leadership is None:
            tell(self._why_not_leader())
            return False
        outcome = self.leadership.outcome(end_offset)
        if outcome is None:
            self._waiting.append((end_offset, tell))
        elif outcome != ErrorCode.NONE:
            tell(outcome)
        return outcome == ErrorCode.NONE

    def waits_for_own_disk(self, end_offset: int) -> bool:
        """Returns whether the commit up to `end_offset` waits only for this leader's flush."""
        held = self.leadership
        return (
            held is not None
            and held.counts_alone
            and self.counted_end < end_offset
            and held.waits_only_for_leader(end_offset)
        )

    def when_on_own_disk(self, end_offset: int, tell: Tell) -> bool:
        """Returns True if this log counts up to `end_offset`. If not, calls `tell` once.

        A request with acks=1 does not wait for the high watermark: a replica that joins the ISR
        meanwhile would delay a response that does not depend on it.
        """
        if self.leadership is None:
            tell(self._why_not_leader())
            return False
        if self.counted_end >= end_offset:
            return True
        self._waiting_for_own_disk.append((end_offset, tell))
        return False

    def _tell_own_disk(self) -> None:
        if self._waiting_for_own_disk and self.leadership is not None:
            self._waiting_for_own_disk.tell_due(self.counted_end, None)

    def on_flushed(self) -> None:
        """A flush of the log has ended: more is synced, or the log has failed."""
        if self.log.failure is not None:
            self.rest(ErrorCode.KAFKA_STORAGE_ERROR)
        elif self._beginning is not None:
            self._begin_if_noted(self._beginning)
        elif (
            self.waits_for_disk
            and self.leadership is not None
            and self.leadership.on_own_end(self.log.recovery_point)
        ):
            self._tell(self.leadership)
        self._tell_own_disk()
        self._notify(self._flush_listeners)

    def on_replicated(self) -> None:
        """This follower's log has grown or was truncated, or its high watermark has moved."""
        if self.follower is not None and self.follower.high_watermark != self._high_watermark:
            self._high_watermark = self.follower.high_watermark
            self._notify(self._listeners)

    def on_log_start(self) -> None:
        """The log start offset was raised: wakes followers' fetches, so that they learn it."""
        self._notify(self._append_listeners)

    def _tell(self, leadership: Leadership) -> None:
        """Calls the callbacks of waiting requests that are due, and the listeners."""
        waiting, high_watermark = self._waiting, leadership.high_watermark
        if waiting.are_due(high_watermark):
            # All of them have the same outcome: there were enough in-sync replicas, or not.
            outcome = leadership.outcome(waiting[0][0])
            waiting.tell_due(high_watermark, None if outcome == ErrorCode.NONE else outcome)
        self._notify(self._listeners)
        self._notify(self._append_listeners)

    @property
    def committed_bytes(self) -> int:
        """Approximately how many of the appended bytes are below the high watermark.

        It rises whenever the high watermark rises. Between two calls, bytes are assumed to be
        spread evenly over the offsets.
        """
        reached, end = self.high_watermark, self.log.end_offset
        gained = reached - self._counted_offset
        if gained > 0:
            left = self.appended_bytes - self._counted_bytes
            share = left if reached >= end else left * gained // (end - self._counted_offset)
            self._counted_bytes += max(1, share)
            self._counted_offset = reached
        return self._counted_bytes

    def listen(self, key: int, tell: Callable[[HostedPartition], None]) -> None:
        """Calls `tell` whenever more is committed or the role changes, until `unlisten`."""
        self._listeners[key] = tell

    def unlisten(self, key: int) -> None:
        self._listeners.pop(key, None)

    def listen_appends(self, key: int, tell: Callable[[HostedPartition], None]) -> None:
        """Calls `tell` whenever this leader appends or commits more, or the role changes."""
        self._append_listeners[key] = tell

    def unlisten_appends(self, key: int) -> None:
        self._append_listeners.pop(key, None)

    def listen_flushed(self, key: int, tell: Callable[[HostedPartition], None]) -> None:
        """Calls `tell` after every flush of the log, including a failed one."""
        self._flush_listeners[key] = tell

    def unlisten_flushed(self, key: int) -> None:
        self._flush_listeners.pop(key, None)

    def _notify(self, listeners: dict[int, Callable[[HostedPartition], None]]) -> None:
        if listeners:
            for tell in list(listeners.values()):
                tell(self)


def _is_of(term: _Term, leader_epoch: int, broker_epoch: int) -> bool:
    return term.partition.leader_epoch == leader_epoch and term.broker_epoch == broker_epoch


def _refuse_epoch(asked: int, held: int) -> NoReturn:
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if asked < held else ErrorCode.UNKNOWN_LEADER_EPOCH
    )
