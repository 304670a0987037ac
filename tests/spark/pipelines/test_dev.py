"""Tests `penstock pipeline dev`: previews on real records, at every save, that write nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Producer
from penstock.client.blocking.consumer import Consumer
from penstock.runtime import SystemClock
from penstock.testing import Broker
from penstock.testing.pipelines import sampling
from penstock.testing.pipelines.dev import Files, Previews
from penstock.testing.pipelines.rows import Rows
from penstock.testing.pipelines.sampling import Sample
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

DEFINITIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
BROKERS = {"kafka.bootstrap.servers": spark.conf.get("spark.penstock.bootstrap")}


@dp.table
def visits():
    source = spark.readStream.format("penstock").options(**BROKERS)
    # Without startingOffsets a stream begins at the end. A preview shows the last records all the
    # same.
    rows = source.option("subscribe", "TOPIC").option("valueFormat", "string").load()
    return rows.selectExpr("upper(value) AS page")


dp.create_sink("out", "penstock", {**BROKERS, "topic": "SINK"})


@dp.append_flow(target="out")
def send_visits():
    return spark.readStream.table("visits").selectExpr("page AS value")
"""
SPEC = """\
name: visits
storage: file:///unused
libraries:
  - glob:
      include: transformations/**
"""


def tell(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns the next preview. Notes on the way to it are skipped."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "preview":
            return event
    raise AssertionError("the command ended without a preview")


def shown(event: dict[str, Any], name: str) -> list[list[Any]]:
    (output,) = [each for each in event["outputs"] if each["name"] == name]
    return sorted(row["cells"] for row in output["shown"])


@pytest.fixture
def project(tmp_path: Path, penstock_broker: Broker) -> tuple[Path, str, str]:
    topic, sink = penstock_broker.new_topic(partitions=2), penstock_broker.new_topic()
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    text = DEFINITIONS.replace("TOPIC", topic).replace("SINK", sink)
    (tmp_path / "transformations" / "visits.py").write_text(text)
    with Producer(penstock_broker.bootstrap) as producer:
        for number, page in enumerate((b"home", b"docs", b"blog")):
            producer.send(topic, page, partition=number % 2)
    return tmp_path, topic, sink


@pytest.fixture
def dev(project: tuple[Path, str, str], penstock_broker: Broker) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "dev", "--json", "--follow"]
    process = subprocess.Popen(
        command,
        cwd=project[0],
        env={**os.environ, "PENSTOCK_BOOTSTRAP": penstock_broker.bootstrap},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(patient(60))
        assert process.stdout is not None
        process.stdout.close()


def test_a_preview_follows_every_save_and_new_records(
    dev: subprocess.Popen[str], project: tuple[Path, str, str], penstock_broker: Broker
) -> None:
    """An error names the line of the user. Nothing is written to the topic of the sink."""
    root, topic, sink = project
    first = tell(dev)
    assert first["error"] == "" and first["topics"] == {topic: 3}
    assert shown(first, "visits") == [["BLOG"], ["DOCS"], ["HOME"]]
    assert shown(first, f"topic {sink}") == [[None, "BLOG"], [None, "DOCS"], [None, "HOME"]]

    file = root / "transformations" / "visits.py"
    text = file.read_text()

    def save(content: str) -> None:
        """Replaces the file at once: a half of it would have a preview, too."""
        new = root.parent / f"{root.name}.new"
        new.write_text(content)
        new.replace(file)

    save(text.replace("upper(value) AS page", "concat('/', value) AS page"))
    second = tell(dev)
    assert "visits.py changed" in second["reason"]
    assert shown(second, "visits") == [["/blog"], ["/docs"], ["/home"]]
    assert [each["changed"] for each in second["outputs"]] == [3, 3]

    save(text + "\nlimit = 1 / 0\n")
    broken = tell(dev)
    assert "transformations/visits.py, line" in broken["error"]
    assert "ZeroDivisionError" in broken["error"]

    save(text)
    assert tell(dev)["error"] == ""
    with Producer(penstock_broker.bootstrap) as producer:
        producer.send(topic, b"news", partition=0)
    fresh = tell(dev)
    assert fresh["reason"] == "new records"
    assert ["NEWS"] in shown(fresh, "visits")

    with Consumer(penstock_broker.bootstrap) as consumer:
        assert consumer.end_offsets([TopicPartition(sink, 0)]) == {TopicPartition(sink, 0): 0}
    assert sorted(path.name for path in root.iterdir()) == ["spark-pipeline.yml", "transformations"]


def test_the_last_records_of_a_topic_are_read(
    penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_LIMIT_S", patient(60.0))
    topic = penstock_broker.new_topic(partitions=3)
    with Producer(penstock_broker.bootstrap) as producer:
        for number in range(300):
            producer.send(
                topic, b"%d" % number, partition=number % 3, timestamp_ms=1_700_000_000_000 + number
            )
    sample = Sample(penstock_broker.bootstrap, 50, SystemClock())
    sample.start()
    try:
        assert sample.refresh({topic, "no-such-topic"})
        values = [int(each.value) for each in sample.records[topic]]
        assert values == list(range(250, 300))
        assert sample.records["no-such-topic"] == []
        assert not sample.refresh({topic, "no-such-topic"})
    finally:
        sample.close()


def test_files_that_change_are_noticed(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.py").write_text("1")
    files = Files(tmp_path)
    assert files.changed() == []
    (tmp_path / "b.sql").write_text("SELECT 1")
    (tmp_path / "a.py").write_text("12")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".git" / "c.py").write_text("x")
    assert files.changed() == []
    (tmp_path / "a.py").write_text("123")
    assert files.changed() == []
    assert files.changed() == ["a.py", "b.sql"]
    (tmp_path / "b.sql").unlink()
    assert files.changed() == []
    assert files.changed() == ["b.sql"]
    assert files.changed() == []


def test_changed_rows_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A row that is there twice, and was there once, is one changed row."""
    outputs = [
        Rows("t", [{"n": number} for number in range(20)]),
        Rows("t", [{"n": number} for number in (*range(20), 19, 77)]),
    ]
    previews = Previews(tmp_path, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(Previews, "_run", lambda _: {"t": outputs.pop(0)})
    first, second = (previews.make(number, "")["outputs"][0] for number in (1, 2))
    assert (first["rows"], first["changed"], len(first["shown"])) == (20, 0, 10)
    assert (second["rows"], second["changed"]) == (22, 2)
    assert [row["cells"] for row in second["shown"]][:2] == [[19], [77]]
    assert [row["changed"] for row in second["shown"]] == [True, True, *[False] * 8]
