"""A partition on this broker: its log, and if this broker leads it, its term as leader.

Appends come from clients (`append`) and from the broker itself (`append_own`, for the group
coordinator). Whoever must wait for the high watermark leaves a callback; offsets are due in order,
so the waiting form a queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.metadata.configs import TopicSettings
from penstock.metadata.model import Partition
from penstock.partition.leader import (
    INVALID_RECORD,
    AppendRules,
    BatchRefused,
    Leadership,
    check_batch,
)
from penstock.records.batch import (
    LOG_OVERHEAD,
    BatchHeader,
    Codec,
    HeaderFields,
    read_header,
    stamp_append_time,
    validate_fields,
)
from penstock.records.record import read_records, rebuild_batch
from penstock.storage.config import LogConfig
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.wire.errors import ErrorCode, KafkaError

_NEVER: Final = 2**63 - 1
_make: Final = tuple.__new__
_CODECS = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}


class Written(NamedTuple):
    base_offset: int
    end_offset: int
    """The high watermark has to reach this for the records to be committed."""
    append_time_ms: int
    """-1 unless the topic has log-append time."""


class HostedPartition:
    __slots__ = (
        "_codec",
        "_flusher",
        "_flushes_by_policy",
        "_listeners",
        "_rules",
        "_settings",
        "_stamps_time",
        "_waiting",
        "_waits_for_disk",
        "committed_bytes",
        "index",
        "leadership",
        "log",
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
        self.leadership: Leadership | None = None
        self.committed_bytes = 0
        """Bytes that have come below the high watermark since the broker started."""
        self._flusher = flusher
        self._waiting: deque[tuple[int, Callable[[ErrorCode | None], None]]] = deque()
        self._listeners: dict[int, Callable[[HostedPartition], None]] = {}
        self.configure(settings)

    def configure(self, settings: TopicSettings) -> None:
        """Take up the topic's settings, now or after they were changed."""
        self._settings = settings
        self._stamps_time = settings.message_timestamp_type == "LogAppendTime"
        self._waits_for_disk = settings.durability == "fsync"
        self._flushes_by_policy = min(settings.flush_messages, settings.flush_ms) < _NEVER
        self._codec = _CODECS.get(settings.compression_type)
        self._rules = AppendRules(
            max_message_bytes=settings.max_message_bytes,
            timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
            timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
            checks_timestamps=not self._stamps_time,
        )
        self.log.reconfigure(log_config(settings))

    @property
    def settings(self) -> TopicSettings:
        return self._settings

    # Leading

    def lead(self, broker_id: int, partition: Partition) -> None:
        """Begin a term, or go on with the one there is under a changed ISR."""
        held = self.leadership
        if held is not None and held.epoch == partition.leader_epoch:
            held.isr = frozenset(partition.isr)
            return
        self.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # The log notes the epoch with the first batch of it: leading alone writes nothing.
        self.leadership = Leadership(
            broker_id, partition.leader_epoch, partition.isr, self._counted_end()
        )
        if self._waits_for_disk and self.log.needs_flush:
            self._flusher.request(self.log)

    def resign(self, code: ErrorCode) -> None:
        """Stop leading; whoever waits is told why."""
        self.leadership = None
        waiting, self._waiting = self._waiting, deque()
        for _, tell in waiting:
            tell(code)
        self._notify()

    def require_leader(self, current_epoch: int = -1) -> Leadership:
        """This broker's term, if it has one and the client knows of it (KIP-320)."""
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if current_epoch >= 0 and current_epoch != leadership.epoch:
            if current_epoch < leadership.epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return leadership

    def require_insync(self) -> None:
        """Enough replicas for acks=all, as `min.insync.replicas` asks."""
        held = self.leadership
        if held is not None and len(held.isr) < self._settings.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(held.isr)} replicas are in sync and min.insync.replicas is "
                f"{self._settings.min_insync_replicas}",
            )

    @property
    def high_watermark(self) -> int:
        held = self.leadership
        return held.high_watermark if held is not None else self.log.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        unstable = self.log.producers.first_unstable_offset(self.high_watermark)
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def _counted_end(self) -> int:
        return self.log.recovery_point if self._waits_for_disk else self.log.end_offset

    # Appending

    def append(
        self, records: memoryview | None, now_ms: int, *, zstd_allowed: bool = True
    ) -> Written:
        """Write one batch of a client. The batch is stamped in place."""
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not records:
            raise BatchRefused(INVALID_RECORD, "the partition was sent no records")
        fields = validate_fields(records)
        size = fields[1] + LOG_OVERHEAD
        if size != len(records):
            raise BatchRefused(INVALID_RECORD, "send exactly one batch per partition and request")
        check_batch(fields, size, self._rules, now_ms, zstd_allowed)
        batch: memoryview | bytearray = records
        if self._codec is not None and fields[5] & 7 != self._codec:
            header = BatchHeader._make(fields)
            batch = rebuild_batch(header, read_records(records, header), codec=self._codec)
            fields = read_header(batch)
        append_time_ms = -1
        if self._stamps_time:
            fields = stamp_append_time(batch, 0, now_ms)
            append_time_ms = now_ms
        if fields[9] >= 0:
            seen = self.log.producers.check(BatchHeader._make(fields))
            if seen is not None:
                stamped = seen.timestamp if self._stamps_time else -1
                return Written(seen.base_offset, seen.last_offset + 1, stamped)
        return self._write(batch, fields, leadership, now_ms, append_time_ms)

    def append_own(self, batch: bytearray, now_ms: int) -> Written:
        """Write a batch that this broker made."""
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
        base_offset, last_offset = log.append(batch, leadership.epoch, now_ms, fields)
        self.committed_bytes += len(batch)
        if self._waits_for_disk:
            self._flusher.request(log)
        else:
            if self._flushes_by_policy and log.flush_due(now_ms):
                self._flusher.request(log)
            if leadership.on_replica_end(leadership.broker_id, last_offset + 1) and (
                self._waiting or self._listeners
            ):
                self._tell(leadership.high_watermark)
        return _make(Written, (base_offset, last_offset + 1, append_time_ms))

    # Waiting for what was appended

    def when_committed(self, end_offset: int, tell: Callable[[ErrorCode | None], None]) -> bool:
        """True if everything below `end_offset` is committed; else `tell` is called once."""
        if self.leadership is None:
            tell(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return False
        if self.leadership.high_watermark >= end_offset:
            return True
        self._waiting.append((end_offset, tell))
        return False

    def on_flushed(self) -> None:
        """The flusher has been here: more is on disk, or the log is offline."""
        if self.log.failure is not None:
            self.resign(ErrorCode.KAFKA_STORAGE_ERROR)
        elif self._waits_for_disk:
            self._advance(self.log.recovery_point)

    def _advance(self, end_offset: int) -> None:
        leadership = self.leadership
        if leadership is not None and leadership.on_replica_end(leadership.broker_id, end_offset):
            self._tell(leadership.high_watermark)

    def _tell(self, high_watermark: int) -> None:
        """The high watermark has moved: those who waited for that, and those who listen."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            waiting.popleft()[1](None)
        self._notify()

    def listen(self, key: int, tell: Callable[[HostedPartition], None]) -> None:
        """Have `tell` called whenever more is committed, until `unlisten`."""
        self._listeners[key] = tell

    def unlisten(self, key: int) -> None:
        self._listeners.pop(key, None)

    def _notify(self) -> None:
        if self._listeners:
            for tell in list(self._listeners.values()):
                tell(self)


def log_config(settings: TopicSettings) -> LogConfig:
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        segment_jitter_ms=settings.segment_jitter_ms,
        segment_index_bytes=settings.segment_index_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        delete=settings.delete,
        compact=settings.compact,
        min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=settings.min_compaction_lag_ms,
        max_compaction_lag_ms=settings.max_compaction_lag_ms,
        delete_retention_ms=settings.delete_retention_ms,
        flush_messages=settings.flush_messages,
        flush_ms=settings.flush_ms,
    )
