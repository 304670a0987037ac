"""Tests the worker for deployed pipelines that `penstock up` starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.cli.app import run
from penstock.cli.worker_process import WorkerProcess, has_spark
from penstock.spark.pipelines.process_session import processes
from penstock.testing.slowness import patient

PROGRAM = [sys.executable, "-m", "penstock.cli.main"]
WAIT_S = 120.0


def workers(data: Path) -> list[int]:
    """Returns the processes that have this data folder in their arguments, but are no broker."""
    found = []
    for process in processes():
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(data / "worker").encode() in words:
            found.append(process.pid)
    return found


def commands(session: int) -> list[str]:
    """Returns the programs of a session."""
    found = []
    for process in processes():
        if process.session == session:
            with suppress(OSError):
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                found.append(words[0].decode())
    return found


@pytest.mark.skipif(not has_spark(), reason="a worker needs Java and PySpark")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("brokers", ["1", "2"])
def test_up_starts_a_worker_that_ends_with_it(tmp_path: Path, brokers: str) -> None:
    """Java is not started before a pipeline is deployed."""
    data = tmp_path / "data"
    process = subprocess.Popen(
        [*PROGRAM, "up", "--port", "0", "--data", str(data), "--brokers", brokers],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_WORKER": "1"},
    )
    assert process.stderr is not None
    pause = threading.Event()
    try:
        for line in process.stderr:
            if found := re.match(r"metrics of pipelines: (http://\S+)", line):
                break
        else:
            pytest.fail("the worker did not start")
        with urllib.request.urlopen(found[1], timeout=patient(WAIT_S)) as answer:
            assert b"penstock_worker_pipelines 0.0" in answer.read()
        # A process that it starts looks like the worker until it runs its own program.
        while len(found_workers := workers(data)) != 1:
            assert found_workers
            pause.wait(0.05)
        (worker,) = found_workers
        assert not [each for each in commands(worker) if "java" in each]
        process.terminate()
        _, told = process.communicate(timeout=patient(WAIT_S))
        assert process.returncode == 0
        # It was stopped before the brokers, so it could still write to them.
        assert "cannot remove the status of this worker" not in told
        assert workers(data) == []
    finally:
        process.kill()
        process.wait(patient(WAIT_S))
        process.stderr.close()


def test_without_java_no_worker_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    worker = WorkerProcess(wanted=True)
    worker.start(["127.0.0.1:1"], str(tmp_path))
    worker.close()
    assert not has_spark() and workers(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], True),
        (["--host", "localhost"], True),
        (["--host", "0.0.0.0"], False),
        (["--set", "listeners=A://127.0.0.1:0,B://0.0.0.0:0",
          "--set", "advertised.listeners=A://127.0.0.1:1,B://127.0.0.1:2",
          "--set", "inter.broker.listener.name=A",
          "--set", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"], False),
        (["--no-worker"], False),
    ],
)  # fmt: skip
def test_up_starts_no_worker_if_others_can_reach_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], wanted: bool
) -> None:
    """Without logins everyone who can reach a broker can deploy code."""
    found: list[bool] = []

    def record(self: WorkerProcess, *, wanted: bool) -> None:
        found.append(wanted)
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerProcess, "__init__", record)
    monkeypatch.setenv("PENSTOCK_WORKER", "1")
    run(["up", "--port", "0", "--data", str(tmp_path / "data"), "--no-console", *arguments])
    assert found == [wanted]
