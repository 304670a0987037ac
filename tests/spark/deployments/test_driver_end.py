"""Tests that a driver is over when its process has ended, whatever it has started, and that nothing
of it is left. The drivers are real processes without Spark."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.runtime import SystemClock, Threads
from penstock.spark.deployments import driver_process
from penstock.spark.deployments.driver_process import DriverProcess, DriverStart
from penstock.spark.deployments.driver_scratch import with_scratch
from penstock.spark.pipelines.driver_control import LEASE_ENDED
from penstock.spark.pipelines.process_session import DRIVER_VARIABLE, processes
from penstock.testing.slowness import patient
from spark.deployments.test_driver_process import environment_with

WAIT_S = 60.0
DRIVER = """
import json, os, subprocess, sys, time

from penstock.spark.pipelines.driver_control import Control, Watchdog

events = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w")


def tell(**event):
    events.write(json.dumps(event) + "\\n")
    events.flush()


def forked():
    child = os.fork()
    if not child:
        time.sleep(1000)
    return child


def detached(**options):
    return subprocess.Popen(["sleep", "1000"], start_new_session=True, **options).pid


control = Control(sys.stdin, Watchdog(events=events.fileno()))
print("it has begun", flush=True)
tell(event="warm", child=START_A_CHILD)
control.command()
tell(event="end", state="STOPPED")
"""
MAIN = """
import json, os, subprocess, sys, time

from penstock.spark.pipelines import controlled_driver


def serve(given, events, control):
    CODE
    return "COMPLETED"


