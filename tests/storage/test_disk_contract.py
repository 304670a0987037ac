"""One test suite for every `Disk`: what storage code requires of the real and the simulated one."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.ports import Disk, File
from penstock.sim.disk.disk import SimDisk
from penstock.storage.disk import OsDisk, OsFile


class Volume:
    """A disk and an empty directory on it."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root

    def __call__(self, *names: str) -> str:
        return "/".join((self.root, *names))

    def write(self, name: str, data: bytes) -> None:
        file = self.disk.open(self(name), create=True)
        assert file.pwrite(data, 0) == len(data)
        file.close()

    def read(self, name: str) -> bytes:
        file = self.disk.open(self(name))
        data = file.pread(file.size() + 1, 0)
        file.close()
        return data


def new_volume(kind: str, folder: Path) -> Volume:
    if kind == "real":
        return Volume(OsDisk(), str(folder))
    disk = SimDisk(Random(1), Random(2))
    disk.mkdir("/data")
    return Volume(disk, "/data")


@pytest.fixture(params=["real", "simulated"])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Volume:
    return new_volume(request.param, tmp_path)


def test_open_without_create_needs_a_file(volume: Volume) -> None:
    """A missing file is not created unless `create` is set."""
    with pytest.raises(FileNotFoundError):
        volume.disk.open(volume("absent"))
    assert not volume.disk.exists(volume("absent"))


def test_open_with_create_keeps_an_existing_file(volume: Volume) -> None:
    """`create` makes an empty file only where there is none."""
    volume.write("log", b"kept")
    assert volume.read("log") == b"kept"
    volume.write("log", b"K")
    assert volume.read("log") == b"Kept"


def test_open_needs_the_directory(volume: Volume) -> None:
    """Creating a file does not create its parent directories."""
    with pytest.raises(FileNotFoundError):
        volume.disk.open(volume("absent", "log"), create=True)


@pytest.mark.parametrize("create", [False, True])
def test_a_directory_cannot_be_opened(volume: Volume, create: bool) -> None:
    """It raises IsADirectoryError."""
    with pytest.raises(IsADirectoryError):
        volume.disk.open(volume.root, create=create)


def test_a_file_cannot_be_used_as_a_directory(volume: Volume) -> None:
    """Every call refuses a path that leads through a file."""
    volume.write("log", b"")
    below = volume("log", "x")
    for refused in (
        lambda: volume.disk.open(below, create=True),
        lambda: volume.disk.stat(below),
        lambda: volume.disk.listdir(volume("log")),
        lambda: volume.disk.mkdir(below),
        lambda: volume.disk.rename(volume("log"), below),
        lambda: volume.disk.unlink(below),
        lambda: volume.disk.rmdir(volume("log")),
        lambda: volume.disk.sync_directory(volume("log")),
    ):
        with pytest.raises(NotADirectoryError):
            refused()
    assert not volume.disk.exists(below)


def test_reads_stop_at_the_end(volume: Volume) -> None:
    """A read past the end returns only the bytes that exist."""
    file = volume.disk.open(volume("log"), create=True)
    file.pwrite(b"0123456789", 0)
    assert file.pread(4, 3) == b"3456"
    assert file.pread(100, 7) == b"789"
    assert file.pread(5, 10) == b""
    assert file.pread(5, 99) == b""
    assert file.pread(0, 0) == b""
    assert type(file.pread(2, 0)) is bytes
    file.close()


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_written(volume: Volume, make: type) -> None:
    """Batches are written from the buffer that contains them. Later changes of it do not matter."""
    source = bytearray(b"batch")
    file = volume.disk.open(volume("log"), create=True)
    assert file.pwrite(make(source), 0) == 5
    source[0] = 0
    assert file.pread(5, 0) == b"batch"
    file.close()


def test_an_empty_write_changes_nothing(volume: Volume) -> None:
    """Writing no bytes past the end does not make the file longer."""
    file = volume.disk.open(volume("log"), create=True)
    assert file.pwrite(b"", 50) == 0
    assert file.size() == 0
    file.close()


