"""All logs of one data directory: created, opened, deleted and closed."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from errno import EIO
from pathlib import Path
from typing import cast

import pytest

from penstock.sim.disk.disk import SimDisk
from penstock.storage.config import LogConfig
from penstock.storage.directory import DirectoryConfig, LogDirectory
from penstock.storage.disk import OsDisk
from penstock.storage.errors import DiskTrouble, LogOffline, StorageError
from penstock.storage.log import Log
from penstock.storage.opening import RecoveryReport

from .log_bench import NOW_MS, LogBench, append, each_interruption, new_bench, offsets_of

ROOT = "/data/logs"
SMALL = DirectoryConfig(disk_reserve_bytes=0)


def make(directory: LogDirectory, topic: str = "t", partition: int = 0) -> Log:
    return directory.create(topic, partition, topic_id="id", config=LogConfig(), now_ms=NOW_MS)


def open_all(directory: LogDirectory) -> list[RecoveryReport]:
    return directory.open_all(lambda topic, partition: LogConfig(), NOW_MS)


def new_directory(bench: LogBench, config: DirectoryConfig = SMALL) -> LogDirectory:
    return LogDirectory(bench.disk, ROOT, config)


def durable_directory(bench: LogBench) -> LogDirectory:
    """Returns a directory in a root that is durable."""
    bench.disk.mkdir(ROOT)
    bench.disk.sync_directory("/data")
    return new_directory(bench)


def test_all_logs_are_there_after_a_clean_close(bench: LogBench) -> None:
    """With their records."""
    directory = new_directory(bench)
    for number in range(5):
        append(make(directory, f"topic-{number}", number), number + 1)
    assert len(directory) == 5
    assert directory.close() == []
    assert bench.sim.open_paths() == []
    directory = new_directory(bench)
    reports = open_all(directory)
    assert all(report.clean for report in reports)
    assert sorted((log.topic, log.partition, log.end_offset) for log in directory) == [
        (f"topic-{number}", number, number + 1) for number in range(5)
    ]
    assert directory.get("topic-3", 3) is not None
    assert directory.get("topic-3", 4) is None


def test_flushed_records_survive_in_a_new_root() -> None:
    """The directory creates its root, so the root's name must be durable too."""
    for seed in range(20):
        bench = new_bench(seed)
        directory = new_directory(bench)
        log = make(directory)
        append(log, 3)
        log.flush()
        bench.lose_power()
        directory = new_directory(bench)
        open_all(directory)
        (log,) = directory
        assert offsets_of(log) == [0, 1, 2]


def test_a_log_cannot_be_created_twice(bench: LogBench) -> None:
    directory = new_directory(bench)
    make(directory)
    with pytest.raises(StorageError, match="already exists"):
        make(directory)


def test_a_log_that_cannot_be_opened_does_not_affect_the_others(bench: LogBench) -> None:
    """It is reported with the reason."""
    directory = new_directory(bench)
    for number in range(3):
        append(make(directory, "t", number), 2)
    directory.close()
    bench.write_file(f"{ROOT}/t-1/partition.metadata", b"nonsense")
    directory = new_directory(bench)
    reports = {report.directory: report for report in open_all(directory)}
    assert sorted(log.partition for log in directory) == [0, 2]
    assert any("could not be opened" in note for note in reports[f"{ROOT}/t-1"].notes)


def test_an_unreadable_log_does_not_affect_the_others(bench: LogBench) -> None:
    """A sector that cannot be read affects only one log."""
    directory = new_directory(bench)
    for number in range(3):
        append(make(directory, "t", number), 2)
    directory.close()
    bench.sim.fail_next("pread", EIO, path_contains="t-1/")
    directory = new_directory(bench)
    open_all(directory)
    assert sorted(log.partition for log in directory) == [0, 2]


@pytest.mark.parametrize("byte", [0, 8, 40, 61])
def test_a_rotten_log_does_not_affect_the_others(bench: LogBench, byte: int) -> None:
    """Bit rot after a clean stop: whatever happens to that log, the others open."""
    directory = new_directory(bench)
    for number in range(3):
        append(make(directory, "t", number), 2)
    directory.close()
    bench.flip_bit(f"{ROOT}/t-1/{0:020d}.log", byte, 7)
    directory = new_directory(bench)
    assert len(open_all(directory)) == 3
    assert {0, 2} <= {log.partition for log in directory}


