"""Tests the data folder of a worker."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime import SystemClock, SystemRandom
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.partial_files import partial_path
from penstock.testing.slowness import patient

WALL_MS = SystemClock().wall_ms()

CRASH = """
import os, sys
from penstock.spark.deployments.worker_folder import WorkerFolder
folder = WorkerFolder(sys.argv[1])
folder.claim_spares("crashed")
folder.spare("7").mkdir()
os._exit(1)
"""


def claimed(path: Path, worker: str) -> WorkerFolder:
    folder = WorkerFolder(str(path))
    folder.prepare(SystemRandom())
    folder.claim_spares(worker)
    folder.spare("1").mkdir()
    return folder


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / "spares").iterdir())


def test_spares_of_a_worker_that_crashed_are_removed(tmp_path: Path) -> None:
    """Those of a worker that runs are kept."""
    running = claimed(tmp_path, "running")
    subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], timeout=patient(120), check=False)
    assert (tmp_path / "spares" / "crashed" / "7").is_dir()
    new = claimed(tmp_path, "new")
    assert names(tmp_path) == ["new", "new.lock", "running", "running.lock"]
    assert running.spare("1").is_dir()
    for folder in (running, new):
        folder.release_spares()
    assert names(tmp_path) == []


def test_folders_without_a_lock_are_removed(tmp_path: Path) -> None:
    """An earlier version made them."""
    (tmp_path / "spares" / "0123abcd").mkdir(parents=True)
    claimed(tmp_path, "new").release_spares()
    assert names(tmp_path) == []


def aged(path: Path, hours: float) -> Path:
    """Makes everything in a folder so old."""
    at = WALL_MS / 1000 - hours * 3600
    for each in (*path.rglob("*"), path):
        os.utime(each, (at, at))
    return path


def test_files_and_logs_of_pipelines_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    """After a time: another worker may still use the files, and a log may still be read."""
    folder = WorkerFolder(str(tmp_path))
    folder.prepare(SystemRandom())
    for name in ("needed", "deleted", "young"):
        (tmp_path / "files" / name / "1-abc").mkdir(parents=True)
        (tmp_path / "logs" / name / "recompute").mkdir(parents=True)
        (tmp_path / "logs" / name / "recompute" / "driver.log").write_text("x")
        (tmp_path / "storage" / name).mkdir(parents=True)
        aged(tmp_path / "files" / name, 1 if name == "young" else 25)
        aged(tmp_path / "logs" / name, 25 if name == "young" else 169)
    folder.drop_unused({"needed"}, WALL_MS)
    for kind, left in (
        ("files", ["needed", "young"]),
        ("logs", ["needed", "young"]),
        ("storage", ["deleted", "needed", "young"]),
    ):
        assert sorted(each.name for each in (tmp_path / kind).iterdir()) == left


def test_the_last_line_of_a_log_counts(tmp_path: Path) -> None:
    folder = WorkerFolder(str(tmp_path))
    folder.prepare(SystemRandom())
    log = folder.logs("deleted") / "recompute" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("x")
    aged(folder.logs("deleted"), 500)
    os.utime(log, (WALL_MS / 1000, WALL_MS / 1000))
    folder.drop_unused(set(), WALL_MS)
    assert log.exists()


def test_files_that_are_used_again_are_kept(tmp_path: Path) -> None:
    folder = WorkerFolder(str(tmp_path))
    folder.prepare(SystemRandom())
    (tmp_path / "files" / "back" / "1-abc").mkdir(parents=True)
    aged(tmp_path / "files" / "back", 25)
    folder.mark_used("back")
    folder.drop_unused(set(), WALL_MS)
    assert (tmp_path / "files" / "back" / "1-abc").exists()


def test_partial_files_of_another_worker_are_kept(tmp_path: Path) -> None:
    folder = WorkerFolder(str(tmp_path))
    (tmp_path / "files" / "views").mkdir(parents=True)
    partial = partial_path(tmp_path / "files" / "views" / "2-abc")
    partial.mkdir()
    folder.drop_files("views", set())
    assert partial.exists()
    os.utime(partial, (0, 0))
    folder.drop_files("views", set())
    assert not partial.exists()


def test_two_workers_that_start_at_the_same_time_keep_their_spares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has made the file of its lock and not locked it yet, when the other one looks at it."""
    real = fcntl.flock
    others: Iterator[str] = iter(["other"])
    started = []

    def flock(descriptor: int, operation: int) -> None:
        for other in others:
            started.append(claimed(tmp_path, other))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    new = claimed(tmp_path, "new")
    third = claimed(tmp_path, "third")
    assert new.spare("1").is_dir()
    for folder in (new, third, *started):
        folder.release_spares()
    assert names(tmp_path) == []
