"""The events of a share partition, and the effects that its shell carries out in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.coordination.effects import SetTimer, Token
from penstock.schedule.cursor import ScheduleCursor
from penstock.shares.image import Delta
from penstock.shares.settings import ShareSettings
from penstock.shares.states import AcquireMode, GiveUpReason
from penstock.wire.errors import ErrorCode


class BatchKind(Enum):
    DATA = "data"
    CONTROL = "control"
    ABORTED = "aborted"
    """Data of an aborted transaction, for a group that reads committed records only."""
    DUPLICATE = "duplicate"
    """Data with an id that an earlier record has, too."""
    FAR = "far"
    """Data that is due much later than it was sent (`share_schedule`)."""


class LogBatch(NamedTuple):
    """A batch that the shell has read, or a part of one with records of the same times."""

    first: int
    last: int
    leader_epoch: int
    kind: BatchKind = BatchKind.DATA
    due_ms: int = 0
    """Wall-clock time: not delivered before it."""
    expires_ms: int | None = None
    """Wall-clock time: not delivered from it on."""


@dataclass(frozen=True, slots=True)
class Acquire:
    """A member fetches. `batches` are all batches of the log from `read_from` on, up to a limit.

    Offsets between them hold no record.
    """

    token: Token
    member_id: str
    read_from: int
    batches: tuple[LogBatch, ...]
    max_records: int
    batch_size: int = 0
    """Acquired ranges in the response are split at batches of the log after this many records."""
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    is_promoted: bool = False
    """`batches` are parts with promoted records, which are to be acquired; not the window."""
    drop_below: int = 0
    """The queue is too long: records of the window below this offset are given up instead."""


class AckBatch(NamedTuple):
    first: int
    last: int
    types: tuple[int, ...]
    """One for all offsets, or one for each."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    token: Token
    member_id: str
    batches: tuple[AckBatch, ...]
    is_renew: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseMember:
    """The member's session has ended."""

    member_id: str
    with_backoff: bool


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the last `SetTimer` has come, or an earlier one."""


@dataclass(frozen=True, slots=True)
class WriteCommitted:
    write_id: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The delta is not in the state log, and never will be."""

    write_id: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class DeadLettersWritten:
    """What became of the last `WriteDeadLetters`. Nothing else of it was, or will be, written."""

    offsets: tuple[int, ...]
    """The dead letters of these records are in the dead-letter topic."""
    missing: tuple[int, ...] = ()
    """At these offsets there is no record, so there is no dead letter."""
    is_refused: bool = False
    """The dead-letter partition expects another sequence number."""


@dataclass(frozen=True, slots=True)
class ProducerIdTaken:
    """The answer to `TakeProducerId`."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class DropOldest:
    """The queue is too long: available records below an offset are given up, without dead letters.

    The log is not read for it. With dead letters, `Acquire.drop_below` gives up what is a record,
    and nothing else. The offset may be beyond the window. `leader_epoch` is that of the record
    before it. Promoted records are not given up, and scheduled ones, which are in `far`, stay
    scheduled.
    """

    below: int
    leader_epoch: int
    far: tuple[tuple[int, int], ...] = ()
    """Far records from the start of the window on."""


@dataclass(frozen=True, slots=True)
class SwitchSchedule:
    """The topic has got timed records, or has lost them."""

    is_timed: bool


@dataclass(frozen=True, slots=True)
class Promote:
    """Far records are due, or the schedule has looked further and found none that are."""

    offsets: tuple[int, ...]
    cursor: ScheduleCursor
    is_last: bool = False
    """No record of the schedule is left below the end of the cursor."""
    is_stored: bool = False
    """The cursor has passed scheduled records, so it is stored, although it promotes nothing."""
    attachment: bytes = b""
    """Is stored with the cursor. See `judged`."""


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    settings: ShareSettings


Event = (
    Acquire
    | Acknowledge
    | ReleaseMember
    | LogStartMoved
    | TimerFired
    | WriteCommitted
    | WriteFailed
    | DeadLettersWritten
    | ProducerIdTaken
    | DropOldest
    | SettingsChanged
    | SwitchSchedule
    | Promote
)


class AcquiredRange(NamedTuple):
    first: int
    last: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """The answer to `Acquire`. It may be empty although something else could be acquired."""

    token: Token
    ranges: tuple[AcquiredRange, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The answer to `Acknowledge`."""

    token: Token
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Write:
    """Append the delta to the state log, and report whether it was committed."""

    write_id: int
    delta: Delta


class DeadLetter(NamedTuple):
    offset: int
    sequence: int
    delivery_count: int
    reason: GiveUpReason


@dataclass(frozen=True, slots=True)
class WriteDeadLetters:
    """Write these dead letters in this order, each as a batch of its own, until that succeeds.

    It replaces an earlier one.
    """

    producer_id: int
    producer_epoch: int
    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True)
class TakeProducerId:
    """Get a new producer id, to write dead letters with."""


@dataclass(frozen=True, slots=True)
class WakeFetches:
    """Something may be acquired that could not be before."""


Effect = (
    Acquired
    | Acknowledged
    | Write
    | WriteDeadLetters
    | TakeProducerId
    | WakeFetches
    | SetTimer[None]
)
