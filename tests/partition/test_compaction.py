"""Compaction of batches, compared with a model: a dict from each key to its newest record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.compaction import (
    ENTRY_BYTES_MAX,
    OffsetMap,
    compact_batch,
    is_needed_empty,
    map_batch,
)
from penstock.partition.producer_state import ProducerEntry
from penstock.partition.producers import ProducerStates
from penstock.records.batch import (
    BatchHeader,
    Buffer,
    Codec,
    TimestampType,
    read_header,
    validate,
)
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_records,
)

RETENTION_MS = 1000


def batch_of(*records: tuple[bytes | None, bytes | None], base: int = 0) -> bytes:
    return bytes(
        build_batch([Record(base + i, 50 + i, *pair) for i, pair in enumerate(records)]),
    )


def clean(
    log: Sequence[Buffer],
    *,
    start: int = 0,
    uncleanable: int = 10**9,
    now: int = 0,
    keys_max: int = 10**6,
    last_data_offsets: dict[int, int] | None = None,
) -> tuple[list[Buffer], int]:
    """Runs one round over a log of batches. Returns what is left, and the end of what the map
    covered."""
    offsets = OffsetMap(keys_max * ENTRY_BYTES_MAX, start)
    for batch in log:
        header = validate(batch)
        if header.next_offset > uncleanable:
            break
        if header.next_offset <= start:
            continue
        if not map_batch(offsets, batch, header, start_offset=start):
            break
    left: list[Buffer] = []
    for batch in log:
        header = validate(batch)
        if header.base_offset >= min(uncleanable, offsets.end_offset):
            left.append(batch)
            continue
        kept = compact_batch(
            batch,
            header,
            offsets,
            now_ms=now,
            delete_retention_ms=RETENTION_MS,
            needed_empty=is_needed_empty(header, last_data_offsets or {}, uncleanable),
        )
        if kept is not None:
            left.append(kept)
    return left, offsets.end_offset


def records_of(log: Iterable[Buffer]) -> list[Record]:
    return [record for batch in log for record in read_records(batch)]


def compacted(batch: bytes, newest: dict[bytes, int], *, end: int, **options: int) -> Buffer | None:
    offsets = OffsetMap(10**6)
    for key, offset in newest.items():
        offsets.add(key, offset)
    offsets.cover(end)
    return compact_batch(
        batch,
        validate(batch),
        offsets,
        now_ms=options.get("now", 0),
        delete_retention_ms=RETENTION_MS,
        needed_empty=bool(options.get("needed_empty", 0)),
        aborted=bool(options.get("aborted", 0)),
    )


def test_the_newest_record_of_each_key_stays() -> None:
    """Older records are removed. The others keep their offsets, timestamps and order."""
    batch = batch_of((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    left, end = clean([batch])
    assert end == 3
    assert records_of(left) == read_records(batch)[1:]


def test_an_unchanged_batch_is_returned_as_the_same_object() -> None:
    """Nothing is decoded and encoded without need."""
    batch = batch_of((b"a", b"1"), (b"b", b"2"))
    assert compacted(batch, {b"a": 0, b"b": 1}, end=2) is batch


def test_a_superseded_batch_is_removed() -> None:
    assert compacted(batch_of((b"a", b"1")), {b"a": 7}, end=8) is None


def test_records_without_a_key_are_dropped() -> None:
    """They have no meaning in a compacted topic."""
    left = compacted(batch_of((None, b"1"), (b"a", b"2")), {b"a": 1}, end=2)
    assert left is not None
    assert [record.offset for record in read_records(left)] == [1]


def test_records_that_the_map_does_not_cover_stay() -> None:
    """This holds for records without a key too, and for keys that the map has at a lower offset."""
    batch = batch_of((b"a", b"0"), (b"a", b"1"), (None, b"2"), (b"a", None), base=5)
    left = compacted(batch, {b"a": 6}, end=7)
    assert left is not None
    assert [record.offset for record in read_records(left)] == [6, 7, 8]


def test_control_batches_stay() -> None:
    """A marker is not a keyed record, even if the map contains the bytes of its key."""
    marker = bytes(
        control_batch(
            ControlMarker(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp=0
        )
    )
    key = read_records(marker)[0].key
    assert key is not None
    assert compacted(marker, {key: 5}, end=6) is marker
    offsets = OffsetMap(10**6)
    assert map_batch(offsets, marker, validate(marker), start_offset=0)
    assert (len(offsets), offsets.end_offset) == (0, 1)


def test_aborted_data_is_dropped_and_supersedes_nothing() -> None:
    """The newest committed record of the key stays the newest."""
    batch = batch_of((b"a", b"1"), base=4)
    offsets = OffsetMap(10**6)
    assert map_batch(offsets, batch, validate(batch), start_offset=0, aborted=True)
    assert (offsets.get(b"a"), offsets.end_offset) == (-1, 5)
    assert compacted(batch, {}, end=5, aborted=1) is None


def test_a_tombstone_stays_until_its_delete_horizon() -> None:
    """The first cleaning stamps the horizon. Later ones change nothing until the horizon has
    passed."""
    log: list[Buffer] = [batch_of((b"a", b"1"), (b"b", b"2"), (b"a", None))]
    stamped, _ = clean(log, now=100)
    header = validate(stamped[0])
    assert header.delete_horizon_ms == 100 + RETENTION_MS
    assert records_of(stamped) == records_of(log)[1:]
    again, _ = clean(stamped, now=99 + RETENTION_MS)
    assert again[0] is stamped[0]
    late, _ = clean(again, now=100 + RETENTION_MS)
    assert [record.key for record in records_of(late)] == [b"b"]
    assert validate(late[0]).delete_horizon_ms == 100 + RETENTION_MS


def test_the_delete_horizon_waits_until_the_whole_batch_is_covered() -> None:
    """A tombstone must not start to expire while older records of its key may still exist."""
    batch = batch_of((b"a", None), (b"b", None))
    assert compacted(batch, {b"a": 0}, end=1, now=100) is batch


def test_an_expired_tombstone_that_the_map_does_not_cover_stays() -> None:
    """Older records of its key may still exist."""
    stamped, _ = clean([batch_of((b"a", None), (b"b", None))], now=0)
    left = compacted(bytes(stamped[0]), {b"a": 0}, end=1, now=10**6)
    assert left is not None
    assert [record.key for record in read_records(left)] == [b"b"]


@pytest.mark.parametrize("timestamp", [-(2**63), 2**63 - 1, -1])
def test_extreme_timestamps_do_not_stop_compaction(timestamp: int) -> None:
    """Deltas that would overflow are avoided. At worst such a tombstone stays."""
    records = [Record(0, 0, b"a", b"1"), Record(1, timestamp, b"b", None), Record(2, 5, b"a", b"2")]
    log: list[Buffer] = [bytes(build_batch(records))]
    left, _ = clean(log, now=10**12)
    assert records_of(left) == records[1:]


def test_a_needed_batch_stays_as_a_header_without_records() -> None:
    """Its offsets, producer, sequence and epoch are kept."""
    batch = bytes(
        build_batch(
            [Record(5, 1, b"a", b"x"), Record(6, 9, b"a", b"y")],
            codec=Codec.ZSTD,
            leader_epoch=3,
            producer_id=8,
            producer_epoch=2,
            base_sequence=40,
        )
    )
    left = compacted(batch, {b"a": 20}, end=21, needed_empty=1)
    assert left is not None
    before, after = validate(batch), validate(left)
    assert unchangeable(after) == unchangeable(before)
    assert after.max_timestamp == before.max_timestamp
    assert (after.record_count, after.size) == (0, 61)
    assert read_records(left) == []
    assert compacted(bytes(left), {b"a": 20}, end=21, needed_empty=1) == left
    assert compacted(bytes(left), {b"a": 20}, end=21) is None


def test_which_batches_must_stay_even_when_empty() -> None:
    """The last batch of an active producer, and the last one of the cleaned part."""
    header = read_header(
        build_batch([Record(5, 0, b"a", b"")], producer_id=8, producer_epoch=0, base_sequence=0)
    )
    assert is_needed_empty(header, {8: 5}, 100)
    assert not is_needed_empty(header, {8: 6, 9: 5}, 100)
    assert not is_needed_empty(header, {}, 100)
    assert is_needed_empty(header, {}, 6)
    plain = read_header(build_batch([Record(5, 0, b"a", b"")]))
    assert not is_needed_empty(plain, {-1: 5}, 100)


def test_log_append_time_is_kept() -> None:
    """Every remaining record still has the time that the broker gave the batch."""
    batch = bytes(
        build_batch(
            [Record(i, i, key, b"v") for i, key in enumerate((b"a", b"b", b"a"))],
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            max_timestamp=777,
        )
    )
    left, _ = clean([batch])
    assert validate(left[0]).timestamp_type == TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in records_of(left)] == [777, 777]


def test_log_append_time_survives_an_extreme_base_timestamp() -> None:
    """With log append time, the producer's clock does not matter, however wrong it was."""
    batch = bytes(
        build_batch(
            [Record(i, -(2**63), key, b"v") for i, key in enumerate((b"a", b"b", b"a"))],
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            max_timestamp=777,
        )
    )
    left, _ = clean([batch])
    assert [(record.offset, record.timestamp) for record in records_of(left)] == [
        (1, 777),
        (2, 777),
    ]


