"""The records of a state log: snapshots and deltas of the share groups of one partition.

The version of a key is the kind of its record: 0 is a snapshot, 1 a delta. A snapshot replaces all
that is before it for its group. A snapshot without a value removes the group. A delta follows a
snapshot of the same state epoch.

The formats are Penstock's own. Kafka's records of `__share_group_state` have neither the end of the
window with its leader epoch, by which a new leader finds states of records that are lost, nor due
times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.coordination.effects import LogRecord
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.states import GiveUpReason, RecordState
from penstock.wire.errors import ProtocolError
from penstock.wire.messages.base import Message, Struct
from penstock.wire.stored import StoredMessages

TOPIC_PREFIX: Final = "__share_state."
_SNAPSHOT: Final = 0
_DELTA: Final = 1
_VALUE_VERSION: Final = 0
_STATES: Final = {int(state): state for state in RecordState if state is not RecordState.ACQUIRED}
_REASONS: Final = {int(reason): reason for reason in GiveUpReason}
_STORED: Final = StoredMessages(
    "a state log",
    """
ShareKey  versions 0-1  flexible never
  GroupId  string  0+

ShareValue  versions 0-0  flexible 0+
  StateEpoch      int32    0+
  StartOffset     int64    0+
  EndOffset       int64    0+
  EndLeaderEpoch  int32    0+
  Spans           [Span]   0+
    First          int64   0+
    Last           int64   0+
    State          int8    0+
    DeliveryCount  int16   0+
    DueMs          int64   0+  tag 0  ignorable
    Reason         int8    0+  tag 1  ignorable
""",
)


class ShareKey(Message):
    __slots__ = ("group_id",)

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id


class ShareValue(Message):
    __slots__ = ("end_leader_epoch", "end_offset", "spans", "start_offset", "state_epoch")

    class Span(Struct):
        __slots__ = ("delivery_count", "due_ms", "first", "last", "reason", "state")

        def __init__(
            self,
            first: int,
            last: int,
            state: int,
            delivery_count: int,
            due_ms: int = 0,
            reason: int = 0,
        ) -> None:
            self.first = first
            self.last = last
            self.state = state
            self.delivery_count = delivery_count
            self.due_ms = due_ms
            self.reason = reason

    def __init__(
        self,
        state_epoch: int,
        start_offset: int,
        end_offset: int,
        end_leader_epoch: int,
        spans: list[ShareValue.Span],
    ) -> None:
        self.state_epoch = state_epoch
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.end_leader_epoch = end_leader_epoch
        self.spans = spans


class Entry(NamedTuple):
    """A record, decoded. A `ShareImage` is a snapshot; None removes the group."""

    group_id: str
    content: ShareImage | Delta | None


def snapshot_record(group_id: str, image: ShareImage) -> LogRecord:
    value = _value(
        image.state_epoch,
        image.start_offset,
        image.end_offset,
        image.end_leader_epoch,
        image.spans,
    )
    return LogRecord(_key(group_id, _SNAPSHOT), value)


def delta_record(group_id: str, delta: Delta) -> LogRecord:
    return LogRecord(_key(group_id, _DELTA), _value(*delta))


def removal_record(group_id: str) -> LogRecord:
    return LogRecord(_key(group_id, _SNAPSHOT), None)


def decode(record: LogRecord) -> Entry:
    """Returns the entry. Raises `ProtocolError` if it is damaged or its version unknown."""
    key = _STORED.decode(ShareKey, record.key)
    kind = _STORED.version(record.key)
    if record.value is None:
        if kind != _SNAPSHOT:
            raise ProtocolError(f"a delta of group {key.group_id} in a state log has no value")
        return Entry(key.group_id, None)
    value = _STORED.decode(ShareValue, record.value)
    spans = _spans(key.group_id, value)
    fields = (value.state_epoch, value.start_offset, value.end_offset, value.end_leader_epoch)
    if kind == _SNAPSHOT:
        return Entry(key.group_id, ShareImage(*fields, spans))
    return Entry(key.group_id, Delta(*fields, tuple(spans)))


def replay(images: dict[str, ShareImage], entry: Entry) -> None:
    """Applies a record to the images of all groups of a partition.

    A delta without a snapshot is skipped: its group was removed before, or the snapshot that it
    followed, and so this delta, is below the start of the log.
    """
    if entry.content is None:
        images.pop(entry.group_id, None)
    elif isinstance(entry.content, ShareImage):
        images[entry.group_id] = entry.content
    elif (image := images.get(entry.group_id)) is not None:
        image.apply(entry.content)


def _key(group_id: str, kind: int) -> bytes:
    return _STORED.encode(ShareKey(group_id), kind)


def _value(
    state_epoch: int,
    start_offset: int,
    end_offset: int,
    end_leader_epoch: int,
    spans: Iterable[StoredSpan],
) -> bytes:
    stored = [ShareValue.Span(*map(int, span)) for span in spans]
    value = ShareValue(state_epoch, start_offset, end_offset, end_leader_epoch, stored)
    return _STORED.encode(value, _VALUE_VERSION)


def _spans(group_id: str, value: ShareValue) -> list[StoredSpan]:
    spans: list[StoredSpan] = []
    for span in value.spans:
        state, reason = _STATES.get(span.state), _REASONS.get(span.reason)
        if state is None or reason is None or span.last < span.first:
            raise ProtocolError(
                f"the state of group {group_id} at offset {span.first} in a state log is damaged: "
                f"state {span.state}, reason {span.reason}, last offset {span.last}"
            )
        spans.append(
            StoredSpan(span.first, span.last, state, span.delivery_count, span.due_ms, reason)
        )
    return spans
