"""Tests that a worker measures backfills and recomputes, with drivers that only pretend."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.deployments.generations import RecomputeOrder, cancelled
from penstock.spark.deployments.metrics.figures import PipelineSample
from penstock.spark.stream_position import BackfillRequest
from penstock.testing import Broker
from spark.deployments.deployed import Cluster, run
from spark.deployments.metrics.samples import PROGRESS
from spark.deployments.pretended import (
    RunningWorker,
    pretended_drivers,
    running_worker,
    version,
)
from spark.deployments.test_worker_errors import until

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures(pretended_drivers.__name__)]
__all__ = ["pretended_drivers"]
REQUEST = BackfillRequest(7, "clicks", {"clicks": {"0": [[0, 100]]}})


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        yield running


class Script:
    """What the drivers do in each round."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "script.json"
        self.tell()

    @property
    def code(self) -> str:
        return f"exec(json.loads(open({str(self._path)!r}).read()))"

    def tell(self, *events: dict[str, Any]) -> None:
        self._write("".join(f"tell(**{event!r});" for event in events) or "pass")

    def fail(self) -> None:
        self._write("sys.exit(1)")

    def _write(self, code: str) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(code))
        os.replace(partial, self._path)


def position(done: int, state: str = "RUNNING") -> dict[str, Any]:
    backfill = {"id": REQUEST.id, "state": state, "done": done, "total": 100, "lost": 0}
    places: dict[str, Any] = {"topics": {}, "began": {}, "backfilled": {}}
    return {
        "event": "position", "flow": "clicks", "stateful": False, "backfill": backfill, **places
    }  # fmt: skip


async def shows(running: RunningWorker, condition: Callable[[PipelineSample], object]) -> None:
    """Waits until the next scrape of the worker would show it."""
    await until(lambda: any(condition(each) for each in running.worker.sample().pipelines))


def test_a_worker_measures_a_backfill_until_it_ends(broker: Broker, tmp_path: Path) -> None:
    """Before a driver has begun it, while it reads, while the driver fails, and at its end."""
    script = Script(tmp_path)

    def figures(sample: PipelineSample) -> tuple[int, int, int] | None:
        (found,) = sample.backfills or (None,)
        return None if found is None else (found.done, found.left, min(found.failures, 1))

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path, at_round=script.code))
        async with running_worker(broker, tmp_path / "data") as running:
            await shows(running, lambda sample: sample.state == "RUNNING")
            assert not running.worker.sample().pipelines[0].backfills
            await cluster.change("copy", backfills=[REQUEST])
            await shows(running, lambda sample: figures(sample) == (0, 100, 0))
            script.tell(position(40))
            await shows(running, lambda sample: figures(sample) == (40, 60, 0))
            await shows(running, lambda sample: sample.backfills[0].idle_s > 0)
            script.fail()
            await shows(running, lambda sample: figures(sample) == (40, 60, 1))
            script.tell(position(70))
            await shows(running, lambda sample: figures(sample) == (70, 30, 0))
            script.tell(position(100, "COMPLETED"))
            await shows(running, lambda sample: figures(sample) is None)

    run(broker, main)


def test_a_worker_measures_a_recompute_until_it_ends(broker: Broker, tmp_path: Path) -> None:
    """What the driver of the served tables reads does not count."""
    script = Script(tmp_path)
    manual = RecomputeOrder(("copied",), "manual", 3_600_000)

    async def main(cluster: Cluster) -> None:
        first = version(tmp_path, at_round=script.code)
        await cluster.catalog.deploy(first)
        async with running_worker(broker, tmp_path / "data") as running:
            script.tell(PROGRESS)
            await shows(running, lambda sample: "clicks" in sample.figures.flows)
            assert running.worker.sample().pipelines[0].recompute is None
            script.tell()
            await cluster.catalog.deploy(replace(first, recompute=manual))
            await shows(running, lambda sample: sample.recompute and sample.recompute.rows == 0)
            script.tell(PROGRESS, {"event": "lag", "flow": "clicks", "lag": 12, "lag_s": 0.8})
            await shows(
                running,
                lambda sample: (
                    sample.recompute and sample.recompute.rows > 0 and sample.recompute.left == 12
                ),
            )
            script.fail()
            await shows(running, lambda sample: sample.recompute and sample.recompute.failures)
            await shows(running, lambda sample: sample.recompute and sample.recompute.idle_s > 0)
            await cluster.catalog.change("copy", cancelled, "cancelled", "")
            await shows(running, lambda sample: sample.recompute is None)

    run(broker, main)
