"""Which records a leader accepts, and how it answers for those that it refuses."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random

import pytest
from crc32c import crc32c

from penstock.partition import record_validation
from penstock.partition.batch_rules import AppendRules, BatchRefused
from penstock.partition.record_validation import (
    ON_LOOP_BYTES_MAX,
    ON_LOOP_PLAIN_BYTES_MAX,
    RECORD_ERRORS_MAX,
    DecompressedTooMuch,
    LargeBatch,
    MalformedRecords,
    RecordsRefused,
    Validated,
    validate_batch,
)
from penstock.records.batch import (
    HEADER_SIZE,
    Codec,
    CorruptBatch,
    read_header,
    seal,
    stamp_max_timestamp,
    validate,
)
from penstock.records.kernels import COMPILED
from penstock.records.record import Record, build_batch, read_records
from penstock.sim.actors.bad_batches import KINDS, bad_batch
from penstock.wire.errors import ErrorCode

NOW_MS = 1_700_000_000_000
MAX = 1 << 20
FOREVER_MS = 2**63 - 1
RULES = AppendRules(MAX, FOREVER_MS, 3_600_000, checks_timestamps=True)
STRICT = AppendRules(MAX, 60_000, 10_000, checks_timestamps=True)
COMPACTED = AppendRules(MAX, FOREVER_MS, 3_600_000, checks_timestamps=True, compacted=True)
codecs = pytest.mark.parametrize("codec", list(Codec))
on_loop = pytest.mark.parametrize("on_loop", [True, False])


def check(
    batch: bytearray, rules: AppendRules = RULES, *, on_loop: bool = True, zstd: bool = True
) -> Validated:
    return Validated(*validate_batch(memoryview(batch), rules, NOW_MS, zstd, on_loop))


def records(count: int, value: bytes = b"value") -> list[Record]:
    return [Record(at, NOW_MS + at % 10, b"key %d" % at, value) for at in range(count)]


@codecs
@on_loop
def test_a_valid_batch_is_accepted_unchanged(codec: Codec, on_loop: bool) -> None:
    batch = build_batch(records(10), codec=codec)
    sent = bytes(batch)
    taken = check(batch, on_loop=on_loop)
    assert bytes(taken.batch) == sent
    assert tuple(taken.fields) == tuple(read_header(sent))


@pytest.mark.parametrize("kind", KINDS)
@on_loop
def test_records_that_cannot_be_decoded_are_refused_as_invalid(kind: str, on_loop: bool) -> None:
    """INVALID_RECORD, because retrying the same bytes cannot help."""
    with pytest.raises(MalformedRecords, match="cannot be decoded: ") as refused:
        check(bad_batch(kind, records(3)), on_loop=on_loop)
    assert refused.value.code == ErrorCode.INVALID_RECORD


@codecs
@on_loop
def test_exactly_the_records_without_a_key_are_named(codec: Codec, on_loop: bool) -> None:
    sent = records(100)
    for at in range(5, 100, 10):
        sent[at] = sent[at]._replace(key=None)
    check(build_batch(sent, codec=codec), on_loop=on_loop)
    with pytest.raises(RecordsRefused, match="10 of 100 records have no key") as refused:
        check(build_batch(sent, codec=codec), COMPACTED, on_loop=on_loop)
    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert [bad.number for bad in refused.value.errors] == list(range(5, 100, 10))
    assert "give every record a key" in refused.value.errors[0].message


def test_an_empty_key_is_a_key() -> None:
    check(build_batch([Record(0, NOW_MS, b"", b"")]), COMPACTED)


@codecs
def test_timestamps_out_of_bounds_are_named(codec: Codec) -> None:
    """Every record is checked, because the header may be wrong."""
    times = [0, -60_000, 10_000, 10_001, -60_001, -NOW_MS - 1]
    sent = [Record(at, NOW_MS + time, b"k", b"v") for at, time in enumerate(times)]
    with pytest.raises(RecordsRefused, match="2 of 6 records are invalid") as refused:
        check(build_batch(sent, codec=codec), STRICT)
    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [bad.number for bad in refused.value.errors] == [3, 4]
    lying = build_batch([sent[3]._replace(offset=0)], codec=codec)
    stamp_max_timestamp(lying, 0, NOW_MS)
    with pytest.raises(RecordsRefused):
        check(lying, STRICT)


def test_bad_timestamps_and_missing_keys_are_reported_together() -> None:
    """The error code is that of the timestamps, as in Kafka."""
    sent = [Record(0, NOW_MS, None, b"v"), Record(1, 2 * NOW_MS, b"k", b"v")]
    with pytest.raises(RecordsRefused) as refused:
        check(build_batch(sent), COMPACTED)
    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [bad.number for bad in refused.value.errors] == [0, 1]


def test_with_log_append_time_the_clients_timestamps_do_not_matter() -> None:
    """The broker overwrites them."""
    rules = AppendRules(MAX, 60_000, 10_000, checks_timestamps=False)
    check(build_batch([Record(0, 2 * NOW_MS, b"k", b"v")]), rules)
    check(build_batch([Record(0, 0, b"k", b"v")]), rules)


def test_the_number_of_record_errors_is_limited() -> None:
    sent = [Record(at, NOW_MS, None, None) for at in range(RECORD_ERRORS_MAX + 10)]
    with pytest.raises(RecordsRefused) as refused:
        check(build_batch(sent), COMPACTED)
    assert len(refused.value.errors) == RECORD_ERRORS_MAX


@codecs
@pytest.mark.parametrize("claimed", [-1, 0, NOW_MS - 1, NOW_MS + 1_000_000])
def test_a_wrong_max_timestamp_is_corrected(codec: Codec, claimed: int) -> None:
    """Retention and the search by time rely on the header."""
    batch = build_batch(records(10), codec=codec)
    stamp_max_timestamp(batch, 0, claimed)
    taken = check(batch)
    assert taken.fields[8] == NOW_MS + 9
    assert validate(taken.batch).max_timestamp == NOW_MS + 9
    assert read_records(taken.batch) == records(10)


@codecs
@pytest.mark.parametrize("target", list(Codec))
@on_loop
def test_a_batch_is_recompressed_with_the_codec_of_its_topic(
    codec: Codec, target: Codec, on_loop: bool
) -> None:
    """Everything else about it stays the same."""
    rules = AppendRules(MAX, FOREVER_MS, FOREVER_MS, checks_timestamps=True, codec=target)
    batch = build_batch(records(10), codec=codec, producer_id=7, producer_epoch=1, base_sequence=5)
    taken = check(batch, rules, on_loop=on_loop)
    header = validate(taken.batch)
    assert tuple(header) == tuple(taken.fields)
    assert header.codec == target
    before = read_header(batch)
    same = {"attributes": 0, "batch_length": 0, "crc": 0}
    assert header._replace(**same) == before._replace(**same)
    assert read_records(taken.batch) == records(10)


def test_a_batch_that_grows_beyond_the_limit_is_too_large() -> None:
    rules = AppendRules(10_000, FOREVER_MS, FOREVER_MS, checks_timestamps=True, codec=Codec.NONE)
    batch = build_batch([Record(0, NOW_MS, b"k", bytes(20_000))], codec=Codec.ZSTD)
    with pytest.raises(BatchRefused, match=r"with the topic's compression\.type") as refused:
        check(batch, rules)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_thread_decompresses_large_batches_and_refuses_those_above_the_limit(
    codec: Codec,
) -> None:
    """On the event loop a decompression bomb costs no more than the small buffer that it does not
    fit into. Snappy does not compress that well."""
    rules = AppendRules(1 << 16, FOREVER_MS, FOREVER_MS, checks_timestamps=True)
    limit = rules.decompressed_bytes_max
    assert limit == 64 << 16
    fits = build_batch([Record(0, NOW_MS, b"k", bytes(limit - 100))], codec=codec)
    bomb = build_batch([Record(0, NOW_MS, b"k", bytes(limit + 1))], codec=codec)
    for batch in (fits, bomb):
        with pytest.raises(LargeBatch):
            check(batch, rules)
    assert bytes(check(fits, rules, on_loop=False).batch) == bytes(fits)
    with pytest.raises(DecompressedTooMuch, match="send smaller batches") as refused:
        check(bomb, rules, on_loop=False)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_the_decompression_limit_is_between_1_and_256_mib() -> None:
    rules = AppendRules(1000, FOREVER_MS, FOREVER_MS, checks_timestamps=True)
    assert rules.decompressed_bytes_max == 1 << 20
    huge = AppendRules(1 << 30, FOREVER_MS, FOREVER_MS, checks_timestamps=True)
    assert huge.decompressed_bytes_max == 256 << 20


def test_large_batches_are_left_to_a_thread_by_their_size() -> None:
    """The size is checked first. The limit for uncompressed batches is higher."""
    rules = AppendRules(1 << 30, FOREVER_MS, FOREVER_MS, checks_timestamps=True)
    plain = build_batch([Record(0, NOW_MS, b"k", bytes(ON_LOOP_BYTES_MAX))])
    check(plain, rules)
    recompressed = AppendRules(
        1 << 30, FOREVER_MS, FOREVER_MS, checks_timestamps=True, codec=Codec.LZ4
    )
    with pytest.raises(LargeBatch):
        check(plain, recompressed)
    noise = Random(1).randbytes(2 * ON_LOOP_BYTES_MAX)
    packed = build_batch([Record(0, NOW_MS, b"k", noise)], codec=Codec.SNAPPY)
    assert len(packed) > ON_LOOP_BYTES_MAX
    with pytest.raises(LargeBatch):
        check(packed, rules)
    assert bytes(check(packed, rules, on_loop=False).batch) == bytes(packed)
    huge = build_batch([Record(0, NOW_MS, b"k", bytes(ON_LOOP_PLAIN_BYTES_MAX))])
    with pytest.raises(LargeBatch):
        check(huge, rules)
    assert check(huge, rules, on_loop=False).fields == tuple(read_header(huge))


def outcome(batch: bytearray, rules: AppendRules) -> object:
    """Returns the outcome for a batch, in a form that can be compared."""
    try:
        taken = check(batch, rules)
    except (BatchRefused, CorruptBatch) as error:
        return type(error), str(error)
    return bytes(taken.batch), tuple(taken.fields)


def damaged(whole_records: list[Record]) -> Iterator[bytearray]:
    """A batch with each of its bytes changed in several ways, with a correct CRC and a wrong
    one."""
    whole = build_batch(whole_records)
    for position in range(len(whole)):
        for change in (0x01, 0x08, 0x10, 0x20, 0x80, 0xFF):
            batch = bytearray(whole)
            batch[position] ^= change
            yield bytearray(batch)
            seal(batch, 0, len(batch))
            yield batch
    for cut in (1, 5, len(whole) - HEADER_SIZE, len(whole) - HEADER_SIZE + 1, len(whole)):
        yield bytearray(whole[:-cut])
    yield whole + b"x"
    yield whole + whole


@pytest.mark.parametrize("rules", [RULES, STRICT, COMPACTED])
@pytest.mark.parametrize("producer_id", [-1, 7])
def test_the_combined_check_agrees_with_the_separate_checks(
    rules: AppendRules, producer_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ordinary_fields` never accepts a batch that the separate checks refuse, and returns the
    same fields."""
    batches = list(damaged([*records(2), Record(2, NOW_MS - 5, None, b"")]))
    for batch in batches:
        if len(batch) >= HEADER_SIZE and producer_id >= 0:
            was_sealed = crc32c(batch[21:]) == int.from_bytes(batch[17:21])
            struct.pack_into(">qhi", batch, 43, producer_id, 0, 5)
            if was_sealed:
                seal(batch, 0, len(batch))
    at_once = [outcome(bytearray(batch), rules) for batch in batches]
    monkeypatch.setattr(record_validation, "ordinary_fields", lambda *_: None)
    assert at_once == [outcome(batch, rules) for batch in batches]


@pytest.mark.skipif(not COMPILED, reason="only compiled code takes the short way")
@pytest.mark.parametrize("rules", [RULES, COMPACTED])
def test_ordinary_batches_take_the_fast_path(
    rules: AppendRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long_way(*_: object) -> None:
        raise AssertionError("the batch went the long way")

    monkeypatch.setattr(record_validation, "validate_fields", long_way)
    for producer_id, epoch, sequence in ((-1, -1, -1), (7, 0, 0)):
        batch = build_batch(
            records(3), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        assert check(batch, rules).fields == tuple(read_header(batch))
