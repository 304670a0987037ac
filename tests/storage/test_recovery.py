"""Opening a log after a clean stop, a kill and a power cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.partition.epochs import EpochStart
from penstock.partition.producer_state import Duplicate
from penstock.records.batch import read_header
from penstock.records.record import ControlMarker, ControlType, build_batch, control_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import CorruptFile
from penstock.storage.log import Log

from .log_bench import (
    NOW_MS,
    LogBench,
    append,
    append_batch,
    append_produced,
    each_interruption,
    new_bench,
    offsets_of,
    record,
    records_of,
    state_of,
)

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=6 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
CHECKPOINT = "penstock-checkpoint"
EPOCHS = "leader-epoch-checkpoint"


def busy(bench: LogBench) -> Log:
    """Returns a log with several segments, epochs and producers."""
    log = bench.create(SEGMENTED)
    for epoch in range(4):
        append(log, 3, epoch=epoch)
        append_batch(log, 2, epoch=epoch)
    for sequence in range(8):
        producer_id = 7 + sequence % 2
        batch = build_batch(
            [record(log.end_offset)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence // 2,
        )
        log.append(batch, 4, NOW_MS)
    return log


def test_a_clean_stop_is_trusted(bench: LogBench) -> None:
    """Everything is as before, and no data was read to check it."""
    log = busy(bench)
    expected = state_of(log)
    log = bench.reopen(log)
    assert bench.report.clean
    assert (bench.report.scanned_bytes, bench.report.notes, bench.report.damage) == (0, [], [])
    assert state_of(log) == expected
    assert log.recovery_point == log.end_offset


def test_opening_without_changes_keeps_the_stop_clean(bench: LogBench) -> None:
    """A log that was only read needs no new checkpoint, and a kill does not matter."""
    log = busy(bench)
    expected = state_of(log)
    log = bench.reopen(log)
    files = bench.sim.files()
    records_of(log)
    log.close()
    assert bench.sim.files() == files
    bench.open()
    log = bench.kill_and_open()
    assert bench.report.clean
    assert state_of(log) == expected


def test_an_append_after_a_clean_stop_ends_the_trust(bench: LogBench) -> None:
    """The clean stop counts only for the file as it was then."""
    log = busy(bench)
    log.close()
    log = bench.open()
    append(log, epoch=4)
    expected = state_of(log)
    log = bench.kill_and_open()
    assert not bench.report.clean
    assert bench.report.scanned_bytes > 0
    assert state_of(log) == expected


def test_a_killed_process_loses_nothing(bench: LogBench) -> None:
    """Every append that returned is there, flushed or not, with epochs and producers."""
    log = busy(bench)
    expected = state_of(log)
    assert state_of(bench.kill_and_open()) == expected
    assert bench.report.cut_bytes == 0


def test_the_recovery_point_after_a_kill_is_correct() -> None:
    """Recovered records may be only in the page cache. They count as durable only if they are."""
    for seed in range(30):
        bench = new_bench(seed)
        busy(bench)
        log = bench.kill_and_open()
        expected, claimed = records_of(log), log.recovery_point
        bench.lose_power()
        log = bench.open()
        assert log.end_offset >= claimed
        assert records_of(log)[:claimed] == expected[:claimed]
        assert log.damage == []


def test_a_power_cut_leaves_a_prefix() -> None:
    """Everything flushed is there, and of the rest as many valid batches as there are without a
    gap."""
    for seed in range(60):
        bench = new_bench(seed)
        log = bench.create(SEGMENTED)
        append(log, 8, epoch=1)
        log.flush()
        append(log, 13, epoch=2)
        everything = records_of(log)
        bench.lose_power()
        log = bench.open()
        found = records_of(log)
        assert 8 <= len(found) == log.end_offset
        assert found == everything[: len(found)]
        assert log.damage == []
        assert log.epochs.entries[0] == EpochStart(1, 0)


def test_recovering_twice_changes_nothing() -> None:
    """Neither the log nor, the second time, any file."""
    for seed in range(20):
        bench = new_bench(seed)
        busy(bench)
        bench.lose_power()
        expected = state_of(bench.open())
        bench.kill_and_open()
        files = bench.sim.files()
        log = bench.kill_and_open()
        assert state_of(log) == expected
        assert bench.sim.files() == files


def test_an_interrupted_recovery_is_safe() -> None:
    """Stopped at any point, the next recovery has the result that the first would have had."""

    def prepare(bench: LogBench) -> Callable[[], object]:
        log = bench.create(SEGMENTED)
        append(log, 16, epoch=1)
        log.flush(checkpoint=True)
        append(log, 9, epoch=2)
        bench.kill()
        path = bench.log_path(24)
        bench.write_file(path, bench.read_file(path)[:-1])
        bench.flip_bit(bench.log_path(12), BATCH_BYTES + 70)
        return bench.open

    for bench in each_interruption(prepare, power_loss_seeds=3):
        log = bench.open()
        assert [(held.start_offset, held.end_offset) for held in log.damage] == [(13, 14)]
        assert 16 <= log.end_offset <= 24
        assert offsets_of(log, 14) == list(range(14, log.end_offset))
        end = log.end_offset
        append(log, 3, epoch=3)
        log = bench.kill_and_open()
        assert offsets_of(log, 14) == list(range(14, end + 3))


def test_after_recovery_and_a_clean_stop_nothing_is_left_to_repair(bench: LogBench) -> None:
    busy(bench)
    log = bench.kill_and_open()
    bench.reopen(log)
    assert bench.report.clean
    assert (bench.report.notes, bench.report.scanned_bytes) == ([], 0)


def test_a_torn_tail_of_any_length_is_cut(bench: LogBench) -> None:
    """If the file ends at any byte of the last batch, the batches before it are recovered."""
    log = bench.create()
    append(log, 4)
    append_batch(log, 3)
    expected = records_of(log)[:4]
    whole = bench.read_file(bench.log_path())
    start = bench.batches()[-1][0]
    bench.kill()
    for size in range(start, len(whole)):
        bench.write_file(bench.log_path(), whole[:size])
        log = bench.open()
        assert (log.end_offset, records_of(log), log.damage) == (4, expected, [])
        assert bench.report.cut_bytes == size - start
        assert len(bench.read_file(bench.log_path())) == start
        bench.kill()


@pytest.mark.parametrize("zeros", [1, 11, 12, 60, 61, 62, 512, 4096, 100_000])
def test_zeros_at_the_end_are_cut(bench: LogBench, zeros: int) -> None:
    """After a crash a file may be longer than what was written, and zeros are not a batch."""
    log = bench.create()
    append(log, 5)
    expected = state_of(log)
    size = len(bench.read_file(bench.log_path()))
    bench.kill()
    bench.write_file(bench.log_path(), bench.read_file(bench.log_path()) + bytes(zeros))
    assert state_of(bench.open()) == expected
    assert bench.report.cut_bytes == zeros
    assert len(bench.read_file(bench.log_path())) == size


def test_a_file_of_zeros_is_cut(bench: LogBench) -> None:
    """The bytes of a new segment were never written."""
    log = bench.create(SEGMENTED)
    append(log, 6)
    log.flush()
    append(log, 3)
    bench.kill()
    size = len(bench.read_file(bench.log_path(6)))
    bench.write_file(bench.log_path(6), bytes(size))
    log = bench.open()
    assert (offsets_of(log), log.damage) == (list(range(6)), [])
    append(log)
    assert offsets_of(log) == list(range(7))


def test_batches_after_zeros_are_cut(bench: LogBench) -> None:
    """Above the recovery point nothing is guaranteed, and a log has no gaps."""
    log = bench.create()
    append(log, 9)
    bench.kill()
    data = bytearray(bench.read_file(bench.log_path()))
    data[4 * BATCH_BYTES : 6 * BATCH_BYTES] = bytes(2 * BATCH_BYTES)
    bench.write_file(bench.log_path(), bytes(data))
    log = bench.open()
    assert (offsets_of(log), log.damage) == ([0, 1, 2, 3], [])
    assert any("cut" in note for note in bench.report.notes)


def test_segments_after_a_torn_one_are_deleted(bench: LogBench) -> None:
    """They were written later, and the log must not have a gap."""
    log = bench.create(SEGMENTED)
    append(log, 15)
    bench.kill()
    data = bench.read_file(bench.log_path(6))
    bench.write_file(bench.log_path(6), data[: 2 * BATCH_BYTES + 30])
    log = bench.open()
    assert (offsets_of(log), log.damage) == (list(range(8)), [])
    assert [held.base_offset for held in log.segments] == [0, 6]
    append(log, 10)
    assert offsets_of(bench.kill_and_open()) == list(range(18))


def test_a_lost_segment_above_the_recovery_point_ends_the_log(bench: LogBench) -> None:
    """The name of a new file was lost and that of a later one was not. The log ends before the
    gap."""
    log = bench.create(SEGMENTED)
    append(log, 15)
    bench.kill()
    bench.sim.lose_file(bench.log_path(6))
    log = bench.open()
    assert (offsets_of(log), log.end_offset) == (list(range(6)), 6)
    append(log)
    assert offsets_of(bench.kill_and_open()) == list(range(7))


def test_a_retry_is_recognized_after_a_crash(bench: LogBench) -> None:
    """A producer that never received its acknowledgment gets the offset of the first copy."""
    log = bench.create(SEGMENTED)
    append_produced(log, 7, 0, 9)
    log = bench.kill_and_open()
    again = build_batch([record(0)], producer_id=7, producer_epoch=0, base_sequence=8)
    found = log.producers.check(read_header(again))
    assert isinstance(found, Duplicate)
    assert found.base_offset == 8


def test_an_open_transaction_is_known_after_a_crash(bench: LogBench) -> None:
    """Its first offset limits committed reads until its marker is written."""
    log = bench.create(SEGMENTED)
    append(log, 4)
    for sequence in range(8):
        batch = build_batch(
            [record(log.end_offset)],
            producer_id=9,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        log.append(batch, 0, NOW_MS)
    log = bench.kill_and_open()
    assert log.producers.first_unstable_offset(log.end_offset) == 4
    marker = ControlMarker(ControlType.COMMIT, 3)
    log.append(control_batch(marker, producer_id=9, producer_epoch=0, timestamp=NOW_MS), 0, NOW_MS)
    log = bench.kill_and_open()
    assert log.producers.first_unstable_offset(log.end_offset) is None


def test_batches_without_an_epoch_add_no_epoch(bench: LogBench) -> None:
    """-1 means none. The result is the same before and after a restart."""
    log = bench.create()
    append(log, 3, epoch=-1)
    assert log.epochs.entries == ()
    assert bench.kill_and_open().epochs.entries == ()


def test_a_log_that_was_never_written_to_opens(bench: LogBench) -> None:
    """After a kill and after a clean stop."""
    bench.create()
    log = bench.kill_and_open()
    assert (log.log_start_offset, log.end_offset, log.topic_id) == (0, 0, "id")
    log = bench.reopen(log)
    append(log)
    assert offsets_of(log) == [0]


def test_a_segment_with_one_large_batch_is_not_read_again(bench: LogBench) -> None:
    """It rightly has no index entry, so an empty index is no reason to read it at each start."""
    log = bench.create(LogConfig(segment_bytes=20_000, index_interval_bytes=1000))
    for _ in range(4):
        append(log, size=15_000)
    bench.reopen(log)
    assert (bench.report.notes, bench.report.scanned_bytes) == ([], 0)


def test_the_directory_must_be_named_for_a_partition(bench: LogBench) -> None:
    """Otherwise its topic and partition are unknown."""
    bench.create()
    bench.disk.rename(bench.directory, "/data/other")
    bench.directory = "/data/other"
    with pytest.raises(CorruptFile, match="is not named TOPIC-PARTITION"):
        bench.open()


def test_a_log_without_topic_id_is_not_opened(bench: LogBench) -> None:
    """It might belong to an earlier topic with the same name."""
    bench.create()
    bench.disk.unlink(bench.path("partition.metadata"))
    with pytest.raises(CorruptFile, match=r"no partition\.metadata"):
        bench.open()


def test_rebuilt_indexes_become_durable() -> None:
    """An index rebuilt at a clean start survives the next power cut, or is rebuilt again."""
    for seed in range(30):
        bench = new_bench(seed)
        log = busy(bench)
        expected = state_of(log)
        times = [held.largest_timestamp() for held in log.segments]
        log.close()
        for name in bench.names("index"):
            bench.disk.unlink(bench.path(name))
        bench.disk.sync_directory(bench.directory)
        bench.start_process()
        bench.open()
        bench.lose_power()
        log = bench.open()
        assert [held.largest_timestamp() for held in log.segments] == times
        assert state_of(log) == expected


def test_a_log_on_real_files_is_recovered(real_bench: LogBench) -> None:
    """A torn tail, then a clean stop."""
    log = busy(real_bench)
    append(log, epoch=4)
    expected = state_of(log)
    append(log, epoch=4)
    path = log.active.path
    real_bench.resources.pool.close()
    real_bench.start_process()
    real_bench.write_file(path, real_bench.read_file(path)[:-1])
    log = real_bench.open()
    assert real_bench.report.cut_bytes == BATCH_BYTES - 1
    assert state_of(log) == expected
    assert state_of(real_bench.reopen(log)) == expected
    assert real_bench.report.clean
