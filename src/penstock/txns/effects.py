"""The effects of a transaction shard, its timers, and the requests that are not Kafka's.

In addition to the effects that all coordinators have, a transaction shard asks for producer ids and
sends markers. The shell reports the results of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from penstock.coordination import effects
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
)


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


Effect: TypeAlias = effects.Effect[Answer, TimerKey, AllocateProducerIds | SendMarkers]
