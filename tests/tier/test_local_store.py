"""The directory: what is on disk when, after kill -9, and what a client of NFS may be told."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from crc32c import crc32c

from penstock.tier.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    Refused,
    StoreError,
    Throttled,
)
from penstock.tier.local_store import LocalStore

from .store_bench import Ports

T = TypeVar("T")
Patch = pytest.MonkeyPatch


def new_store(folder: Path) -> LocalStore:
    ports = Ports()
    (folder / "archive").mkdir(parents=True, exist_ok=True)
    return LocalStore(str(folder / "archive"), ports.executor, ports.random)


def run(call: Awaitable[T]) -> T:
    async def main() -> T:
        return await call

    return asyncio.run(main())


def temporaries(folder: Path) -> list[str]:
    return os.listdir(folder / "archive" / ".tmp")


def watched(patch: Patch, *names: str) -> list[str]:
    """Returns the calls that are made from now on. `fsync` says what it syncs."""
    calls: list[str] = []
    for name in names:
        original = getattr(os, name)

        def call(*args: Any, name: str = name, original: Any = original, **rest: Any) -> Any:
            what = name
            if name == "fsync":
                path = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
                what = f"fsync {'directory' if path.is_dir() else 'file'}"
            calls.append(what)
            return original(*args, **rest)

        patch.setattr(os, name, call)
    return calls


def test_a_name_appears_when_its_bytes_are_durable_and_is_synced_itself(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    store = new_store(tmp_path)
    run(store.create("a/b/first", [b"x"]))
    calls = watched(monkeypatch, "link", "fsync", "unlink", "replace")
    run(store.create("a/b/second", [b"x"]))
    assert calls == ["fsync file", "link", "fsync directory", "unlink"]
    calls.clear()
    run(store.put("a/b/second", [b"y"]))
    assert calls[:3] == ["fsync file", "replace", "fsync directory"]
    calls.clear()
    run(store.delete("a/b/second"))
    assert calls == ["unlink", "fsync directory"]
    assert temporaries(tmp_path) == []


def test_new_directories_are_durable_before_the_name(tmp_path: Path, monkeypatch: Patch) -> None:
    """Also those that another process has just made."""
    run(new_store(tmp_path).create("a/b/first", [b"x"]))
    store = new_store(tmp_path)
    calls = watched(monkeypatch, "link", "fsync")
    run(store.create("a/b/second", [b"x"]))
    assert calls.index("link") >= 4
    assert calls[-2:] == ["link", "fsync directory"]


def test_a_create_that_finds_the_name_taken_makes_it_durable(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Its caller relies on the object of the other one."""
    store = new_store(tmp_path)
    run(store.create("a/object", [b"x"]))
    calls = watched(monkeypatch, "link", "fsync")
    with pytest.raises(AlreadyExists):
        run(store.create("a/object", [b"y"]))
    assert calls == ["fsync file", "link", "fsync directory"]


