"""Tests the errors that users see: one line that says what to do, before anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from penstock import Producer
from penstock.spark.java import JavaMissing, check_java
from penstock.spark.telling import told_plainly
from penstock.testing import Broker
from penstock.testing.slowness import patient
from spark.conftest import Read
from spark.following import Followed

NOBODY = "127.0.0.1:1"


def first_line(error: BaseException) -> str:
    text = str(error)
    assert "Traceback" not in text
    assert 'File "' not in text
    return text.splitlines()[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        (
            {"startingOffsets": "soon"},
            "startingOffsets is soon: use earliest, latest, or",
        ),
        ({"kafka.fetch.min.byte": "5"}, "did you mean kafka.fetch.min.bytes?"),
        ({"kafka.fetch.min.bytes": "few"}, "kafka.fetch.min.bytes is 'few': give a whole number"),
        ({"kafka.acks": "all"}, "kafka.acks"),
    ],
)
def test_a_wrong_option_is_reported(read: Read, options: dict[str, str], message: str) -> None:
    """By `load()`, whether or not the topic exists."""
    with pytest.raises(AnalysisException) as raised:
        read("anything", **options)
    line = first_line(raised.value)
    assert "OptionError: " in line
    assert message in line


def test_an_unknown_topic_is_reported(read: Read) -> None:
    """When the read is planned, with the command that creates it."""
    with pytest.raises(AnalysisException) as raised:
        read("nowhere").collect()
    assert "topic nowhere does not exist: create it with `penstock topic create nowhere`" in (
        first_line(raised.value)
    )


def test_an_unreachable_broker_is_reported(spark: SparkSession) -> None:
    """At once, with the address that was tried."""
    frame = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", NOBODY)
        .option("subscribe", "anything")
        .load()
    )
    with pytest.raises(AnalysisException) as raised:
        frame.collect()
    assert (
        f"cannot connect to kafka.bootstrap.servers={NOBODY}: connection refused. "
        "Correct the address, or start a broker there (`penstock up`)"
    ) in first_line(raised.value)


def test_the_error_of_a_failed_task_is_shown(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """Unchanged, directly below Spark's own line."""
    topic = broker.new_topic()
    producer.send(topic, b"no JSON").result(patient(120))
    with pytest.raises(PySparkException) as raised:
        read(topic, valueFormat="json", valueSchema="id BIGINT").collect()
    assert first_line(raised.value) == "An exception was thrown from the Python worker:"
    line = str(raised.value).splitlines()[1]
    assert f"the value of {topic}-0 at offset 0 cannot be decoded" in line
    assert "Set badRecords to column to see such records" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nowhere"}, "topic nowhere does not exist: create it with"),
        ({"subscribe": "a", "endingOffsets": "latest"}, "endingOffsets is for batch reads"),
        ({"subscribe": "a", "kafka.bootstrap.servers": NOBODY}, f"cannot connect to .*{NOBODY}"),
    ],
)
def test_a_stream_that_cannot_start_is_reported(
    read_stream: Read, checkpoint: str, options: dict[str, str], message: str
) -> None:
    """The query raises the same errors."""
    with pytest.raises(StreamingQueryException, match=message) as raised:
        Followed().run(read_stream(**options), checkpoint)
    assert "SQLSTATE" not in first_line(raised.value)


def test_missing_java_is_reported(tmp_path: Path) -> None:
    """What is missing, which version, and how to get it, in one line."""
    with pytest.raises(JavaMissing, match=r"^Spark needs Java 17 or newer, but no Java was found"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaMissing, match=r"bin/java does not run \(No such file.*JAVA_HOME"):
        check_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('openjdk version "25-ea" 2025-09-16', True),
        ('java version "1.8.0_402"', False),
        ('openjdk version "11.0.2" 2019-01-15', False),
        ("gibberish", False),
    ],
)
def test_old_java_is_reported(tmp_path: Path, version: str, is_enough: bool) -> None:
    """By the version that it prints."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    if is_enough:
        check_java({"JAVA_HOME": str(tmp_path)})
    else:
        with pytest.raises(JavaMissing, match=r"Spark needs Java 17 or newer, but .* is "):
            check_java({"JAVA_HOME": str(tmp_path)})


def test_bugs_keep_their_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors that say what to do lose it, and only inside Spark's worker processes."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    with pytest.raises(ZeroDivisionError), told_plainly():
        _ = 1 / 0
    with pytest.raises(KeyError):
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SECRET")
    with pytest.raises(JavaMissing), told_plainly():
        raise JavaMissing("none")
    with pytest.raises(KeyError):
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