def test_writing_past_the_end_leaves_zeros(volume: Volume) -> None:
    """The gap before a write past the end reads as zeros."""
    file = volume.disk.open(volume("log"), create=True)
    file.pwrite(b"ab", 0)
    file.pwrite(b"z", 5)
    assert file.size() == 6
    assert file.pread(10, 0) == b"ab\0\0\0z"
    file.close()


def test_truncate_cuts_and_extends(volume: Volume) -> None:
    """Cut bytes do not come back when the file is extended: zeros do."""
    file = volume.disk.open(volume("log"), create=True)
    file.pwrite(b"abcdef", 0)
    file.truncate(2)
    assert (file.size(), file.pread(10, 0)) == (2, b"ab")
    file.truncate(5)
    assert (file.size(), file.pread(10, 0)) == (5, b"ab\0\0\0")
    file.fsync()
    assert volume.disk.stat(volume("log")).size == 5
    file.close()


def test_invalid_positions_are_refused(volume: Volume) -> None:
    """A negative position or size is a bug of the caller. The error is EINVAL."""
    file = volume.disk.open(volume("log"), create=True)
    for refused in (
        lambda: file.pread(1, -1),
        lambda: file.pwrite(b"x", -1),
        lambda: file.truncate(-1),
    ):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.EINVAL
    file.close()


def test_handles_share_the_file(volume: Volume) -> None:
    """A reader's handle sees at once what a writer's handle wrote."""
    writer = volume.disk.open(volume("log"), create=True)
    reader = volume.disk.open(volume("log"))
    writer.pwrite(b"seen", 0)
    assert reader.pread(4, 0) == b"seen"
    assert reader.size() == 4
    writer.close()
    assert reader.pread(4, 0) == b"seen"
    reader.close()


def test_a_closed_handle_cannot_be_used(volume: Volume) -> None:
    """Every call raises EBADF, except closing it again."""
    file = volume.disk.open(volume("log"), create=True)
    file.close()
    file.close()
    for refused in (
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.size,
        file.fsync,
    ):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.EBADF


def test_an_unlinked_file_stays_readable_while_open(volume: Volume) -> None:
    """Retention may delete a segment that a fetch is still reading."""
    volume.write("log", b"still here")
    file = volume.disk.open(volume("log"))
    volume.disk.unlink(volume("log"))
    assert not volume.disk.exists(volume("log"))
    assert file.pread(10, 0) == b"still here"
    assert file.pwrite(b"S", 0) == 1
    file.fsync()
    volume.write("log", b"another")
    assert file.pread(10, 0) == b"Still here"
    assert volume.read("log") == b"another"
    file.close()


def test_a_discarded_file_is_removed_in_the_end(volume: Volume) -> None:
    volume.write("log", b"0123456789" * 1_000_000)
    while not volume.disk.discard(volume("log")):
        assert volume.disk.exists(volume("log"))
    assert not volume.disk.exists(volume("log"))
    with pytest.raises(FileNotFoundError):
        volume.disk.discard(volume("log"))


def test_a_discarded_file_stays_complete_for_its_readers(volume: Volume) -> None:
    """A response may still be sent from the file of a deleted log."""
    data = b"0123456789" * 1_000_000
    volume.write("log", data)
    file = volume.disk.open(volume("log"))
    assert volume.disk.discard(volume("log"))
    assert file.pread(len(data), 0) == data
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who has a file open")
def test_a_large_file_is_freed_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(9 << 20))
    sizes = []
    while not OsDisk().discard(str(path)):
        sizes.append(path.stat().st_size)
    assert sizes == [5 << 20, 1 << 20]
    assert not path.exists()


