"""Which batches the leader of a partition takes. What of them is committed: `replication`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from penstock.records.batch import CODEC_MASK, CONTROL, TRANSACTIONAL, Codec, HeaderFields


class BatchRefused(ValueError):
    """A client sent what a partition does not take; `code` is the Kafka error to answer with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87


@dataclass(frozen=True, slots=True)
class AppendRules:
    """What a topic's settings say of the batches it takes."""

    max_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    checks_timestamps: bool
    """Create time counts, so it is compared with the clock; log-append time is overwritten."""


def check_batch(
    fields: HeaderFields, size: int, rules: AppendRules, now_ms: int, zstd_allowed: bool = True
) -> None:
    """Refuse what no client of ours may send. The CRC was checked by whoever made `fields`."""
    _, _, _, _, _, attributes, delta, base_timestamp, newest, producer_id, _, _, count = fields
    if (
        size > rules.max_message_bytes
        or attributes & CONTROL
        or count != delta + 1
        or not zstd_allowed
    ):
        _check_shape(attributes, delta, count, size, rules, zstd_allowed)
    if producer_id < 0 and attributes & TRANSACTIONAL:
        raise BatchRefused(INVALID_RECORD, "a batch in a transaction must name its producer")
    if rules.checks_timestamps and (
        newest > now_ms + rules.timestamp_after_max_ms
        or 0 <= base_timestamp < now_ms - rules.timestamp_before_max_ms
    ):
        _refuse_timestamps(base_timestamp, newest, rules, now_ms)


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


def _refuse_timestamps(base: int, newest: int, rules: AppendRules, now_ms: int) -> NoReturn:
    # The base is the first record's: with the newest it bounds the batch as producers make them.
    if newest > now_ms + rules.timestamp_after_max_ms:
        raise BatchRefused(
            INVALID_TIMESTAMP,
            f"timestamp {newest} is more than message.timestamp.after.max.ms "
            f"({rules.timestamp_after_max_ms}) ahead of the broker's clock",
        )
    raise BatchRefused(
        INVALID_TIMESTAMP,
        f"timestamp {base} is more than message.timestamp.before.max.ms "
        f"({rules.timestamp_before_max_ms}) behind the broker's clock",
    )
