"""The checks that a partition makes before it accepts a transactional batch or a marker.

The first batch of a transaction on a partition must be verified with the transaction coordinator
(`NotVerified`, see `partition.verification`). Later batches need no verification. Markers end
transactions, and are refused if they come too late.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.partition.producers import ProducerStates, Verification
from penstock.records.batch import BatchHeader, read_header
from penstock.records.record import ControlMarker, ControlType, control_batch
from penstock.txns.config import EPOCH_PER_TRANSACTION
from penstock.txns.effects import Marker
from penstock.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.partitions.partition import HostedPartition, Written


Begin = Callable[[], int | None]
"""Takes a guard for the time of a verification. Returns None if no verification is needed."""


class NotVerified(KafkaError):
    """A batch would begin a transaction on this partition. The caller must verify it with the
    coordinator and then append it again with the guard."""

    def __init__(self, header: BatchHeader, begin: Begin) -> None:
        super().__init__(
            ErrorCode.INVALID_TXN_STATE,
            f"the transaction of producer {header.producer_id} has not been verified with its "
            "coordinator",
        )
        self.producer_id = header.producer_id
        self.producer_epoch = header.producer_epoch
        self.begin = begin


def require_open(states: ProducerStates, header: BatchHeader, now_ms: int) -> Verification:
    """Returns the `Verification` for a transactional batch that came without one, or raises
    `NotVerified`."""
    begin = partial(states.begin_verification, header, now_ms)
    if begin() is not None:
        raise NotVerified(header, begin)
    return Verification()


def beginner(hosted: HostedPartition, producer_id: int, producer_epoch: int, now_ms: int) -> Begin:
    """Returns a `Begin` for a batch that this broker will write for a producer."""
    probe = BatchHeader(0, 0, -1, 2, 0, 0, 0, -1, -1, producer_id, producer_epoch, -1, 0)
    return partial(hosted.log.producers.begin_verification, probe, now_ms)


def append_in_transaction(
    hosted: HostedPartition, batch: bytearray, verification: Verification, now_ms: int
) -> Written:
    """Appends a batch that this broker made for a producer, in that producer's transaction."""
    hosted.require_leader()
    hosted.log.producers.check(
        BatchHeader._make(read_header(batch)), from_client=False, verification=verification
    )
    return hosted.append_own(batch, now_ms)


def append_marker(hosted: HostedPartition, marker: Marker, now_ms: int) -> Written:
    """Ends a producer's transaction on a partition."""
    hosted.require_leader()
    hosted.log.producers.check_marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        strict=marker.transaction_version >= EPOCH_PER_TRANSACTION,
    )
    kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
    batch = control_batch(
        ControlMarker(kind, marker.coordinator_epoch),
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        timestamp=now_ms,
    )
    return hosted.append_own(batch, now_ms)
