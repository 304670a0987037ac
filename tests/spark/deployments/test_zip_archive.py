"""Tests that only sound zip archives are unpacked, and nothing outside of their folder."""

from __future__ import annotations

import stat
import struct
import zipfile
from pathlib import Path

import pytest

from penstock.spark.deployments import zip_archive
from penstock.spark.deployments.zip_archive import unzip
from penstock.spark.pipelines.errors import PipelineError


def member(path: str, mode: int = 0) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(path)
    found.external_attr = mode << 16
    return found


def packed(folder: Path, *members: tuple[zipfile.ZipInfo | str, str | bytes]) -> Path:
    archive = folder / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for path, content in members:
            made.writestr(path, content)
    return archive


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_files_are_unpacked(tmp_path: Path) -> None:
    """With their folders, and what may be executed. What is never deployed is left out, although
    it could not be deployed: a virtual environment has links."""
    archive = packed(
        tmp_path,
        ("a.py", "x"),
        ("deep/er/b.txt", b"\0"),
        (member("run.sh", stat.S_IFREG | 0o755), "y"),
        (member(".venv/bin/python", stat.S_IFLNK | 0o777), "/usr/bin/python"),
        ("deep/__pycache__/a.pyc", "z"),
        ("__MACOSX/a.py", "z"),
    )
    root = unzip(archive, tmp_path / "new")
    assert root == tmp_path / "new"
    assert files(root) == {"a.py": b"x", "deep/er/b.txt": b"\0", "run.sh": b"y"}
    assert (root / "run.sh").stat().st_mode & stat.S_IXUSR
    assert not (root / "a.py").stat().st_mode & stat.S_IXUSR


def test_the_only_folder_is_the_project(tmp_path: Path) -> None:
    root = unzip(packed(tmp_path, ("views/a.py", "x"), (".DS_Store", "y")), tmp_path / "new")
    assert root == tmp_path / "new" / "views"


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("../a", "")], "'../a', a path outside its folder"),
        ([("x/../../a", "")], "a path outside its folder"),
        ([("/etc/a", "")], "'/etc/a', a path outside its folder"),
        ([("a\\b", "")], "printable characters"),
        ([("a\nb", "")], "printable characters"),
        ([(member("a", stat.S_IFLNK | 0o777), "b")], "has the link a: replace it by a copy"),
        ([(member("a", stat.S_IFIFO | 0o777), "")], "neither a file nor a folder"),
        ([("a", "1"), ("./a", "2")], "has a twice"),
        ([("a", "1"), ("a/b", "2")], "cannot be unpacked"),
        ([("a/b", "1"), ("a", "2")], "cannot be unpacked"),
        ([("a" * 300, "")], "cannot be unpacked: File name too long"),
        ([(".git/x", "")], "has no files of a project"),
        ([], "has no files of a project"),
    ],
)
def test_an_archive_that_is_refused(
    tmp_path: Path, members: list[tuple[zipfile.ZipInfo | str, str | bytes]], text: str
) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(PipelineError) as refused:
        unzip(packed(tmp_path, *members), tmp_path / "in" / "new")
    assert text in str(refused.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]
    assert set(files(tmp_path)) - {"a.zip"} == {
        path for path in files(tmp_path) if path.startswith("in/new/")
    }


def test_a_bomb_is_cut_off(tmp_path: Path) -> None:
    """By what is unpacked, whatever size the archive states."""
    archive = packed(tmp_path, *((f"{number}", bytes(3 << 20)) for number in range(3)))
    assert archive.stat().st_size < 100_000
    with pytest.raises(PipelineError, match="larger than 5 MiB when unpacked"):
        unzip(archive, tmp_path / "new", bytes_max=5 << 20)
    assert sum(map(len, files(tmp_path / "new").values())) <= 5 << 20


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_archive, "FILES_MAX", 3)
    members = [(f"{number}", "") for number in range(4)]
    with pytest.raises(PipelineError, match="more than 3 files"):
        unzip(packed(tmp_path, *members), tmp_path / "new")


def test_a_file_with_a_password(tmp_path: Path) -> None:
    archive = packed(tmp_path, ("a", "x"))
    content = bytearray(archive.read_bytes())
    entry = content.index(b"PK\1\2")
    (flags,) = struct.unpack_from("<H", content, entry + 8)
    struct.pack_into("<H", content, entry + 8, flags | 1)
    archive.write_bytes(content)
    with pytest.raises(PipelineError, match="a in the archive has a password"):
        unzip(archive, tmp_path / "new")


def test_damage_is_told(tmp_path: Path) -> None:
    """A cut archive, and one whose bytes have changed."""
    archive = packed(tmp_path, ("a", "x" * 1_000))
    content = archive.read_bytes()
    archive.write_bytes(content[:40])
    with pytest.raises(PipelineError, match="cannot be unpacked: File is not a zip file"):
        unzip(archive, tmp_path / "one")
    archive.write_bytes(content.replace(b"PK\3\4", b"PK\3\5", 1))
    with pytest.raises(PipelineError, match="cannot be unpacked: Bad magic number"):
        unzip(archive, tmp_path / "two")
