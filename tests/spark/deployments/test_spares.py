"""Tests the driver in reserve, with a driver that only pretends to be Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.spark.deployments import driver_process
from penstock.spark.deployments.driver_process import DriverStart
from penstock.spark.deployments.metrics.start_times import StartTimes
from penstock.spark.deployments.preparation import Preparation, PreparedVersion
from penstock.spark.deployments.spares import Spares
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.pipelines.driver_control import Assignment
from penstock.testing.slowness import patient
from spark.deployments.test_driver_process import environment_with

WAIT_S = 60.0
DRIVER = """
import json, os, pathlib, sys, time

from penstock.spark.pipelines.driver_control import Control, Watchdog

events = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w")


def tell(**event):
    events.write(json.dumps(event) + "\\n")
    events.flush()


control = Control(sys.stdin, Watchdog())
tell(event="phase", text="starting Spark")
while not pathlib.Path(os.environ["SPARK_STARTS"]).exists():
    time.sleep(0.01)
tell(event="warm")
left = 3


def rehearse():
    global left
    left -= 1
    tell(event="rehearsed", left=left)


assigned = control.assignment(rehearse)
if assigned is not None:
    tell(event="ready", name=assigned.name, link=assigned.link)
control.command()
tell(event="end", state="STOPPED")
"""
ASSIGNED = Assignment("views", "project", "/", "x", "/", "/", "/", "x")


class FakePreparation:
    """Starts the pretended driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = 0

    def spare_start(self, number: str) -> DriverStart:
        self.started += 1
        (self.folder / "worker" / "spares" / "me" / number).mkdir()
        environment = {
            **environment_with(self.folder),
            "SPARK_STARTS": str(self.folder / "spark-starts"),
        }
        return DriverStart(sys.executable, "local", str(self.folder), {}, environment)

    def spare_link(self, number: str) -> str:
        return f"link of {number}"

    def folders(self) -> list[Path]:
        """Returns the folders of the drivers."""
        return list((self.folder / "worker" / "spares" / "me").iterdir())

    def let_spark_start(self) -> None:
        (self.folder / "spark-starts").touch()


class Told:
    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def kinds(self) -> list[Any]:
        return [event["event"] for event in self.events]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(patient(WAIT_S)):
        while not condition():
            await SystemClock().sleep(0.01)


@pytest.fixture
def preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePreparation:
    (tmp_path / "pretended_spare.py").write_text(DRIVER)
    monkeypatch.setattr(driver_process, "MODULE", "pretended_spare")
    return FakePreparation(tmp_path)


class SetClock(SystemClock):
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def new_spares(
    preparation: FakePreparation,
    times: StartTimes | None = None,
    clock: SystemClock | None = None,
) -> Spares:
    folder = WorkerFolder(str(preparation.folder / "worker"))
    folder.prepare(SystemRandom())
    folder.claim_spares("me")
    clock = clock or SystemClock()
    return Spares(
        cast("Preparation", preparation),
        folder,
        Threads(2),
        clock,
        SystemRandom(),
        times or StartTimes(clock),
    )


def prepared(*, fits_spare: bool = True) -> PreparedVersion:
    start = DriverStart(sys.executable, "local", "/", {}, {})
    return PreparedVersion(start, ASSIGNED, fits_spare, lambda _: None)


async def taken_to_its_end(spares: Spares, preparation: FakePreparation) -> Told:
    """Takes the spare, lets its Spark start, waits until it is ready, and stops it."""
    told = Told()
    found = spares.take(prepared(), told, lambda _: None)
    assert found is not None
    driver, task, assignment = found
    driver.send({"assign": asdict(assignment)})
    preparation.let_spark_start()
    await until(lambda: "ready" in told.kinds())
    driver.send({"stop": "soon"})
    async with asyncio.timeout(patient(WAIT_S)):
        await task
    return told


def test_a_pipeline_takes_the_spare_over(preparation: FakePreparation) -> None:
    async def main() -> None:
        spares = new_spares(preparation)
        preparation.let_spark_start()
        await spares.keep(wanted=True)
        await until(lambda: spares.states()["warm"])
        told = await taken_to_its_end(spares, preparation)
        assert told.events[0]["name"] == "views"
        assert str(told.events[0]["link"]).startswith("link of ")
        assert spares.states() == {"starting": 0, "warm": 0}
        assert preparation.started == 1

    asyncio.run(main())


