"""Fixtures: one Spark session and one broker for the whole folder, because a session takes seconds.

Without Java, tests that need a session are skipped with a reason. Tests of pure modules still run.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock import Admin, Producer
from penstock.spark.home import make_home
from penstock.spark.java import JavaMissing, check_java
from penstock.testing import Broker

SESSION_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.stopTimeout": "300s",
    # Loopback, independent of the machine's host name.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # How long a worker and the JVM wait for each other; the default of 15 s is too short on a busy
    # machine.
    "spark.python.authenticate.socketTimeout": "600s",
    # Tests end before optimized code would pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


TEST_S = 600
"""Spark is slow on a busy machine, but a test that hangs must still end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests are those that are skipped without PENSTOCK_LONG. `-m long` chooses them."""
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))
        reasons = [mark.kwargs.get("reason", "") for mark in item.iter_markers("skipif")]
        if any("PENSTOCK_LONG" in reason for reason in reasons):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def java() -> Iterator[None]:
    """Required by tests that start their own JVM. Its workers use a precompiled pyspark."""
    try:
        check_java()
    except JavaMissing as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="penstock-spark-home-") as folder:
        home = make_home(Path(folder) / "home")
        os.environ.update(home)
        yield
        for name in home:
            del os.environ[name]


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """The session of all tests: two cores, UTC, no web UI."""
    # Spark finds the data source through the Python of its workers, which must be this one.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse = tempfile.mkdtemp(prefix="penstock-spark-")
    builder = SparkSession.builder.appName("penstock-tests")
    for name, value in {**SESSION_SETTINGS, "spark.sql.warehouse.dir": warehouse}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()
    shutil.rmtree(warehouse, ignore_errors=True)


@pytest.fixture(autouse=True)
def _session_is_left_running() -> Iterator[None]:
    """A test that stops the session of all tests fails itself, instead of those after it."""
    before = SparkContext._active_spark_context
    yield
    is_stopped = before is not None and SparkContext._active_spark_context is not before
    assert not is_stopped, "this test has stopped the Spark session of all tests"


@pytest.fixture(scope="session")
def penstock_spark(spark: SparkSession) -> SparkSession:
    """Pipelines under test use the session of all tests."""
    return spark


@pytest.fixture(autouse=True)
def _sparks_own_warnings() -> Iterator[None]:
    """pytest turns warnings into errors here, but warnings inside pyspark cannot be fixed here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"pyspark\..*")
        warnings.filterwarnings("ignore", category=ResourceWarning)
        yield


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker of all tests; each test creates topics with unique names.

    It keeps records forever, because some tests write old ones, and retention runs at unpredictable
    times.
    """
    with Broker({"log.retention.ms": "-1"}) as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def producer(broker: Broker) -> Iterator[Producer[Any, Any]]:
    with Producer(broker.bootstrap) as client:
        yield client


Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, broker: Broker) -> Read:
    """`read("topic", startingOffsets="latest")` is a batch read; options with
    dots are given as `**{...}`."""

    def load(topic: str | None = None, **options: Any) -> DataFrame:
        return _reader(spark.read, broker, topic, options).load()

    return load


@pytest.fixture
def read_stream(spark: SparkSession, broker: Broker) -> Read:
    """Like `read`, but a stream."""

    def load(topic: str | None = None, **options: Any) -> DataFrame:
        return _reader(spark.readStream, broker, topic, options).load()

    return load


R = TypeVar("R", DataFrameReader, DataStreamReader)


def _reader(reader: R, broker: Broker, topic: str | None, options: dict[str, Any]) -> R:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    if topic is not None:
        given["subscribe"] = topic
    return reader.format("penstock").options(**given)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