def test_a_log_that_cannot_be_opened_is_not_created_again(bench: LogBench) -> None:
    """Its bytes may be the only copy of the data."""
    directory = new_directory(bench)
    append(make(directory), 5)
    directory.close()
    metadata = bench.read_file(f"{ROOT}/t-0/partition.metadata")
    data = bench.read_file(f"{ROOT}/t-0/{0:020d}.log")
    bench.write_file(f"{ROOT}/t-0/partition.metadata", b"nonsense")
    directory = new_directory(bench)
    open_all(directory)
    with pytest.raises(StorageError):
        make(directory)
    assert bench.read_file(f"{ROOT}/t-0/{0:020d}.log") == data
    bench.write_file(f"{ROOT}/t-0/partition.metadata", metadata)
    directory = new_directory(bench)
    open_all(directory)
    assert [offsets_of(log) for log in directory] == [[0, 1, 2, 3, 4]]


def test_an_interrupted_creation_is_cleaned_up() -> None:
    """Stopped at any point, the log is there, empty and valid, or it is gone and can be created
    again."""
    outcomes = set()

    def prepare(bench: LogBench) -> Callable[[], object]:
        directory = durable_directory(bench)
        make(directory, "other")
        return lambda: make(directory)

    for bench in each_interruption(prepare):
        directory = new_directory(bench)
        open_all(directory)
        assert directory.get("other", 0) is not None
        found = directory.get("t", 0)
        outcomes.add(found is not None)
        log = found or make(directory)
        assert (log.log_start_offset, log.end_offset, log.topic_id) == (0, 0, "id")
        append(log)
        log.flush()
        bench.lose_power()
        directory = new_directory(bench)
        open_all(directory)
        recovered = directory.get("t", 0)
        assert recovered is not None
        assert offsets_of(recovered) == [0]
    assert outcomes == {True, False}


def test_a_deleted_log_is_gone_at_once(bench: LogBench) -> None:
    """Its space is freed later. Meanwhile the topic can be created again."""
    directory = new_directory(bench)
    log = make(directory)
    append(log, 3)
    hide = directory.delete("t", 0)
    assert directory.get("t", 0) is None
    with pytest.raises(LogOffline, match="it was deleted"):
        log.read(0, 100)
    free_space = hide()
    again = directory.create("t", 0, topic_id="id2", config=LogConfig(), now_ms=NOW_MS)
    assert again.end_offset == 0
    append(again)
    free_space()
    assert [name for name in bench.disk.listdir(ROOT) if "delete" in name] == []
    assert offsets_of(again) == [0]


@pytest.mark.parametrize("operation", ["rename", "sync_directory"])
def test_a_deletion_that_failed_can_be_tried_again(bench: LogBench, operation: str) -> None:
    """Also if the log's directory was renamed before the disk failed."""
    directory = new_directory(bench)
    append(make(directory), 3)
    hide = directory.delete("t", 0)
    cast(SimDisk, bench.disk).fail_next(operation, EIO, times=2)
    for _ in range(2):
        with pytest.raises(DiskTrouble, match="could not be deleted"):
            hide()
    while not hide()():
        pass
    assert bench.disk.listdir(ROOT) == []


def test_a_log_that_does_not_exist_cannot_be_deleted(bench: LogBench) -> None:
    """The error names it."""
    with pytest.raises(StorageError, match="t-0 does not exist"):
        new_directory(bench).delete("t", 0)


def test_an_interrupted_deletion_is_completed() -> None:
    """Stopped at any point, the log is complete or gone. A partly deleted log is never opened."""
    outcomes = set()

    def prepare(bench: LogBench) -> Callable[[], object]:
        directory = durable_directory(bench)
        append(make(directory, "other"), 2)
        log = make(directory)
        append(log, 3)
        log.flush(checkpoint=True)

        def delete() -> None:
            hide = directory.delete("t", 0)
            free_space = hide()
            free_space()

        return delete

    for bench in each_interruption(prepare):
        directory = new_directory(bench)
        open_all(directory)
        assert directory.get("other", 0) is not None
        found = directory.get("t", 0)
        outcomes.add(found is not None)
        if found is None:
            assert not [name for name in bench.disk.listdir(ROOT) if name.startswith("t-0")]
        else:
            assert offsets_of(found) == [0, 1, 2]
    assert outcomes == {True, False}


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    """A topic name may have 249 characters. With the suffix of a deletion it must still be a file
    name."""
    directory = LogDirectory(OsDisk(), str(tmp_path / "logs"), SMALL)
    topic = "t" * 249
    directory.create(
        topic, 12345, topic_id="rcl_Dw3sTlyGZKr7PBVqUQ", config=LogConfig(), now_ms=NOW_MS
    )
    directory.delete(topic, 12345)()()
    assert not [path for path in (tmp_path / "logs").iterdir() if path.is_dir()]


