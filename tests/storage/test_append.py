"""Appending: offsets are assigned, batches are checked, segments are rolled."""

from __future__ import annotations

from errno import EIO, EMFILE

import pytest

from penstock.partition.epochs import EpochStart
from penstock.records.batch import Codec, CorruptBatch, iter_batches, read_header, validate
from penstock.records.record import Record, build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogOffline, StorageError
from penstock.storage.log_appender import Appended

from .log_bench import NOW_MS, LogBench, append, append_batch, offsets_of, record, records_of

ROLLS_AFTER_THREE = LogConfig(segment_bytes=3 * len(build_batch([record(0)])))


def test_offsets_are_assigned_in_sequence(bench: LogBench) -> None:
    """A batch gets as many offsets as it spans, from the end of the log on."""
    log = bench.create()
    assert log.append(build_batch([record(0)]), 0, NOW_MS) == Appended(0, 0)
    three = [record(number)._replace(offset=number) for number in range(3)]
    assert log.append(build_batch(three), 0, NOW_MS) == Appended(1, 3)
    assert log.end_offset == 4
    assert offsets_of(log) == [0, 1, 2, 3]


def test_a_batch_is_stamped_in_place_and_stays_valid(bench: LogBench) -> None:
    """Offset and leader epoch are written into the caller's batch. Its CRC does not cover them."""
    log = bench.create()
    append(log, 5)
    batch = build_batch([record(5)], base_offset=0)
    log.append(batch, 7, NOW_MS)
    header = validate(batch)
    assert (header.base_offset, header.leader_epoch) == (5, 7)
    assert bench.read_file(bench.log_path()).endswith(batch)


def test_an_append_is_in_the_file_when_it_returns(real_bench: LogBench) -> None:
    """Nothing waits in a buffer of the process: a kill loses no append that returned."""
    log = real_bench.create()
    batch = build_batch([record(0)])
    log.append(batch, 0, NOW_MS)
    assert real_bench.read_file(real_bench.log_path()) == bytes(batch)


def test_a_corrupt_batch_is_refused(bench: LogBench) -> None:
    """A batch with a wrong CRC changes nothing."""
    log = bench.create()
    batch = build_batch([record(0)])
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        log.append(batch, 0, NOW_MS)
    assert log.end_offset == 0
    assert bench.read_file(bench.log_path()) == b""


def test_two_batches_in_one_append_are_refused(bench: LogBench) -> None:
    """The second would be written without its own offset. The error says what to do."""
    log = bench.create()
    with pytest.raises(CorruptBatch, match="append one at a time"):
        log.append(build_batch([record(0)]) + build_batch([record(1)]), 0, NOW_MS)
    assert log.end_offset == 0


def test_short_writes_are_completed(bench: LogBench) -> None:
    """A disk that writes a few bytes at a time still gets the whole batch."""
    log = bench.create()
    bench.sim.shorten_next(10, times=3)
    append(log)
    append(log)
    assert offsets_of(log) == [0, 1]


def test_a_segment_is_rolled_by_size(bench: LogBench) -> None:
    """A batch that would make the segment too large begins the next one, named by its offset."""
    log = bench.create(ROLLS_AFTER_THREE)
    append(log, 7)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    assert bench.names(".log") == [f"{base:020d}.log" for base in (0, 3, 6)]
    assert offsets_of(log) == list(range(7))


def test_a_batch_larger_than_a_segment_gets_its_own_segment(bench: LogBench) -> None:
    """A valid batch is never refused because of the segment size."""
    log = bench.create(LogConfig(segment_bytes=100))
    append(log)
    append(log, size=1000)
    append(log)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert offsets_of(log) == [0, 1, 2]