def test_rename_keeps_handles_valid(volume: Volume) -> None:
    """A handle follows its file to the new name."""
    volume.write("log", b"moved")
    file = volume.disk.open(volume("log"))
    volume.disk.rename(volume("log"), volume("log.deleted"))
    file.pwrite(b"M", 0)
    file.close()
    assert volume.disk.listdir(volume.root) == ["log.deleted"]
    assert volume.read("log.deleted") == b"Moved"


def test_rename_replaces_its_target(volume: Volume) -> None:
    """The target's old file has no name any more, but open handles can still read it."""
    volume.write("new", b"new")
    volume.write("log", b"old")
    old = volume.disk.open(volume("log"))
    volume.disk.rename(volume("new"), volume("log"))
    assert volume.disk.listdir(volume.root) == ["log"]
    assert volume.read("log") == b"new"
    assert old.pread(3, 0) == b"old"
    old.close()


def test_rename_to_the_same_name_changes_nothing(volume: Volume) -> None:
    volume.write("log", b"same")
    volume.disk.rename(volume("log"), volume("log"))
    assert volume.read("log") == b"same"


def test_rename_between_directories(volume: Volume) -> None:
    """Files and directories move with their contents."""
    volume.disk.mkdir(volume("a", "deep"))
    volume.disk.mkdir(volume("b"))
    volume.write("a/deep/log", b"x")
    volume.disk.rename(volume("a", "deep"), volume("b", "deep"))
    volume.disk.rename(volume("b", "deep", "log"), volume("b", "log"))
    assert volume.disk.listdir(volume("a")) == []
    assert volume.disk.listdir(volume("b")) == ["deep", "log"]
    assert volume.read("b/log") == b"x"


def test_invalid_renames_are_refused(volume: Volume) -> None:
    """Nothing is changed, and the error gives the reason."""
    volume.write("file", b"")
    volume.disk.mkdir(volume("full", "child"))
    volume.disk.mkdir(volume("empty"))
    with pytest.raises(FileNotFoundError):
        volume.disk.rename(volume("absent"), volume("x"))
    with pytest.raises(FileNotFoundError):
        volume.disk.rename(volume("file"), volume("absent", "x"))
    with pytest.raises(IsADirectoryError):
        volume.disk.rename(volume("file"), volume("empty"))
    with pytest.raises(NotADirectoryError):
        volume.disk.rename(volume("empty"), volume("file"))
    for source, target, code in (
        (volume("empty"), volume("full"), errno.ENOTEMPTY),
        (volume("full"), volume("full", "child", "x"), errno.EINVAL),
    ):
        with pytest.raises(OSError) as caught:
            volume.disk.rename(source, target)
        assert caught.value.errno == code
    assert volume.disk.listdir(volume.root) == ["empty", "file", "full"]
    volume.disk.rename(volume("full"), volume("empty"))
    assert volume.disk.listdir(volume("empty")) == ["child"]


def test_mkdir_creates_parents_and_may_be_repeated(volume: Volume) -> None:
    """It fails if there is a file of that name."""
    volume.disk.mkdir(volume("a", "b", "c"))
    volume.disk.mkdir(volume("a", "b", "c"))
    assert volume.disk.listdir(volume("a", "b")) == ["c"]
    assert volume.disk.stat(volume("a")).is_directory
    volume.write("a/log", b"")
    with pytest.raises(FileExistsError):
        volume.disk.mkdir(volume("a", "log"))


def test_listdir_is_sorted(volume: Volume) -> None:
    """Whatever the order in which the files were created."""
    for name in ("b", "c", "B", "10", "9", "a"):
        volume.write(name, b"")
    assert volume.disk.listdir(volume.root) == ["10", "9", "B", "a", "b", "c"]
    with pytest.raises(FileNotFoundError):
        volume.disk.listdir(volume("absent"))


