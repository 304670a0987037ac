"""The records of `__share_group_state`: snapshots, deltas and reads of share partitions.

The version of a key is the kind of its record:

    0  snapshot   replaces all that is before it for its share partition; without a value, it
                  removes the share partition
    1  delta      follows a snapshot of the same state epoch
    2  read       a leader has read the state: it has this leader epoch, and its writes name the
                  offset of this record
    3  order      a group coordinator has initialized the share partition again, without effect:
                  calls that it made earlier have none either

A snapshot with a time of deletion is a *deletion marker*: there is no state, but the order of the
deletion is kept, so that an initialization that was sent before it has no effect if it arrives
late.

The formats are Penstock's own. Kafka's records of the topic have neither the end of the window with
its leader epoch, by which a new leader finds states of records that are lost, nor due times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from penstock.coordination.effects import LogRecord
from penstock.schedule.cursor import ScheduleCursor
from penstock.shares.image import Delta, LetterNumbers, ShareImage, StoredSpan
from penstock.shares.share_schedule import ShareSchedule
from penstock.shares.state_port import CallOrder, SharePartitionId
from penstock.shares.states import GiveUpReason, RecordState
from penstock.wire.errors import ProtocolError
from penstock.wire.messages.base import Message, Struct
from penstock.wire.stored import StoredMessages

_SNAPSHOT: Final = 0
_DELTA: Final = 1
_READ: Final = 2
_ORDER: Final = 3
_VALUE_VERSION: Final = 0
_STATES: Final = {int(state): state for state in RecordState if state is not RecordState.ACQUIRED}
_REASONS: Final = {int(reason): reason for reason in GiveUpReason}
_STORED: Final = StoredMessages(
    "__share_group_state",
    """
ShareKey  versions 0-3  flexible never
  GroupId    string  0+
  TopicId    uuid    0+
  Partition  int32   0+

ShareValue  versions 0-0  flexible 0+
  StateEpoch        int32    0+
  LeaderEpoch       int32    0+  = -1  tag 0  ignorable
  ReadOffset        int64    0+  = -1  tag 1  ignorable
  CoordinatorEpoch  int32    0+  = -1  tag 2  ignorable
  CallNumber        int64    0+  = -1  tag 3  ignorable
  DeletedMs         int64    0+  tag 4  ignorable
  LetterBase        int64    0+  tag 5  ignorable
  LetterNext        int64    0+  tag 6  ignorable
  ProducerEpoch     int16    0+  tag 7  ignorable
  ProducerId        int64    0+  = -1  tag 8  ignorable
  ScheduleNumber    int32    0+  tag 9  ignorable
  ScheduleCeiling   int64    0+  = -1  tag 10  ignorable
  ScheduleFloor     int64    0+  tag 11  ignorable
  ScheduleEnd       int64    0+  tag 12  ignorable
  ScheduleDueMs     int64    0+  tag 13  ignorable
  ScheduleDueOffset int64    0+  = -1  tag 14  ignorable
  Attachment        bytes    0+  tag 20  ignorable
  StartOffset       int64    0+
  EndOffset         int64    0+
  EndLeaderEpoch    int32    0+
  Spans             [Span]   0+
    First          int64   0+
    Last           int64   0+
    State          int8    0+
    DeliveryCount  int16   0+
    DueMs          int64   0+  tag 0  ignorable
    Reason         int8    0+  tag 1  ignorable
    LetterShift    int64   0+  tag 2  ignorable
  Promoted          [Span]   0+  tag 15  ignorable

ReadValue  versions 0-0  flexible 0+
  LeaderEpoch  int32  0+

OrderValue  versions 0-0  flexible 0+
  CoordinatorEpoch  int32  0+
  CallNumber        int64  0+
