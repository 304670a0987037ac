"""Tests how long workers that were killed are shown, and that other workers remove their status."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.errors import RecordTooLarge
from penstock.spark.deployments import topics
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_view import CatalogView, actual_state
from penstock.spark.deployments.gone_workers import forget_gone
from penstock.spark.deployments.model import Deployment, Status, WorkerStatus, encode
from penstock.testing import Broker
from spark.deployments.deployed import WAIT_S, Cluster, run
from spark.deployments.pretended import running_worker

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: a worker removes the status of every worker that is gone."""
    with Broker() as running:
        yield running


def worker(name: str, silent_ms: int, *, stopping: bool = False) -> WorkerStatus:
    return WorkerStatus(name, "box", "disk", 0, NOW_MS - silent_ms, stopping=stopping)


def view(*workers: WorkerStatus) -> CatalogView:
    found = CatalogView()
    for each in workers:
        found.apply(topics.STATUS, topics.worker_key(each.id), encode(each))
    return found


def test_a_worker_that_was_killed_is_shown_for_an_hour() -> None:
    found = view(
        worker("z-live", 5_000),
        worker("stops", 5_000, stopping=True),
        worker("killed", 31_000),
        worker("killed-while-it-stopped", 31_000, stopping=True),
        worker("long-gone", HOUR_MS),
        worker("long-gone-while-it-stopped", HOUR_MS, stopping=True),
    )
    assert [(each.id, state) for each, state in found.shown_workers(NOW_MS)] == [
        ("killed", "gone"),
        ("killed-while-it-stopped", "gone"),
        ("stops", "stopping"),
        ("z-live", "live"),
    ]
    gone = [each.id for each in found.gone_workers(NOW_MS)]
    assert gone == ["long-gone", "long-gone-while-it-stopped"]


@pytest.mark.parametrize(("silent_ms", "state"), [(5_000, "RUNNING"), (31_000, "STOPPED")])
def test_a_worker_that_was_killed_while_it_stopped_runs_nothing(silent_ms: int, state: str) -> None:
    deployment = Deployment("views", 1, 1, wanted="STOPPED")
    status = Status("views", "RUNNING", 1, 1, worker="w")
    stopping = worker("w", silent_ms, stopping=True)
    assert actual_state(deployment, status, stopping, NOW_MS) == state


def test_a_worker_removes_the_status_of_one_that_was_killed(broker: Broker, tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        catalog, now_ms = cluster.catalog, cluster.catalog._env.clock.wall_ms()
        killed = WorkerStatus("killed", "box", "disk", 0, now_ms - HOUR_MS)
        # From an hour later: on a busy machine it would soon be gone.
        live = WorkerStatus("live", "box", "disk", 0, now_ms + HOUR_MS)
        for each in (killed, live):
            await catalog.report_worker(each)
        changed = asyncio.Event()
        catalog.on_change(changed.set)
        async with running_worker(broker, tmp_path / "data") as running:
            own = running.worker.id
            async with asyncio.timeout(WAIT_S):
                while "killed" in catalog.workers or own not in catalog.workers:
                    await changed.wait()
                    changed.clear()
            assert "live" in catalog.workers

    run(broker, main)


def test_a_worker_keeps_its_own_status_and_survives_a_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its clock may have been set, and others are removed an hour later."""
    removed: list[str] = []

    async def forget(_: Catalog, name: str) -> None:
        removed.append(name)
        raise RecordTooLarge("the record is too large")

    monkeypatch.setattr(Catalog, "forget_worker", forget)
    catalog = Catalog("localhost:1")
    gone = [worker("own", HOUR_MS), worker("killed", HOUR_MS), worker("later", HOUR_MS)]
    monkeypatch.setattr(catalog, "gone_workers", lambda: gone)
    asyncio.run(forget_gone(catalog, "own"))
    assert removed == ["killed"] and "cannot remove the status of killed" in caplog.text
