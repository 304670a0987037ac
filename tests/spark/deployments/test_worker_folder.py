"""Tests the data folder of a worker."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime import SystemRandom
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.testing.slowness import patient

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
