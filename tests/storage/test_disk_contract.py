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


class Place:
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


def new_place(kind: str, folder: Path) -> Place:
    if kind == "real":
        return Place(OsDisk(), str(folder))
    disk = SimDisk(Random(1), Random(2))
    disk.mkdir("/data")
    return Place(disk, "/data")


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return new_place(request.param, tmp_path)


def test_open_without_create_needs_a_file(place: Place) -> None:
    """A missing file is not created unless `create` is set."""
    with pytest.raises(FileNotFoundError):
        place.disk.open(place("absent"))
    assert not place.disk.exists(place("absent"))


def test_open_with_create_keeps_an_existing_file(place: Place) -> None:
    """`create` makes an empty file only where there is none."""
    place.write("log", b"kept")
    assert place.read("log") == b"kept"
    place.write("log", b"K")
    assert place.read("log") == b"Kept"


def test_open_needs_the_directory(place: Place) -> None:
    """Creating a file does not create its parent directories."""
    with pytest.raises(FileNotFoundError):
        place.disk.open(place("absent", "log"), create=True)


@pytest.mark.parametrize("create", [False, True])
def test_a_directory_cannot_be_opened(place: Place, create: bool) -> None:
    """It raises IsADirectoryError."""
    with pytest.raises(IsADirectoryError):
        place.disk.open(place.root, create=create)


def test_a_file_cannot_be_used_as_a_directory(place: Place) -> None:
    """Every call refuses a path that leads through a file."""
    place.write("log", b"")
    below = place("log", "x")
    for refused in (
        lambda: place.disk.open(below, create=True),
        lambda: place.disk.stat(below),
        lambda: place.disk.listdir(place("log")),
        lambda: place.disk.mkdir(below),
        lambda: place.disk.rename(place("log"), below),
        lambda: place.disk.unlink(below),
        lambda: place.disk.rmdir(place("log")),
        lambda: place.disk.sync_directory(place("log")),
    ):
        with pytest.raises(NotADirectoryError):
            refused()
    assert not place.disk.exists(below)


def test_reads_stop_at_the_end(place: Place) -> None:
    """A read past the end returns only the bytes that exist."""
    file = place.disk.open(place("log"), create=True)
    file.pwrite(b"0123456789", 0)
    assert file.pread(4, 3) == b"3456"
    assert file.pread(100, 7) == b"789"
    assert file.pread(5, 10) == b""
    assert file.pread(5, 99) == b""
    assert file.pread(0, 0) == b""
    assert type(file.pread(2, 0)) is bytes
    file.close()


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_written(place: Place, make: type) -> None:
    """Batches are written from the buffer that contains them. Later changes of it do not matter."""
    source = bytearray(b"batch")
    file = place.disk.open(place("log"), create=True)
    assert file.pwrite(make(source), 0) == 5
    source[0] = 0
    assert file.pread(5, 0) == b"batch"
    file.close()


def test_an_empty_write_changes_nothing(place: Place) -> None:
    """Writing no bytes past the end does not make the file longer."""
    file = place.disk.open(place("log"), create=True)
    assert file.pwrite(b"", 50) == 0
    assert file.size() == 0
    file.close()


def test_writing_past_the_end_leaves_zeros(place: Place) -> None:
    """The gap before a write past the end reads as zeros."""
    file = place.disk.open(place("log"), create=True)
    file.pwrite(b"ab", 0)
    file.pwrite(b"z", 5)
    assert file.size() == 6
    assert file.pread(10, 0) == b"ab\0\0\0z"
    file.close()


def test_truncate_cuts_and_extends(place: Place) -> None:
    """Cut bytes do not come back when the file is extended: zeros do."""
    file = place.disk.open(place("log"), create=True)
    file.pwrite(b"abcdef", 0)
    file.truncate(2)
    assert (file.size(), file.pread(10, 0)) == (2, b"ab")
    file.truncate(5)
    assert (file.size(), file.pread(10, 0)) == (5, b"ab\0\0\0")
    file.fsync()
    assert place.disk.stat(place("log")).size == 5
    file.close()


