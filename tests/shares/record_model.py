"""A simple model of a share partition: one entry for each record, and no ranges.

The model does not choose what is acquired. It checks that what was acquired might be, and follows
what happens to each record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.shares.events import AcquiredRange, BatchKind, LogBatch
from penstock.shares.image import Delta
from penstock.shares.settings import ShareSettings
from penstock.shares.spans import Span
from penstock.shares.states import DONE, AckType, RecordState


@dataclass(slots=True)
class Record:
    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    owner: str | None = None
    lock_until_ms: int = 0
    not_before_ms: int = 0
    stored_state: RecordState = RecordState.AVAILABLE
    stored_count: int = 0
    write_id: int | None = None
    target: RecordState | None = None
    target_not_before_ms: int = 0


@dataclass(slots=True)
class RecordModel:
    settings: ShareSettings
    log_start: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    data: set[int] = field(default_factory=set)
    """Offsets of data. At other offsets nothing can be delivered."""
    accepted: dict[int, int] = field(default_factory=dict)
    """How often a record was accepted, durably."""
    given_up: set[int] = field(default_factory=set)

    def on_append(self, batch: LogBatch) -> None:
        if batch.kind is BatchKind.DATA:
            self.data |= set(range(batch.first, batch.last + 1))

    def get(self, offset: int) -> Record:
        return self.records.setdefault(offset, Record())

    def is_acquirable(self, offset: int, now_ms: int) -> bool:
        record = self.get(offset)
        return (
            offset in self.data
            and offset >= self.log_start
            and record.state is RecordState.AVAILABLE
            and record.write_id is None
            and record.not_before_ms <= now_ms
        )

    def on_acquired(self, member: str, ranges: tuple[AcquiredRange, ...], now_ms: int) -> None:
        before = -1
        for first, last, count in ranges:
            assert before < first <= last
            before = last
            for offset in range(first, last + 1):
                assert self.is_acquirable(offset, now_ms), (offset, self.get(offset))
                record = self.get(offset)
                record.state, record.owner = RecordState.ACQUIRED, member
                record.count += 1
                record.not_before_ms = 0
                record.lock_until_ms = now_ms + self.settings.record_lock_ms
                assert record.count == count
                assert record.count <= self.settings.delivery_limit

    def may_acknowledge(self, member: str, first: int, last: int, start: int, end: int) -> bool:
        offsets = range(max(first, start), last + 1)
        return last < end and all(self._is_held(offset, member) for offset in offsets)

    def _is_held(self, offset: int, member: str) -> bool:
        record = self.get(offset)
        return (
            record.state is RecordState.ACQUIRED
            and record.owner == member
            and record.write_id is None
        )

    def target_of(self, offset: int, kind: AckType) -> RecordState:
        record = self.get(offset)
        if kind is AckType.ACCEPT:
            return RecordState.ACKNOWLEDGED
        if kind is AckType.RELEASE and record.count < self.settings.delivery_limit:
            return RecordState.AVAILABLE
        if kind is AckType.GAP or not self.settings.dead_letters:
            return RecordState.ARCHIVED
        return RecordState.ARCHIVING

    def on_write(
        self, write_id: int, delta: Delta, wall_ahead_ms: int, *, is_release: bool
    ) -> None:
        """Follows a write of the machine: each offset has at most one write under way."""
        for span in delta.spans:
            for offset in range(span.first, span.last + 1):
                record = self.get(offset)
                if offset not in self.data:
                    assert span.state is RecordState.ARCHIVED, (offset, span)
                    continue
                assert record.write_id is None, (offset, record)
                assert record.state in (RecordState.ACQUIRED, RecordState.ARCHIVING)
                assert span.delivery_count == record.count
                if is_release and record.state is RecordState.ACQUIRED:
                    assert span.state is self.target_of(offset, AckType.RELEASE)
                record.write_id, record.target = write_id, span.state
                record.target_not_before_ms = span.due_ms - wall_ahead_ms if span.due_ms else 0

    def on_committed(self, write_id: int) -> None:
        for offset, record in self.records.items():
            if record.write_id != write_id:
                continue
            assert record.target is not None
            assert record.state not in DONE
            record.state = record.stored_state = record.target
            record.stored_count = record.count
            record.owner, record.lock_until_ms = None, 0
            record.not_before_ms = record.target_not_before_ms
            record.write_id = record.target = None
            if record.state is RecordState.ACKNOWLEDGED:
                self.accepted[offset] = self.accepted.get(offset, 0) + 1
            elif record.state is RecordState.ARCHIVED:
                self.given_up.add(offset)

    def on_failed(self, write_id: int) -> None:
        for record in self.records.values():
            if record.write_id == write_id:
                record.write_id = record.target = None

    def on_released(self, member: str, now_ms: int) -> None:
        for record in self.records.values():
            if record.state is RecordState.ACQUIRED and record.owner == member:
                record.lock_until_ms = now_ms

    def on_failover(self, now_ms: int) -> None:
        """Locks and deliveries are forgotten; writes under way were committed or failed before."""
        for record in self.records.values():
            assert record.write_id is None
            record.state, record.count = record.stored_state, record.stored_count
            record.owner, record.lock_until_ms = None, 0

    def check(self, spans: tuple[Span, ...], start: int, end: int, now_ms: int) -> None:
        """The machine knows the same of every offset of its window."""
        assert start >= self.log_start
        for offset in range(self.log_start, start):
            if offset in self.data:
                assert self.get(offset).state in DONE, offset
        for span in spans:
            for offset in range(span.first, span.last + 1):
                self._check_offset(offset, span, now_ms)
        assert all(self.get(offset).count == 0 for offset in self.data if offset >= end), (
            "a record beyond the window was delivered"
        )

    def _check_offset(self, offset: int, span: Span, now_ms: int) -> None:
        record = self.get(offset)
        if offset not in self.data:
            assert span.state in (RecordState.ARCHIVED, RecordState.AVAILABLE), (offset, span)
            return
        assert span.state is record.state, (offset, span, record)
        assert span.delivery_count == record.count, (offset, span, record)
        assert span.owner == record.owner
        assert (span.change and span.change.write_id) == record.write_id
        if span.state is RecordState.ACQUIRED:
            assert span.lock_until_ms == record.lock_until_ms
        if span.state is RecordState.AVAILABLE:
            is_due = record.not_before_ms <= now_ms
            assert (span.not_before_ms <= now_ms) == is_due, (offset, span, record)
