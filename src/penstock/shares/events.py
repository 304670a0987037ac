"""The events of a share partition, and the effects that its shell carries out in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.coordination.effects import SetTimer, Token
from penstock.shares.image import Delta
from penstock.shares.settings import ShareSettings
from penstock.shares.states import AcquireMode, GiveUpReason
from penstock.wire.errors import ErrorCode


class BatchKind(Enum):
    DATA = "data"
    CONTROL = "control"
    ABORTED = "aborted"
    """Data of an aborted transaction, for a group that reads committed records only."""


class LogBatch(NamedTuple):
    """A batch that the shell has read, or a part of one with records of the same due time."""

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
    """All records of a `WriteDeadLetters` are in the dead-letter topic."""

    first: int
    last: int


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
    | SettingsChanged
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


@dataclass(frozen=True, slots=True)
class WriteDeadLetters:
    """Write a dead letter for each record, until it succeeds. It may be asked for again."""

    first: int
    last: int
    delivery_count: int
    reason: GiveUpReason


@dataclass(frozen=True, slots=True)
class WakeFetches:
    """Something may be acquired that could not be before."""


Effect = Acquired | Acknowledged | Write | WriteDeadLetters | WakeFetches | SetTimer[None]
