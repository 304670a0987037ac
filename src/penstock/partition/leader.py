"""Which batches the leader of a partition takes. What of them is committed: `replication`."""

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


class BatchRefused(ValueError):
    """A client sent what a partition does not take; `code` is the Kafka error to answer with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
INVALID_PRODUCER_EPOCH = 47
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87


DECOMPRESSED_RATIO_MAX: Final = 64
"""A batch may decompress to so many times `max.message.bytes`."""
_DECOMPRESSED_BYTES_MIN: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class AppendRules:
    """What a topic's settings say of the batches it takes."""

    max_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    checks_timestamps: bool
    """Create time counts, so it is compared with the clock; log-append time is overwritten."""
    compacted: bool = False
    """Every record needs a key."""
    codec: Codec | None = None
    """What batches are compressed with; None leaves that to their producers."""
    level: int | None = None
    """How hard that codec tries; None for its own default."""

    unusual: int = field(init=False)
    """Which findings of `scan_payload` need a closer look."""

    takes_any_age: bool = field(init=False)
    """No timestamp is too early."""

    newest_after_now_ms: int = field(init=False)
    """How far a timestamp may be ahead of the clock."""

    are_ordinary: bool = field(init=False)
    """`ordinary_fields` checks all that these rules ask for."""

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
        object.__setattr__(self, "are_ordinary", any_age and self.codec is None)

    @property
    def decompressed_bytes_max(self) -> int:
        """What a batch may decompress to; readers take no more than `DECOMPRESSED_BYTES_MAX`."""
        allowed = max(_DECOMPRESSED_BYTES_MIN, DECOMPRESSED_RATIO_MAX * self.max_message_bytes)
        return min(DECOMPRESSED_BYTES_MAX, allowed)


_YEARS_MS: Final = 1 << 42
"""More milliseconds than have passed since 1970: no timestamp is earlier."""
_FOREVER_MS: Final = 1 << 62
"""Added to the time of day it still fits 64 bits."""


def check_batch(
    fields: HeaderFields, size: int, rules: AppendRules, zstd_allowed: bool = True
) -> None:
    """Refuse what no client of ours may send, by the header of the batch.

    The CRC was checked by whoever made `fields`. `record_validation` checks the records.
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
        raise BatchRefused(INVALID_RECORD, "a batch in a transaction must name its producer")


def _refuse_producer(producer_id: int, epoch: int, sequence: int) -> NoReturn:
    """As Kafka: INVALID_RECORD for the sequence, INVALID_PRODUCER_EPOCH for the epoch."""
    if producer_id < 0:
        raise BatchRefused(INVALID_RECORD, f"producer id {producer_id} is negative: get an id")
    if sequence < 0:
        raise BatchRefused(
            INVALID_RECORD,
            f"the batch of producer {producer_id} has base sequence {sequence}: the records of a "
            "producer with an id are numbered from 0 on",
        )
    raise BatchRefused(
        INVALID_PRODUCER_EPOCH,
        f"the batch of producer {producer_id} has epoch {epoch}: a producer with an id has an "
        "epoch of 0 or more",
    )


def _check_shape(
    attributes: int, delta: int, count: int, size: int, rules: AppendRules, zstd_allowed: bool
) -> None:
    if size > rules.max_message_bytes:
        raise BatchRefused(
            MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes and max.message.bytes is {rules.max_message_bytes}: "
            "send smaller batches, or raise it for this topic",
        )
    if attributes & CONTROL:
        raise BatchRefused(INVALID_RECORD, "control batches are written by brokers only")
    if count != delta + 1:
        raise BatchRefused(
            INVALID_RECORD, f"{count} records span {delta + 1} offsets: a producer leaves no gaps"
        )
    if not zstd_allowed and attributes & CODEC_MASK == Codec.ZSTD:
        raise BatchRefused(
            UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7: upgrade the client"
        )
