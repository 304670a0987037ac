"""Tests the supervisor of broker processes: it starts, watches, restarts and stops them.

The children are small programs that behave like a broker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.supervise import SuperviseConfig, Supervisor
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

QUICK = SuperviseConfig(restart_pause_s=0.01, restart_pause_max_s=0.05, stop_timeout_s=60.0)

BROKER = """
import os, signal, sys, threading
def end(*_):
    os._exit(0)
signal.signal(signal.SIGTERM, end)
number, notes = sys.argv[1:]
with open(notes, "a") as file:
    file.write(f"{number} {os.getpid()}\\n")
print(f"ready bootstrap=h:{number}", flush=True)
sys.stdin.read()
"""


def command(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code, *arguments)


class Rig:
    """Runs a supervisor, and acts on its events until it ends."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.ready: list[list[str]] = []

    def lives(self) -> list[tuple[str, int]]:
        """Returns the number and process id of every start of a child, in order."""
        if not self.notes.exists():
            return []
        lines = [line.split() for line in self.notes.read_text().splitlines()]
        return [(number, int(pid)) for number, pid in lines]

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(patient(120)):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # the condition becomes true in other processes

    def run(
        self,
        commands: list[tuple[str, ...]],
        act: Callable[[Rig], Any],
        config: SuperviseConfig = QUICK,
        acquainted: Callable[[list[str]], Awaitable[None]] | None = None,
    ) -> int:
        async def main() -> int:
            supervisor = Supervisor(
                commands, SystemClock(), self.ready.append, config, acquainted=acquainted
            )
            async with asyncio.timeout(patient(120)), asyncio.TaskGroup() as tasks:
                running = tasks.create_task(supervisor.run())
                await act(self)
                return await running

        return asyncio.run(main())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "notes")


def brokers(rig: Rig, count: int) -> list[tuple[str, ...]]:
    return [command(BROKER, str(number), str(rig.notes)) for number in range(count)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ready_is_reported_once_when_all_brokers_are_ready(rig: Rig) -> None:
    """In the order of the brokers. SIGTERM stops them all cleanly."""

    async def act(rig: Rig) -> None:
        await rig.until(lambda: rig.ready)
        os.kill(os.getpid(), signal.SIGTERM)

    assert rig.run(brokers(rig, 3), act) == 0
    assert rig.ready == [["h:0", "h:1", "h:2"]]
    assert len(rig.lives()) == 3
    assert not any(alive(pid) for _, pid in rig.lives())


def test_ready_is_reported_when_all_brokers_know_each_other(rig: Rig) -> None:
    """Not before, and not at all if they are stopped first."""
    asked: list[list[str]] = []

    async def never(addresses: list[str]) -> None:
        asked.append(addresses)
        await asyncio.Event().wait()

    async def act(rig: Rig) -> None:
        await rig.until(lambda: asked)
        os.kill(os.getpid(), signal.SIGTERM)

    assert rig.run(brokers(rig, 2), act, acquainted=never) == 0
    assert (asked, rig.ready) == ([["h:0", "h:1"]], [])


def test_a_crashed_broker_is_restarted(rig: Rig, capfd: pytest.CaptureFixture[str]) -> None:
    """With the same command. The others are not touched, and ready is not reported again."""

    async def act(rig: Rig) -> None:
        await rig.until(lambda: rig.ready)
        victim = next(pid for number, pid in rig.lives() if number == "1")
        os.kill(victim, signal.SIGKILL)
        await rig.until(lambda: len(rig.lives()) == 3)
        os.kill(os.getpid(), signal.SIGTERM)

    assert rig.run(brokers(rig, 2), act) == 0
    assert sorted(number for number, _ in rig.lives()) == ["0", "1", "1"]
    assert len(rig.ready) == 1
    assert "broker 1 was killed by SIGKILL; restarting it in 0.01 s" in capfd.readouterr().err


def test_a_stopped_broker_stays_down(rig: Rig, capfd: pytest.CaptureFixture[str]) -> None:
    """It was stopped on purpose. When all brokers are stopped, the supervisor ends."""

    async def act(rig: Rig) -> None:
        await rig.until(lambda: rig.ready)
        for _, pid in rig.lives():
            os.kill(pid, signal.SIGTERM)

    assert rig.run(brokers(rig, 2), act) == 0
    assert len(rig.lives()) == 2
    assert "broker 1 was stopped; the others keep running" in capfd.readouterr().err


def test_pauses_between_restarts_double(rig: Rig, capfd: pytest.CaptureFixture[str]) -> None:
    """Up to a limit."""
    crashing = command(
        "import sys; open(sys.argv[1], 'a').write('0 0\\n'); sys.exit(7)", str(rig.notes)
    )

    async def act(rig: Rig) -> None:
        await rig.until(lambda: len(rig.lives()) == 6)
        os.kill(os.getpid(), signal.SIGTERM)

    assert rig.run([crashing], act) == 0
    said = capfd.readouterr().err.splitlines()[:5]
    assert [line.rpartition(" in ")[2] for line in said] == [
        "0.01 s",
        "0.02 s",
        "0.04 s",
        "0.05 s",
        "0.05 s",
    ]
    assert "exited with code 7" in said[0]


def test_a_broker_that_cannot_start_ends_the_supervisor(rig: Rig) -> None:
    """Retrying does not fix a wrong config."""
    hopeless = command("raise SystemExit(2)")

    async def act(rig: Rig) -> None:
        pass

    assert rig.run([*brokers(rig, 1), hopeless], act) == 2
    assert rig.ready == []
    assert not any(alive(pid) for _, pid in rig.lives())


def test_a_broker_that_does_not_stop_is_killed(rig: Rig) -> None:
    """After the stop timeout, or at the second stop request."""
    stubborn = BROKER.replace("def end(*_):\n    os._exit(0)", "def end(*_):\n    pass")
    stubborn = stubborn.replace("sys.stdin.read()", "threading.Event().wait()")
    commands = [command(stubborn, "0", str(rig.notes))]

    async def act(rig: Rig) -> None:
        await rig.until(lambda: rig.ready)
        os.kill(os.getpid(), signal.SIGTERM)

    async def act_twice(rig: Rig) -> None:
        await rig.until(lambda: len(rig.ready) == 2)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    assert rig.run(commands, act, SuperviseConfig(stop_timeout_s=0.1)) == 0
    assert rig.run(commands, act_twice, SuperviseConfig(stop_timeout_s=1000.0)) == 0
    assert not any(alive(pid) for _, pid in rig.lives())


def test_other_output_of_a_broker_goes_to_stderr(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    """Stdout is reserved for the ready line."""

    async def act(rig: Rig) -> None:
        pass

    rig.run([command("print('something')")], act)
    written = capfd.readouterr()
    assert written.out == ""
    assert "something\n" in written.err