def test_a_segment_is_rolled_by_the_age_of_its_records(bench: LogBench) -> None:
    """The timestamps of the records count: a segment does not span more than `segment.ms`."""
    log = bench.create(LogConfig(segment_ms=100))
    for time in (0, 100, 101, 201, 202):
        log.append(build_batch([Record(0, NOW_MS + time, b"k", b"v")]), 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_a_segment_is_rolled_by_the_clock_if_records_have_no_timestamps(bench: LogBench) -> None:
    """Then the age of the file counts."""
    log = bench.create(LogConfig(segment_ms=100))
    for time in (0, 100, 101):
        log.append(build_batch([Record(0, -1, b"k", b"v")]), 0, NOW_MS + time)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_is_rolled_when_its_index_is_full(bench: LogBench) -> None:
    """An index never grows beyond `segment.index.bytes`."""
    log = bench.create(LogConfig(segment_index_bytes=16, index_interval_bytes=0))
    append(log, 12)
    assert len(log.segments) > 1
    assert all(len(segment.index) <= 2 for segment in log.segments)
    assert offsets_of(log) == list(range(12))


def test_rolling_an_empty_segment_changes_nothing(bench: LogBench) -> None:
    """Two segments cannot begin at the same offset."""
    log = bench.create()
    append(log)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    append(log)
    assert offsets_of(log) == [0, 1]


def test_leader_epochs_are_stored_when_they_begin(bench: LogBench) -> None:
    """Each epoch starts at the first offset it wrote. An epoch that wrote nothing is replaced."""
    log = bench.create()
    append(log, 2, epoch=3)
    log.note_epoch(5)
    log.note_epoch(4)
    log.note_epoch(6)
    append(log, 1, epoch=6)
    assert log.epochs.entries == (EpochStart(3, 0), EpochStart(6, 2))
    assert log.epochs.end_offset_for(3, log.end_offset) == (3, 2)
    assert log.epochs.end_offset_for(6, log.end_offset) == (6, 3)


@pytest.mark.parametrize("replica", [False, True])
def test_a_lower_leader_epoch_is_refused(bench: LogBench, replica: bool) -> None:
    """A former leader must not write: recovery would treat its batch as damage."""
    log = bench.create()
    append(log, 2, epoch=5)
    batch = build_batch([Record(2, NOW_MS, b"k", b"v")], leader_epoch=4)
    with pytest.raises((ValueError, StorageError), match="epoch"):
        if replica:
            log.append_replica(batch, NOW_MS)
        else:
            log.append(batch, 4, NOW_MS)
    assert log.epochs.entries == (EpochStart(5, 0),)
    assert offsets_of(bench.kill_and_open()) == [0, 1]


def test_a_replica_stores_batches_as_the_leader_stamped_them(bench: LogBench) -> None:
    """A follower's file equals the leader's, byte for byte, including gaps and epochs."""
    leader = bench.create()
    append(leader, 2, epoch=1)
    append_batch(leader, 3, epoch=4)
    piece = leader.read(0, 1 << 20)
    assert piece is not None
    follower = LogBench(bench.disk, "/data/follower")
    bench.disk.mkdir("/data/follower")
    copy = follower.create()
    assert copy.append_replica(piece.data, NOW_MS) == Appended(0, 4)
    assert follower.read_file(follower.log_path()) == bench.read_file(bench.log_path())
    assert copy.epochs.entries == leader.epochs.entries
    assert copy.end_offset == 5


def test_replica_appends_may_leave_gaps_but_not_go_back(bench: LogBench) -> None:
    """Compaction leaves gaps in a leader's log. Offsets below the log end must be truncated
    first."""
    log = bench.create()
    log.append_replica(build_batch([record(0)], base_offset=0), NOW_MS)
    log.append_replica(build_batch([Record(10, NOW_MS, b"k", b"v")]), NOW_MS)
    assert log.end_offset == 11
    assert offsets_of(log) == [0, 10]
    with pytest.raises(CorruptBatch, match="truncate the log first"):
        log.append_replica(build_batch([Record(10, NOW_MS, b"k", b"v")]), NOW_MS)


def test_a_replica_rolls_at_the_log_end_offset(bench: LogBench) -> None:
    """Also after a gap. So a segment that begins later proves that one before it was lost."""
    log = bench.create(LogConfig(segment_bytes=100))
    for offset in (0, 10, 20):
        log.append_replica(build_batch([Record(offset, NOW_MS, b"k", b"v" * 40)]), NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 11]
    assert offsets_of(log, 5) == [10, 20]
    assert offsets_of(bench.reopen(log), 5) == [10, 20]


def test_a_replica_stops_at_a_corrupt_batch(bench: LogBench) -> None:
    """The valid batches before it are kept, and nothing after them."""
    log = bench.create()
    good, bad = build_batch([record(0)]), build_batch([Record(1, NOW_MS, b"k", b"v")])
    bad[-1] ^= 1
    with pytest.raises(CorruptBatch):
        log.append_replica(bytes(good + bad), NOW_MS)
    assert log.end_offset == 1
    assert offsets_of(log) == [0]


def test_a_failed_write_takes_the_log_offline(bench: LogBench) -> None:
    """After an I/O error the contents of the file are unknown. The error says what to do."""
    log = bench.create()
    append(log)
    bench.sim.fail_next("pwrite", EIO)
    with pytest.raises(LogOffline, match="repair the disk and restart the broker"):
        append(log)
    with pytest.raises(LogOffline, match="a write failed"):
        append(log)
    with pytest.raises(LogOffline):
        log.read(0, 100)
    assert log.failure is not None


def test_without_a_free_file_descriptor_only_the_append_is_refused(bench: LogBench) -> None:
    """Nothing was written, so the log stays usable and continues once a descriptor is free."""
    log = bench.create()
    append(log)
    bench.resources.pool.close()
    bench.sim.fail_next("open", EMFILE, times=2)
    with pytest.raises(StorageError):
        append(log)
    with pytest.raises(StorageError):
        log.read(0, 100)
    assert log.failure is None
    append(log)
    assert offsets_of(bench.kill_and_open()) == [0, 1]


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_stored_without_being_decompressed(bench: LogBench, codec: Codec) -> None:
    """With any compression a reader gets the batch that was sent, except for the stamp."""
    log = bench.create()
    batch = build_batch([record(0, size=500)], codec=codec)
    sent = bytes(batch)
    log.append(batch, 0, NOW_MS)
    piece = log.read(0, 1 << 20)
    assert piece is not None
    assert bytes(piece.data[16:]) == sent[16:]
    assert [header.codec for _, header in iter_batches(piece.data)] == [codec]


def test_the_config_is_validated() -> None:
    """The error names the limit that cannot work."""
    for values, name in (
        ({"segment_bytes": 0}, r"segment\.bytes"),
        ({"segment_ms": 0}, r"segment\.ms"),
        ({"segment_index_bytes": 4}, r"segment\.index\.bytes"),
        ({"index_interval_bytes": -1}, r"index\.interval\.bytes"),
        ({"min_cleanable_dirty_ratio": 2}, r"min\.cleanable\.dirty\.ratio"),
        ({"flush_messages": 0}, r"flush\.messages"),
    ):
        with pytest.raises(ValueError, match=name):
            LogConfig(**values)  # type: ignore[arg-type]


def test_the_repr_of_a_log_gives_its_name_and_offsets(bench: LogBench) -> None:
    """For error messages and debuggers."""
    log = bench.create(ROLLS_AFTER_THREE)
    append(log, 4)
    assert repr(log) == "Log(t-0 [0, 4) in 2 segments)"
    assert log.size == sum(read_header(bytes(b)).size for b in _batches(bench))
    assert len(records_of(log)) == 4


def _batches(bench: LogBench) -> list[bytes]:
    found = []
    for name in bench.names(".log"):
        data = bench.read_file(bench.path(name))
        found += [data[at : at + held.size] for at, held in iter_batches(data)]
    return found
