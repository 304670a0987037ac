"""Validates a producer's batch before the leader appends it: `validate_batch` is the entry.

It checks the CRC (`records.batch`), the header (`batch_rules`) and the records (here). A batch that
cannot be decoded must never get into a log: it would stop its readers, its cleaner and the search
by time, on every replica. The CRC only shows that the batch is as its producer sent it. So the
framing of every record is checked before the append, as in Kafka:

    uncompressed   `records.ordinary_batch.ordinary_fields` walks the records in place
    compressed     the batch is decompressed, up to a limit, and walked; the copy is dropped

Malformed records are refused with INVALID_RECORD, which clients do not retry. So are records
without a key in a compacted topic. Timestamps out of bounds are refused with INVALID_TIMESTAMP.
Both answers name the bad records one by one (KIP-467). So do those of topics with timed records,
whose due times are checked (`due_times`). A wrong largest timestamp in the header is
corrected, since retention and the search by time rely on it. A batch whose codec is not the topic's
is compressed again.

Slow checks do not run on the event loop: with `on_loop`, such a batch raises `LargeBatch`, and the
caller tries again on a thread. A batch is large by its size, or because it decompresses to more
than `ON_LOOP_OUTPUT_BYTES_MAX`.

Followers do not check records. They copy what a leader accepted, byte for byte, and a batch that an
older version accepted must stay readable at the same offsets on every replica. Batches that the
broker itself built are not checked either.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.partition.batch_rules import AppendRules, BatchRefused, check_batch
from penstock.partition.due_times import bad_due_times
from penstock.records.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    BatchHeader,
    Codec,
    CorruptBatch,
    HeaderFields,
    stamp_max_timestamp,
    validate_fields,
)
from penstock.records.compression import DecompressedTooLarge, decompressed
from penstock.records.kernels import (
    HAS_EARLY,
    HAS_KEYLESS,
    HAS_OTHER_MAX_TIMESTAMP,
    find_records,
    largest_timestamp,
    ordinary_fields,
    scan_payload,
)
from penstock.records.record import finish_batch
from penstock.wire.errors import ErrorCode

ON_LOOP_BYTES_MAX: Final = 64 << 10
"""A larger batch is decompressed or compressed on a thread."""
ON_LOOP_OUTPUT_BYTES_MAX: Final = 256 << 10
"""A batch that decompresses to more is decompressed on a thread."""
ON_LOOP_PLAIN_BYTES_MAX: Final = 4 << 20
"""A larger uncompressed batch is checked on a thread."""
RECORD_ERRORS_MAX: Final = 1000
"""At most this many bad records of a batch are named; the rest are found when it is sent again."""

_BATCH_LENGTH: Final = BatchHeader._fields.index("batch_length")
_ATTRIBUTES: Final = BatchHeader._fields.index("attributes")
_BASE_TIMESTAMP: Final = BatchHeader._fields.index("base_timestamp")
_MAX_TIMESTAMP: Final = BatchHeader._fields.index("max_timestamp")
_RECORD_COUNT: Final = BatchHeader._fields.index("record_count")
_CODEC_AT: Final = 22
"""The position of the batch header byte that contains the codec."""
_TIMESTAMP_MAX: Final = (1 << 63) - 1


class LargeBatch(BatchRefused):
    """Checking the batch takes too long for the event loop: use a thread."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, "the batch must be checked on a thread")


class MalformedRecords(BatchRefused):
    """The records cannot be decoded."""

    def __init__(self, reason: object) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD, f"the records of the batch cannot be decoded: {reason}"
        )


