"""Compaction on files: the newest value of each key stays, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from errno import EIO
from random import Random

import pytest

from penstock.records.batch import Codec, CorruptBatch, iter_batches
from penstock.records.record import Record, build_batch, read_records
from penstock.sim.actors.bad_batches import bad_batch
from penstock.storage.cleaner import CleanTask, begin_clean
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged, LogOffline
from penstock.storage.log import Log

from .log_bench import (
    NOW_MS,
    LogBench,
    append_produced,
    each_interruption,
    new_bench,
    offsets_of,
    records_of,
    state_of,
)

CONFIG = LogConfig(segment_bytes=1000, compact=True, index_interval_bytes=100)
DAY_MS = 24 * 3600 * 1000


def put(log: Log, *pairs: tuple[str, str | None], codec: Codec = Codec.NONE) -> None:
    """Appends one batch with these keys and values."""
    start = log.end_offset
    records = [
        Record(at, NOW_MS + start + at, key.encode(), None if value is None else value.encode())
        for at, (key, value) in enumerate(pairs)
    ]
    log.append(build_batch(records, codec=codec), 0, NOW_MS)


def latest(log: Log) -> dict[bytes | None, bytes | None]:
    """Returns the newest value of each key, as a reader of the whole log sees it."""
    return {held.key: held.value for held in records_of(log)}


def try_begin(
    log: Log, *, now_ms: int = NOW_MS, stable: int | None = None, force: bool = False
) -> CleanTask | None:
    return begin_clean(
        log,
        now_ms=now_ms,
        last_stable_offset=log.end_offset if stable is None else stable,
        map_bytes_max=1 << 20,
        force=force,
    )


def test_an_undecodable_batch_and_the_tombstones_after_it_stay() -> None:
    """A reader with another decoder may know its keys, so the tombstones for them must stay as
    long as it does."""
    bench = new_bench()
    log = bench.create(CONFIG)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("b", None))
    malformed = bad_batch("count_too_high", [Record(0, NOW_MS, b"k", b"v")])
    log.append(bytearray(malformed), 0, NOW_MS)
    put(log, ("k", None), ("a", "2"))
    for now_ms in (NOW_MS, NOW_MS + 10 * DAY_MS, NOW_MS + 20 * DAY_MS):
        put(log, ("a", "3"))
        log.roll(NOW_MS)
        log.flush(checkpoint=True)
        task = try_begin(log, now_ms=now_ms, force=True)
        assert task is not None
        task.run()
        task.install(log)
        assert task.undecodable == 1
    held = decodable(log)
    assert 3 in [header.base_offset for _, header in iter_batches(read_all(log))]
    assert (b"b", None) not in held
    assert (b"k", None) in held
    assert (b"a", b"3") in held
    assert (b"a", b"1") not in held


def read_all(log: Log) -> bytes:
    found = log.read(log.log_start_offset, 1 << 20, log.end_offset)
    assert found is not None
    return bytes(found.data)


def decodable(log: Log) -> list[tuple[bytes | None, bytes | None]]:
    data, held = read_all(log), []
    for position, header in iter_batches(data):
        with suppress(CorruptBatch):
            records = read_records(data[position : position + header.size])
            held += [(record.key, record.value) for record in records]
    return held


def begin(log: Log, *, now_ms: int = NOW_MS, stable: int | None = None) -> CleanTask:
    """Begins a round over everything that may be cleaned: what is durable and stable."""
    log.flush()
    task = try_begin(log, now_ms=now_ms, stable=stable, force=True)
    assert task is not None
    return task


def clean(log: Log, *, now_ms: int = NOW_MS, stable: int | None = None) -> CleanTask:
    task = begin(log, now_ms=now_ms, stable=stable)
    task.run()
    assert task.install(log) == len(task.done)
    return task


def fill(log: Log, count: int, keys: int, seed: int = 1) -> None:
    draws = Random(seed)
    for number in range(count):
        key = f"key{draws.randrange(keys)}"
        put(log, (key, None if draws.random() < 0.1 else f"value {number}"))


@pytest.mark.parametrize("codec", list(Codec))
def test_the_newest_value_of_each_key_stays(bench: LogBench, codec: Codec) -> None:
    """At its offset and in the same order. All older values in the cleaned part are removed."""
    log = bench.create(CONFIG)
    for number in range(60):
        put(log, (f"key{number % 7}", f"value {number}"), ("other", "x" * 20), codec=codec)
    before, sealed = records_of(log), log.active.base_offset
    task = clean(log)
    after = records_of(log)
    newest = {held.key: held.offset for held in before if held.offset < sealed}
    assert after == [
        held for held in before if held.offset >= sealed or newest[held.key] == held.offset
    ]
    assert task.bytes_after < task.bytes_before
    assert log.cleaned_offset == sealed
    assert records_of(bench.reopen(log)) == after


def test_small_segments_are_merged(bench: LogBench) -> None:
    """Files do not get smaller and smaller, and no leftovers stay."""
    log = bench.create(CONFIG)
    fill(log, 200, 5)
    segments = len(log.segments)
    clean(log)
    fill(log, 100, 5)
    clean(log)
    assert len(log.segments) < segments
    bases = [f"{held.base_offset:020d}.log" for held in log.segments]
    assert bench.names(".log") == bases
    assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]


def test_every_offset_can_be_read_after_cleaning(bench: LogBench) -> None:
    """A reader at an offset that was removed gets the next one that exists."""
    log = bench.create(CONFIG)
    fill(log, 200, 20)
    clean(log)
    offsets = offsets_of(log)
    for _ in range(2):
        for offset in range(log.end_offset):
            expected = next(held for held in offsets if held >= offset)
            assert records_of(log, offset)[0].offset == expected
        log = bench.reopen(log)


def test_repeated_rounds_lose_no_newest_value(bench: LogBench) -> None:
    """With appends, restarts and power cuts in between."""
    log = bench.create(CONFIG)
    expected: dict[bytes | None, bytes | None] = {}
    for seed in range(8):
        fill(log, 60, 12, seed)
        expected = latest(log)
        clean(log, now_ms=NOW_MS + seed)
        assert latest(log) == expected
        if seed % 2:
            log = bench.reopen(log)
        elif seed % 3:
            log.flush()
            bench.lose_power()
            log = bench.open()
        assert latest(log) == expected
        assert log.damage == []


def test_a_tombstone_is_removed_after_the_delete_retention(bench: LogBench) -> None:
    """It stays for `delete.retention.ms` after the round that first saw it, for slow readers."""
    log = bench.create(CONFIG)
    put(log, ("gone", "value"))
    put(log, ("gone", None))
    fill(log, 60, 3)
    clean(log)
    assert [held.value for held in records_of(log) if held.key == b"gone"] == [None]
    fill(log, 60, 3)
    clean(log, now_ms=NOW_MS + DAY_MS - 1)
    assert [held.value for held in records_of(log) if held.key == b"gone"] == [None]
    fill(log, 60, 3)
    clean(log, now_ms=NOW_MS + DAY_MS + 1)
    assert b"gone" not in latest(log)


def test_nothing_above_the_last_stable_offset_is_changed(bench: LogBench) -> None:
    """An open transaction may be aborted, and then the values that it overwrote must still be
    there."""
    log = bench.create(CONFIG)
    fill(log, 200, 5)
    before = records_of(log)
    stable = log.end_offset // 2
    task = clean(log, stable=stable)
    after = records_of(log)
    assert task.cleaned_offset <= stable
    assert [held for held in after if held.offset >= stable] == [
        held for held in before if held.offset >= stable
    ]
    assert len(after) < len(before)
    values = {held.key: held.value for held in before if held.offset < stable}
    assert {held.key: held.value for held in after if held.offset < stable} == values


def test_records_that_are_not_durable_are_not_cleaned(bench: LogBench) -> None:
    """After a crash, a gap among them could not be distinguished from a loss."""
    log = bench.create(CONFIG)
    fill(log, 100, 5)
    assert try_begin(log, force=True) is None
    log.flush()
    assert try_begin(log, force=True) is not None


def test_the_dirty_ratio_decides_whether_to_clean(bench: LogBench) -> None:
    """A round starts when enough of the log is new since the last one."""
    log = bench.create(CONFIG)
    fill(log, 100, 90)

    def worth_it() -> bool:
        log.flush()
        return try_begin(log) is not None

    assert worth_it()
    clean(log)
    assert not worth_it()
    fill(log, 30, 90)
    assert not worth_it()
    fill(log, 200, 90)
    assert worth_it()
    assert bench.reopen(log).cleaned_offset > 0


def test_the_compaction_lag_delays_or_forces_a_round(bench: LogBench) -> None:
    """`min.compaction.lag.ms` delays a round, `max.compaction.lag.ms` forces one."""
    young = LogConfig(segment_bytes=1000, compact=True, min_compaction_lag_ms=1000)
    log = bench.create(young)
    fill(log, 100, 5)
    log.flush()
    assert try_begin(log) is None
    assert try_begin(log, now_ms=NOW_MS + 5000) is not None
    log.state.config = LogConfig(
        segment_bytes=1000, compact=True, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1
    )
    assert try_begin(log) is None
    assert try_begin(log, now_ms=NOW_MS + 5000) is not None


def test_a_full_map_cleans_what_it_covers(bench: LogBench) -> None:
    """A round with little memory does a part of the work, and later rounds do the rest."""
    log = bench.create(CONFIG)
    fill(log, 300, 40)
    log.flush()
    expected, sealed = latest(log), log.active.base_offset
    for _ in range(200):
        task = begin_clean(
            log, now_ms=NOW_MS, last_stable_offset=log.end_offset, map_bytes_max=2500, force=True
        )
        if task is None:
            break
        before = log.cleaned_offset
        task.run()
        task.install(log)
        assert log.cleaned_offset > before
        assert latest(log) == expected
    assert log.cleaned_offset == sealed


def test_the_log_can_be_used_while_it_is_cleaned(bench: LogBench) -> None:
    """Appends and reads between the three steps work as usual."""
    log = bench.create(CONFIG)
    fill(log, 100, 5)
    task = begin(log)
    fill(log, 50, 5, seed=2)
    task.run()
    fill(log, 50, 5, seed=3)
    expected = latest(log)
    assert task.install(log) == len(task.done)
    assert latest(log) == expected
    log.flush()
    assert latest(bench.reopen(log)) == expected


def test_cleaned_segments_are_dropped_if_retention_deleted_the_originals(bench: LogBench) -> None:
    """No record comes back, and no file is left behind."""
    log = bench.create(CONFIG)
    fill(log, 200, 5)
    task = begin(log)
    task.run()
    log.delete_before(log.active.base_offset)
    expected = state_of(log)
    assert task.install(log) == 0
    assert state_of(log) == expected
    assert bench.names(".cleaned") == []


def test_cleaned_segments_are_dropped_if_the_originals_were_truncated(bench: LogBench) -> None:
    """Also if the log has grown again since, with segments at the same base offsets.

    The cleaned files contain truncated records, not the ones that replaced them.
    """
    log = bench.create(CONFIG)
    while len(log.segments) < 4:
        put(log, (f"old{log.end_offset}", "value"))
    task = begin(log)
    task.run()
    second, third = log.segments[1].base_offset, log.segments[2].base_offset
    log.truncate_to(third - 2)
    while log.end_offset < third:
        put(log, (f"new{log.end_offset}", "value"))
    log.roll(NOW_MS)
    while len(log.segments) < 4:
        put(log, (f"new{log.end_offset}", "value"))
    assert [held.base_offset for held in log.segments[:3]] == [0, second, third]
    expected = latest(log)
    task.install(log)
    assert latest(log) == expected
    assert latest(bench.reopen(log)) == expected


def test_files_of_an_abandoned_round_are_not_used(bench: LogBench) -> None:
    """A round that failed leaves files behind. The next one must not mix them with its own."""
    log = bench.create(CONFIG)
    fill(log, 120, 90)
    task = begin(log)
    bench.sim.fail_next("fsync", EIO, path_contains=".cleaned", skip=6)
    with pytest.raises(OSError, match="fsync"):
        task.run()
    assert bench.names(".index.cleaned") != []
    for key in range(90):
        put(log, (f"key{key}", None))
    while log.active.size < 900:
        put(log, ("last", "value"))
    put(log, ("last", "value" * 20))
    for now_ms in (NOW_MS, NOW_MS + 2 * DAY_MS):
        fill(log, 60, 3)
        clean(log, now_ms=now_ms)
        offsets = offsets_of(log)
        for offset in range(log.end_offset):
            expected = next(held for held in offsets if held >= offset)
            assert records_of(log, offset)[0].offset == expected


def test_sequences_survive_cleaning(bench: LogBench) -> None:
    """A producer's last batch stays, if only as a header, so that a retry is recognized as one."""
    log = bench.create(CONFIG)
    append_produced(log, 7, 0, 30)
    fill(log, 60, 3)
    put(log, ("k", "newest"))
    fill(log, 60, 3)
    clean(log)
    log.close()
    for name in bench.names(".snapshot"):
        bench.disk.unlink(bench.path(name))
    log = bench.open()
    (entry,) = log.producers.entries()
    assert (entry.producer_id, entry.last_sequence) == (7, 29)