def test_invalid_positions_are_refused(place: Place) -> None:
    """A negative position or size is a bug of the caller. The error is EINVAL."""
    file = place.disk.open(place("log"), create=True)
    for refused in (
        lambda: file.pread(1, -1),
        lambda: file.pwrite(b"x", -1),
        lambda: file.truncate(-1),
    ):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.EINVAL
    file.close()


def test_handles_share_the_file(place: Place) -> None:
    """A reader's handle sees at once what a writer's handle wrote."""
    writer = place.disk.open(place("log"), create=True)
    reader = place.disk.open(place("log"))
    writer.pwrite(b"seen", 0)
    assert reader.pread(4, 0) == b"seen"
    assert reader.size() == 4
    writer.close()
    assert reader.pread(4, 0) == b"seen"
    reader.close()


def test_a_closed_handle_cannot_be_used(place: Place) -> None:
    """Every call raises EBADF, except closing it again."""
    file = place.disk.open(place("log"), create=True)
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


def test_an_unlinked_file_stays_readable_while_open(place: Place) -> None:
    """Retention may delete a segment that a fetch is still reading."""
    place.write("log", b"still here")
    file = place.disk.open(place("log"))
    place.disk.unlink(place("log"))
    assert not place.disk.exists(place("log"))
    assert file.pread(10, 0) == b"still here"
    assert file.pwrite(b"S", 0) == 1
    file.fsync()
    place.write("log", b"another")
    assert file.pread(10, 0) == b"Still here"
    assert place.read("log") == b"another"
    file.close()


def test_a_discarded_file_is_removed_in_the_end(place: Place) -> None:
    place.write("log", b"0123456789" * 1_000_000)
    while not place.disk.discard(place("log")):
        assert place.disk.exists(place("log"))
    assert not place.disk.exists(place("log"))
    with pytest.raises(FileNotFoundError):
        place.disk.discard(place("log"))


def test_a_discarded_file_stays_complete_for_its_readers(place: Place) -> None:
    """A response may still be sent from the file of a deleted log."""
    data = b"0123456789" * 1_000_000
    place.write("log", data)
    file = place.disk.open(place("log"))
    assert place.disk.discard(place("log"))
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


def test_rename_keeps_handles_valid(place: Place) -> None:
    """A handle follows its file to the new name."""
    place.write("log", b"moved")
    file = place.disk.open(place("log"))
    place.disk.rename(place("log"), place("log.deleted"))
    file.pwrite(b"M", 0)
    file.close()
    assert place.disk.listdir(place.root) == ["log.deleted"]
    assert place.read("log.deleted") == b"Moved"


def test_rename_replaces_its_target(place: Place) -> None:
    """The target's old file has no name any more, but open handles can still read it."""
    place.write("new", b"new")
    place.write("log", b"old")
    old = place.disk.open(place("log"))
    place.disk.rename(place("new"), place("log"))
    assert place.disk.listdir(place.root) == ["log"]
    assert place.read("log") == b"new"
    assert old.pread(3, 0) == b"old"
    old.close()


def test_rename_to_the_same_name_changes_nothing(place: Place) -> None:
    place.write("log", b"same")
    place.disk.rename(place("log"), place("log"))
    assert place.read("log") == b"same"


def test_rename_between_directories(place: Place) -> None:
    """Files and directories move with their contents."""
    place.disk.mkdir(place("a", "deep"))
    place.disk.mkdir(place("b"))
    place.write("a/deep/log", b"x")
    place.disk.rename(place("a", "deep"), place("b", "deep"))
    place.disk.rename(place("b", "deep", "log"), place("b", "log"))
    assert place.disk.listdir(place("a")) == []
    assert place.disk.listdir(place("b")) == ["deep", "log"]
    assert place.read("b/log") == b"x"


