"""Starts and stops Celery workers, and waits for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from celery_transport.result_files import ResultFiles
from celery_transport.task_program import BROKER, QUEUE, RESULTS
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

TESTS = Path(__file__).resolve().parents[1]
LIMIT_S = patient(120.0)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Waits until the condition holds, and fails if it never does."""
    clock = SystemClock()
    began = clock.monotonic()
    while not condition():
        waited_s = clock.monotonic() - began
        assert waited_s < patient(120.0), f"waited {waited_s:.0f} s, but not: {what}"
        threading.Event().wait(0.02)


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


class Worker:
    """A worker in a process of its own."""

    def __init__(
        self,
        name: str,
        environment: dict[str, str],
        log: Path,
        *options: str,
        app: str = "celery_transport.task_program",
        cwd: Path = TESTS,
    ) -> None:
        self.name = f"{name}@here"
        self.log = log
        command = [sys.executable, "-m", "celery", "-A", app, "worker"]
        given = ["--hostname", self.name, "--loglevel", "INFO", "--without-heartbeat"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, *given, *options],
                cwd=cwd,
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        wait_until(self._is_ready, f"the worker is ready:\n{self.output()}")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.output()
        return f"{self.name} ready." in self.output()

    def output(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def kill(self) -> None:
        """Kills it and the processes of its pool."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Stops it in good order."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(LIMIT_S)
            finally:
                self.kill()


@contextmanager
def worker(
    folder: Path, name: str, broker: str, queue: str, *options: str, results: str = ""
) -> Iterator[Worker]:
    """Runs a worker of a queue."""
    environment = {
        BROKER: broker,
        QUEUE: queue,
        RESULTS: results or results_in(folder),
    }
    started = Worker(name, environment, folder / f"{name}.log", *options)
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


def results_in(folder: Path) -> str:
    """Returns the URL of a result backend that both sides can use."""
    place = folder / "results"
    place.mkdir(exist_ok=True)
    return f"{ResultFiles.__module__}:{ResultFiles.__name__}+file://{place}"