def test_the_end_offset_survives_when_all_records_are_cleaned_away(bench: LogBench) -> None:
    """The offsets of removed records are not assigned again."""
    log = bench.create(CONFIG)
    for _ in range(40):
        put(log, ("same", "value"))
    log.roll(NOW_MS)
    clean(log)
    assert offsets_of(log) == [39]
    put(log, ("same", "newer"))
    log.roll(NOW_MS)
    clean(log)
    log.flush(checkpoint=True)
    bench.lose_power()
    log = bench.open()
    assert (log.end_offset, offsets_of(log), log.damage) == (41, [40], [])


def test_a_damaged_log_is_not_cleaned(bench: LogBench) -> None:
    """The damaged range may contain the newest value of a key, so older values must stay."""
    log = bench.create(CONFIG)
    fill(log, 100, 5)
    log.close()
    put(bench.open(), ("k", "v"))
    bench.kill()
    bench.flip_bit(bench.log_path(), 70)
    bench.disk.unlink(bench.path("00000000000000000000.timeindex"))
    log = bench.open()
    assert log.damage
    assert try_begin(log, force=True) is None


def test_bit_rot_found_while_cleaning_changes_nothing(bench: LogBench) -> None:
    """The round ends with `LogDamaged`."""
    log = bench.create(CONFIG)
    fill(log, 100, 5)
    log.flush()
    log = bench.reopen(log)
    bench.flip_bit(bench.log_path(), 70)
    task = begin(log)
    with pytest.raises(LogDamaged, match="is not compacted"):
        task.run()
    assert log.segments[0].base_offset == 0
    assert log.cleaned_offset == 0


