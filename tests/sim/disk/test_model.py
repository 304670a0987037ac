"""Compares the simulated disk with a model of its guarantees, over random histories."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sim.disk.disk import SimDisk
from penstock.sim.disk.faults import DiskFaults

NAMES = st.sampled_from(["/d/a", "/d/b", "/e/a", "/e/b"])
SIZES = st.integers(0, 3000)


def new_disk(seed: int) -> SimDisk:
    disk = SimDisk(Random(seed), Random(seed + 1))
    disk.mkdir("/d")
    disk.mkdir("/e")
    disk.sync_directory("/")
    return disk


class Promises:
    """One file, and which of its bytes the disk guarantees to keep.

    `risked` are the positions touched since the last fsync, including gaps before a write.
    `rewritten` are those of them whose bytes the next fsync makes certain whatever they were
    before. `in_doubt` are the positions that a failed fsync left unknown.
    """

    def __init__(self) -> None:
        self.synced = b""
        self.risked: set[int] = set()
        self.rewritten: set[int] = set()
        self.in_doubt: set[int] = set()
        self.named = False

    def hold(self, content: bytes) -> bool:
        """Returns whether synced bytes are intact; if nothing is pending, there are no others."""
        if not self.risked and not self.in_doubt:
            return content == self.synced
        return all(
            position < len(content) and content[position] == byte
            for position, byte in enumerate(self.synced)
            if position not in self.risked and position not in self.in_doubt
        )


BYTE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, SIZES, st.integers(1, 3000)),
        st.tuples(st.just("truncate"), NAMES, SIZES, st.just(0)),
        st.tuples(st.just("fsync"), NAMES, st.just(0), st.just(0)),
        st.tuples(st.just("fsync_fails"), NAMES, st.just(0), st.just(0)),
        st.tuples(st.just("sync_directory"), NAMES, st.just(0), st.just(0)),
        st.tuples(st.just("kill"), NAMES, st.just(0), st.just(0)),
    ),
    max_size=20,
)


def take_byte_step(
    disk: SimDisk, files: dict[str, Promises], step: tuple[str, str, int, int], fill: int
) -> None:
    operation, path, position, size = step
    if operation == "kill":
        disk.kill()
        return
    if operation == "sync_directory":
        disk.sync_directory(os.path.dirname(path))
        for other, promises in files.items():
            promises.named |= os.path.dirname(other) == os.path.dirname(path)
        return
    file = disk.open(path, create=True)
    promises = files.setdefault(path, Promises())
    if operation == "write":
        promises.risked.update(range(min(position, file.size()), position + size))
        promises.rewritten.update(range(position, position + size))
        file.pwrite(bytes([fill]) * size, position)
    elif operation == "truncate":
        sizes = (position, file.size(), len(promises.synced))
        promises.risked.update(range(min(sizes), max(sizes)))
        promises.rewritten.update(range(position, max(sizes)))
        file.truncate(position)
    elif operation == "fsync_fails":
        disk.fail_next("fsync", errno.EIO)
        with pytest.raises(OSError):
            file.fsync()
        promises.in_doubt |= promises.risked
        promises.risked, promises.rewritten = set(), set()
    else:
        file.fsync()
        promises.in_doubt -= promises.rewritten
        promises.risked, promises.rewritten = set(), set()
        promises.synced = file.pread(file.size(), 0)
    file.close()


@settings(deadline=None, max_examples=150)
@given(steps=BYTE_STEPS, seed=st.integers(0, 2**32))
def test_synced_bytes_under_synced_names_are_intact(
    steps: list[tuple[str, str, int, int]], seed: int
) -> None:
    """After any history and a power loss, every byte that was synced and not touched since is
    there, whatever happened to the bytes next to it. Bytes of a failed fsync are not guaranteed."""
    disk = new_disk(seed)
    files: dict[str, Promises] = {}
    for number, step in enumerate(steps, 1):
        take_byte_step(disk, files, step, number)
    disk.power_loss()
    survived = disk.files()
    for path, promises in files.items():
        if promises.named:
            assert promises.hold(survived[path]), path


NAME_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["create", "unlink", "sync_directory"]), NAMES, NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
    ),
    max_size=25,
)


class NameHistory:
    """Which files may have a name after a power loss, and which files must not be lost."""

    def __init__(self) -> None:
        self.now: dict[str, bytes] = {}
        self.possible: dict[str, list[bytes | None]] = {}
        self.safe: dict[bytes, None] = {}

    def put(self, path: str, content: bytes | None) -> None:
        self.possible.setdefault(path, [None]).append(content)
        old = self.now.pop(path, None)
        if content is not None:
            self.now[path] = content
        if old is not None:
            self.safe.pop(old, None)

    def move(self, source: str, target: str) -> None:
        content = self.now[source]
        safe = content in self.safe
        self.put(source, None)
        self.put(target, content)
        if safe:
            self.safe[content] = None

    def sync(self, directory: str) -> None:
        for path in self.possible:
            if os.path.dirname(path) == directory:
                content = self.now.get(path)
                self.possible[path] = [content]
                if content is not None:
                    self.safe[content] = None


def take_name_step(
    disk: SimDisk, history: NameHistory, step: tuple[str, str, str], number: int
) -> None:
    operation, path, target = step
    if operation == "sync_directory":
        disk.sync_directory(os.path.dirname(path))
        history.sync(os.path.dirname(path))
    elif operation == "create" and path not in history.now:
        file = disk.open(path, create=True)
        file.pwrite(b"file %d" % number, 0)
        file.fsync()
        file.close()
        history.put(path, b"file %d" % number)
    elif operation == "unlink" and path in history.now:
        disk.unlink(path)
        history.put(path, None)
    elif operation == "rename" and path in history.now and path != target:
        disk.rename(path, target)
        history.move(path, target)


@settings(deadline=None, max_examples=300)
@given(steps=NAME_STEPS, seed=st.integers(0, 2**32))
def test_a_name_refers_to_a_file_that_it_had_since_its_last_sync(
    steps: list[tuple[str, str, str]], seed: int
) -> None:
    """After any history of names and a power loss: a name refers to a file that it had since its
    last sync; no file has two names; a file that was durable and not removed has one."""
    disk = new_disk(seed)
    history = NameHistory()
    for number, step in enumerate(steps):
        take_name_step(disk, history, step, number)
        assert disk.files() == history.now
    disk.power_loss()
    survived = disk.files()
    for path, possible in history.possible.items():
        assert survived.get(path) in possible, path
    contents = list(survived.values())
    assert len(contents) == len(set(contents))
    assert all(content in contents for content in history.safe)


def run_history(seed: int) -> tuple[dict[str, bytes], dict[str, int]]:
    """Returns the result of a long random history of a faulty disk with several crashes."""
    draws = Random(seed)
    faults = DiskFaults(fsync_eio=0.1, sync_directory_eio=0.1, read_eio=0.05, short_write=0.2)
    disk = new_disk(seed)
    disk.set_faults(faults)
    paths = ["/d/a", "/d/b", "/e/a", "/e/b", "/d/new/c"]
    for number in range(400):
        path = paths[draws.randrange(5)]
        try:
            match draws.randrange(12):
                case 0:
                    disk.rename(path, paths[draws.randrange(5)])
                case 1:
                    disk.unlink(path)
                case 2:
                    disk.mkdir("/d/new")
                case 3 | 4:
                    disk.sync_directory(os.path.dirname(path))
                case 5:
                    disk.rot_random()
                case _:
                    file = disk.open(path, create=True)
                    file.pwrite(draws.randbytes(draws.randrange(3000)), draws.randrange(5000))
                    file.pread(100, 0)
                    if draws.random() < 0.5:
                        file.fsync()
                    file.close()
        except OSError:
            pass
        if number % 40 == 39:
            disk.power_loss()
    return disk.files(), disk.counters


def digest(seed: int) -> str:
    return hashlib.sha256(repr(run_history(seed)).encode()).hexdigest()


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_disk(seed: int) -> None:
    """The same seed and calls give the same files, faults and counters."""
    assert run_history(seed) == run_history(seed)
    assert run_history(seed) != run_history(seed + 1)


def test_histories_reach_every_kind_of_outcome() -> None:
    """The random history has all kinds of crashes and faults, so comparing runs is meaningful."""
    _, counters = run_history(0)
    for name in (
        "power_loss",
        "bytes_kept",
        "bytes_dropped",
        "bytes_torn",
        "names_kept",
        "names_dropped",
        "fault_fsync",
        "fault_sync_directory",
        "fault_pread",
        "fault_short_write",
        "fault_corrupt",
    ):
        assert counters[name] > 0, name


def test_the_same_seed_gives_the_same_disk_in_another_process() -> None:
    """The run depends on neither the hash seed nor memory addresses."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import test_model as t"
    script += "; print(t.digest(3))"
    for hash_seed in ("1", "77"):
        result = subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == digest(3)
