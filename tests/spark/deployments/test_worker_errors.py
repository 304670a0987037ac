"""Tests that errors end neither a worker nor its pipelines, with drivers that only pretend."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.errors import RecordTooLarge, TopicNotFound
from penstock.runtime import SystemClock
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import AccessRefused
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.deployed_pipeline import DeployedPipeline
from penstock.spark.deployments.surroundings import Surroundings
from penstock.testing import Broker
from spark.deployments.deployed import WAIT_S, Cluster, run
from spark.deployments.pretended import pretended_drivers, running_worker, version

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures(pretended_drivers.__name__)]
__all__ = ["pretended_drivers"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        yield running


class Refusing:
    """Lets methods of the catalog raise an error instead of writing, while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.is_on = True
        self._monkeypatch = monkeypatch

    def refuse(self, name: str, error: BaseException) -> None:
        real = getattr(Catalog, name)

        async def method(catalog: Catalog, *given: Any) -> None:
            if self.is_on:
                self.calls[name] += 1
                raise error
            await real(catalog, *given)

        self._monkeypatch.setattr(Catalog, name, method)


async def until(condition: Callable[[], object]) -> None:
    clock = SystemClock()
    end = clock.monotonic() + WAIT_S
    while not condition():
        assert clock.monotonic() < end, "the condition does not come true"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "error",
    [
        AccessRefused("this user may not run pipelines: it needs Write"),
        RecordTooLarge("the record is too large"),
        TopicNotFound("__penstock_pipeline_logs"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_refused_writes_end_neither_worker_nor_pipeline(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The status is there as soon as it can be written again."""
    refusing = Refusing(monkeypatch)
    refusing.is_on = False
    for name in ("log", "record", "report", "report_worker"):
        refusing.refuse(name, error)

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path))
        async with running_worker(broker, tmp_path / "data") as running:
            before = await cluster.status("copy", lambda status: status.run.get("round"))
            refusing.is_on = True
            seen = refusing.calls
            await until(lambda: all(seen[name] >= 2 for name in ("log", "report", "report_worker")))
            assert not running.has_ended
            refusing.is_on = False
            status = await cluster.status(
                "copy", lambda status: status.run.get("round", 0) > before.run["round"] + 2
            )
            assert status.state == "RUNNING" and status.failures == 0
            refusing.is_on = True
            await running.stop()

    run(broker, main)
    assert str(error) in caplog.text


def test_no_driver_begins_before_its_place_is_known(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker would make the tables again. The pipeline is tried again after a pause."""
    refusing = Refusing(monkeypatch)
    refusing.refuse("report", AccessRefused("this user may not run pipelines"))

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path))
        async with running_worker(broker, tmp_path / "data") as running:
            pipelines = running.worker.pipelines
            await until(lambda: "copy" in pipelines)
            await until(lambda: pipelines["copy"].main.figures.failures >= 2)
            assert pipelines["copy"].main.figures.starts == 0
            refusing.is_on = False
            status = await cluster.state("copy", "RUNNING")
            assert status.storage_id and not running.has_ended

    run(broker, main)


def test_an_unexpected_error_is_shown_and_the_pipeline_is_tried_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    real, calls = Surroundings.driver, []

    def driver(around: Surroundings, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise RuntimeError("surprise")
        return real(around, *given)

    monkeypatch.setattr(Surroundings, "driver", driver)

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path))
        async with running_worker(broker, tmp_path / "data"):
            await cluster.status("copy", lambda status: status.good_version == 1)
            (failed,) = [each for each in await cluster.events("copy") if each.what == "failed"]
            assert "surprise" in failed.text and "the next attempt is in" in failed.text

    run(broker, main)
    assert "surprise" in caplog.text


def test_an_error_beside_a_driver_ends_that_driver_and_another_one_follows(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(monkeypatch)
    refusing.is_on = False
    refusing.refuse("record", RuntimeError("surprise"))

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path))
        async with running_worker(broker, tmp_path / "data") as running:
            first = await cluster.state("copy", "RUNNING")
            refusing.is_on = True
            pid = running.worker.pipelines["copy"].main.pid
            running.worker.pipelines["copy"].main._fail("test", RuntimeError("surprise"))
            await until(lambda: refusing.calls["record"])
            refusing.is_on = False
            await cluster.status(
                "copy",
                lambda status: status.state == "RUNNING" and status.since_ms > first.since_ms,
            )
            assert running.worker.pipelines["copy"].main.pid != pid

    run(broker, main)


def test_a_task_that_fails_begins_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = DeployedPipeline.run, []

    async def fails_once(pipeline: DeployedPipeline) -> None:
        calls.append(pipeline)
        if len(calls) == 1:
            raise RuntimeError("surprise")
        await real(pipeline)

    monkeypatch.setattr(DeployedPipeline, "run", fails_once)

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path))
        async with running_worker(broker, tmp_path / "data"):
            await cluster.state("copy", "RUNNING")

    run(broker, main)


def test_the_last_words_of_a_driver_are_in_the_log_when_its_worker_has_left(
    broker: Broker, tmp_path: Path
) -> None:
    talks = 'print("\\n".join(f"last words {n}" for n in range(1_000)), flush=True)'

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path, at_stop=talks))
        async with running_worker(broker, tmp_path / "data") as running:
            await cluster.status("copy", lambda status: status.good_version == 1)
            await running.stop()
        lines = [line.text async for line in cluster.catalog.logs("copy", follow=False)]
        said = [line for line in lines if line.startswith("last words")]
        assert said == [f"last words {number}" for number in range(1_000)]
        assert cluster.catalog.statuses["copy"].run["state"] == "STOPPED"

    run(broker, main)


def test_a_pipeline_that_is_deleted_is_forgotten(broker: Broker, tmp_path: Path) -> None:
    """Also if its worker had given it up before: the worker stays as small as it was."""

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path))
        async with running_worker(broker, tmp_path / "data") as running:
            worker = running.worker
            await cluster.status("copy", lambda status: status.good_version == 1)
            await cluster.catalog.delete("copy")
            await until(lambda: not worker.pipelines and not worker._running)
            await until(lambda: not worker._catalog.statuses["copy"].run)
            assert not worker._preparation._locks
            # As if it had been given up before it was deleted.
            worker.take("gone")
            await worker.pipelines["gone"].give_up()
            await until(lambda: not worker.pipelines and not worker._running)

    run(broker, main)


def test_a_broker_outage_does_not_count_as_a_failure_of_the_version(
    broker: Broker, tmp_path: Path
) -> None:
    """The worker knows the addresses of its cluster. A typo of the version is none of them."""

    def failing(name: str, address: str) -> NewVersion:
        error = f"copy: cannot connect to {address}: Connection refused"
        end = f"tell(event='end', state='FAILED', error='{error}'); break"
        return version(tmp_path, name, at_round=end)

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(failing("right", broker.bootstrap))
        await cluster.catalog.deploy(failing("wrong", "one.example:9092"))
        async with running_worker(broker, tmp_path / "data"):
            right = await cluster.status("right", lambda status: status.failures >= 2)
            assert right.version_failures == 0 and "see penstock status" in right.error
            wrong = await cluster.status("wrong", lambda status: status.failures >= 2)
            assert wrong.version_failures == wrong.failures

    run(broker, main)
