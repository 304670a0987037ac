"""What goes into a transaction shard beside wire requests, and what comes out of it.

A shard answers each call with a list of effects, to be carried out in order. It never waits: a
request that must wait is known by its token, and some later list holds the one `Reply` to it. What
must be durable first goes out as `Append`; whoever runs the shard reports its fate by its id, the
same for producer ids and markers.
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
"""Stands for a request that wants an answer; whoever runs the shard knows what it means."""


class Now(NamedTuple):
    """Two clocks: timers run on ticks, which never jump; what is written down is wall time."""

    ticks_ms: int
    wall_ms: int


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class TimerKind(Enum):
    TIMEOUT = "timeout"
    """A transaction has been open for as long as it may be."""
    MARKERS = "markers"
    """Markers, or the record that ends a transaction, are due to be tried again."""
    PATIENCE = "patience"
    """Partitions to be added have waited long enough for the transaction before to be over."""
    EXPIRY = "expiry"
    """Time to look for transactional ids that nobody used for long."""


class TimerKey(NamedTuple):
    kind: TimerKind
    transactional_id: str = ""


class LogRecord(NamedTuple):
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Member:
    """One of the transactions to be ended together, as its producer knows it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class EndTransactions:
    """Commit all of these transactions or none; or abort what is open of them.

    `offsets_partition` is the partition of `__consumer_offsets` that one of the transactions must
    have written to: an offset commit that rides along. A commit without it is refused.
    """

    members: tuple[Member, ...]
    committed: bool
    offsets_partition: TopicPartition | None = None


@dataclass(frozen=True, slots=True)
class MemberEnded:
    """What became of one; with NONE, the id and epoch for its producer's next transaction."""

    transactional_id: str
    code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True)
class EndedTogether:
    """The answer to `EndTransactions`: its code is for all, and with NONE it is done."""

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
    """Append the records as one batch, and say later whether it was committed."""

    append_id: int
    records: tuple[LogRecord, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call back at `at_ms`, in ticks, instead of when this key was to be called back before."""

    key: TimerKey
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: TimerKey


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Get producer ids that nobody has had, and hand them in by this id."""

    allocation_id: int
    count: int


@dataclass(frozen=True, slots=True)
class Marker:
    """How a transaction ended; `transaction_version` tells partitions how strict to be."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Have the leaders of these partitions write the marker; answer for each of them, once."""

    transactional_id: str
    marker: Marker
    partitions: tuple[TopicPartition, ...]


Effect = Reply | Append | SetTimer | CancelTimer | AllocateProducerIds | SendMarkers
