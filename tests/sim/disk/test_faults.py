"""The faults of the simulated disk: injected for chosen calls, or drawn at random."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from penstock.sim.disk.disk import SimDisk, SimFile
from penstock.sim.disk.faults import DiskFaults

SEEDS = range(300)


def new_disk(seed: int = 1, fault_seed: int = 2) -> SimDisk:
    """A disk with a durable, empty directory /d."""
    disk = SimDisk(Random(seed), Random(fault_seed))
    disk.mkdir("/d")
    disk.sync_directory("/")
    return disk


def store(disk: SimDisk, path: str, data: bytes, *, fsync: bool = True) -> SimFile:
    file = disk.open(path, create=True)
    assert file.pwrite(data, 0) == len(data)
    if fsync:
        file.fsync()
    return file


def error_code(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:
        call()
    return caught.value.errno


# Failing fsync.


def test_a_failed_fsync_may_lose_writes_even_if_the_next_one_succeeds() -> None:
    """fsync fails once, reads still return the bytes, and a power loss may drop them."""
    outcomes = []
    for seed in SEEDS:
        disk = new_disk(seed)
        file = store(disk, "/d/log", b"safe")
        disk.sync_directory("/d")
        disk.fail_next("fsync", errno.EIO, path_contains="log")
        file.pwrite(b"lost", 4)
        assert error_code(file.fsync) == errno.EIO
        file.fsync()
        file.pwrite(b"late", 8)
        file.fsync()
        assert file.pread(20, 0) == b"safelostlate"
        disk.power_loss()
        outcomes.append(disk.files()["/d/log"])
    assert set(outcomes) == {b"safelostlate", b"safe\0\0\0\0late"}


def test_dropping_caches_shows_what_a_failed_fsync_lost() -> None:
    """Once clean pages are evicted, reads return what is on disk; pending writes stay readable."""
    seen = []
    for seed in SEEDS:
        disk = new_disk(seed)
        file = store(disk, "/d/log", b"lost", fsync=False)
        disk.fail_next("fsync", errno.EIO)
        assert error_code(file.fsync) == errno.EIO
        file.pwrite(b"pending", 10)
        disk.drop_caches()
        content = file.pread(20, 0)
        assert content[4:] == bytes(6) + b"pending"
        seen.append(content[:4])
        assert disk.free_bytes("/") == disk.capacity_bytes - 17
    assert set(seen) == {b"lost", bytes(4)}


def test_a_failed_directory_sync_leaves_names_pending() -> None:
    """The names are not durable until a later sync succeeds."""
    disk = new_disk()
    store(disk, "/d/log", b"data")
    disk.fail_next("sync_directory", errno.EIO, path_contains="/d")
    assert error_code(lambda: disk.sync_directory("/d")) == errno.EIO
    assert disk.durable_files() == {}
    disk.sync_directory("/d")
    assert disk.durable_files() == {"/d/log": b"data"}


# Space.


def test_a_full_disk_writes_part_of_the_data_and_then_fails() -> None:
    """ENOSPC in the middle of a batch: first a short write, then the error."""
    disk = new_disk()
    disk.capacity_bytes = 10
    file = disk.open("/d/log", create=True)
    assert file.pwrite(b"1234567", 0) == 7
    assert disk.free_bytes("/d") == 3
    assert file.pwrite(b"89abcd", 7) == 3
    assert error_code(lambda: file.pwrite(b"bcd", 10)) == errno.ENOSPC
    assert file.pwrite(b"XYZ", 0) == 3, "overwriting needs no space"
    assert file.pwrite(b"!?", 9) == 1
    assert file.pread(99, 0) == b"XYZ456789!"
    for call in (
        lambda: disk.open("/d/other", create=True),
        lambda: disk.mkdir("/d/e"),
    ):
        assert error_code(call) == errno.ENOSPC
    file.truncate(4)
    assert disk.free_bytes("/d") == 6
    disk.open("/d/other", create=True)
    assert disk.counters["fault_enospc"] == 5


def test_a_write_past_the_end_uses_space_for_the_gap() -> None:
    """A write whose gap alone does not fit writes nothing."""
    disk = new_disk()
    disk.capacity_bytes = 10
    file = disk.open("/d/log", create=True)
    assert error_code(lambda: file.pwrite(b"x", 10)) == errno.ENOSPC
    assert file.size() == 0
    assert file.pwrite(b"xyz", 8) == 2
    file.truncate(50)
    assert disk.free_bytes("/") == 0
    assert file.pwrite(b"tail", 48) == 2


def test_space_is_freed_by_the_last_name_and_handle() -> None:
    """Unlinking and replacing free a file's space, but not while it is open."""
    disk = new_disk()
    free = disk.free_bytes("/")
    file = store(disk, "/d/a", b"x" * 100)
    disk.unlink("/d/a")
    assert disk.free_bytes("/") == free - 100
    file.close()
    assert disk.free_bytes("/") == free
    store(disk, "/d/b", b"x" * 10).close()
    store(disk, "/d/c", b"x" * 20).close()
    disk.rename("/d/b", "/d/c")
    assert disk.free_bytes("/") == free - 10


