"""Builds the batches that coordinators write to their internal topics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.coordination.effects import LogRecord
from penstock.partition.batch_rules import BatchRefused
from penstock.records.record import Record, build_batch
from penstock.wire.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


def batch_of(
    hosted: HostedPartition, records: Sequence[LogRecord], timestamp_ms: int, **producer: Any
) -> bytearray:
    """Encodes a coordinator's records as one batch. If this raises, the log is unchanged.

    Raises KafkaError if the records cannot be encoded. That is a bug, and only this append fails.
    """
    try:
        return build_batch(
            [
                Record(offset, timestamp_ms, record.key, record.value)
                for offset, record in enumerate(records)
            ],
            **producer,
        )
    except Exception as error:
        _log.exception(
            "cannot encode the coordinator's records for %s-%d", hosted.topic, hosted.index
        )
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from error


def bounded_batch_of(
    hosted: HostedPartition, records: Sequence[LogRecord], timestamp_ms: int, **producer: Any
) -> bytearray:
    """Does the same, and raises BatchRefused if the batch exceeds the topic's max.message.bytes."""
    limit = hosted.settings.max_message_bytes
    size = sum(len(record.key) + len(record.value or b"") for record in records)
    if size <= limit:
        batch = batch_of(hosted, records, timestamp_ms, **producer)
        size = len(batch)
        if size <= limit:
            return batch
    message = (
        f"{hosted.topic}-{hosted.index} refuses a batch of {size} bytes because the topic's "
        f"max.message.bytes is {limit}: raise that setting, or use smaller groups and shorter "
        "metadata"
    )
    _log.warning("%s", message)
    raise BatchRefused(ErrorCode.MESSAGE_TOO_LARGE, message)
