"""Fixtures: one standalone cluster with one driver, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.cluster.gate import Gate
from spark.cluster.processes import HOST, JAVA_OPTIONS, Driver, Standalone

DRIVER_SETTINGS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Both executors must be registered before the first task is scheduled.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
}


@pytest.fixture(scope="session")
def cluster(java: None) -> Iterator[Standalone]:
    with Standalone() as running:
        yield running


@pytest.fixture(scope="session")
def driver(cluster: Standalone) -> Iterator[Driver]:
    script = Path(__file__).parent / "jobs.py"
    settings = {"spark.master": cluster.url, **DRIVER_SETTINGS}
    with Driver(script, cluster.folder / "driver", settings) as running:
        yield running


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as running:
        yield running
