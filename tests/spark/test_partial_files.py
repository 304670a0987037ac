"""Tests the names of partial files: unique, and removed when a crash has left them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.spark.deployments import archive, generation_folders, worker_folder
from penstock.spark.deployments.archive import pack, unpack
from penstock.spark.partial_files import is_partial, partial_path, remove_left, target_of

DAY_S = 86_400


def age(path: Path, seconds: float) -> Path:
    at = path.parent.stat().st_mtime - seconds
    os.utime(path, (at, at))
    return path


def test_no_two_have_the_same_name(tmp_path: Path) -> None:
    """Containers that share a folder may have the same process id, and threads have."""
    target = tmp_path / "a.b"
    found = {partial_path(target) for _ in range(100)}
    assert len(found) == 100
    assert all(is_partial(each) and target_of(each) == target for each in found)
    assert not is_partial(target)


def test_what_a_crash_has_left_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "a"
    file, folder, young = (partial_path(target) for _ in range(3))
    other = partial_path(tmp_path / "b")
    for path in (file, young, other):
        path.write_text("x")
    (folder / "sub").mkdir(parents=True)
    for path in (file, folder, other):
        age(path, DAY_S)
    new = partial_path(target)
    assert not file.exists() and not folder.exists() and not new.exists()
    assert sorted(tmp_path.iterdir()) == sorted([young, other])
    remove_left(tmp_path)
    assert list(tmp_path.iterdir()) == [young]


@pytest.mark.parametrize("module", [archive, generation_folders, worker_folder])
def test_two_makers_with_the_same_process_id_do_not_meet(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def noted(target: Path) -> Path:
        seen.append(partial_path(target))
        return seen[-1]

    monkeypatch.setattr(module, "partial_path", noted)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "x.py").write_text("")
    packed = pack(tmp_path / "project")
    for number in (1, 2):
        place = tmp_path / str(number)
        place.mkdir()
        unpack(packed, place / "files")
        generation_folders.point(place, number)
        worker_folder.WorkerFolder(str(place)).prepare(Same())
        assert not [each for each in place.rglob("*") if is_partial(each)]
    assert len({each.name for each in seen}) == 2


class Same:
    """Random numbers that are always the same."""

    def bytes(self, size: int) -> bytes:
        return bytes(size)

    def below(self, bound: int) -> int:
        return 0

    def uniform(self) -> float:
        return 0.0
