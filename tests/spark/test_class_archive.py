"""Tests the archives of Java classes: their names, the options of the JVM, and a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.class_archive import OPTIONS, ClassArchives, for_training
from penstock.spark.home import VARIABLE, shared_home
from penstock.testing.slowness import patient


def installation(folder: Path, name: str) -> dict[str, str]:
    """A Java and a Spark, as far as archives are concerned."""
    java = folder / name / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("")
    java.chmod(0o755)
    (folder / name / "jars").mkdir()
    return {"JAVA_HOME": str(folder / name), "SPARK_HOME": str(folder / name)}


def test_an_archive_belongs_to_one_java_and_one_spark(tmp_path: Path) -> None:
    archives = ClassArchives(tmp_path / "archives")
    one, other = installation(tmp_path, "one"), installation(tmp_path, "other")
    paths = {
        archives.path(one),
        archives.path(other),
        archives.path({**one, "SPARK_HOME": other["SPARK_HOME"]}),
    }
    assert len(paths) == 3
    before = archives.path(one)
    (tmp_path / "one" / "release").write_text("a newer Java")
    assert archives.path(one) not in (None, before)


def test_without_java_there_is_no_archive(tmp_path: Path) -> None:
    archives = ClassArchives(tmp_path / "archives")
    environment = {"PATH": str(tmp_path), "SPARK_HOME": str(tmp_path)}
    assert archives.path(environment) is None
    assert archives.partial(environment) is None
    assert archives.with_archive(environment) == environment


def test_a_new_archive_is_used_when_it_is_complete(tmp_path: Path) -> None:
    archives = ClassArchives(tmp_path / "archives")
    environment = {**installation(tmp_path, "one"), OPTIONS: "-Xss4m"}
    partial = archives.partial(environment)
    assert partial is not None
    assert archives.with_archive(environment) == environment
    assert f"-XX:ArchiveClassesAtExit={partial}" in for_training(environment, partial)[OPTIONS]
    assert not archives.keep(partial)
    partial.write_text("classes")
    assert archives.with_archive(environment) == environment
    assert archives.keep(partial)
    options = archives.with_archive(environment)[OPTIONS]
    assert options.startswith("-Xss4m ")
    assert f"-XX:SharedArchiveFile={archives.path(environment)}" in options
    assert archives.partial(environment) is None


def test_a_home_is_shared_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv(VARIABLE, raising=False)
    home = Path(shared_home(tmp_path)[VARIABLE])
    made = (home / "jars").lstat().st_ino
    assert shared_home(tmp_path) == {VARIABLE: str(home)}
    assert (home / "jars").lstat().st_ino == made
    assert [each.name for each in tmp_path.iterdir()] == [home.name]
    shutil.rmtree(home)
    assert shared_home(tmp_path) == {VARIABLE: str(home)}


@pytest.mark.usefixtures("java")
@pytest.mark.timeout(900)
def test_a_jvm_loads_classes_from_a_real_archive(tmp_path: Path) -> None:
    """A small pipeline runs twice: the first JVM writes the archive, the second one uses it."""
    archives = ClassArchives(tmp_path / "archives")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    partial = archives.partial(environment)
    assert partial is not None

    def run(name: str, with_options: dict[str, str]) -> str:
        folder = tmp_path / name
        folder.mkdir()
        ended = subprocess.run(
            [sys.executable, "-m", "penstock.spark.pipelines.class_training"],
            cwd=folder,
            env=with_options,
            capture_output=True,
            text=True,
            timeout=patient(800),
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    run("training", for_training(environment, partial))
    assert archives.keep(partial)
    using = archives.with_archive(environment)
    log = tmp_path / "classes.log"
    using[OPTIONS] += f" -Xlog:class+load:file={log}"
    run("using", using)
    loaded = log.read_text(errors="replace")
    spark = [line for line in loaded.splitlines() if "org.apache.spark.sql." in line]
    shared = [line for line in spark if "shared objects file (top)" in line]
    assert len(shared) > len(spark) // 2
