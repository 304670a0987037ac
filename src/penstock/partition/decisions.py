"""What the partition machine reads of the log, decides about a batch, and returns for other
events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.partition.epochs import LeaderEpochs
from penstock.partition.producer_errors import ProducerRefused
from penstock.partition.producer_state import Duplicate
from penstock.partition.producers import ProducerStates
from penstock.wire.errors import ErrorCode, KafkaError

W = TypeVar("W")
"""A request that waits, in the form that the shell chooses."""

Begin = Callable[[], int | None]
"""Takes a guard for the time of a verification. Returns None if no verification is needed."""


class PartitionLog(Protocol):
    """What the machine reads of the partition's log."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def recovery_point(self) -> int: ...

    @property
    def needs_flush(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def epochs(self) -> LeaderEpochs: ...

    @property
    def producers(self) -> ProducerStates: ...


# Decisions about a batch


class Append(NamedTuple):
    """The batch is to be written, with this leader epoch."""

    leader_epoch: int


class Refuse(NamedTuple):
    """The batch is refused. The error has Kafka's code and a message for the client."""

    error: KafkaError | ProducerRefused


class Verify(NamedTuple):
    """The batch would begin a transaction on this partition. It must be verified with the
    transaction's coordinator, and then passed in again with the guard."""

    producer_id: int
    producer_epoch: int
    begin: Begin


Decision = Append | Duplicate | Refuse | Verify


# Effects


class NoteEpoch(NamedTuple):
    """Write the leader epoch into the log's list of epochs."""

    epoch: int


class Answer(NamedTuple, Generic[W]):
    """Answer these waiting requests. The code is None for success."""

    waits: Sequence[W]
    code: ErrorCode | None


class Do(Enum):
    """The effects that need no further data."""

    FLUSH = auto()
    """Sync the log."""
    TELL_READERS = auto()
    """More is committed, or the role has changed: wake the consumers' fetches."""
    TELL_FOLLOWERS = auto()
    """There is something new for followers, or the role has changed: wake their fetches."""


Effect = NoteEpoch | Answer[W] | Do
