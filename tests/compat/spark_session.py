"""A Spark session in a JVM of its own, with Spark's own Kafka connector beside our data source.

A connector's jars must be there when the JVM starts, and no other test should get that JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat.spark_jars import connector_jars
from compat.toolchain import tool
from penstock.spark.home import make_home

pytest.importorskip("pyspark", reason="the Spark tests need pyspark: pip install 'penstock[spark]'")

from pyspark import SparkContext
from pyspark.sql import SparkSession

STOP_S = 100
SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.pollingDelay": "20ms",
    # How long a worker and the JVM wait for each other; 15 s, the default, is short on a busy
    # machine.
    "spark.python.authenticate.socketTimeout": "120s",
    # Tests end before optimized code would pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def spark_with_connector(folder: Path) -> Iterator[SparkSession]:
    """Starts a JVM, and ends it. Skips without Java, or without the jars."""
    tool("java", "Spark needs Java 17 or newer")
    if SparkContext._gateway is not None:
        pytest.skip("this process has a Spark without the connector already: run this file alone")
    jars = connector_jars()
    home = make_home(folder / "home")
    os.environ.update(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("penstock-compat").config("spark.jars", jars)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    gateway: Any = SparkContext._gateway
    session.stop()
    # Other tests in this process must get a JVM without these jars.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(STOP_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    for name in home:
        del os.environ[name]


@contextmanager
def without_sparks_own_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"pyspark\..*")
        warnings.filterwarnings("ignore", category=ResourceWarning)
        yield