def test_several_deletions_of_one_name_may_be_in_progress(bench: LogBench) -> None:
    """A partition that was deleted and created again, and partitions whose names are shortened."""
    directory = new_directory(bench)
    freeing = []
    for partition in (1, 1, 2):
        make(directory, "t" * 249, partition)
        freeing.append(directory.delete("t" * 249, partition)())
    assert len([name for name in bench.disk.listdir(ROOT) if name.endswith("-delete")]) == 3
    freeing[1]()
    assert open_all(new_directory(bench)) == []
    assert not [name for name in bench.disk.listdir(ROOT) if name.endswith("-delete")]


def test_unknown_files_are_left_alone(bench: LogBench) -> None:
    """Files and directories that do not look like a log."""
    bench.disk.mkdir(f"{ROOT}/lost+found")
    bench.disk.mkdir(f"{ROOT}/backup-delete")
    bench.write_file(f"{ROOT}/backup-delete/precious", b"data")
    bench.write_file(f"{ROOT}/notes-1", b"a file")
    bench.write_file(f"{ROOT}/meta.properties", b"a file")
    directory = new_directory(bench)
    assert open_all(directory) == []
    assert len(directory) == 0
    assert bench.read_file(f"{ROOT}/backup-delete/precious") == b"data"
    assert bench.read_file(f"{ROOT}/notes-1") == b"a file"


def test_many_logs_share_few_open_files(bench: LogBench) -> None:
    """300 partitions write and read with at most 20 open files."""
    directory = new_directory(bench, DirectoryConfig(open_files_max=20, disk_reserve_bytes=0))
    logs = [make(directory, "t", number) for number in range(300)]
    for _ in range(3):
        for log in logs:
            append(log)
    assert directory.open_files <= 20
    for log in logs:
        log.flush()
        assert offsets_of(log) == [0, 1, 2]
    assert directory.open_files <= 20
    assert len(bench.sim.open_paths()) <= 20


def test_idle_logs_use_little_memory(bench: LogBench) -> None:
    """An open, unused log takes a few kilobytes, and no more than its share of open files."""
    count = 200
    directory = new_directory(bench)
    open_all(directory)
    for number in range(count):
        append(make(directory, "t", number), 3)
    directory.close()
    directory = new_directory(bench, DirectoryConfig(open_files_max=20, disk_reserve_bytes=0))
    tracemalloc.start()
    try:
        assert all(report.scanned_bytes == 0 for report in open_all(directory))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(directory) == count
    assert directory.open_files <= 20
    assert taken / count < 6_000


def test_problems_when_closing_are_reported(bench: LogBench) -> None:
    """A log that cannot be closed does not prevent the others from stopping cleanly."""
    directory = new_directory(bench)
    for number in range(3):
        append(make(directory, "t", number), 2)
    bench.sim.fail_next("fsync", EIO, path_contains="t-1/")
    (trouble,) = directory.close()
    assert "t-1 is offline" in trouble
    assert bench.sim.open_paths() == []
    directory = new_directory(bench)
    clean = {report.directory: report.clean for report in open_all(directory)}
    assert clean == {f"{ROOT}/t-0": True, f"{ROOT}/t-1": False, f"{ROOT}/t-2": True}
    assert all(offsets_of(log) == [0, 1] for log in directory)


@pytest.mark.parametrize(
    ("values", "name"),
    [({"open_files_max": 3}, "open_files"), ({"disk_reserve_bytes": -1}, "disk")],
)
def test_limits_are_validated(values: dict[str, int], name: str) -> None:
    """The error names the limit that cannot work."""
    with pytest.raises(ValueError, match=name):
        DirectoryConfig(**values)