def test_invalid_renames_are_refused(place: Place) -> None:
    """Nothing is changed, and the error gives the reason."""
    place.write("file", b"")
    place.disk.mkdir(place("full", "child"))
    place.disk.mkdir(place("empty"))
    with pytest.raises(FileNotFoundError):
        place.disk.rename(place("absent"), place("x"))
    with pytest.raises(FileNotFoundError):
        place.disk.rename(place("file"), place("absent", "x"))
    with pytest.raises(IsADirectoryError):
        place.disk.rename(place("file"), place("empty"))
    with pytest.raises(NotADirectoryError):
        place.disk.rename(place("empty"), place("file"))
    for source, target, code in (
        (place("empty"), place("full"), errno.ENOTEMPTY),
        (place("full"), place("full", "child", "x"), errno.EINVAL),
    ):
        with pytest.raises(OSError) as caught:
            place.disk.rename(source, target)
        assert caught.value.errno == code
    assert place.disk.listdir(place.root) == ["empty", "file", "full"]
    place.disk.rename(place("full"), place("empty"))
    assert place.disk.listdir(place("empty")) == ["child"]


def test_mkdir_creates_parents_and_may_be_repeated(place: Place) -> None:
    """It fails if there is a file of that name."""
    place.disk.mkdir(place("a", "b", "c"))
    place.disk.mkdir(place("a", "b", "c"))
    assert place.disk.listdir(place("a", "b")) == ["c"]
    assert place.disk.stat(place("a")).is_directory
    place.write("a/log", b"")
    with pytest.raises(FileExistsError):
        place.disk.mkdir(place("a", "log"))


def test_listdir_is_sorted(place: Place) -> None:
    """Whatever the order in which the files were created."""
    for name in ("b", "c", "B", "10", "9", "a"):
        place.write(name, b"")
    assert place.disk.listdir(place.root) == ["10", "9", "B", "a", "b", "c"]
    with pytest.raises(FileNotFoundError):
        place.disk.listdir(place("absent"))


def test_removal(place: Place) -> None:
    """`unlink` removes only files, `rmdir` only empty directories."""
    place.disk.mkdir(place("d"))
    place.write("d/log", b"")
    with pytest.raises(OSError) as caught:
        place.disk.rmdir(place("d"))
    assert caught.value.errno == errno.ENOTEMPTY
    with pytest.raises(IsADirectoryError):
        place.disk.unlink(place("d"))
    place.disk.unlink(place("d", "log"))
    place.disk.rmdir(place("d"))
    assert place.disk.listdir(place.root) == []
    gone = (place.disk.unlink, place.disk.rmdir, place.disk.stat)
    for refused in (*gone, place.disk.free_bytes, place.disk.total_bytes):
        with pytest.raises(FileNotFoundError):
            refused(place("d"))


def test_stat_returns_size_time_and_kind(place: Place) -> None:
    """`modified_ms` never goes back while a file is written."""
    place.write("log", b"12345")
    before = place.disk.stat(place("log"))
    assert (before.size, before.is_directory) == (5, False)
    place.write("log", b"123456")
    after = place.disk.stat(place("log"))
    assert after.size == 6
    assert after.modified_ms >= before.modified_ms
    assert place.disk.stat(place.root).is_directory


def test_syncing_is_allowed_at_any_time(place: Place) -> None:
    """Syncs may be repeated and change nothing that a process sees."""
    file = place.disk.open(place("log"), create=True)
    file.fsync()
    file.pwrite(b"x", 0)
    file.fsync()
    file.fsync()
    place.disk.sync_directory(place.root)
    place.disk.sync_directory(place.root)
    with pytest.raises(FileNotFoundError):
        place.disk.sync_directory(place("absent"))
    assert file.pread(1, 0) == b"x"
    file.close()


def test_free_and_total_space_are_known(place: Place) -> None:
    """A broker can react to low space before the disk is full, and report the size of the disk."""
    total = place.disk.total_bytes(place.root)
    assert 0 < place.disk.free_bytes(place.root) <= total
    place.write("log", b"12345")
    assert place.disk.total_bytes(place.root) == total


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
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_both_disks_show_the_same_bytes(
    tmp_path: Path, steps: list[tuple[str, int, bytes]]
) -> None:
    """After any writes, cuts and extensions the simulated file reads like the real one."""
    real, simulated = (new_place(kind, tmp_path) for kind in ("real", "simulated"))
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