def test_after_a_power_loss_the_used_space_equals_the_size_of_the_files() -> None:
    """The space of lost bytes and lost files is free again."""
    for seed in range(100):
        disk = new_disk(seed)
        store(disk, "/d/a", b"x" * 3000, fsync=False)
        store(disk, "/d/b", b"y" * 500)
        disk.sync_directory("/d")
        disk.unlink("/d/b")
        disk.power_loss()
        used = disk.capacity_bytes - disk.free_bytes("/")
        assert used == sum(len(data) for data in disk.files().values())


def test_open_files_are_limited() -> None:
    """EMFILE occurs at the limit, until a handle is closed or its process dies."""
    disk = SimDisk(Random(1), Random(2), open_files_max=2)
    first = disk.open("/a", create=True)
    disk.open("/b", create=True)
    assert error_code(lambda: disk.open("/a")) == errno.EMFILE
    assert error_code(lambda: disk.open("/c", create=True)) == errno.EMFILE
    assert not disk.exists("/c")
    first.close()
    disk.open("/a")
    disk.kill()
    disk.open("/a")
    assert disk.counters["fault_emfile"] == 2


# Injected faults and random faults.


def test_injected_faults_affect_matching_calls_only() -> None:
    """It matches an operation and a path, lets `skip` calls pass, then fails `times` calls."""
    disk = new_disk()
    log, index = store(disk, "/d/x.log", b"data"), store(disk, "/d/x.index", b"data")
    disk.fail_next("pread", errno.EIO, path_contains=".log", skip=1, times=2)
    assert index.pread(4, 0) == b"data"
    log.fsync()
    assert log.pread(4, 0) == b"data"
    assert error_code(lambda: log.pread(4, 0)) == errno.EIO
    assert index.pread(4, 0) == b"data"
    assert error_code(lambda: log.pread(4, 0)) == errno.EIO
    assert log.pread(4, 0) == b"data"
    assert disk.counters["fault_pread"] == 2


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("open", lambda disk, file: disk.open("/d/log")),
        ("create", lambda disk, file: disk.open("/d/new", create=True)),
        ("pread", lambda disk, file: file.pread(1, 0)),
        ("pwrite", lambda disk, file: file.pwrite(b"XX", 0)),
        ("truncate", lambda disk, file: file.truncate(0)),
        ("fsync", lambda disk, file: file.fsync()),
        ("close", lambda disk, file: file.close()),
        ("stat", lambda disk, file: disk.stat("/d/log")),
        ("stat", lambda disk, file: disk.exists("/d/log")),
        ("listdir", lambda disk, file: disk.listdir("/d")),
        ("mkdir", lambda disk, file: disk.mkdir("/d/new")),
        ("rename", lambda disk, file: disk.rename("/d/log", "/d/new")),
        ("unlink", lambda disk, file: disk.unlink("/d/log")),
        ("rmdir", lambda disk, file: disk.rmdir("/d/empty")),
        ("sync_directory", lambda disk, file: disk.sync_directory("/d")),
        ("free_bytes", lambda disk, file: disk.free_bytes("/d")),
        ("total_bytes", lambda disk, file: disk.total_bytes("/d")),
    ],
)
def test_every_operation_can_fail_without_effect(
    operation: str, call: Callable[[SimDisk, SimFile], object]
) -> None:
    """An injected error has its errno and path, and does not change what processes see."""
    disk = new_disk()
    disk.mkdir("/d/empty")
    file = store(disk, "/d/log", b"data")
    before = disk.files(), disk.durable_files(), disk.listdir("/d")
    disk.fail_next(operation, errno.EIO, path_contains="/d")
    with pytest.raises(OSError, match="injected") as caught:
        call(disk, file)
    assert caught.value.errno == errno.EIO
    assert str(caught.value.filename).startswith("/d")
    assert (disk.files(), disk.durable_files(), disk.listdir("/d")) == before
    assert disk.counters["fault_" + operation] == 1
    call(disk, file)