def test_a_pipeline_takes_a_spare_over_whose_spark_still_starts(
    preparation: FakePreparation,
) -> None:
    async def main() -> None:
        times = StartTimes(SystemClock())
        spares = new_spares(preparation, times)
        await spares.keep(wanted=True)
        assert spares.states() == {"starting": 1, "warm": 0}
        told = await taken_to_its_end(spares, preparation)
        assert told.kinds()[-3:] == ["warm", "ready", "end"]
        assert sum(times.histogram.counts) == 1, "the start of its Spark is measured all the same"
        assert preparation.started == 1

    asyncio.run(main())


def test_a_spare_rehearses_step_by_step_until_it_is_taken(preparation: FakePreparation) -> None:
    async def main() -> None:
        spares = new_spares(preparation)
        preparation.let_spark_start()
        await spares.keep(wanted=True)
        assert spares.rehearse(), "it has not started"
        await until(lambda: spares.states()["warm"])
        assert not spares.rehearse()
        await until(spares.rehearse)
        told = await taken_to_its_end(spares, preparation)
        assert told.kinds() == ["ready", "end"]
        assert spares.rehearse(), "there is none"

    asyncio.run(main())


def test_a_step_that_was_asked_for_does_not_delay_a_pipeline(preparation: FakePreparation) -> None:
    async def main() -> None:
        spares = new_spares(preparation)
        preparation.let_spark_start()
        await spares.keep(wanted=True)
        await until(lambda: spares.states()["warm"])
        spares.rehearse()
        told = await taken_to_its_end(spares, preparation)
        assert told.kinds()[-2:] == ["ready", "end"]

    asyncio.run(main())


def test_a_spare_that_does_not_fit_is_kept(preparation: FakePreparation) -> None:
    async def main() -> None:
        spares = new_spares(preparation)
        await spares.keep(wanted=True)
        assert spares.take(prepared(fits_spare=False), Told(), lambda _: None) is None
        assert spares.states() == {"starting": 1, "warm": 0}
        await spares.keep(wanted=False)
        assert spares.states() == {"starting": 0, "warm": 0}

    asyncio.run(main())


def test_the_folder_of_a_spare_is_removed_when_it_has_ended(preparation: FakePreparation) -> None:
    """That of a spare which a pipeline took over, too."""

    async def main() -> None:
        spares = new_spares(preparation)
        await spares.keep(wanted=True)
        assert len(preparation.folders()) == 1
        await taken_to_its_end(spares, preparation)
        assert preparation.folders() == []
        await spares.keep(wanted=True)
        assert len(preparation.folders()) == 1
        await spares.close()
        assert preparation.folders() == []

    asyncio.run(main())


def test_a_spare_that_was_killed_is_replaced_after_a_growing_pause(
    preparation: FakePreparation,
) -> None:
    """The system may have killed it because memory was short."""
    clock = SetClock()

    async def killed(spares: Spares) -> None:
        assert spares.pid is not None
        os.kill(spares.pid, signal.SIGKILL)
        assert spares._spare is not None and spares._spare.task is not None
        await asyncio.wait({spares._spare.task}, timeout=patient(WAIT_S))
        await spares.keep(wanted=True)
        assert spares.states() == {"starting": 0, "warm": 0}

    async def main() -> None:
        spares = new_spares(preparation, clock=clock)
        preparation.let_spark_start()
        for number, pause_s in enumerate((10, 20, 40)):
            await spares.keep(wanted=True)
            assert preparation.started == number + 1
            await until(lambda: spares.states()["warm"])
            await killed(spares)
            clock.now_s += pause_s - 1
            await spares.keep(wanted=True)
            assert preparation.started == number + 1, "the pause is not over"
            clock.now_s += 1
        await spares.keep(wanted=True)
        await until(lambda: spares.states()["warm"])
        await taken_to_its_end(spares, preparation)
        await spares.keep(wanted=True)
        await until(lambda: spares.states()["warm"])
        await killed(spares)
        clock.now_s += 10
        await spares.keep(wanted=True)
        assert preparation.started == 6, "a spare was of use, so the pause is short again"
        await spares.close()

    asyncio.run(main())
