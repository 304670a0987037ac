"""Tests a Spark home whose workers do not have to compile pyspark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.home import VARIABLE, make_home
from penstock.testing.slowness import patient


def test_pyspark_is_loaded_compiled_from_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the home is created again at the same path."""
    monkeypatch.delenv(VARIABLE, raising=False)
    for _ in range(2):
        assert make_home(tmp_path / "home") == {VARIABLE: str(tmp_path / "home")}
    library = tmp_path / "home" / "python" / "lib" / "pyspark.zip"
    code = "import os, pyspark; print(pyspark.__file__, os.path.exists(pyspark.__cached__))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=True,
    )
    assert ended.stdout.split() == [str(library / "pyspark" / "__init__.py"), "True"]
    assert (tmp_path / "home" / "bin" / "spark-submit").exists()
    assert list((tmp_path / "home" / "jars").glob("spark-core_*.jar"))


def test_an_existing_spark_home_setting_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/spark")
    assert make_home(tmp_path / "home") == {}
    assert not (tmp_path / "home").exists()


def test_workers_of_a_session_use_the_home(spark: SparkSession) -> None:
    """The session of these tests uses such a home, and its workers find no zip file."""

    def where(_: int) -> str:
        import pyspark

        assert pyspark.__spec__ is not None
        return pyspark.__spec__.cached or ""

    (compiled,) = spark.sparkContext.parallelize([0], 1).map(where).collect()
    assert Path(compiled).is_file()