def test_an_interrupted_swap_is_completed() -> None:
    """Stopped at any point, each group is the old one or the cleaned one, and reads give the same
    values."""
    sound = new_bench()
    log = sound.create(CONFIG)
    fill(log, 30, 4)
    expected = latest(log)
    before = records_of(log)
    clean(log)
    after = records_of(log)
    outcomes = []

    def prepare(bench: LogBench) -> Callable[[], object]:
        log = bench.create(CONFIG)
        fill(log, 30, 4)
        task = begin(log)

        def run() -> None:
            task.run()
            task.install(log)

        return run

    for bench in each_interruption(prepare, power_loss_seeds=3):
        log = bench.open()
        found = records_of(log)
        assert latest(log) == expected
        assert set(after) <= set(found) <= set(before)
        assert log.damage == []
        assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]
        for offset in range(0, log.end_offset, 7):
            assert records_of(log, offset) == [held for held in found if held.offset >= offset]
        log = bench.kill_and_open()
        assert records_of(log) == found
        outcomes.append(found == after)
    assert False in outcomes
    assert all(outcomes[-4:])


def test_a_failed_swap_takes_the_log_offline(bench: LogBench) -> None:
    """A restart repairs it."""
    log = bench.create(CONFIG)
    fill(log, 90, 6)
    expected = latest(log)
    task = begin(log)
    task.run()
    bench.sim.fail_next("rename", EIO, path_contains=".swap -> ")
    with pytest.raises(LogOffline, match="restart the broker"):
        task.install(log)
    assert latest(bench.kill_and_open()) == expected


def test_cleaned_batches_are_valid(bench: LogBench) -> None:
    """Batches with removed records have a correct CRC and keep their range of offsets."""
    log = bench.create(CONFIG)
    for number in range(40):
        put(log, (f"a{number % 3}", "x"), (f"b{number % 5}", "y"), codec=Codec.ZSTD)
    clean(log)
    files = [bench.read_file(bench.path(name)) for name in bench.names(".log")]
    spans = {header.last_offset_delta for data in files for _, header in iter_batches(data)}
    assert spans == {1}
