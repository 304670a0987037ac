"""The simulated disk: what survives a power loss, and what is lost when a process is killed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from penstock.sim.disk.disk import SimDisk, SimFile

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


def after_power_loss(
    prepare: Callable[[SimDisk], object], seeds: range = SEEDS
) -> list[dict[str, bytes]]:
    """Returns the files on the disk after a power loss, one result per seed."""
    outcomes = []
    for seed in seeds:
        disk = new_disk(seed)
        prepare(disk)
        disk.power_loss()
        assert disk.files() == disk.durable_files()
        outcomes.append(disk.files())
    return outcomes


def error_code(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:
        call()
    return caught.value.errno


# Bytes and power loss.


def test_synced_bytes_under_a_synced_name_survive() -> None:
    """Durable data needs fsync of the file and a sync of its directory."""

    def prepare(disk: SimDisk) -> None:
        store(disk, "/d/log", b"safe")
        disk.sync_directory("/d")

    assert all(files == {"/d/log": b"safe"} for files in after_power_loss(prepare))


def test_unsynced_bytes_are_kept_dropped_or_torn() -> None:
    """A write without fsync may survive completely, in part, as zeros, or not at all."""
    data = bytes(range(1, 251)) * 40

    def prepare(disk: SimDisk) -> None:
        file = store(disk, "/d/log", b"")
        disk.sync_directory("/d")
        file.pwrite(data, 0)

    outcomes = [files["/d/log"] for files in after_power_loss(prepare)]
    assert {b"", data} < set(outcomes)
    torn = [content for content in outcomes if content not in (b"", data)]
    for content in torn:
        assert len(content) == len(data) or len(content) % 512 == 0
        for start in range(0, len(content), 512):
            piece = content[start : start + 512]
            assert piece in (data[start : start + 512], bytes(len(piece)))
    lasting = [[any(c[s : s + 512]) for s in range(0, len(c), 512)] for c in torn]
    assert any(True in sectors[sectors.index(False) :] for sectors in lasting if False in sectors)
    assert any(content and not any(content) for content in torn), "length without bytes"


def test_a_later_write_may_survive_an_earlier_one() -> None:
    """The disk reorders writes between barriers; the gap left by a lost write reads as zeros."""

    def prepare(disk: SimDisk) -> None:
        file = store(disk, "/d/log", b"")
        disk.sync_directory("/d")
        file.pwrite(b"first", 0)
        file.pwrite(b"second", 5)

    outcomes = [files["/d/log"] for files in after_power_loss(prepare)]
    assert {b"", b"first", bytes(5) + b"second", b"firstsecond"} <= set(outcomes)


def test_an_overwrite_leaves_old_or_new_sectors_and_spares_the_rest() -> None:
    """Overwriting synced bytes risks those bytes only, sector by sector."""
    old, new = b"o" * 2048, b"n" * 1024

    def prepare(disk: SimDisk) -> None:
        file = store(disk, "/d/log", old)
        disk.sync_directory("/d")
        file.pwrite(new, 512)

    outcomes = [files["/d/log"] for files in after_power_loss(prepare)]
    assert all(c[:512] == old[:512] and c[1536:] == old[1536:] for c in outcomes)
    middles = {c[512:1536] for c in outcomes}
    half = new[:512], old[:512]
    assert middles == {old[:1024], new, half[0] + half[1], half[1] + half[0]}


def test_a_truncation_may_be_undone() -> None:
    """Without fsync a truncated file may have its old length, with new bytes before the tail."""

    def prepare(disk: SimDisk) -> None:
        file = store(disk, "/d/log", b"abcdef")
        disk.sync_directory("/d")
        file.truncate(2)
        file.pwrite(b"XY", 2)

    outcomes = {files["/d/log"] for files in after_power_loss(prepare)}
    assert outcomes >= {b"abcdef", b"ab", b"abXY", b"abXYef"}


def test_a_synced_truncation_stays() -> None:
    """fsync makes the size durable too."""

    def prepare(disk: SimDisk) -> None:
        file = store(disk, "/d/log", b"abcdef")
        file.truncate(2)
        file.fsync()
        disk.sync_directory("/d")

    assert all(files == {"/d/log": b"ab"} for files in after_power_loss(prepare))


def test_survivors_of_one_crash_are_durable_in_the_next() -> None:
    """What is readable after a power loss is on the disk, and survives the next one."""
    for seed in range(100):
        disk = new_disk(seed)
        store(disk, "/d/log", b"x" * 5000, fsync=False)
        disk.power_loss()
        survived = disk.files()
        disk.power_loss()
        assert disk.files() == survived


# Names and power loss.


def test_a_name_that_was_not_synced_may_be_gone() -> None:
    """fsync of a file does not make its name durable."""
    outcomes = after_power_loss(lambda disk: store(disk, "/d/log", b"data"))
    assert {tuple(files.items()) for files in outcomes} == {(), (("/d/log", b"data"),)}


def test_a_synced_name_does_not_make_the_bytes_durable() -> None:
    """Syncing the directory does not make the bytes of its files durable."""

    def prepare(disk: SimDisk) -> None:
        store(disk, "/d/log", b"data", fsync=False)
        disk.sync_directory("/d")

    outcomes = {files["/d/log"] for files in after_power_loss(prepare)}
    assert outcomes == {b"", b"data", bytes(4)}


def test_a_new_directory_needs_its_parent_synced() -> None:
    """Syncing a directory makes the names in it durable, not its own name."""

    def prepare(disk: SimDisk) -> None:
        disk.mkdir("/d/topic")
        store(disk, "/d/topic/log", b"data")
        disk.sync_directory("/d/topic")

    outcomes = after_power_loss(prepare)
    assert {} in outcomes
    assert {"/d/topic/log": b"data"} in outcomes

    def prepare_safely(disk: SimDisk) -> None:
        prepare(disk)
        disk.sync_directory("/d")

    assert all(f == {"/d/topic/log": b"data"} for f in after_power_loss(prepare_safely))


def test_rename_over_a_file_leaves_the_old_or_the_new_one() -> None:
    """The checkpoint pattern: temporary file, fsync, rename. The target is never missing."""

    def prepare(disk: SimDisk) -> None:
        store(disk, "/d/checkpoint", b"old")
        disk.sync_directory("/d")
        store(disk, "/d/checkpoint.tmp", b"new")
        disk.rename("/d/checkpoint.tmp", "/d/checkpoint")

    outcomes = after_power_loss(prepare)
    assert all(
        files
        in (
            {"/d/checkpoint": b"old"},
            {"/d/checkpoint": b"old", "/d/checkpoint.tmp": b"new"},
            {"/d/checkpoint": b"new"},
        )
        for files in outcomes
    )
    assert {"/d/checkpoint": b"old"} in outcomes
    assert {"/d/checkpoint": b"new"} in outcomes


def test_a_rename_may_survive_without_its_data() -> None:
    """Renaming before fsync may replace a good file by an empty one, even if the name is synced."""

    def prepare(disk: SimDisk) -> None:
        store(disk, "/d/checkpoint", b"old")
        disk.sync_directory("/d")
        store(disk, "/d/checkpoint.tmp", b"new", fsync=False)
        disk.rename("/d/checkpoint.tmp", "/d/checkpoint")
        disk.sync_directory("/d")

    outcomes = {files["/d/checkpoint"] for files in after_power_loss(prepare)}
    assert outcomes == {b"", b"new", bytes(3)}


def test_a_rename_between_directories_is_atomic() -> None:
    """A moved file is in exactly one of the two directories, even if the target is new itself."""

    def prepare(disk: SimDisk) -> None:
        store(disk, "/d/log", b"data")
        disk.sync_directory("/d")
        disk.mkdir("/e/f")
        disk.rename("/d/log", "/e/f/log")

    outcomes = after_power_loss(prepare)
    assert all(files in ({"/d/log": b"data"}, {"/e/f/log": b"data"}) for files in outcomes)
    assert {"/d/log": b"data"} in outcomes
    assert {"/e/f/log": b"data"} in outcomes

    def prepare_synced(disk: SimDisk) -> None:
        prepare(disk)
        disk.sync_directory("/d")

    assert all(f == {"/e/f/log": b"data"} for f in after_power_loss(prepare_synced))


def test_a_removed_directory_does_not_take_a_moved_file_with_it() -> None:
    """Moving a file out and removing its directory never loses the file."""

    def prepare(disk: SimDisk) -> None:
        disk.mkdir("/d/old")
        store(disk, "/d/old/log", b"data")
        disk.sync_directory("/d/old")
        disk.sync_directory("/d")
        disk.rename("/d/old/log", "/d/log")
        disk.rmdir("/d/old")

    outcomes = after_power_loss(prepare)
    assert all(files in ({"/d/old/log": b"data"}, {"/d/log": b"data"}) for files in outcomes)


def test_changes_to_different_names_are_independent_but_each_name_keeps_its_order() -> None:
    """Unrelated names may survive in any combination; one name never skips a step."""

    def prepare(disk: SimDisk) -> None:
        store(disk, "/d/a", b"a")
        store(disk, "/d/b", b"b")
        disk.sync_directory("/d")
        disk.unlink("/d/a")
        disk.unlink("/d/b")
        store(disk, "/d/b", b"B")
        disk.unlink("/d/b")
        store(disk, "/d/b", b"again")

    outcomes = after_power_loss(prepare, range(600))
    pairs = {(files.get("/d/a"), files.get("/d/b")) for files in outcomes}
    assert pairs == {(a, b) for a in (b"a", None) for b in (b"b", None, b"B", b"again")}


def test_an_unlink_may_be_undone() -> None:
    """A deleted segment may be back after a power loss, unless its directory was synced."""

    def prepare(disk: SimDisk) -> None:
        store(disk, "/d/log", b"data").close()
        disk.sync_directory("/d")
        disk.unlink("/d/log")

    outcomes = after_power_loss(prepare)
    assert {} in outcomes
    assert {"/d/log": b"data"} in outcomes

    def prepare_synced(disk: SimDisk) -> None:
        prepare(disk)
        disk.sync_directory("/d")

    assert all(not files for files in after_power_loss(prepare_synced))


def test_a_file_that_reappears_can_be_used_and_its_space_counts() -> None:
    """A file whose removal was lost is an ordinary file again and uses space again."""
    revived = 0
    for seed in range(50):
        disk = new_disk(seed)
        store(disk, "/d/log", b"data").close()
        disk.sync_directory("/d")
        empty = disk.capacity_bytes
        disk.unlink("/d/log")
        assert disk.free_bytes("/") == empty
        disk.power_loss()
        if disk.exists("/d/log"):
            revived += 1
            assert disk.free_bytes("/") == empty - 4
            store(disk, "/d/log", b"longer").close()
            assert disk.free_bytes("/") == empty - 6
            disk.unlink("/d/log")
            assert disk.free_bytes("/") == empty
    assert 0 < revived < 50


def test_a_file_that_reappears_may_have_lost_its_unsynced_bytes() -> None:
    """Removing a file does not make its unsynced bytes durable if the removal is undone."""

    def prepare(disk: SimDisk) -> None:
        file = store(disk, "/d/log", b"data", fsync=False)
        disk.sync_directory("/d")
        disk.unlink("/d/log")
        file.close()

    outcomes = {files.get("/d/log") for files in after_power_loss(prepare)}
    assert outcomes == {None, b"", b"data", bytes(4)}


@pytest.mark.parametrize("close_first", [True, False])
def test_a_file_whose_removal_is_synced_is_forgotten(close_first: bool) -> None:
    """After a synced removal and the last close, a power loss decides nothing about its bytes."""
    disk = new_disk()
    file = store(disk, "/d/log", b"data", fsync=False)
    if close_first:
        file.close()
    disk.unlink("/d/log")
    disk.sync_directory("/d")
    file.close()
    disk.power_loss()
    assert sum(disk.counters["bytes_" + fate] for fate in ("kept", "dropped", "torn")) == 0


# Dead handles.


@pytest.mark.parametrize("crash", ["kill", "power_loss"])
def test_file_handles_are_invalid_after_a_crash(crash: str) -> None:
    """After a crash every call on an old handle raises EBADF, including close."""
    disk = new_disk()
    file = store(disk, "/d/log", b"data")
    disk.sync_directory("/d")
    assert disk.open_paths() == ["/d/log"]
    getattr(disk, crash)()
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.size,
        file.fsync,
        file.close,
    ):
        assert error_code(call) == errno.EBADF
    assert disk.open_paths() == []
    assert disk.open("/d/log").pread(10, 0) == b"data"


def test_kill_keeps_the_page_cache() -> None:
    """SIGKILL loses no written data, and makes none of it durable."""
    disk = new_disk()
    store(disk, "/d/log", b"written", fsync=False)
    disk.rename("/d/log", "/d/log2")
    disk.kill()
    assert disk.files() == {"/d/log2": b"written"}
    assert disk.durable_files() == {}
    assert disk.counters["kill"] == 1


def test_kill_frees_files_that_were_unlinked_while_open() -> None:
    """Their space is freed when the last process that had them open is gone."""
    disk = new_disk()
    free = disk.free_bytes("/")
    store(disk, "/d/log", b"x" * 100)
    disk.unlink("/d/log")
    assert disk.free_bytes("/") == free - 100
    disk.kill()
    assert disk.free_bytes("/") == free


# Modification times, unsupported paths.


def test_modification_times_come_from_the_clock() -> None:
    """`modified_ms` is the time of the last write; fsync and rename do not change it."""
    now = 1000
    disk = SimDisk(Random(1), Random(2), now_ms=lambda: now)
    file = disk.open("/log", create=True)
    now = 2000
    file.pwrite(b"x", 0)
    now = 3000
    file.fsync()
    assert disk.stat("/log").modified_ms == 2000
    assert disk.stat("/").modified_ms == 1000
    disk.rename("/log", "/log2")
    assert disk.stat("/log2").modified_ms == 2000
    assert disk.stat("/").modified_ms == 3000


def test_dot_dot_is_refused() -> None:
    """The simulated disk refuses paths that it does not support."""
    assert error_code(lambda: new_disk().open("/d/../log", create=True)) == errno.EINVAL


def test_the_root_cannot_be_removed_or_renamed() -> None:
    disk = SimDisk(Random(1), Random(2))
    assert error_code(lambda: disk.rmdir("/")) == errno.EBUSY
    assert error_code(lambda: disk.rename("/", "/d")) == errno.EBUSY
    assert error_code(lambda: disk.unlink("/")) == errno.EISDIR
