"""Tests the rehearsal of a driver in reserve, on real Spark."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.runtime import SystemClock, Threads
from penstock.spark.deployments.driver_process import DriverProcess, DriverStart
from penstock.spark.home import shared_home

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("java")]
WAIT_S = 600.0
HIDDEN = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


def test_a_driver_rehearses_all_steps_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """No metastore: a pipeline's own would not be used any more. And no files."""
    folder = tmp_path / "spare"
    folder.mkdir()
    lines: list[str] = []

    async def main() -> list[int]:
        told: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        start = DriverStart(
            python=sys.executable,
            master="local[2]",
            folder=str(folder),
            settings={},
            environment={
                **{name: value for name, value in os.environ.items() if name not in HIDDEN},
                **shared_home(tmp_path),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
            },
            scratch=str(tmp_path / "scratch"),
        )
        driver = DriverProcess(start, Threads(2), SystemClock(), told.put_nowait, lines.extend)
        task = asyncio.create_task(driver.run())

        async def until(kind: str) -> Mapping[str, Any]:
            while (event := await told.get())["event"] != kind:
                assert event["event"] != "end", f"{event}: {lines[-20:]}"
            return event

        left: list[int] = []
        async with asyncio.timeout(WAIT_S):
            await until("warm")
            kinds = {each.name.partition("-")[0] for each in (tmp_path / "scratch/tmp").iterdir()}
            assert {"blockmgr", "spark"} <= kinds, kinds
            while not left or left[-1]:
                driver.send({"rehearse": True})
                left.append(int((await until("rehearsed"))["left"]))
            driver.send({"stop": "soon"})
            await task
        return left

    left = asyncio.run(main())
    assert len(left) > 1 and left == list(range(len(left) - 1, -1, -1)), lines[-20:]
    assert not [line for line in lines if "ended early" in line]
    assert not list(folder.iterdir())
    assert not (tmp_path / "scratch").exists()
