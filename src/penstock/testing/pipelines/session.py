"""Starts the Spark of a test run: small, on this machine, without a web UI."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from penstock.spark.home import make_home
from penstock.spark.pipelines.runner import check_spark

SETTINGS: Final = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Tests end before fully optimized code would pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def shared_spark() -> Iterator[Any]:
    """Yields the Spark session of this process. If there was none, it is stopped at the end.

    Raises `PipelineError`, with one line that says what to do, if PySpark or Java is missing."""
    check_spark()
    from pyspark.sql import SparkSession  # noqa: PLC0415 (reported by check_spark if missing)

    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-pipeline-tests-"))
    # Spark's Python processes, for a project's own functions, must be this Python.
    added = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with suppress(OSError):  # Without symbolic links the tests are only slower.
        added |= make_home(folder / "spark-home")
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = SparkSession.builder.appName("penstock-pipeline-tests")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "tables")}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text
        shutil.rmtree(folder, ignore_errors=True)
