"""Checks by its header whether the leader of a partition accepts a producer's batch.

`record_validation` checks the records of the batch, and `leadership` decides what is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn

from penstock.records.batch import (
    CODEC_MASK,
    CONTROL,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    Codec,
    HeaderFields,
)
from penstock.records.compression import DECOMPRESSED_BYTES_MAX
from penstock.records.kernels import HAS_EARLY, HAS_KEYLESS, HAS_OTHER_MAX_TIMESTAMP
from penstock.wire.errors import ErrorCode


class BatchRefused(ValueError):
    """A client's batch was refused; `code` is the Kafka error to answer with."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


DECOMPRESSED_RATIO_MAX: Final = 64
"""A batch may decompress to at most this many times `max.message.bytes`."""
_DECOMPRESSED_BYTES_MIN: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class AppendRules:
    """The topic settings that decide which batches are accepted."""

    max_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    checks_timestamps: bool
    """Create time is compared with the clock; log-append time is overwritten."""
    compacted: bool = False
    """Every record needs a key."""
    codec: Codec | None = None
    """The topic's compression codec; None keeps the producer's."""
    level: int | None = None
    """The compression level of that codec; None for its default."""
    due_after_max_ms: int | None = None
    """How far the due time of a record may be ahead of the clock. None: there are no due times."""

    unusual: int = field(init=False)
    """The findings of `scan_payload` that need a closer look."""

    takes_any_age: bool = field(init=False)
    """Whether no timestamp is too early."""

    newest_after_now_ms: int = field(init=False)
    """How far a timestamp may be ahead of the clock."""

    are_ordinary: bool = field(init=False)
    """Whether `ordinary_fields` checks everything that these rules require."""

    def __post_init__(self) -> None:
        any_age = not self.checks_timestamps or self.timestamp_before_max_ms >= _YEARS_MS
        unusual = HAS_OTHER_MAX_TIMESTAMP
        if self.compacted:
            unusual |= HAS_KEYLESS
        if not any_age:
            unusual |= HAS_EARLY
        object.__setattr__(self, "takes_any_age", any_age)
        object.__setattr__(self, "unusual", unusual)
        ahead = self.timestamp_after_max_ms if self.checks_timestamps else _FOREVER_MS
        object.__setattr__(self, "newest_after_now_ms", min(ahead, _FOREVER_MS))
        object.__setattr__(self, "are_ordinary", any_age and self.is_kept_closed)

    @property
    def is_kept_closed(self) -> bool:
        """Whether headers of records are not read, and the compression is not changed."""
        return self.codec is None and self.due_after_max_ms is None

    @property
    def decompressed_bytes_max(self) -> int:
        """How large a batch may become decompressed; readers accept `DECOMPRESSED_BYTES_MAX`."""
        allowed = max(_DECOMPRESSED_BYTES_MIN, DECOMPRESSED_RATIO_MAX * self.max_message_bytes)
        return min(DECOMPRESSED_BYTES_MAX, allowed)


_YEARS_MS: Final = 1 << 42
"""More milliseconds than have passed since 1970, so no timestamp is too old."""
_FOREVER_MS: Final = 1 << 62
"""Large enough for no limit; added to the current time it still fits into 64 bits."""


def check_batch(
    fields: HeaderFields, size: int, rules: AppendRules, zstd_allowed: bool = True
) -> None:
    """Raises `BatchRefused` if the batch's header shows that a client may not send it.

    The caller has checked the CRC when it read `fields`. `record_validation` checks the records.
    """
    _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, count = fields
    if (
        size > rules.max_message_bytes
        or attributes & CONTROL
        or count != delta + 1
        or not zstd_allowed
    ):
        _check_shape(attributes, delta, count, size, rules, zstd_allowed)
    if producer_id != NO_PRODUCER_ID:
        if producer_id < 0 or epoch < 0 or sequence < 0:
            _refuse_producer(producer_id, epoch, sequence)
    elif attributes & TRANSACTIONAL:
        raise BatchRefused(
            ErrorCode.INVALID_RECORD,
            "a transactional batch must have a producer id: initialize the producer first",
        )


def _refuse_producer(producer_id: int, epoch: int, sequence: int) -> NoReturn:
    """Raises the same errors as Kafka: INVALID_PRODUCER_EPOCH for the epoch, else
    INVALID_RECORD."""
    if producer_id < 0:
        raise BatchRefused(
            ErrorCode.INVALID_RECORD,
            f"producer id {producer_id} is negative: request one with InitProducerId",
        )
    if sequence < 0:
        raise BatchRefused(
            ErrorCode.INVALID_RECORD,
            f"the batch of producer {producer_id} has base sequence {sequence}: an idempotent "
            "producer must number its records from 0 on",
        )
    raise BatchRefused(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"the batch of producer {producer_id} has epoch {epoch}: the epoch of an idempotent "
        "producer must be 0 or more",
    )


def _check_shape(
    attributes: int, delta: int, count: int, size: int, rules: AppendRules, zstd_allowed: bool
) -> None:
    if size > rules.max_message_bytes:
        raise BatchRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, but max.message.bytes is {rules.max_message_bytes}: "
            "send smaller batches, or raise max.message.bytes of this topic",
        )
    if attributes & CONTROL:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "only brokers may write control batches")
    if count != delta + 1:
        raise BatchRefused(
            ErrorCode.INVALID_RECORD,
            f"the batch has {count} records but spans {delta + 1} offsets: a producer must "
            "not leave gaps",
        )
    if not zstd_allowed and attributes & CODEC_MASK == Codec.ZSTD:
        raise BatchRefused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "zstd needs Produce version 7: upgrade the client",
        )