class DecompressedTooMuch(BatchRefused):
    """The batch decompresses to more than the topic allows."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch decompresses to more than {bytes_max} bytes, the limit that "
            "max.message.bytes of this topic sets: send smaller batches, or raise it",
        )


class RecordError(NamedTuple):
    number: int
    """The index of the record in its batch, from 0."""
    message: str


class RecordsRefused(BatchRefused):
    """Some records are not acceptable: `errors` names them. Nothing of the batch is appended."""

    def __init__(self, code: ErrorCode, message: str, errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.errors = errors


class Validated(NamedTuple):
    """A batch in the form in which it is appended, and its header."""

    batch: memoryview | bytearray
    fields: HeaderFields


def validate_batch(
    records: memoryview, rules: AppendRules, now_ms: int, zstd_allowed: bool, on_loop: bool
) -> tuple[memoryview | bytearray, HeaderFields]:
    """Makes all checks of a producer's batch that need only the batch and the topic's settings.

    Returns the fields of a `Validated` as a plain tuple, since this is on the path of every append.
    """
    size = len(records)
    if on_loop and rules.are_ordinary and size <= ON_LOOP_PLAIN_BYTES_MAX:
        newest_max = now_ms + rules.newest_after_now_ms
        ordinary = ordinary_fields(records, rules.max_message_bytes, rules.unusual, newest_max)
        if ordinary is not None:
            return records, ordinary
    if on_loop and size > ON_LOOP_BYTES_MAX and _is_large(records, rules):
        raise LargeBatch
    fields = validate_fields(records)
    if size != fields[_BATCH_LENGTH] + LOG_OVERHEAD:
        raise BatchRefused(
            ErrorCode.INVALID_RECORD, "send exactly one batch per partition and request"
        )
    check_batch(fields, size, rules, zstd_allowed)
    if not on_loop or fields[_ATTRIBUTES] & CODEC_MASK:
        return _open(records, fields, rules, now_ms, on_loop)
    try:
        found = scan_payload(records[HEADER_SIZE:], fields)
    except CorruptBatch as error:
        raise MalformedRecords(error) from None
    if (
        not found & rules.unusual
        and rules.is_kept_closed
        and (
            not rules.checks_timestamps
            or fields[_MAX_TIMESTAMP] <= now_ms + rules.timestamp_after_max_ms
        )
        and (rules.takes_any_age or _is_timely(fields, rules, now_ms))
    ):
        return records, fields
    return _refuse_or_correct(records, fields, records[HEADER_SIZE:], found, rules, now_ms)


def _is_large(records: memoryview, rules: AppendRules) -> bool:
    """Returns whether the batch is too large for the event loop, by its unverified header.

    Nothing of the batch has been checked yet. A wrong header only means that the check takes a
    detour.
    """
    is_compressed = records[_CODEC_AT] & CODEC_MASK
    return bool(is_compressed or not rules.is_kept_closed) or len(records) > ON_LOOP_PLAIN_BYTES_MAX


def _open(
    records: memoryview, fields: HeaderFields, rules: AppendRules, now_ms: int, on_loop: bool
) -> Validated:
    """Checks a batch that must be decompressed, or that is checked on a thread."""
    limit = rules.decompressed_bytes_max
    if on_loop:
        limit = min(limit, ON_LOOP_OUTPUT_BYTES_MAX)
    elif not fields[_ATTRIBUTES] & CODEC_MASK:
        limit = len(records)
    try:
        with decompressed(
            Codec(fields[_ATTRIBUTES] & CODEC_MASK), records[HEADER_SIZE:], limit
        ) as payload:
            found = scan_payload(payload, fields, not on_loop)
            return _refuse_or_correct(records, fields, payload, found, rules, now_ms)
    except DecompressedTooLarge:
        if limit < rules.decompressed_bytes_max:
            raise LargeBatch from None
        raise DecompressedTooMuch(rules.decompressed_bytes_max) from None
    except CorruptBatch as error:
        raise MalformedRecords(error) from None


def _is_timely(fields: HeaderFields, rules: AppendRules, now_ms: int) -> bool:
    """Returns whether all timestamps are in bounds, provided they are between the header's two."""
    return not rules.checks_timestamps or (
        fields[_MAX_TIMESTAMP] <= now_ms + rules.timestamp_after_max_ms
        and not 0 <= fields[_BASE_TIMESTAMP] < now_ms - rules.timestamp_before_max_ms
    )


