"""The reasons for which a partition refuses a batch or a marker of a producer."""

from __future__ import annotations

from typing import ClassVar

from penstock.wire.errors import ErrorCode


class ProducerRefused(Exception):
    """The batch must not be appended; `code` is the Kafka error to answer with."""

    code: ClassVar[ErrorCode]


class OutOfOrderSequence(ProducerRefused):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequence(ProducerRefused):
    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpoch(ProducerRefused):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTransactionState(ProducerRefused):
    code = ErrorCode.INVALID_TXN_STATE


class CoordinatorFenced(ProducerRefused):
    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED
