"""How the state of a delay topic's partition is stored: as bytes in a state of the share
coordinator."""

from __future__ import annotations

from typing import Final

from penstock.delays.copy_state import CopyState, PlannedBatch, Target
from penstock.schedule.cursor import ScheduleCursor
from penstock.wire.messages.base import Message, Struct
from penstock.wire.stored import StoredMessages

_VERSION: Final = 0
_STORED: Final = StoredMessages(
    "__share_group_state",
    """
DelayValue  versions 0-0  flexible 0+
  Floor            int64      0+
  End              int64      0+
  DueMs            int64      0+
  DueOffset        int64      0+
  EndEpoch         int32      0+
  TargetId         uuid       0+
  TargetPartition  int32      0+
  ProducerId       int64      0+
  ProducerEpoch    int16      0+
  Sequence         int32      0+
  IsBroken         bool       0+
  Planned          [Planned]  0+
    Floor      int64  0+
    End        int64  0+
    DueMs      int64  0+
    DueOffset  int64  0+
    MadeMs     int64  0+
    Runs       [Run]  0+
      First  int64  0+
      Count  int32  0+
""",
)


class DelayValue(Message):
    __slots__ = (
        "due_ms",
        "due_offset",
        "end",
        "end_epoch",
        "floor",
        "is_broken",
        "planned",
        "producer_epoch",
        "producer_id",
        "sequence",
        "target_id",
        "target_partition",
    )

    class Run(Struct):
        """Offsets that follow each other."""

        __slots__ = ("count", "first")

        def __init__(self, first: int, count: int) -> None:
            self.first = first
            self.count = count

    class Planned(Struct):
        __slots__ = ("due_ms", "due_offset", "end", "floor", "made_ms", "runs")

        def __init__(
            self,
            floor: int,
            end: int,
            due_ms: int,
            due_offset: int,
            made_ms: int,
            runs: list[DelayValue.Run],
        ) -> None:
            self.floor = floor
            self.due_ms = due_ms
            self.due_offset = due_offset
            self.end = end
            self.made_ms = made_ms
            self.runs = runs

    def __init__(
        self,
        floor: int,
        end: int,
        due_ms: int,
        due_offset: int,
        end_epoch: int,
        target_id: bytes,
        target_partition: int,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        is_broken: bool,
        planned: list[DelayValue.Planned],
    ) -> None:
        self.floor = floor
        self.due_ms = due_ms
        self.due_offset = due_offset
        self.end = end
        self.end_epoch = end_epoch
        self.target_id = target_id
        self.target_partition = target_partition
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.sequence = sequence
        self.is_broken = is_broken
        self.planned = planned


def encode(state: CopyState) -> bytes:
    value = DelayValue(
        *state.cursor,
        state.end_epoch,
        *state.target,
        state.producer_id,
        state.producer_epoch,
        state.sequence,
        state.is_broken,
        [
            DelayValue.Planned(*batch.after, batch.made_ms, _runs(batch.offsets))
            for batch in state.planned
        ],
    )
    return _STORED.encode(value, _VERSION)


def decode(data: bytes) -> CopyState:
    """Returns the state. Raises `ProtocolError` if it is damaged or its version unknown."""
    value = _STORED.decode(DelayValue, data)
    return CopyState(
        _cursor(value),
        value.end_epoch,
        Target(value.target_id, value.target_partition),
        value.producer_id,
        value.producer_epoch,
        value.sequence,
        value.is_broken,
        tuple(
            PlannedBatch(
                tuple(run.first + number for run in each.runs for number in range(run.count)),
                _cursor(each),
                each.made_ms,
            )
            for each in value.planned
        ),
    )


def _cursor(value: DelayValue | DelayValue.Planned) -> ScheduleCursor:
    return ScheduleCursor(value.floor, value.end, value.due_ms, value.due_offset)


def _runs(offsets: tuple[int, ...]) -> list[DelayValue.Run]:
    runs: list[DelayValue.Run] = []
    for offset in offsets:
        if runs and runs[-1].first + runs[-1].count == offset:
            runs[-1].count += 1
        else:
            runs.append(DelayValue.Run(offset, 1))
    return runs