def test_unknown_operations_and_invalid_probabilities_are_refused() -> None:
    """A misspelt fault must not go unnoticed: the disk would simply never fail."""
    disk = new_disk()
    with pytest.raises(ValueError, match="choose one of open, create"):
        disk.fail_next("flush", errno.EIO)
    with pytest.raises(ValueError, match="at least 1 byte"):
        disk.shorten_next(0)
    with pytest.raises(ValueError, match="short_write is a probability"):
        DiskFaults(short_write=1.5)


def test_an_injected_short_write_returns_how_much_it_wrote() -> None:
    """A short write returns the number of bytes it wrote, and wrote exactly those."""
    disk = new_disk()
    file = disk.open("/d/log", create=True)
    disk.shorten_next(3, path_contains="log")
    assert file.pwrite(b"abcdef", 0) == 3
    assert file.pread(9, 0) == b"abc"
    assert file.pwrite(b"def", 3) == 3
    disk.shorten_next(3)
    assert file.pwrite(b"xy", 0) == 2


@pytest.mark.parametrize(
    ("faults", "counter"),
    [
        (DiskFaults(fsync_eio=0.3), "fault_fsync"),
        (DiskFaults(sync_directory_eio=0.3), "fault_sync_directory"),
        (DiskFaults(read_eio=0.3), "fault_pread"),
        (DiskFaults(write_eio=0.3), "fault_pwrite"),
        (DiskFaults(short_write=0.3), "fault_short_write"),
    ],
)
def test_each_fault_occurs_with_its_own_probability(faults: DiskFaults, counter: str) -> None:
    """A fault occurs about as often as configured, without other faults, and stops after `heal`."""
    disk = new_disk()
    disk.set_faults(faults)
    file = disk.open("/d/log", create=True)
    troubles = 0
    for round_number in range(400):
        if round_number == 300:
            disk.heal()
            fired = troubles
        calls: list[Callable[[], object]] = [
            lambda: file.pwrite(b"four", 0),
            lambda: file.pread(1, 0),
            file.fsync,
            lambda: disk.sync_directory("/d"),
        ]
        for call in calls:
            try:
                troubles += call() in (1, 2, 3)
            except OSError as error:
                assert error.errno == errno.EIO
                troubles += 1
    assert 50 < fired < 130
    assert troubles == fired == disk.counters[counter]
    assert sum(n for name, n in disk.counters.items() if name.startswith("fault_")) == fired


def test_heal_removes_injected_faults() -> None:
    disk = new_disk()
    disk.fail_next("stat", errno.EIO)
    disk.heal()
    assert disk.exists("/d")


def test_an_observer_can_stop_a_process_between_two_calls() -> None:
    """If the observer raises, the call has no effect; all calls before it took effect."""
    disk = new_disk()
    seen: list[tuple[str, str]] = []

    def observer(operation: str, path: str) -> None:
        seen.append((operation, path))
        if operation == "rename":
            raise InterruptedProcess

    disk.observe(observer)
    store(disk, "/d/tmp", b"data")
    with pytest.raises(InterruptedProcess):
        disk.rename("/d/tmp", "/d/log")
    disk.observe(None)
    disk.kill()
    assert disk.files() == {"/d/tmp": b"data"}
    assert seen == [
        ("open", "/d/tmp"),
        ("create", "/d/tmp"),
        ("pwrite", "/d/tmp"),
        ("fsync", "/d/tmp"),
        ("rename", "/d/tmp -> /d/log"),
    ]


class InterruptedProcess(Exception):
    pass


# Bit rot.


def test_rot_flips_one_durable_bit() -> None:
    """The flipped bit is visible at once and survives a power loss; a second flip restores it."""
    disk = new_disk()
    file = store(disk, "/d/log", b"\x00\x00\x00")
    disk.sync_directory("/d")
    disk.rot("/d/log", 1, 3)
    assert file.pread(3, 0) == b"\x00\x08\x00"
    disk.power_loss()
    assert disk.files() == {"/d/log": b"\x00\x08\x00"}
    disk.rot("/d/log", 1, 3)
    assert disk.files() == {"/d/log": bytes(3)}