def test_a_full_map_covers_up_to_the_record_that_did_not_fit() -> None:
    """A batch with more keys than fit into the map still makes progress, record by record."""
    keys = [bytes([65 + i]) * 40 for i in range(5)]
    log: list[Buffer] = [batch_of(*((key, b"v") for key in keys), *((key, b"w") for key in keys))]
    start, rounds = 0, 0
    while start < 10:
        log, end = clean(log, start=start, keys_max=2)
        assert end > start
        start, rounds = end, rounds + 1
    assert rounds == 5
    assert [record.offset for record in records_of(log)] == [5, 6, 7, 8, 9]


@dataclass(frozen=True)
class History:
    log: list[bytes]
    end: int


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A history of keyed batches: idempotent or not, compressed or not."""
    keys = st.sampled_from([None, b"", b"a", b"b", b"c", b"k" * 40, b"k" * 39 + b"l"])
    values = st.sampled_from([None, b"", b"x", b"y" * 30])
    log, offset, sequences = [], 0, {1: 0, 2: 0}
    for _ in range(draw(st.integers(1, 8))):
        pairs = draw(st.lists(st.tuples(keys, values), min_size=1, max_size=5))
        records = [
            Record(offset + i, draw(st.integers(-1, 300)), key, value, (("h", value),))
            for i, (key, value) in enumerate(pairs)
        ]
        producer = draw(st.sampled_from([-1, 1, 2]))
        log.append(
            bytes(
                build_batch(
                    records,
                    codec=draw(st.sampled_from([Codec.NONE, Codec.GZIP, Codec.ZSTD])),
                    leader_epoch=offset // 7,
                    producer_id=producer,
                    producer_epoch=0 if producer > 0 else -1,
                    base_sequence=sequences[producer] if producer > 0 else -1,
                )
            )
        )
        if producer > 0:
            sequences[producer] += len(records)
        offset += len(records)
    return History(log, offset)


def producer_states(log: Iterable[Buffer]) -> ProducerStates:
    states = ProducerStates()
    for batch in log:
        header = read_header(batch)
        if header.has_producer:
            states.update(header)
    return states


def sequences_of(log: Iterable[Buffer]) -> list[ProducerEntry]:
    """Returns each producer's last batch, without its timestamp: the record that had it may be
    gone."""
    return sorted(entry._replace(timestamp=0) for entry in producer_states(log).entries())


def unchangeable(header: BatchHeader) -> tuple[int, ...]:
    """Returns the header fields that compaction never changes."""
    return (
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
    )


def table_of(records: Iterable[Record]) -> dict[bytes, bytes]:
    """Returns the table that a reader builds by keeping the latest value of each key."""
    table: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def model(records: Iterable[Record], end: int, without_tombstones: bool) -> list[Record]:
    """Compaction in four lines: below `end` the newest record of each key, from there on all
    records."""
    below = [record for record in records if record.offset < end]
    newest = {record.key: record for record in below if record.key is not None}
    kept = [r for r in newest.values() if not (without_tombstones and r.value is None)]
    return sorted(kept) + [record for record in records if record.offset >= end]


@settings(deadline=None, max_examples=120)
@given(histories(), st.integers(1, 5), st.integers(0, 40))
def test_rounds_of_compaction_agree_with_the_model(
    history: History, keys_max: int, uncleanable: int
) -> None:
    """With any map size and bound: after each round exactly the newest record of each key is left
    below the covered offset. Nothing at or above the bound is changed. Offsets, order, headers and
    everything else of the remaining records are as before, and a reader's table is the same
    (I14)."""
    original = records_of(history.log)
    uncleanable = min(uncleanable, history.end)
    last_data_offsets = producer_states(history.log).last_data_offsets()
    headers = {read_header(batch).base_offset: read_header(batch) for batch in history.log}
    log: list[Buffer] = list(history.log)
    ends = [header.next_offset for header in headers.values()]
    reachable = max((end for end in ends if end <= uncleanable), default=0)
    start = 0
    while start < reachable:
        log, end = clean(
            log,
            start=start,
            uncleanable=uncleanable,
            keys_max=keys_max,
            last_data_offsets=last_data_offsets,
        )
        assert start < end <= reachable
        start = end
        assert records_of(log) == model(original, end, without_tombstones=False)
        assert table_of(records_of(log)) == table_of(original)
    for batch in log:
        after = validate(batch)
        before = headers[after.base_offset]
        assert unchangeable(after) == unchangeable(before)
        if after.record_count:
            assert after.codec == before.codec
    untouched = [batch for batch in history.log if read_header(batch).next_offset > uncleanable]
    assert [batch for batch in log if read_header(batch).next_offset > uncleanable] == untouched
    assert sequences_of(log) == sequences_of(history.log)


@settings(deadline=None, max_examples=80)
@given(histories(), st.integers(0, 10**13))
def test_compacting_twice_changes_nothing_more(history: History, now: int) -> None:
    """Before the delete horizons, the second round returns the same batch objects as the first,
    whether it starts in the clean or the dirty part. After them only tombstones are removed, and
    then nothing more changes."""
    log: list[Buffer] = list(history.log)
    once, end = clean(log, now=now)
    for start in (0, end):
        twice, _ = clean(once, start=start, now=now + RETENTION_MS - 1)
        assert len(twice) == len(once)
        assert all(a is b for a, b in zip(once, twice, strict=True))
    late, _ = clean(once, now=now + RETENTION_MS)
    assert records_of(late) == model(records_of(log), end, without_tombstones=True)
    assert table_of(records_of(late)) == table_of(records_of(log))
    rest, _ = clean(late, now=now + RETENTION_MS)
    assert all(a is b for a, b in zip(late, rest, strict=True))
