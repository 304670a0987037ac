"""File names, and the bounded pool of open files."""

from __future__ import annotations

from errno import EIO

import pytest

from penstock.storage.files import (
    FilePool,
    offset_name,
    parse_offset_name,
    parse_partition_directory,
    parse_swap_name,
    partition_directory,
    swap_name,
    write_all,
)

from .log_bench import LogBench


def make_files(bench: LogBench, count: int) -> list[str]:
    paths = [f"/data/{number}" for number in range(count)]
    for path in paths:
        bench.write_file(path, path.encode())
    return paths


def test_the_pool_keeps_no_more_files_open_than_allowed(bench: LogBench) -> None:
    """A closed file is opened again when it is needed."""
    paths = make_files(bench, 5)
    pool = FilePool(bench.disk, 3)
    for path in paths * 3:
        assert pool.get(path).pread(100, 0) == path.encode()
        assert len(pool) == len(bench.sim.open_paths()) <= 3


def test_a_file_in_use_stays_open_longer_than_idle_ones(bench: LogBench) -> None:
    """A file that is used between any two others is opened once."""
    paths = make_files(bench, 20)
    pool = FilePool(bench.disk, 4)
    pool.get(paths[0])
    opened = bench.sim.counters["open"]
    for path in paths[1:]:
        pool.get(path)
        pool.get(paths[0])
    assert bench.sim.counters["open"] - opened <= len(paths[1:]) + 1


def test_a_pinned_file_stays_open(bench: LogBench) -> None:
    """Another thread is using it, so eviction skips it even if all other files must be closed."""
    paths = make_files(bench, 4)
    pool = FilePool(bench.disk, 2)
    pinned = pool.pin(paths[0])
    for path in paths[1:]:
        pool.get(path)
    assert pinned.file.pread(100, 0) == b"/data/0"
    assert len(bench.sim.open_paths()) == 2
    pool.unpin(pinned)
    for path in paths[1:]:
        pool.get(path)
    assert paths[0] not in bench.sim.open_paths()


def test_a_pool_full_of_pinned_files_opens_one_more(bench: LogBench) -> None:
    """Work in progress may exceed the limit. Afterwards the limit holds again."""
    paths = make_files(bench, 4)
    pool = FilePool(bench.disk, 2)
    pins = [pool.pin(path) for path in paths[:3]]
    assert pool.get(paths[3]).pread(100, 0) == b"/data/3"
    for handle in pins:
        assert handle.file.size() == 7
        pool.unpin(handle)
    pool.get(paths[0])
    make_files(bench, 6)
    pool.get("/data/5")
    assert len(pool) <= 2


def test_a_file_forgotten_while_pinned_closes_with_the_last_pin(bench: LogBench) -> None:
    """A file that was deleted meanwhile stays usable through its pins."""
    (path,) = make_files(bench, 1)
    pool = FilePool(bench.disk, 2)
    first, second = pool.pin(path), pool.pin(path)
    assert first is second
    pool.forget(path)
    bench.disk.unlink(path)
    first.file.fsync()
    pool.unpin(first)
    assert second.file.pread(100, 0) == b"/data/0"
    pool.unpin(second)
    assert bench.sim.open_paths() == []


def test_a_recreated_file_is_a_different_file(bench: LogBench) -> None:
    """`create` never returns the handle of an earlier file with the same name."""
    (path,) = make_files(bench, 1)
    pool = FilePool(bench.disk, 2)
    pinned = pool.pin(path)
    bench.disk.unlink(path)
    pool.create(path).pwrite(b"new", 0)
    assert pool.get(path).pread(100, 0) == b"new"
    assert pinned.file.pread(100, 0) == b"/data/0"
    pool.unpin(pinned)
    assert bench.sim.open_paths() == [path]


def test_a_closed_pool_has_no_open_files(bench: LogBench) -> None:
    pool = FilePool(bench.disk, 10)
    for path in make_files(bench, 5):
        pool.get(path)
    pool.close()
    assert (len(pool), bench.sim.open_paths()) == (0, [])


def test_a_pool_must_allow_at_least_one_file(bench: LogBench) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FilePool(bench.disk, 0)


def test_a_missing_file_is_not_created(bench: LogBench) -> None:
    """Only `create` creates files: a lost one must be noticed."""
    pool = FilePool(bench.disk, 2)
    with pytest.raises(FileNotFoundError):
        pool.get("/data/absent")
    assert len(pool) == 0


def test_write_all_writes_all_bytes(bench: LogBench) -> None:
    """However few bytes the disk writes at a time. If it fails, the error is raised."""
    file = bench.disk.open("/data/f", create=True)
    bench.sim.shorten_next(3, times=4)
    write_all(file, bytes(range(50)), 10)
    assert file.pread(100, 10) == bytes(range(50))
    bench.sim.shorten_next(3)
    bench.sim.fail_next("pwrite", EIO, skip=1)
    with pytest.raises(OSError, match="Input/output"):
        write_all(file, bytes(50), 0)


@pytest.mark.parametrize("offset", [0, 7, 2**63 - 1])
def test_offset_names_can_be_parsed_and_sorted(offset: int) -> None:
    """They have twenty digits, so that the order of names is the order of offsets."""
    name = offset_name(offset, ".log")
    assert len(name) == 24
    assert parse_offset_name(name, ".log") == offset
    assert parse_offset_name(name, ".index") is None
    assert parse_swap_name(swap_name(offset, offset + 5)) == (offset, offset + 5)


@pytest.mark.parametrize(
    "name", ["1.log", "x" * 20 + ".log", "0" * 20, "0" * 20 + ".log.deleted", "0" * 21 + ".log"]
)
def test_other_names_are_not_segments(name: str) -> None:
    """Other files in the directory are not mistaken for segments."""
    assert parse_offset_name(name, ".log") is None


@pytest.mark.parametrize("name", ["a.swap", "1-x.swap", "1-2", "0-5.log", ".swap"])
def test_other_names_are_not_swaps(name: str) -> None:
    """Only a name that matches completely is used."""
    assert parse_swap_name(name) is None


@pytest.mark.parametrize("topic", ["t", "a-b", "with.dots_and-1", "-"])
def test_partition_directory_names_can_be_parsed(topic: str) -> None:
    """Topic names may contain dashes. The last dash separates the partition index."""
    assert parse_partition_directory(partition_directory(topic, 12)) == (topic, 12)


@pytest.mark.parametrize("name", ["topic", "t-", "-3", "t-x", "t-1.id-delete", "t--"])
def test_other_directories_are_not_partitions(name: str) -> None:
    """A partition directory needs a topic name and a partition index."""
    assert parse_partition_directory(name) is None