def test_rot_is_hidden_by_a_pending_write() -> None:
    """Unflushed bytes are in memory: rot below them shows only if they are lost."""
    disk = new_disk()
    file = store(disk, "/d/log", b"aaaa")
    disk.sync_directory("/d")
    file.pwrite(b"bb", 0)
    disk.rot("/d/log", 0, 0)
    assert file.pread(4, 0) == b"bbaa"
    assert disk.durable_files() == {"/d/log": b"`aaa"}
    file.fsync()
    assert disk.durable_files() == {"/d/log": b"bbaa"}
    with pytest.raises(ValueError, match="4 durable bytes"):
        disk.rot("/d/log", 4, 0)


def test_random_rot_returns_the_bit_that_it_flipped() -> None:
    """Random rot flips one durable bit of one matching file, and returns which."""
    disk = new_disk()
    assert disk.rot_random() is None
    store(disk, "/d/a.log", bytes(50))
    store(disk, "/d/b.log", bytes(50))
    store(disk, "/d/b.index", bytes(50))
    hit = {}
    for _ in range(40):
        before = disk.files()
        found = disk.rot_random(".log")
        assert found is not None
        path, position, bit = found
        expected = bytearray(before[path])
        expected[position] ^= 1 << bit
        assert disk.files() == before | {path: bytes(expected)}
        hit[path] = True
    assert sorted(hit) == ["/d/a.log", "/d/b.log"]
    assert disk.counters["fault_corrupt"] == 40


def test_corrupt_overwrites_durable_bytes_without_an_error() -> None:
    """A misdirected block replaces good bytes without an error."""
    disk = new_disk()
    store(disk, "/d/log", b"good block")
    disk.corrupt("/d/log", 5, b"WRONG")
    assert disk.files() == {"/d/log": b"good WRONG"}
    with pytest.raises(ValueError, match="cannot be corrupted"):
        disk.corrupt("/d/log", 8, b"WRONG")


def test_a_lost_file_is_durably_gone() -> None:
    """The file is missing at once and after any crash, whether or not its name was synced."""
    for seed in range(50):
        disk = new_disk(seed)
        file = store(disk, "/d/log", b"data")
        store(disk, "/d/other", b"kept")
        disk.sync_directory("/d")
        disk.rename("/d/log", "/d/log2")
        disk.lose_file("/d/log2")
        assert disk.listdir("/d") == ["other"]
        assert file.pread(4, 0) == b"data"
        disk.power_loss()
        assert disk.files() == {"/d/other": b"kept"}
        assert disk.free_bytes("/") == disk.capacity_bytes - 4


# A wiped disk, and the two streams of random numbers.


def test_a_wiped_disk_is_empty_even_after_a_power_loss() -> None:
    """No old file comes back, and new files can be created."""
    disk = new_disk()
    store(disk, "/a", b"old").close()
    disk.wipe()
    disk.power_loss()
    assert disk.files() == {}
    assert disk.free_bytes("/") == disk.capacity_bytes
    store(disk, "/a", b"new").close()
    assert disk.files() == {"/a": b"new"}


def test_a_disk_in_use_is_not_wiped() -> None:
    """Its process would continue with files that are gone."""
    disk = new_disk()
    store(disk, "/a", b"old")
    with pytest.raises(RuntimeError, match="kill it first"):
        disk.wipe()


def test_faults_do_not_change_the_outcome_of_a_power_loss() -> None:
    """Extra draws from the fault stream do not change what a power loss does."""

    def run(faults: DiskFaults) -> dict[str, bytes]:
        disk = SimDisk(Random(5), Random(6), faults=faults)
        file = disk.open("/log", create=True)
        for number in range(30):
            file.pwrite(b"x" * 700, number * 700)
            disk.exists("/log")
            with_retry(lambda: file.pread(1, 0))
        disk.power_loss()
        return disk.files()

    assert run(DiskFaults()) == run(DiskFaults(read_eio=0.5))


def with_retry(call: Callable[[], object]) -> None:
    while True:
        try:
            call()
        except OSError:
            continue
        return