controlled_driver.serve = serve
sys.exit(controlled_driver.main())
"""


class Running:
    """A driver in a task, and what it told."""

    def __init__(self, folder: Path, **given: str) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.lines: list[str] = []
        start = DriverStart(
            sys.executable, "local", str(folder), {}, environment_with(folder), **given
        )
        self.driver = DriverProcess(
            start, Threads(2), SystemClock(), self.events.put_nowait, self.lines.extend
        )
        self.task = asyncio.create_task(self.driver.run())

    async def event(self, kind: str) -> Any:
        async with asyncio.timeout(patient(WAIT_S)):
            while (event := await self.events.get())["event"] != kind:
                pass
        return event

    async def ended(self) -> int:
        async with asyncio.timeout(patient(WAIT_S)):
            return await self.task


Write = Callable[[str], Path]


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes a driver that starts a child like this."""

    def write(code: str) -> Path:
        (tmp_path / "fake_driver.py").write_text(DRIVER.replace("START_A_CHILD", code))
        return tmp_path

    monkeypatch.setattr(driver_process, "MODULE", "fake_driver")
    return write


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes the real driver with this code in the place of Spark."""

    def write(code: str) -> Path:
        (tmp_path / "fake_driver.py").write_text(MAIN.replace("CODE", code))
        return tmp_path

    monkeypatch.setattr(driver_process, "MODULE", "fake_driver")
    return write


def is_alive(pid: int) -> bool:
    return pid in {process.pid for process in processes()}


@pytest.mark.parametrize("code", ["forked()", "detached()"])
def test_a_driver_that_was_killed_is_over_with_its_children(child: Write, code: str) -> None:
    """A forked child keeps the pipe of events open, a detached one the output. The system kills the
    driver here, for example because memory is short."""
    folder = child(code)

    async def main() -> None:
        running = Running(folder)
        pid = (await running.event("warm"))["child"]
        assert running.driver.pid is not None
        os.kill(running.driver.pid, signal.SIGKILL)
        assert await running.ended() == -signal.SIGKILL
        assert not is_alive(pid)

    asyncio.run(main())


@pytest.mark.parametrize("code", ["forked()", "detached()"])
def test_a_driver_that_has_ended_by_itself_is_over_with_its_children(
    child: Write, code: str
) -> None:
    folder = child(code)

    async def main() -> None:
        running = Running(folder)
        pid = (await running.event("warm"))["child"]
        running.driver.send({"stop": "soon"})
        await running.event("end")
        assert await running.ended() == 0
        assert not is_alive(pid)
        assert running.lines == ["it has begun"]

    asyncio.run(main())


def test_a_child_that_cannot_be_found_does_not_keep_its_driver(child: Write) -> None:
    """It has a session of its own and an empty environment, and all pipes of the driver."""
    folder = child("detached(env={}, pass_fds=[events.fileno()], stdin=0)")

    async def main() -> int:
        running = Running(folder)
        pid: int = (await running.event("warm"))["child"]
        running.driver.kill()
        assert await running.ended() == -signal.SIGKILL
        assert running.lines == ["it has begun"]
        return pid

    pid = asyncio.run(main())
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("code", ["forked()", "detached()"])
def test_children_are_killed_at_the_end_of_the_lease(child: Write, code: str) -> None:
    """The driver does it alone: its worker may be gone, or paused."""
    folder = child(code)
    receiving, sending = os.pipe()
    driver = subprocess.Popen(
        [sys.executable, "-m", "fake_driver", "--events", str(sending)],
        env={**environment_with(folder), DRIVER_VARIABLE: f"mark-{os.getpid()}"},
        stdin=subprocess.PIPE,
        pass_fds=(sending,),
        start_new_session=True,
    )
    os.close(sending)
    try:
        with os.fdopen(receiving) as events:
            pid = json.loads(events.readline())["child"]
            assert driver.stdin is not None
            driver.stdin.write(b'{"lease": 1.0}\n')
            driver.stdin.flush()
            assert driver.wait(patient(WAIT_S)) == -signal.SIGKILL
            # The driver has killed it, and waited for its end for a second.
            end = time.monotonic() + patient(WAIT_S)
            while is_alive(pid):
                assert time.monotonic() < end
                os.sched_yield()
            told = [json.loads(line) for line in events if line.strip()]
            assert told == [{"event": LEASE_ENDED}]
    finally:
        driver.kill()
        driver.wait(patient(WAIT_S))


def test_temporary_files_of_a_driver_are_removed_when_it_has_ended(child: Write) -> None:
    """A JVM that is killed leaves them behind."""
    folder = child("os.environ['SPARK_SUBMIT_OPTS']")
    scratch = folder / "a folder" / "7"

    async def main() -> None:
        running = Running(folder, scratch=str(scratch))
        options = (await running.event("warm"))["child"]
        assert options.endswith(f'"-Djava.io.tmpdir={scratch}/tmp"')
        (scratch / "tmp" / "blockmgr-1").mkdir()
        running.driver.kill()
        await running.ended()
        assert not scratch.exists()

    asyncio.run(main())


def test_a_user_may_have_another_folder_for_temporary_files(tmp_path: Path) -> None:
    mine = {"JAVA_TOOL_OPTIONS": "-Djava.io.tmpdir=/fast"}
    assert with_scratch(mine, tmp_path) == mine
    found = with_scratch({"SPARK_SUBMIT_OPTS": "-Xshare:auto"}, tmp_path)["SPARK_SUBMIT_OPTS"]
    assert found == f'-Xshare:auto "-Djava.io.tmpdir={tmp_path}/tmp"'


def test_programs_that_a_driver_starts_do_not_read_its_commands(serving: Write) -> None:
    """Their input is empty. So is that of the code itself."""
    code = """
    read = subprocess.run(["cat"], capture_output=True).stdout.decode()
    events.tell("read", text=read + sys.stdin.read())
    assigned = control.command()
    """
    folder = serving(code)

    async def main() -> None:
        running = Running(folder)
        assert (await running.event("read"))["text"] == ""
        running.driver.send({"round": True})
        assert (await running.event("end"))["state"] == "COMPLETED"
        await running.ended()

    asyncio.run(main())


def test_programs_that_a_driver_starts_do_not_have_its_pipe_of_events(serving: Write) -> None:
    """A program that is started without Python's care, too."""
    folder = serving("""
    os.system(f"(echo > /proc/self/fd/{given.events}) 2> /dev/null && echo it has the pipe")
    """)

    async def main() -> None:
        running = Running(folder)
        await running.event("end")
        await running.ended()
        assert running.lines == []

    asyncio.run(main())


def test_a_damaged_command_ends_the_driver_as_failed(serving: Write) -> None:
    """With an error, and without waiting for the end of the lease."""
    folder = serving("time.sleep(1000)")

    async def main() -> None:
        running = Running(folder)
        async with asyncio.timeout(patient(WAIT_S)):
            while running.driver.pid is None:
                await SystemClock().sleep(0.01)
        running.driver._write(b'nd": true}\n')
        end = await running.event("end")
        assert end["state"] == "FAILED" and "command" in end["error"]
        assert await running.ended() == -signal.SIGKILL

    asyncio.run(main())
