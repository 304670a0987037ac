"""Tests the virtual environments of pipelines, with a real pip that reaches no network."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.runtime import SystemClock, Threads
from penstock.spark.deployments.environments import (
    COMPLETE,
    EnvironmentFailed,
    Environments,
    Made,
    _interpreter,
)
from penstock.spark.deployments.file_lock import try_lock, unlock
from penstock.spark.deployments.model import Version
from penstock.spark.deployments.worker_guard import end_drivers, sessions_of
from penstock.testing.slowness import patient

pytestmark = pytest.mark.timeout(600)
WORKER = f"environment-test-{os.getpid()}"
WAIT_S = 300
WHEEL = "own_package-1.0-py3-none-any.whl"
BACKEND = """
import pathlib, signal


def get_requires_for_build_wheel(settings=None):
    pathlib.Path("began").touch()
    while True:
        signal.pause()
"""
PYPROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
INSTALL = """
import asyncio, sys
from pathlib import Path
from penstock.runtime import SystemClock, Threads
from penstock.spark.deployments.environments import Environments

folder, root, worker = sys.argv[1:]
made = Environments(Path(folder), Threads(2), SystemClock(), worker)
asyncio.run(made.python(Path(root), "a" * 64))
"""


@pytest.fixture(autouse=True)
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    # An index of a test answers, however late.
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", str(WAIT_S))


@pytest.fixture
def threads() -> Iterator[Threads]:
    """One thread: an installation that held it would stop everything else."""
    with closing(Threads(1)) as found:
        yield found


def environments(
    tmp_path: Path, threads: Threads, clock: SystemClock | None = None
) -> Environments:
    folder = tmp_path / "environments"
    folder.mkdir(exist_ok=True)
    return Environments(folder, threads, clock or SystemClock(), WORKER)


def project(folder: Path, requirements: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "requirements.txt").write_text(requirements)
    return folder


def add_wheel(folder: Path, answer: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = "own_package-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("own_package.py", f"ANSWER = {answer}\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: own-package\nVersion: 1.0")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{info}/RECORD", "")


def hanging_project(folder: Path) -> Path:
    """A project whose package is never built."""
    project(folder, ".\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    return folder


def answer(python: str) -> str:
    code = "import own_package, penstock, pyspark; print(own_package.ANSWER)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(patient(WAIT_S)):
        while not condition():
            await SystemClock().sleep(0.05)


def test_without_requirements_this_python_is_used(tmp_path: Path, threads: Threads) -> None:
    made = environments(tmp_path, threads)
    assert asyncio.run(made.python(tmp_path, "")) == sys.executable
    project(tmp_path, "# none\n\n")
    assert asyncio.run(made.python(tmp_path, "")) == sys.executable


def test_projects_with_the_same_text_and_other_files_have_other_packages(
    tmp_path: Path, threads: Threads
) -> None:
    """The same project has its packages installed once. Packages of this Python are there too. A
    module of the project does not replace one that pip needs."""
    told: list[str] = []

    async def main() -> None:
        made = environments(tmp_path, threads)
        pythons = []
        for name, number in (("one", 41), ("two", 42)):
            root = project(tmp_path / name, "-r requirements/base.txt\n")
            (root / "requirements").mkdir()
            (root / "requirements" / "base.txt").write_text(f"./libs/{WHEEL}\n")
            (root / "queue.py").write_text("raise RuntimeError('of the project')\n")
            add_wheel(root / "libs", number)
            pythons.append(await made.python(root, name, told.append))
        assert [answer(each) for each in pythons] == ["41", "42"]
        assert await made.python(tmp_path / "one", "one", told.append) == pythons[0]
        assert len(told) == 2

    asyncio.run(main())


def test_a_wrong_requirement_is_told_in_plain_words(tmp_path: Path, threads: Threads) -> None:
    project(tmp_path, "./no-such-folder\n")
    with pytest.raises(EnvironmentFailed, match=r"pip cannot install .*such") as failed:
        asyncio.run(environments(tmp_path, threads).python(tmp_path, "a"))
    assert failed.value.lasting


@contextmanager
def index(status: int) -> Iterator[str]:
    """A package index that answers all requests with this status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "lasting"), [(404, True), (503, False)])
