"""The inputs of a transaction shard other than wire requests, and its effects.

A shard answers each call with a list of effects, to be carried out in order. It never waits: a
request that must wait is identified by its token, and exactly one later effect is the `Reply` to
it. Records that must be durable first are an `Append`; the shell reports its outcome by its id, and
likewise for producer ids and markers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
)

Token = Hashable
"""Identifies a request that expects an answer; only the shell knows its meaning."""


class Now(NamedTuple):
    """Two clocks: timers use ticks, which never jump; what is stored in the log is wall time."""

    ticks_ms: int
    wall_ms: int


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class TimerKind(Enum):
    TIMEOUT = "timeout"
    """A transaction has reached its timeout."""
    MARKERS = "markers"
    """Markers, or the record that completes a transaction, are due to be sent again."""
    PATIENCE = "patience"
    """Parked additions have waited long enough for the previous transaction to be complete."""
    EXPIRY = "expiry"
    """Time to look for transactional ids that were not used for a long time."""


class TimerKey(NamedTuple):
    kind: TimerKind
    transactional_id: str = ""


class LogRecord(NamedTuple):
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Member:
    """One of the transactions to be ended together, with its producer's id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class EndTransactions:
    """Commits all of these transactions or none; or aborts those that are open.

    `offsets_partition` is the partition of `__consumer_offsets` that one of the transactions must
    have written to, if an offset commit is part of them. A commit without it is refused.
    """

    members: tuple[Member, ...]
    committed: bool
    offsets_partition: TopicPartition | None = None


@dataclass(frozen=True, slots=True)
class MemberEnded:
    """The result for one member; with NONE, the id and epoch of its next transaction."""

    transactional_id: str
    code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True)
class EndedTogether:
    """The answer to `EndTransactions`. The code applies to all; NONE means that they have ended."""

    code: ErrorCode
    members: tuple[MemberEnded, ...] = ()


Answer = (
    InitProducerIdResponse
    | AddPartitionsToTxnResponse.Transaction
    | AddOffsetsToTxnResponse
    | EndTxnResponse
    | EndedTogether
)


@dataclass(frozen=True, slots=True)
class Reply:
    token: Token
    answer: Answer


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records as one batch, and report later whether it was committed."""

    append_id: int
    records: tuple[LogRecord, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call back at `at_ms`, in ticks; replaces the timer that was set for this key."""

    key: TimerKey
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: TimerKey


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Allocate new producer ids, and pass them in with this allocation id."""

    allocation_id: int
    count: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The result of a transaction; `transaction_version` sets how strictly it is checked."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Make the leaders of these partitions write the marker; each partition is answered once."""

    transactional_id: str
    marker: Marker
    partitions: tuple[TopicPartition, ...]


Effect = Reply | Append | SetTimer | CancelTimer | AllocateProducerIds | SendMarkers
