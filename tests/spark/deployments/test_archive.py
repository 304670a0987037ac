"""Tests packing and unpacking the files of a project."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from penstock.spark.deployments import archive
from penstock.spark.deployments.archive import pack, project_files, requirements_hash, unpack
from penstock.spark.deployments.ignore_rules import IgnoreRules, parse_ignore
from penstock.spark.pipelines.errors import PipelineError


def put(root: Path, path: str, text: str = "x") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    root = tmp_path / "project"
    put(root, "spark-pipeline.yml", "name: a")
    put(root, "transformations/größe.py", "print()")
    put(root, "run.sh", "#!/bin/sh")
    (root / "run.sh").chmod(0o700)
    (root / "transformations/link.py").symlink_to("größe.py")
    unpack(pack(root), tmp_path / "copy")
    assert sorted(project_files(tmp_path / "copy")) == sorted(project_files(root))
    assert (tmp_path / "copy/transformations/größe.py").read_text() == "print()"
    assert os.access(tmp_path / "copy/run.sh", os.X_OK)
    assert os.readlink(tmp_path / "copy/transformations/link.py") == "größe.py"


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root, names in ((one, "ab"), (two, "ba")):
        for name in names:
            put(root, name, name)
        os.utime(root / "a", (len(str(root)), 5))
    os.utime(two / "a", (1, 1))
    (two / "b").chmod(0o600)
    assert pack(one) == pack(two)
    put(two, "b", "changed")
    assert pack(one) != pack(two)


def test_what_is_not_part_of_a_project_is_left_out(tmp_path: Path) -> None:
    for path in (
        ".git/config",
        ".venv/bin/python",
        "a/__pycache__/a.pyc",
        ".penstock/last-run.json",
        "spark-warehouse/t/part",
        "metastore_db/log",
        "pipeline-storage/_checkpoints/0",
        "data/large.csv",
        "a/large.csv",
        "docs/deep/er/raw/x",
        "notes.txt",
    ):
        put(tmp_path, path)
    put(tmp_path, ".penstockignore", "# data\n*.csv\n\n/notes.txt\ndocs/**/raw/\n")
    put(tmp_path, "a/a.py")
    put(tmp_path, "a/notes.txt")
    found = list(project_files(tmp_path, ["/pipeline-storage/"]))
    assert found == [".penstockignore", "a/a.py", "a/notes.txt"]


@pytest.mark.parametrize(
    ("pattern", "path", "is_folder", "ignored"),
    [
        ("*.csv", "a/b.csv", False, True),
        ("*.csv", "a/b.csv.py", False, False),
        ("data/", "data", True, True),
        ("data/", "data", False, False),
        ("data/*.csv", "data/a.csv", False, True),
        ("data/*.csv", "data/b/a.csv", False, False),
        ("data/*.csv", "x/data/a.csv", False, False),
        ("data/**", "data/b/a.csv", False, True),
        ("**/raw", "raw", True, True),
        ("file?.[ab]", "file1.a", False, True),
        ("file?.[!ab]", "file1.a", False, False),
        ("a.b", "axb", False, False),
    ],
)
def test_patterns(pattern: str, path: str, is_folder: bool, ignored: bool) -> None:
    assert IgnoreRules([pattern]).ignores(path, is_folder=is_folder) is ignored


def test_an_exception_is_refused() -> None:
    with pytest.raises(PipelineError, match="not supported"):
        parse_ignore("*.csv\n!kept.csv\n")


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a/x")
    for target in ("../../x", "/etc/passwd"):
        link = tmp_path / "a/link"
        link.symlink_to(target)
        with pytest.raises(PipelineError, match="not in the project"):
            pack(tmp_path)
        link.unlink()


def test_a_device_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PipelineError, match="pipe is neither a file nor a folder"):
        pack(tmp_path)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        put(tmp_path, f"f{number}", "x" * 1000)
    sound = pack(tmp_path)
    monkeypatch.setattr(archive, "FILES_MAX", 4)
    with pytest.raises(PipelineError, match=r"more than 4 files: .*\.penstockignore"):
        pack(tmp_path)
    with pytest.raises(PipelineError, match="more than 4 files"):
        unpack(sound, tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(archive, "UNPACKED_BYTES_MAX", 4000)
    with pytest.raises(PipelineError, match=r"larger than .*\.penstockignore"):
        pack(tmp_path)
    with pytest.raises(PipelineError, match="larger than"):
        unpack(sound, tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(archive, "ARCHIVE_BYTES_MAX", 10)
    with pytest.raises(PipelineError, match="larger than"):
        pack(tmp_path)
    assert not (tmp_path / "out").exists()


def made(*members: tuple[str, bytes, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            member.size = 1 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"x"))
    return gzip.compress(buffer.getvalue())


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/x", tarfile.REGTYPE, "")],
        [("../x", tarfile.REGTYPE, "")],
        [("a/../../x", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "../x")],
        [("link", tarfile.SYMTYPE, "/etc")],
        [("link", tarfile.SYMTYPE, "folder"), ("link/x", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "x"), ("link", tarfile.REGTYPE, "")],
        [("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [("null", tarfile.CHRTYPE, "")],
        [("pipe", tarfile.FIFOTYPE, "")],
    ],
)
def test_an_archive_never_writes_outside(
    tmp_path: Path, members: list[tuple[str, bytes, str]]
) -> None:
    target = tmp_path / "in" / "files"
    with pytest.raises(PipelineError, match="the archive"):
        unpack(made(*members), target)
    assert [path for path in tmp_path.rglob("*") if path != tmp_path / "in"] == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written_is_no_fault_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    put(tmp_path / "in", "a", "x")
    sound = pack(tmp_path / "in")

    def write(path: Path, _: bytes) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(OSError, match=os.strerror(number)):
        unpack(sound, tmp_path / "out")


def test_garbage_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "in", "a", "x" * 10_000)
    sound = pack(tmp_path / "in")
    for data in (b"", b"garbage", sound[:60], gzip.compress(b"garbage" * 200)):
        with pytest.raises(PipelineError, match="cannot be unpacked"):
            unpack(data, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_folder_that_is_complete_is_kept(tmp_path: Path) -> None:
    put(tmp_path / "in", "a", "new")
    put(tmp_path / "out", "a", "old")
    unpack(pack(tmp_path / "in"), tmp_path / "out")
    assert (tmp_path / "out/a").read_text() == "old"


def test_the_hash_of_the_requirements(tmp_path: Path) -> None:
    assert requirements_hash(tmp_path) == ""
    put(tmp_path, "requirements.txt", "requests==2")
    assert requirements_hash(tmp_path) == hashlib.sha256(b"requests==2").hexdigest()