""",
)


class ShareKey(Message):
    __slots__ = ("group_id", "partition", "topic_id")

    def __init__(self, group_id: str, topic_id: bytes, partition: int) -> None:
        self.group_id = group_id
        self.topic_id = topic_id
        self.partition = partition


class ShareValue(Message):
    __slots__ = (
        "attachment",
        "call_number",
        "coordinator_epoch",
        "deleted_ms",
        "end_leader_epoch",
        "end_offset",
        "leader_epoch",
        "letter_base",
        "letter_next",
        "producer_epoch",
        "producer_id",
        "promoted",
        "read_offset",
        "schedule_ceiling",
        "schedule_due_ms",
        "schedule_due_offset",
        "schedule_end",
        "schedule_floor",
        "schedule_number",
        "spans",
        "start_offset",
        "state_epoch",
    )

    class Span(Struct):
        __slots__ = (
            "delivery_count",
            "due_ms",
            "first",
            "last",
            "letter_shift",
            "reason",
            "state",
        )

        def __init__(
            self,
            first: int,
            last: int,
            state: int,
            delivery_count: int,
            due_ms: int = 0,
            reason: int = 0,
            letter_shift: int = 0,
        ) -> None:
            self.first = first
            self.last = last
            self.state = state
            self.delivery_count = delivery_count
            self.due_ms = due_ms
            self.reason = reason
            self.letter_shift = letter_shift

    def __init__(
        self,
        state_epoch: int,
        start_offset: int,
        end_offset: int,
        end_leader_epoch: int,
        spans: list[ShareValue.Span],
        letter_base: int = 0,
        letter_next: int = 0,
        producer_epoch: int = 0,
        producer_id: int = -1,
        schedule_number: int = 0,
        schedule_ceiling: int = -1,
        schedule_floor: int = 0,
        schedule_end: int = 0,
        schedule_due_ms: int = 0,
        schedule_due_offset: int = -1,
        leader_epoch: int = -1,
        read_offset: int = -1,
        coordinator_epoch: int = -1,
        call_number: int = -1,
        deleted_ms: int = 0,
        *,
        promoted: Iterable[ShareValue.Span] = (),
        attachment: bytes = b"",
    ) -> None:
        self.state_epoch = state_epoch
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.end_leader_epoch = end_leader_epoch
        self.spans = spans
        self.leader_epoch = leader_epoch
        self.read_offset = read_offset
        self.coordinator_epoch = coordinator_epoch
        self.call_number = call_number
        self.deleted_ms = deleted_ms
        self.letter_base = letter_base
        self.letter_next = letter_next
        self.producer_epoch = producer_epoch
        self.producer_id = producer_id
        self.promoted = list(promoted)
        self.schedule_number = schedule_number
        self.schedule_ceiling = schedule_ceiling
        self.schedule_floor = schedule_floor
        self.schedule_end = schedule_end
        self.schedule_due_ms = schedule_due_ms
        self.schedule_due_offset = schedule_due_offset
        self.attachment = attachment


class ReadValue(Message):
    __slots__ = ("leader_epoch",)

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch


class OrderValue(Message):
    __slots__ = ("call_number", "coordinator_epoch")

    def __init__(self, coordinator_epoch: int, call_number: int) -> None:
        self.coordinator_epoch = coordinator_epoch
        self.call_number = call_number


class Snapshot(NamedTuple):
    """The whole state of a share partition."""

    image: ShareImage
    leader_epoch: int = -1
    """The leader epoch of the last leader that has read the state. -1: none has."""
    read_offset: int = -1
    """Where the record of that read is in the log of the coordinator."""
    order: CallOrder = CallOrder()
    """The last initialization or deletion."""
    deleted_ms: int = 0
    """When the state was deleted, on the wall clock. 0: it was not."""


class ReadNote(NamedTuple):
    """A leader of this epoch has read the state."""

    leader_epoch: int


class OrderNote(NamedTuple):
    """An initialization had no effect. Calls before it have none from now on."""

    order: CallOrder


class Entry(NamedTuple):
    """A record, decoded. None removes the share partition."""

    share_partition: SharePartitionId
    content: Snapshot | Delta | ReadNote | OrderNote | None


def record_of(entry: Entry) -> LogRecord:
    share_partition, content = entry
    if content is None:
        return LogRecord(_key(share_partition, _SNAPSHOT), None)
    if isinstance(content, ReadNote):
        value = _STORED.encode(ReadValue(content.leader_epoch), _VALUE_VERSION)
        return LogRecord(_key(share_partition, _READ), value)
    if isinstance(content, OrderNote):
        value = _STORED.encode(OrderValue(*content.order), _VALUE_VERSION)
        return LogRecord(_key(share_partition, _ORDER), value)
    if isinstance(content, Delta):
        value = _value(content)
        return LogRecord(_key(share_partition, _DELTA), value)
    image, leader_epoch, read_offset, order, deleted_ms = content
    last = (leader_epoch, read_offset, *order, deleted_ms)
    value = _value(image, *last)
    return LogRecord(_key(share_partition, _SNAPSHOT), value)


def decode(record: LogRecord) -> Entry:
    """Returns the entry. Raises `ProtocolError` if it is damaged or its version unknown."""
    key = _STORED.decode(ShareKey, record.key)
    kind = _STORED.version(record.key)
    share_partition = SharePartitionId(key.group_id, key.topic_id, key.partition)
    if record.value is None:
        if kind != _SNAPSHOT:
            raise ProtocolError(f"a delta, read or order of group {key.group_id} has no value")
        return Entry(share_partition, None)
    if kind == _READ:
        return Entry(
            share_partition, ReadNote(_STORED.decode(ReadValue, record.value).leader_epoch)
        )
    if kind == _ORDER:
        noted = _STORED.decode(OrderValue, record.value)
        order = CallOrder(noted.coordinator_epoch, noted.call_number)
        return Entry(share_partition, OrderNote(order))
    value = _STORED.decode(ShareValue, record.value)
    spans = spans_of(key.group_id, value.spans)
    fields = (value.state_epoch, value.start_offset, value.end_offset, value.end_leader_epoch)
    letters, schedule = letters_of(value), schedule_of(value)
    promoted = spans_of(key.group_id, value.promoted)
    if kind == _SNAPSHOT:
        image = ShareImage(*fields, spans, letters, promoted, schedule, bytes(value.attachment))
        order = CallOrder(value.coordinator_epoch, value.call_number)
        last = (value.leader_epoch, value.read_offset, order, value.deleted_ms)
        return Entry(share_partition, Snapshot(image, *last))
    rest = (tuple(promoted), schedule, bytes(value.attachment))
    return Entry(share_partition, Delta(*fields, tuple(spans), letters, *rest))


class SpanFields(Protocol):
    """A span in a message."""

    first: int
    last: int
    state: int
    delivery_count: int
    due_ms: int
    reason: int
    letter_shift: int


class LetterFields(Protocol):
    """The numbers of dead letters in a message."""

    letter_base: int
    letter_next: int
    producer_epoch: int
    producer_id: int


class ScheduleFields(Protocol):
    """The schedule in a message."""

    schedule_number: int
    schedule_ceiling: int
    schedule_floor: int
    schedule_end: int
    schedule_due_ms: int
    schedule_due_offset: int


def schedule_of(fields: ScheduleFields) -> ShareSchedule:
    cursor = ScheduleCursor(
        fields.schedule_floor,
        fields.schedule_end,
        fields.schedule_due_ms,
        fields.schedule_due_offset,
    )
    return ShareSchedule(fields.schedule_number, fields.schedule_ceiling, cursor)


def schedule_fields(schedule: ShareSchedule) -> tuple[int, int, int, int, int, int]:
    """Returns the values in the order of messages."""
    return (schedule.number, schedule.ceiling, *schedule.cursor)


def letters_of(fields: LetterFields) -> LetterNumbers:
    return LetterNumbers(
        fields.letter_base, fields.letter_next, fields.producer_epoch, fields.producer_id
    )


def spans_of(group_id: str, spans: Iterable[SpanFields]) -> list[StoredSpan]:
    """Returns the spans of a message. Raises `ProtocolError` for a state that is never stored."""
    found: list[StoredSpan] = []
    for span in spans:
        state, reason = _STATES.get(span.state), _REASONS.get(span.reason)
        if state is None or reason is None or span.last < span.first:
            raise ProtocolError(
                f"the state of group {group_id} at offset {span.first} is damaged: "
                f"state {span.state}, reason {span.reason}, last offset {span.last}"
            )
        rest = span.delivery_count, span.due_ms, reason, span.letter_shift
        found.append(StoredSpan(span.first, span.last, state, *rest))
    return found


def _key(share_partition: SharePartitionId, kind: int) -> bytes:
    return _STORED.encode(ShareKey(*share_partition), kind)


def _value(state: Delta | ShareImage, *last: int) -> bytes:
    spans = [ShareValue.Span(*map(int, span)) for span in state.spans]
    value = ShareValue(
        state.state_epoch,
        state.start_offset,
        state.end_offset,
        state.end_leader_epoch,
        spans,
        *state.letters,
        *schedule_fields(state.schedule),
        *last,
        promoted=[ShareValue.Span(*map(int, span)) for span in state.promoted],
        attachment=state.attachment,
    )
    return _STORED.encode(value, _VALUE_VERSION)