def test_low_disk_space_affects_all_logs(bench: LogBench) -> None:
    """They share the disk."""
    directory = new_directory(bench, DirectoryConfig(disk_reserve_bytes=10_000))
    logs = [make(directory, "t", number) for number in range(3)]
    bench.sim.capacity_bytes = sum(len(data) for data in bench.sim.files().values()) + 9_000
    directory.space.check()
    for log in logs:
        with pytest.raises(StorageError, match="reserve"):
            append(log)


def test_a_directory_on_the_real_disk(tmp_path: Path) -> None:
    directory = LogDirectory(OsDisk(), str(tmp_path / "logs"), SMALL)
    for number in range(3):
        append(make(directory, "t", number), 4)
    directory.delete("t", 1)()()
    assert directory.close() == []
    directory = LogDirectory(OsDisk(), str(tmp_path / "logs"), SMALL)
    open_all(directory)
    assert sorted(log.partition for log in directory) == [0, 2]
    assert all(offsets_of(log) == [0, 1, 2, 3] for log in directory)
    directory.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who has a file open")
def test_a_large_file_of_a_deleted_log_is_freed_in_pieces(tmp_path: Path) -> None:
    """After a deletion the log's files are closed, except those from which a response is being
    sent."""
    directory = LogDirectory(OsDisk(), str(tmp_path / "logs"), SMALL)
    append(make(directory), 6, size=1_000_000)
    free_some = directory.delete("t", 0)()
    (file,) = (tmp_path / "logs").glob("*-delete/*.log")
    before = file.stat().st_size
    assert not free_some()
    assert 0 < file.stat().st_size < before
    assert free_some()
    assert not file.parent.exists()


# Logs that failed


def fail_to_sync(bench: LogBench, log: Log) -> None:
    bench.sim.fail_next("fsync", EIO, path_contains=".log")
    with pytest.raises(LogOffline):
        log.flush()


def test_a_failed_log_is_recovered_while_others_are_in_use(bench: LogBench) -> None:
    """As after a restart: everything flushed is there, nothing is incomplete, and no file stays
    open."""
    directory = durable_directory(bench)
    other, log = make(directory, "other"), make(directory)
    append(log, 3)
    log.flush()
    append(log, 2)
    fail_to_sync(bench, log)
    directory.let_go("t", 0, "it failed")
    assert directory.get("t", 0) is None
    before = bench.sim.open_paths()
    report = directory.recover("t", 0, LogConfig(), NOW_MS)
    assert bench.sim.open_paths() == before
    assert report.damage == []
    again = directory.reopen("t", 0, LogConfig(), NOW_MS)
    assert directory.get("t", 0) is again
    assert offsets_of(again)[:3] == [0, 1, 2]
    append(again)
    append(other)
    assert directory.close() == []


def test_a_log_that_cannot_be_recovered_is_tried_again(bench: LogBench) -> None:
    """Meanwhile it is not open, and no new log is created over its records."""
    directory = durable_directory(bench)
    log = make(directory)
    append(log, 3)
    log.flush()
    directory.let_go("t", 0, "it failed")
    bench.sim.fail_next("pread", EIO, path_contains="/t-0/")
    with pytest.raises(StorageError, match="t-0 could not be recovered"):
        directory.recover("t", 0, LogConfig(), NOW_MS)
    assert directory.exists("t", 0)
    assert not directory.exists("t", 1)
    with pytest.raises(StorageError, match="exists"):
        make(directory)
    directory.recover("t", 0, LogConfig(), NOW_MS)
    assert offsets_of(directory.reopen("t", 0, LogConfig(), NOW_MS)) == [0, 1, 2]


def test_an_interrupted_creation_is_durable_once_the_log_is_used() -> None:
    """Many logs share one sync of their root. If a kill prevents it, the next start syncs the
    root."""
    bench = new_bench()
    directory = durable_directory(bench)
    directory.build("t", 0, topic_id="id", config=LogConfig(), now_ms=NOW_MS)
    bench.kill()
    directory = new_directory(bench)
    open_all(directory)
    log = directory.get("t", 0)
    assert log is not None
    append(log)
    log.flush()
    bench.lose_power()
    directory = new_directory(bench)
    open_all(directory)
    found = directory.get("t", 0)
    assert found is not None
    assert offsets_of(found) == [0]
