"""Maps exceptions to Kafka's error codes."""

from __future__ import annotations

from penstock.partition.batch_rules import BatchRefused
from penstock.partition.producer_errors import ProducerRefused
from penstock.records.batch import CorruptBatch, MisshapenBatch
from penstock.storage.errors import OffsetOutOfRange, StorageError
from penstock.stores.errors import StoreError
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError

EXPECTED_ERRORS = (
    KafkaError,
    BatchRefused,
    ProducerRefused,
    CorruptBatch,
    StorageError,
    StoreError,
    TimeoutError,
)
"""Errors that are not bugs in the broker. They are answered with a code and not logged as bugs."""


def code_of(error: Exception) -> ErrorCode:
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, BatchRefused | ProducerRefused):
        return ErrorCode(error.code)
    if isinstance(error, MisshapenBatch):
        # Not CORRUPT_MESSAGE: clients would assume a transmission error and retry.
        return ErrorCode.INVALID_RECORD
    if isinstance(error, CorruptBatch):
        return ErrorCode.CORRUPT_MESSAGE
    if isinstance(error, OffsetOutOfRange):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if isinstance(error, StorageError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(error, StoreError | TimeoutError):
        return ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, ProtocolError):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.UNKNOWN_SERVER_ERROR


def only_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Returns the only exception of a group, at any depth of nesting; None if there are several."""
    if len(failures.exceptions) != 1:
        return None
    inner = failures.exceptions[0]
    return only_failure(inner) if isinstance(inner, BaseExceptionGroup) else inner