def test_removal(volume: Volume) -> None:
    """`unlink` removes only files, `rmdir` only empty directories."""
    volume.disk.mkdir(volume("d"))
    volume.write("d/log", b"")
    with pytest.raises(OSError) as caught:
        volume.disk.rmdir(volume("d"))
    assert caught.value.errno == errno.ENOTEMPTY
    with pytest.raises(IsADirectoryError):
        volume.disk.unlink(volume("d"))
    volume.disk.unlink(volume("d", "log"))
    volume.disk.rmdir(volume("d"))
    assert volume.disk.listdir(volume.root) == []
    gone = (volume.disk.unlink, volume.disk.rmdir, volume.disk.stat)
    for refused in (*gone, volume.disk.free_bytes, volume.disk.total_bytes):
        with pytest.raises(FileNotFoundError):
            refused(volume("d"))


def test_stat_returns_size_time_and_kind(volume: Volume) -> None:
    """`modified_ms` never goes back while a file is written."""
    volume.write("log", b"12345")
    before = volume.disk.stat(volume("log"))
    assert (before.size, before.is_directory) == (5, False)
    volume.write("log", b"123456")
    after = volume.disk.stat(volume("log"))
    assert after.size == 6
    assert after.modified_ms >= before.modified_ms
    assert volume.disk.stat(volume.root).is_directory


def test_syncing_is_allowed_at_any_time(volume: Volume) -> None:
    """Syncs may be repeated and change nothing that a process sees."""
    file = volume.disk.open(volume("log"), create=True)
    file.fsync()
    file.pwrite(b"x", 0)
    file.fsync()
    file.fsync()
    volume.disk.sync_directory(volume.root)
    volume.disk.sync_directory(volume.root)
    with pytest.raises(FileNotFoundError):
        volume.disk.sync_directory(volume("absent"))
    assert file.pread(1, 0) == b"x"
    file.close()


def test_free_and_total_space_are_known(volume: Volume) -> None:
    """A broker can react to low space before the disk is full, and report the size of the disk."""
    total = volume.disk.total_bytes(volume.root)
    assert 0 < volume.disk.free_bytes(volume.root) <= total
    volume.write("log", b"12345")
    assert volume.disk.total_bytes(volume.root) == total


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pwrite"), st.integers(0, 40), st.binary(max_size=12)),
        st.tuples(st.just("truncate"), st.integers(0, 40), st.just(b"")),
        st.tuples(st.just("fsync"), st.just(0), st.just(b"")),
    ),
    max_size=25,
)


def run(file: File, steps: list[tuple[str, int, bytes]]) -> list[tuple[int, bytes]]:
    seen = []
    file.truncate(0)
    for operation, number, data in steps:
        if operation == "pwrite":
            assert file.pwrite(data, number) == len(data)
        elif operation == "truncate":
            file.truncate(number)
        else:
            file.fsync()
        seen.append((file.size(), file.pread(100, 0)))
    file.close()
    return seen


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_both_disks_show_the_same_bytes(
    tmp_path: Path, steps: list[tuple[str, int, bytes]]
) -> None:
    """After any writes, cuts and extensions the simulated file reads like the real one."""
    real, simulated = (new_volume(kind, tmp_path) for kind in ("real", "simulated"))
    assert run(real.disk.open(real("log"), create=True), steps) == run(
        simulated.disk.open(simulated("log"), create=True), steps
    )


def test_real_reads_continue_after_a_short_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short read in the middle of a file is not mistaken for its end."""
    file = OsDisk().open(str(tmp_path / "log"), create=True)
    file.pwrite(bytes(range(100)), 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    assert file.pread(60, 20) == bytes(range(20, 80))
    assert file.pread(60, 80) == bytes(range(80, 100))
    file.close()


def test_real_files_have_a_file_descriptor(tmp_path: Path) -> None:
    """`fileno` returns the open descriptor. Child processes do not inherit it."""
    file = OsDisk().open(str(tmp_path / "log"), create=True)
    assert isinstance(file, OsFile)
    file.pwrite(b"sent", 0)
    assert os.pread(file.fileno(), 4, 0) == b"sent"
    assert not os.get_inheritable(file.fileno())
    file.close()
    assert file.fileno() == -1
