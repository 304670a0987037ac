"""Hosts one partition on this broker: connects its machine to its log and to requests that wait.

`partition.machine` decides. This module validates and writes batches, asks the flusher to sync the
log, and carries out the machine's effects. Batches are appended for clients (`append`) and for the
broker itself (`append_own`, for the coordinators).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.partitions.topic_rules import (
    append_rules,
    counts_by_disk,
    follower_rules,
    log_config,
)
from penstock.metadata.configs import TopicSettings
from penstock.metadata.model import Partition
from penstock.partition.batch_rules import BatchRefused
from penstock.partition.decisions import Answer, Append, Begin, Do, Effect, NoteEpoch, Verify
from penstock.partition.follower import BACKOFF_MS, Follower, LogView
from penstock.partition.guards import Verification
from penstock.partition.leadership import AlterIsr, Leadership
from penstock.partition.machine import TELL_READERS, PartitionMachine
from penstock.partition.producer_state import Duplicate
from penstock.partition.record_validation import Validated, validate_batch
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
_ATTRIBUTES: Final = BatchHeader._fields.index("attributes")
_MAX_TIMESTAMP: Final = BatchHeader._fields.index("max_timestamp")
_make: Final = tuple.__new__

Tell = Callable[[ErrorCode | None], None]
"""Gets None for success, or the error code of the answer."""


class Written(NamedTuple):
    base_offset: int
    end_offset: int
    """The records are committed when the high watermark has reached this offset."""
    append_time_ms: int
    """-1 unless the topic uses log append time."""


class NotVerified(KafkaError):
    """A batch would begin a transaction on this partition. The caller must verify it with the
    coordinator and then append it again with the guard."""

    def __init__(self, verify: Verify) -> None:
        super().__init__(
            ErrorCode.INVALID_TXN_STATE,
            f"the transaction of producer {verify.producer_id} has not been verified with its "
            "coordinator",
        )
        self.producer_id = verify.producer_id
        self.producer_epoch = verify.producer_epoch
        self.begin: Begin = verify.begin


class HostedPartition:
    __slots__ = (
        "_append_listeners",
        "_commit_listeners",
        "_counted_bytes",
        "_counted_offset",
        "_flush_listeners",
        "_flusher",
        "_flushes_by_policy",
        "_rules",
        "_settings",
        "_stamps_time",
        "append_guard",
        "appended_bytes",
        "fetched_bytes",
        "index",
        "log",
        "machine",
        "replicated_bytes",
        "sent_bytes",
        "topic",
        "topic_id",
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
        self.machine: PartitionMachine[Tell] = PartitionMachine(
            log,
            high_watermark=max(log.log_start_offset, log.restored_high_watermark),
            counts_synced=True,
            min_insync_replicas=settings.min_insync_replicas,
            follower_rules=partial(follower_rules, settings),
        )
        self.append_guard: Callable[[], None] | None = None
        """Called before a batch of a client is appended. It may raise `BatchRefused`."""
        self.appended_bytes = 0
        """Bytes that this broker appended as leader since it started."""
        self.fetched_bytes = 0
        """Bytes that this broker fetched from the leader and appended as follower."""
        self.sent_bytes = 0
        """Bytes sent to consumers. `replicated_bytes` were sent to followers."""
        self.replicated_bytes = 0
        self._counted_bytes = 0
        self._counted_offset = self.machine.high_watermark
        self._flusher = flusher
        self._commit_listeners: dict[int, Callable[[HostedPartition], None]] = {}
        self._append_listeners: dict[int, Callable[[HostedPartition], None]] = {}
        self._flush_listeners: dict[int, Callable[[HostedPartition], None]] = {}
        self.configure(settings)

    def configure(self, settings: TopicSettings) -> None:
        """Applies the topic's settings, at the start and whenever they change."""
        self._settings = settings
        self._stamps_time = settings.message_timestamp_type == "LogAppendTime"
        self._flushes_by_policy = min(settings.flush_messages, settings.flush_ms) < _NEVER
        self._rules = append_rules(settings)
        self.log.reconfigure(log_config(settings))
        self._carry_out(
            self.machine.configure(
                counts_synced=counts_by_disk(self.topic, settings),
                min_insync_replicas=settings.min_insync_replicas,
                follower_rules=partial(follower_rules, settings),
            )
        )

    @property
    def settings(self) -> TopicSettings:
        return self._settings

    # The role

    @property
    def leadership(self) -> Leadership | None:
        return self.machine.leadership

    @property
    def follower(self) -> Follower | None:
        return self.machine.follower

    @property
    def high_watermark(self) -> int:
        return self.machine.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.machine.last_stable_offset

    def require_leader(self, current_epoch: int = -1) -> Leadership:
        return self.machine.require_leader(current_epoch)

    def require_insync(self) -> None:
        """Raises `KafkaError` if the ISR is smaller than `min.insync.replicas`, for acks=all."""
        held = self.machine.leadership
        if held is not None:
            held.require_insync()

    def require_log(self) -> Log:
        """Returns the log of this replica in any role. Raises `KafkaError` if the log failed."""
        if self.log.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.log

    def log_view(self) -> LogView:
        log = self.log
        return LogView(log.log_start_offset, log.end_offset, self.machine.counted_end, log.epochs)

    def lead(
        self,
        broker_id: int,
        broker_epoch: int,
        partition: Partition,
        brokers: Mapping[int, int],
        now_ms: int,
        lag_max_ms: int,
    ) -> None:
        self._carry_out(
            self.machine.lead(broker_id, broker_epoch, partition, brokers, now_ms, lag_max_ms)
        )

    def follow(self, partition: Partition, backoff_ms: int = BACKOFF_MS) -> None:
        self._carry_out(self.machine.follow(partition, backoff_ms))

    def resign(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        self._carry_out(self.machine.resign(code))

    # Events

    def on_brokers(self, brokers: Mapping[int, int]) -> None:
        self._carry_out(self.machine.on_brokers(brokers))

    def on_follower_fetch(
        self,
        replica: int,
        broker_epoch: int,
        fetch_offset: int,
        now_ms: int,
        log_start_offset: int,
    ) -> None:
        effects = self.machine.on_follower_fetch(
            replica, broker_epoch, fetch_offset, now_ms, log_start_offset
        )
        if effects:
            self._carry_out(effects)

    def on_isr_answer(self, held: Leadership, partition: Partition, now_ms: int) -> None:
        self._carry_out(self.machine.on_isr_answer(held, partition, now_ms))

    def on_isr_refused(
        self, held: Leadership, proposal: AlterIsr, reason: ErrorCode, now_ms: int
    ) -> None:
        self._carry_out(self.machine.on_isr_refused(held, proposal, reason, now_ms))

    def on_flushed(self) -> None:
        """A flush of the log has ended: more is synced, or the log has failed."""
        self._carry_out(self.machine.on_flushed())
        self._notify(self._flush_listeners)

    def on_replicated(self) -> None:
        """This follower's log has grown or was truncated, or its high watermark has moved."""
        self._carry_out(self.machine.on_replicated())

    def on_log_start(self) -> None:
        """The log start offset was raised: wakes followers' fetches, so that they learn it."""
        self._notify(self._append_listeners)

    def _carry_out(self, effects: Sequence[Effect[Tell]]) -> None:
        for effect in effects:
            if effect is Do.TELL_READERS:
                self._notify(self._commit_listeners)
            elif effect is Do.TELL_FOLLOWERS:
                self._notify(self._append_listeners)
            elif effect is Do.FLUSH:
                self._flusher.request(self.log)
            elif isinstance(effect, NoteEpoch):
                self.log.note_epoch(effect.epoch)
            elif isinstance(effect, Answer):
                for tell in effect.waits:
                    tell(effect.code)

    # Appending

    def append(
        self,
        records: memoryview | None,
        now_ms: int,
        *,
        acks_all: bool = False,
        zstd_allowed: bool = True,
        verification: Verification | None = None,
        validated: Validated | None = None,
    ) -> Written:
        """Appends one batch of a client. Offset, epoch and timestamp are written into the batch.

        Raises `NotVerified` if the batch would begin a transaction and `verification` is missing,
        and `LargeBatch` if validation would take long and `validated` is missing. If the batch is
        refused, raises one of `error_codes.EXPECTED_ERRORS`. An append that raises has written
        nothing; `PartitionMachine.append` says what else it may have changed.
        """
        machine = self.machine
        leadership = machine.leadership
        if leadership is None:
            raise KafkaError(machine.why_not_leader())
        if acks_all:
            leadership.require_insync()
        if not records:
            raise BatchRefused(
                ErrorCode.INVALID_RECORD, "the request has no records for this partition"
            )
        batch, fields = validated or validate_batch(
            records, self._rules, now_ms, zstd_allowed, True
        )
        append_time_ms = -1
        if self._stamps_time:
            if validated is None or not fields[_ATTRIBUTES] & LOG_APPEND_TIME:
                fields = stamp_append_time(batch, 0, now_ms)
            append_time_ms = fields[_MAX_TIMESTAMP]
        decision = machine.append(fields, now_ms, verification)
        if isinstance(decision, Append):
            if self.append_guard is not None:
                self.append_guard()
            return self._write(batch, fields, decision.leader_epoch, now_ms, append_time_ms)
        if isinstance(decision, Duplicate):
            stamped = decision.timestamp if self._stamps_time else -1
            return Written(decision.base_offset, decision.last_offset + 1, stamped)
        raise NotVerified(decision) if isinstance(decision, Verify) else decision.error

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
        leadership = self.machine.require_leader()
        return self._write(batch, validate_fields(batch), leadership.epoch, now_ms, -1)

    def _write(
        self,
        batch: memoryview | bytearray,
        fields: HeaderFields,
        leader_epoch: int,
        now_ms: int,
        append_time_ms: int,
    ) -> Written:
        log, machine = self.log, self.machine
        try:
            base_offset, last_offset = log.append(batch, leader_epoch, now_ms, fields)
        except LogOffline:
            # The flusher notifies everything that depends on the log.
            self._flusher.request(log)
            raise
        self.appended_bytes += len(batch)
        if machine.counts_synced:
            self._flusher.request(log)
        else:
            if self._flushes_by_policy and log.flush_due(now_ms):
                self._flusher.request(log)
            effects = machine.on_appended(last_offset + 1)
            if effects is TELL_READERS:
                if self._commit_listeners:
                    self._notify(self._commit_listeners)
            elif effects:
                self._carry_out(effects)
        if self._append_listeners:
            self._notify(self._append_listeners)
        return _make(Written, (base_offset, last_offset + 1, append_time_ms))

    # Waiting for appended records

    def when_committed(self, end_offset: int, tell: Tell) -> bool:
        """Returns whether all below `end_offset` is committed.

        If not, calls `tell` once: now if that can never happen, otherwise when it is decided.
        """
        outcome = self.machine.wait_for_commit(end_offset, tell)
        if outcome is not None and outcome != ErrorCode.NONE:
            tell(outcome)
        return outcome == ErrorCode.NONE

    def when_on_own_disk(self, end_offset: int, tell: Tell) -> bool:
        """Returns whether this log counts up to `end_offset`. If not, calls `tell` once, as
        `when_committed` does."""
        outcome = self.machine.wait_for_own_disk(end_offset, tell)
        if outcome is not None and outcome != ErrorCode.NONE:
            tell(outcome)
        return outcome == ErrorCode.NONE

    @property
    def committed_bytes(self) -> int:
        """Approximately how many of the appended and fetched bytes are below the high watermark.

        It rises whenever the high watermark rises, also after the high watermark of a follower was
        lowered. Between two calls, bytes are assumed to be spread evenly over the offsets.
        """
        reached, end = self.machine.high_watermark, self.log.end_offset
        gained = reached - self._counted_offset
        if gained > 0:
            left = self.appended_bytes + self.fetched_bytes - self._counted_bytes
            share = left if reached >= end else left * gained // (end - self._counted_offset)
            self._counted_bytes += max(1, share)
        self._counted_offset = reached
        return self._counted_bytes

    # Listeners

    def listen_commits(self, key: int, tell: Callable[[HostedPartition], None]) -> None:
        """Calls `tell` whenever more is committed or the role changes, until `unlisten_commits`."""
        self._commit_listeners[key] = tell

    def unlisten_commits(self, key: int) -> None:
        self._commit_listeners.pop(key, None)

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
