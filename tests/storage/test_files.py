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

from .bench import LogBench


def make_files(bench: LogBench, count: int) -> list[str]:
    paths = [f"/data/{number}" for number in range(count)]
    for path in paths:
        bench.write_file(path, path.encode())
    return paths


def test_pool_holds_no_more_than_allowed(bench: LogBench) -> None:
    """Files come and go, and each is opened again when it is wanted."""
    paths = make_files(bench, 5)
    pool = FilePool(bench.disk, 3)
    for path in paths * 3:
        assert pool.get(path).pread(100, 0) == path.encode()
        assert len(pool) == len(bench.sim.open_paths()) <= 3


def test_file_in_use_outlives_idle_ones(bench: LogBench) -> None:
    """One that is asked for between any two others is opened once."""
    paths = make_files(bench, 20)
    pool = FilePool(bench.disk, 4)
    pool.get(paths[0])
    opened = bench.sim.counters["open"]
    for path in paths[1:]:
        pool.get(path)
        pool.get(paths[0])
    assert bench.sim.counters["open"] - opened <= len(paths[1:]) + 1


def test_pinned_file_stays_open(bench: LogBench) -> None:
    """Another thread works on it: eviction passes it by, though all else must go."""
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


def test_pool_full_of_pins_opens_one_more(bench: LogBench) -> None:
    """The bound gives way to work under way, and holds again afterwards."""
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


def test_forgotten_while_pinned_closes_with_the_last_pin(bench: LogBench) -> None:
    """A file that was deleted meanwhile is still good for those who hold it."""
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


def test_recreated_file_is_another_one(bench: LogBench) -> None:
    """`create` never returns the handle of a file that was there before under the name."""
    (path,) = make_files(bench, 1)
    pool = FilePool(bench.disk, 2)
    pinned = pool.pin(path)
    bench.disk.unlink(path)
    pool.create(path).pwrite(b"new", 0)
    assert pool.get(path).pread(100, 0) == b"new"
    assert pinned.file.pread(100, 0) == b"/data/0"
    pool.unpin(pinned)
    assert bench.sim.open_paths() == [path]


def test_closed_pool_has_nothing_open(bench: LogBench) -> None:
    """A process that goes leaves no handle behind."""
    pool = FilePool(bench.disk, 10)
    for path in make_files(bench, 5):
        pool.get(path)
    pool.close()
    assert (len(pool), bench.sim.open_paths()) == (0, [])


def test_pool_needs_room_for_one_file(bench: LogBench) -> None:
    """A bound that cannot work is refused."""
    with pytest.raises(ValueError, match="at least 1"):
        FilePool(bench.disk, 0)


def test_missing_file_is_not_made(bench: LogBench) -> None:
    """Only `create` makes files: a lost one must be noticed."""
    pool = FilePool(bench.disk, 2)
    with pytest.raises(FileNotFoundError):
        pool.get("/data/absent")
    assert len(pool) == 0


def test_write_all_writes_all(bench: LogBench) -> None:
    """However little the disk takes at a time, and not a byte less when it then fails."""
    file = bench.disk.open("/data/f", create=True)
    bench.sim.shorten_next(3, times=4)
    write_all(file, bytes(range(50)), 10)
    assert file.pread(100, 10) == bytes(range(50))
    bench.sim.shorten_next(3)
    bench.sim.fail_next("pwrite", EIO, skip=1)
    with pytest.raises(OSError, match="Input/output"):
        write_all(file, bytes(50), 0)


@pytest.mark.parametrize("offset", [0, 7, 2**63 - 1])
def test_offset_names_read_back_and_sort(offset: int) -> None:
    """Twenty digits, so that the order of names is the order of offsets."""
    name = offset_name(offset, ".log")
    assert len(name) == 24
    assert parse_offset_name(name, ".log") == offset
    assert parse_offset_name(name, ".index") is None
    assert parse_swap_name(swap_name(offset, offset + 5)) == (offset, offset + 5)


@pytest.mark.parametrize(
    "name", ["1.log", "x" * 20 + ".log", "0" * 20, "0" * 20 + ".log.deleted", "0" * 21 + ".log"]
)
def test_other_names_are_no_segments(name: str) -> None:
    """Files of somebody else in the directory are not taken for ours."""
    assert parse_offset_name(name, ".log") is None


@pytest.mark.parametrize("name", ["a.swap", "1-x.swap", "1-2", "0-5.log", ".swap"])
def test_other_names_are_no_swaps(name: str) -> None:
    """Only what is wholly of the form is acted upon."""
    assert parse_swap_name(name) is None


@pytest.mark.parametrize("topic", ["t", "a-b", "with.dots_and-1", "-"])
def test_partition_directories_read_back(topic: str) -> None:
    """Topics may have dashes; the last one is ours."""
    assert parse_partition_directory(partition_directory(topic, 12)) == (topic, 12)


@pytest.mark.parametrize("name", ["topic", "t-", "-3", "t-x", "t-1.id-delete", "t--"])
def test_other_directories_are_no_partitions(name: str) -> None:
    """A log needs a topic and a number."""
    assert parse_partition_directory(name) is None