def _refuse_or_correct(
    batch: memoryview,
    fields: HeaderFields,
    payload: memoryview,
    found: int,
    rules: AppendRules,
    now_ms: int,
) -> Validated:
    """Refuses bad records, corrects the largest timestamp, and compresses with the topic's
    codec."""
    untimely = rules.checks_timestamps and (
        found & (HAS_EARLY | HAS_OTHER_MAX_TIMESTAMP) or not _is_timely(fields, rules, now_ms)
    )
    if untimely or (rules.compacted and found & HAS_KEYLESS):
        _refuse_bad_records(fields, payload, rules, now_ms)
    if rules.due_after_max_ms is not None:
        _refuse_due_times(fields, payload, now_ms + rules.due_after_max_ms)
    if found & HAS_OTHER_MAX_TIMESTAMP and not fields[_ATTRIBUTES] & LOG_APPEND_TIME:
        newest = largest_timestamp(payload, fields[_RECORD_COUNT], fields[_BASE_TIMESTAMP])
        fields = stamp_max_timestamp(batch, 0, newest)
    if rules.codec is None or fields[_ATTRIBUTES] & CODEC_MASK == rules.codec:
        return Validated(batch, fields)
    header = BatchHeader._make(fields)
    attributes = header.attributes & ~CODEC_MASK | rules.codec
    packed = bytearray(HEADER_SIZE)
    packed += payload
    anew = finish_batch(packed, header._replace(attributes=attributes), rules.level)
    if len(anew) > rules.max_message_bytes:
        raise BatchRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"after compression with the topic's compression.type the batch has {len(anew)} "
            f"bytes, but max.message.bytes is {rules.max_message_bytes}: send smaller batches, "
            "or raise it",
        )
    return Validated(anew, validate_fields(anew, check_crc=False))


def _refuse_bad_records(
    fields: HeaderFields, payload: memoryview, rules: AppendRules, now_ms: int
) -> None:
    earliest, latest = 0, _TIMESTAMP_MAX
    if rules.checks_timestamps:
        earliest = max(0, now_ms - rules.timestamp_before_max_ms)
        latest = min(latest, now_ms + rules.timestamp_after_max_ms)
    bad = find_records(
        payload,
        fields[_RECORD_COUNT],
        fields[_BASE_TIMESTAMP],
        keyless=rules.compacted,
        earliest=earliest,
        latest=latest,
        records_max=RECORD_ERRORS_MAX,
    )
    if not bad:
        return
    errors = []
    code, reason = ErrorCode.INVALID_RECORD, "have no key, and the topic is compacted"
    for index, timestamp, out_of_bounds in bad:
        if out_of_bounds:
            code, reason = ErrorCode.INVALID_TIMESTAMP, "are invalid"
            text = (
                f"timestamp {timestamp} is not between {earliest} and {latest}: see "
                "message.timestamp.before.max.ms and message.timestamp.after.max.ms"
            )
        else:
            text = (
                "the record has no key and the topic is compacted: give every record a key, or set "
                "cleanup.policy=delete"
            )
        errors.append(RecordError(index, text))
    raise RecordsRefused(
        code,
        f"{len(errors)} of {fields[_RECORD_COUNT]} records {reason}; "
        f"the first is record {errors[0].number}: "
        f"{errors[0].message}",
        errors,
    )


def _refuse_due_times(fields: HeaderFields, payload: memoryview, latest_ms: int) -> None:
    bad = bad_due_times(fields, payload, latest_ms, RECORD_ERRORS_MAX)
    if bad:
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"{len(bad)} of {fields[_RECORD_COUNT]} records have an invalid due time; the first is "
            f"record {bad[0][0]}: {bad[0][1]}",
            [RecordError(*each) for each in bad],
        )