def test_a_link_that_was_made_counts_although_nfs_says_that_it_exists(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """The client has repeated the request, because the first answer was lost."""
    original = os.link

    def repeated(source: str, target: str) -> None:
        original(source, target)
        original(source, target)

    monkeypatch.setattr(os, "link", repeated)
    store = new_store(tmp_path)
    run(store.create("a/object", [b"mine"]))
    assert run(store.get("a/object")) == b"mine"
    with pytest.raises(AlreadyExists):
        run(store.create("a/object", [b"other"]))


def test_another_name_of_the_temporary_file_is_no_success(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """A backup links all files of the directory to another one, just when a create loses."""
    original = os.link

    def link(source: str, target: str) -> None:
        original(source, tmp_path / "backup")
        original(source, target)

    store = new_store(tmp_path)
    run(store.create("a/object", [b"first"]))
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(AlreadyExists):
        run(store.create("a/object", [b"second"]))
    assert run(store.get("a/object")) == b"first"


@pytest.mark.parametrize("call", ["get", "head"])
def test_what_a_read_has_shown_stays_after_a_power_cut(
    tmp_path: Path, monkeypatch: Patch, call: str
) -> None:
    """The process that made the name may not have synced the directory yet, or may have crashed. A
    collector that reads its boundary then deletes manifests."""
    run(new_store(tmp_path).create("bnd/shared/0/1", [b"x"]))
    store = new_store(tmp_path)
    calls = watched(monkeypatch, "fsync")
    run(getattr(store, call)("bnd/shared/0/1"))
    assert calls == ["fsync directory"]
    calls.clear()
    with pytest.raises(NotFound):
        run(getattr(store, call)("bnd/shared/0/2"))
    assert calls == []


@pytest.mark.parametrize("call", ["get", "head"])
def test_a_read_whose_directory_cannot_be_synced_shows_nothing(
    tmp_path: Path, monkeypatch: Patch, call: str
) -> None:
    """A create failed like this; its writer reads the name, and must not find success."""
    store = new_store(tmp_path)
    run(store.create("a/object", [b"x"]))
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(Throttled):
        run(getattr(store, call)("a/object"))


def test_an_error_of_close_is_not_one_of_the_create(tmp_path: Path, monkeypatch: Patch) -> None:
    """The bytes were synced before."""
    store = new_store(tmp_path)
    run(store.create("a/first", [b"x"]))
    original = os.close

    def close(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        original(fd)
        if ".tmp/" in path:
            raise OSError(errno.EIO, "error")

    monkeypatch.setattr(os, "close", close)
    run(store.create("a/second", [b"x"]))
    monkeypatch.undo()
    assert temporaries(tmp_path) == []


def test_a_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """The file system may not be mounted. Its logs would go to the local disk, and begin anew."""
    ports = Ports()
    store = LocalStore(str(tmp_path / "not-mounted" / "x"), ports.executor, ports.random)
    for call in (store.create("a/b", [b"x"]), store.put("a/b", [b"x"])):
        with pytest.raises(Refused, match="mount"):
            run(call)
    assert os.listdir(tmp_path) == []


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("call", "number", "wanted"),
    [
        ("write", errno.ENOSPC, Throttled),
        ("fsync", errno.EIO, Throttled),
        ("link", errno.EIO, OutcomeUnknown),
        ("link", errno.ESTALE, OutcomeUnknown),
        ("link", errno.EACCES, Refused),
        ("link", errno.EOPNOTSUPP, Refused),
        ("link", errno.EPERM, Refused),
    ],
)
def test_errors_say_whether_something_was_changed(
    tmp_path: Path, monkeypatch: Patch, call: str, number: int, wanted: type[StoreError]
) -> None:
    store = new_store(tmp_path)
    run(store.create("a/first", [b"x"]))
    monkeypatch.setattr(os, call, failing(number))
    with pytest.raises(StoreError) as caught:
        run(store.create("a/second", [b"x"]))
    assert type(caught.value) is wanted
    monkeypatch.undo()
    assert temporaries(tmp_path) == []
    assert [info.key for info in run(store.list_objects(""))] == ["a/first"]


def test_a_directory_that_cannot_be_synced_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    store = new_store(tmp_path)
    run(store.create("a/first", [b"x"]))
    original = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "error")
        original(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    for call in (
        store.create("a/second", [b"x"]),
        store.create("a/first", [b"x"]),
        store.put("a/first", [b"x"]),
        store.delete("a/first"),
    ):
        with pytest.raises(OutcomeUnknown):
            run(call)


def test_a_directory_that_somebody_has_removed_is_made_again(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    run(store.create("a/b/object", [b"x"]))
    shutil.rmtree(tmp_path / "archive" / "a")
    with pytest.raises(Throttled):
        run(store.create("a/b/object", [b"x"]))
    run(store.create("a/b/object", [b"x"]))


def test_temporary_files_of_crashed_processes_are_removed_by_age(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    run(store.create("a/object", [b"x"]))
    left = tmp_path / "archive" / ".tmp" / "left"
    left.write_bytes(b"half")
    os.utime(left, (1000, 1000))
    assert run(store.list_objects("")) != []
    assert run(store.remove_temporaries(999_000)) == 0
    assert run(store.remove_temporaries(1_000_001)) == 1
    assert temporaries(tmp_path) == []
    assert run(new_store(tmp_path / "elsewhere").remove_temporaries(1)) == 0


NAMES = 120
WRITER = """
import asyncio, sys
from pathlib import Path
from crc32c import crc32c
from penstock.tier.errors import AlreadyExists
from tier.test_local_store import NAMES, new_store

async def main():
    store, name, first = new_store(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    for step in range(NAMES):
        number = (first + step) % NAMES
        body = f"{name} {number} ".encode() * 3000
        try:
            await store.create(f"race/{number:020d}", [b"%08x" % crc32c(body), body])
        except AlreadyExists:
            continue
        print(number, flush=True)

asyncio.run(main())
"""


def started_writer(folder: Path, number: int) -> subprocess.Popen[str]:
    first = str(number * NAMES // 3)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), f"writer-{number}", first],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_after_kill_9_every_name_has_one_whole_object(tmp_path: Path) -> None:
    """Three processes create the same names, and are killed. Each success that they reported is
    the one that is stored."""
    writers = [started_writer(tmp_path, number) for number in range(3)]
    won: dict[int, int] = {}
    for writer, process in enumerate(writers):
        with process:
            assert process.stdout is not None
            for lines, line in enumerate(process.stdout, 1):
                assert won.setdefault(int(line), writer) == writer, "two have won one name"
                if lines == 15:
                    process.kill()
    assert won
    store = new_store(tmp_path)
    for number, writer in won.items():
        data = run(store.get(f"race/{number:020d}"))
        assert data[8:].startswith(f"writer-{writer} {number} ".encode())
    for info in run(store.list_objects("race/")):
        data = run(store.get(info.key))
        assert int(data[:8], 16) == crc32c(data[8:])
