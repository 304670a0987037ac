"""Appends what this broker writes for transactional producers: offsets of a group, and markers.

Offsets are written in the producer's transaction, which must be verified like a client's batch
(`partition.guards`). Markers end transactions, and are refused if they come too late.
"""

from __future__ import annotations

from functools import partial

from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.partition.decisions import Begin
from penstock.partition.guards import Verification
from penstock.records.batch import BatchHeader, read_header
from penstock.records.record import ControlMarker, ControlType, control_batch
from penstock.txns.config import EPOCH_PER_TRANSACTION
from penstock.txns.effects import Marker


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
