"""Tests the processes of a driver: commands, events, log and end, with a driver without Spark."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.runtime import SystemClock, Threads
from penstock.spark.deployments import driver_process
from penstock.spark.deployments.driver_log import FILE_NAME, LINES_MAX, DriverLog
from penstock.spark.deployments.driver_process import DriverProcess, DriverStart
from penstock.spark.pipelines.driver_control import LEASE_ENDED
from penstock.spark.pipelines.process_session import memory_of, processes
from penstock.testing.slowness import patient

WAIT_S = 60.0
DRIVER = """
import json, os, subprocess, sys

from penstock.spark.pipelines.driver_control import Control, Watchdog

events = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w")


def tell(**event):
    events.write(json.dumps(event) + "\\n")
    events.flush()


control = Control(sys.stdin, Watchdog(events=events.fileno()))
# A child in a process group of its own, as Spark's Python workers are.
child = subprocess.Popen(["sleep", "1000"], preexec_fn=lambda: os.setpgid(0, 0))
print("token is", os.environ.get("TOKEN"), flush=True)
tell(event="warm", child=child.pid, secret=os.environ.get("TOKEN"))
assigned = control.assignment()
if assigned is not None:
    tell(event="ready", name=assigned.name)
while control.command() == "round":
    tell(event="waiting")
tell(event="end", state="STOPPED")
"""
ASSIGNED = {
    "name": "views", "kind": "project", "root": "/", "entry": "x", "storage": "/", "warehouse": "/",
    "metastore": "/", "bootstrap": "x",
}  # fmt: skip


def environment_with(folder: Path) -> dict[str, str]:
    """Returns an environment in which a driver finds this package and the fake driver."""
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Running:
    """A driver in a task, and what it told."""

    def __init__(self, folder: Path, secrets: tuple[str, ...] = ()) -> None:
        self.events: list[Any] = []
        self.lines: list[str] = []
        self._news = asyncio.Event()
        start = DriverStart(
            python=sys.executable,
            master="local",
            folder=str(folder),
            settings={},
            environment={**environment_with(folder), "TOKEN": "quite-secret"},
            secrets=secrets,
        )
        self.driver = DriverProcess(
            start, Threads(2), SystemClock(), self._on_event, self._on_lines
        )
        self.task = asyncio.create_task(self.driver.run())

    def _on_event(self, event: Any) -> None:
        self.events.append(event)
        self._news.set()

    def _on_lines(self, lines: list[str]) -> None:
        self.lines += lines
        self._news.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(patient(WAIT_S)):
            while not (found := condition()):
                self._news.clear()
                await self._news.wait()
        return found

    async def event(self, kind: str) -> Any:
        found = lambda: next((e for e in self.events if e["event"] == kind), None)  # noqa: E731
        return await self.until(found)

    async def ended(self) -> int:
        async with asyncio.timeout(patient(WAIT_S)):
            return await self.task


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fake_driver.py").write_text(DRIVER)
    monkeypatch.setattr(driver_process, "MODULE", "fake_driver")
    return tmp_path


def is_alive(pid: int) -> bool:
    return pid in {process.pid for process in processes()}


def test_a_driver_is_assigned_runs_rounds_and_stops(folder: Path) -> None:
    """Commands that are sent before it has started are kept. Nothing of it is left at the end."""

    async def main() -> None:
        running = Running(folder)
        running.driver.send({"assign": ASSIGNED})
        assert (await running.event("ready"))["name"] == "views"
        running.driver.send({"round": True})
        await running.event("waiting")
        pid = running.driver.pid
        assert pid is not None and memory_of([pid])[pid] > 1 << 20
        child = running.events[0]["child"]
        assert is_alive(child)
        running.driver.send({"stop": "soon"})
        assert await running.ended() == 0
        assert running.events[-1] == {"event": "end", "state": "STOPPED"}
        assert not is_alive(child)

    asyncio.run(main())


ODD = """
import os, sys
os.write(int(sys.argv[sys.argv.index("--events") + 1]), b'''LINES''')
"""


def test_odd_events_are_logged_and_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a driver writes, its later events are read."""
    odd = ["[]", "1", "null", '"text"', "{}", '{"event": 7}', "no JSON", "[" * 20_000, "\\xff"]
    wrong = ['{"event": "refused"}', '{"event": "lag", "lag": NaN}']
    lines = [*odd, *wrong, '{"event": "end", "state": "STOPPED"}', '{"event": "half']
    code = ODD.replace("LINES", "\\n".join(lines))
    (folder / "fake_driver.py").write_text(code)

    async def main() -> None:
        running = Running(folder)

        def on_event(event: Any) -> None:
            if event["event"] == "refused":
                raise KeyError("text")
            running.events.append(event)

        running.driver.on_event = on_event
        assert await running.ended() == 0
        assert running.events == [{"event": "end", "state": "STOPPED"}]

    asyncio.run(main())
    (told,) = [each.getMessage() for each in caplog.records]
    assert "an invalid event" in told and "[]" in told