def test_a_failure_is_lasting_only_if_the_index_has_answered(
    tmp_path: Path,
    threads: Threads,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    lasting: bool,
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    with index(status) as url:
        project(tmp_path, f"--index-url {url}\nno-such-package==1.0\n")
        with pytest.raises(EnvironmentFailed, match="No matching distribution") as failed:
            asyncio.run(environments(tmp_path, threads).python(tmp_path, "a"))
    assert failed.value.lasting is lasting


def test_an_installation_takes_no_thread_and_is_killed_when_it_is_cancelled(
    tmp_path: Path, threads: Threads
) -> None:
    """Neither does a second pipeline that waits for the same environment."""
    root = hanging_project(tmp_path / "project")

    async def main() -> None:
        made = environments(tmp_path, threads)
        waiting = [asyncio.create_task(made.python(root, "a")) for _ in range(3)]
        await until((root / "began").exists)
        assert sessions_of(WORKER), "the guard of the worker finds pip"
        assert await threads.run(lambda: "not held up") == "not held up"
        for task in waiting:
            task.cancel()
        async with asyncio.timeout(patient(WAIT_S)):
            await asyncio.gather(*waiting, return_exceptions=True)
        assert all(task.cancelled() for task in waiting)
        assert not sessions_of(WORKER)

    asyncio.run(main())
    (path,) = (tmp_path / "environments").glob("*.lock")
    lock = try_lock(path)
    assert lock is not None
    unlock(lock)


def test_a_pip_that_is_killed_may_work_the_next_time(tmp_path: Path, threads: Threads) -> None:
    root = hanging_project(tmp_path / "project")

    async def main() -> None:
        task = asyncio.create_task(environments(tmp_path, threads).python(root, "a"))
        await until((root / "began").exists)
        for session in sessions_of(WORKER):
            os.kill(session, signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match="killed by signal 9") as failed:
            await task
        assert not failed.value.lasting

    asyncio.run(main())


def test_a_worker_that_dies_keeps_the_lock_until_its_pip_has_ended(tmp_path: Path) -> None:
    """Its guard ends pip. Only then another worker makes the environment."""
    root = hanging_project(tmp_path / "project")
    folder = tmp_path / "environments"
    command = [sys.executable, "-c", INSTALL, str(folder), str(root), WORKER]
    with subprocess.Popen(command, start_new_session=True) as worker:
        try:
            asyncio.run(until((root / "began").exists))
            worker.kill()
            worker.wait(patient(WAIT_S))
            (path,) = folder.glob("*.lock")
            assert try_lock(path) is None
        finally:
            end_drivers(WORKER)
    lock = try_lock(path)
    assert lock is not None
    unlock(lock)


class LaterClock(SystemClock):
    """A clock that is ahead."""

    def __init__(self, days: int) -> None:
        self._ahead_ms = days * 24 * 3600 * 1000

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


def test_environments_that_no_version_needs_are_removed_after_a_week(
    tmp_path: Path, threads: Threads
) -> None:
    """What a deployed version needs is kept, and so is what another worker makes now. What a dead
    worker left half made is removed at once."""
    folder = tmp_path / "environments"
    made = {
        "shared": Made("r1", "", "", _interpreter()),
        "with-files": Made("r2", "a2", "", _interpreter()),
        "with-other-files": Made("r2", "a3", "", _interpreter()),
        "of-another-python": Made("r1", "", "", "other"),
    }
    for name, what in made.items():
        (folder / name).mkdir(parents=True)
        (folder / name / COMPLETE).write_text(json.dumps(asdict(what)))
    (folder / "of-an-old-worker").mkdir()
    (folder / "of-an-old-worker" / COMPLETE).touch()
    (folder / "left").mkdir()
    (folder / "in-progress").mkdir()
    in_progress = try_lock(folder / "in-progress.lock")
    assert in_progress is not None
    versions = [
        Version("x", 1, "project", "x", "a1", 1, "r1"),
        Version("y", 1, "project", "x", "a2", 1, "r2"),
    ]

    def cleaned(days: int) -> set[str]:
        cleaning = environments(tmp_path, threads, LaterClock(days))
        asyncio.run(cleaning.clean(versions))
        return {each.name for each in folder.iterdir()}

    everything = {*made, "of-an-old-worker", "in-progress", "in-progress.lock"}
    assert {each for each in cleaned(6) if not each.endswith(".lock")} == {
        each for each in everything if not each.endswith(".lock")
    }
    found = cleaned(8)
    assert {each for each in found if not each.endswith(".lock")} == {
        "shared", "with-files", "in-progress",
    }  # fmt: skip
    assert "with-other-files.lock" not in found
    unlock(in_progress)
