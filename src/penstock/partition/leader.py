"""What the leader of a partition decides: which batches it takes, and what is committed.

The high watermark is the offset below which every in-sync replica has the records, in the way the
topic asks for: written (`durability=replicated`) or on disk (`fsync`). Consumers see nothing at or
above it, and `acks=all` waits for it. It never goes back within a leader's term.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

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
_BROKERS_ONLY: Final = CONTROL | TRANSACTIONAL


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
    _, _, _, _, _, attributes, delta, base_timestamp, newest, _, _, _, count = fields
    if (
        size > rules.max_message_bytes
        or attributes & _BROKERS_ONLY
        or count != delta + 1
        or not zstd_allowed
    ):
        _check_shape(attributes, delta, count, size, rules, zstd_allowed)
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
    if attributes & TRANSACTIONAL:
        raise BatchRefused(
            INVALID_RECORD, "transactions are not served yet: unset the transactional id"
        )
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


class Leadership:
    """One term of one leader."""

    __slots__ = ("_ends", "broker_id", "epoch", "high_watermark", "isr")

    def __init__(self, broker_id: int, epoch: int, isr: Iterable[int], high_watermark: int) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.isr = frozenset(isr)
        self.high_watermark = high_watermark
        self._ends = dict.fromkeys(sorted(self.isr), high_watermark)

    def on_replica_end(self, replica: int, end_offset: int) -> bool:
        """A replica has everything below `end_offset`; True when the high watermark moved."""
        self._ends[replica] = end_offset
        if len(self.isr) == 1:
            committed = end_offset if replica in self.isr else self.high_watermark
        else:
            committed = min(self._ends.get(member, 0) for member in self.isr)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