def test_a_driver_that_is_killed_leaves_nothing_behind(folder: Path) -> None:
    async def main() -> None:
        running = Running(folder)
        child = (await running.event("warm"))["child"]
        running.driver.kill()
        assert await running.ended() == -9
        assert not is_alive(child)

    asyncio.run(main())


def test_a_driver_that_is_killed_before_it_has_started_does_not_start(folder: Path) -> None:
    async def main() -> None:
        running = Running(folder)
        running.driver.kill()
        assert await running.ended() < 0
        assert not running.events

    asyncio.run(main())


def test_a_driver_whose_lease_ends_kills_itself_and_its_children(folder: Path) -> None:
    """The worker does nothing here: it may be dead, or cut off, or paused. The last event of the
    driver says why it ends."""

    async def main() -> None:
        running = Running(folder)
        child = (await running.event("warm"))["child"]
        running.driver.send({"assign": ASSIGNED})
        # If the lease had ended before, its end could be told before this.
        await running.event("ready")
        running.driver.send({"lease": 1.0})
        assert await running.ended() == -9
        assert running.events[-1] == {"event": LEASE_ENDED}
        assert not is_alive(child)

    asyncio.run(main())


def test_a_driver_ends_with_its_worker(folder: Path) -> None:
    """The end of standard input is the end of the worker."""

    async def main() -> None:
        running = Running(folder)
        child = (await running.event("warm"))["child"]
        process = running.driver._process
        assert process is not None and process.stdin is not None
        process.stdin.close()
        assert await running.ended() == -9
        assert not is_alive(child)

    asyncio.run(main())


def test_an_event_that_is_too_long_is_left_out(folder: Path) -> None:
    """It must not end the driver: a preview may contain anything."""
    code = DRIVER.replace('tell(event="warm"', 'tell(event="x" * (3 << 20))\ntell(event="warm"')
    assert code != DRIVER
    (folder / "fake_driver.py").write_text(code)

    async def main() -> None:
        running = Running(folder)
        assert (await running.event("warm"))["child"]
        running.driver.kill()
        await running.ended()

    asyncio.run(main())


@pytest.mark.parametrize("secret", ["quite-secret", "the first line\nquite-secret\n"])
def test_secrets_are_hidden_in_logs_and_events(folder: Path, secret: str) -> None:
    """A line of a secret, too."""

    async def main() -> None:
        running = Running(folder, (secret,))
        assert (await running.event("warm"))["secret"] == "***"
        await running.until(lambda: running.lines)
        assert running.lines == ["token is ***"]
        assert "quite-secret" not in repr(running.driver._start)
        running.driver.kill()
        await running.ended()

    asyncio.run(main())


def test_a_log_is_written_to_a_file_and_to_the_cluster(tmp_path: Path) -> None:
    """Lines beyond the limit are counted."""
    sent: list[tuple[int, list[str]]] = []

    async def send(version: int, lines: Any) -> None:
        sent.append((version, list(lines)))

    async def main() -> None:
        log = DriverLog(str(tmp_path), Threads(1), send)
        await log.flush()
        log.add(3, ["a", "b"])
        await log.flush()
        log.add(3, ["c"] * (LINES_MAX + 5))
        await log.flush()

    asyncio.run(main())
    assert sent[0] == (3, ["a", "b"]) and len(sent) == 2
    assert sent[1][1][-1] == "(5 more lines were left out)"
    assert (tmp_path / FILE_NAME).read_text().startswith("a\nb\nc\n")
