"""Tests `penstock.testing.pipelines` on real Spark: a project's definitions on rows of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.testing.pipelines import PipelineTest, PipelineTestFailed, record

SPEC = """\
name: shop
storage: file:///unused
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.penstock.bootstrap: "broker.example:9092"
  spark.penstock.topics: "clicks:3, alerts:1"
"""
HEAD = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()
BROKERS = {"kafka.bootstrap.servers": spark.conf.get("spark.penstock.bootstrap")}


def stream(topic, **options):
    reader = spark.readStream.format("penstock").options(**BROKERS)
    return reader.option("subscribe", topic).options(**options).load()

"""


def make(folder: Path, **files: str) -> Path:
    """Writes a project. `name_py="..."` becomes transformations/name.py, after the common head."""
    (folder / "transformations").mkdir()
    (folder / "spark-pipeline.yml").write_text(SPEC)
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / "transformations" / f"{stem}.{suffix}").write_text(
            (HEAD if suffix == "py" else "") + text
        )
    return folder


@pytest.fixture
def penstock_pipeline_project(tmp_path: Path) -> Path:
    """The project of each test is in a folder of its own."""
    return make(
        tmp_path,
        windows_py="""
@dp.table
def minutes():
    clicks = stream("clicks", startingOffsets="earliest", valueFormat="json",
                    valueSchema="page STRING")
    return (
        clicks.withWatermark("timestamp", "30 seconds")
        .groupBy(sf.window("timestamp", "1 minute"), "value.page")
        .agg(sf.count("*").alias("clicks"))
        .select(sf.col("window.start").alias("minute"), "page", "clicks")
    )


dp.create_sink("alerts", "penstock", {**BROKERS, "topic": "alerts", "valueFormat": "json"})


@dp.append_flow(target="alerts")
def busy_minutes():
    rows = spark.readStream.table("minutes").where("clicks >= 2")
    return rows.select(sf.col("page").alias("key"), "page", "clicks")
""",
        # Read before the table that it depends on is defined: the name sorts first.
        a_total_sql="CREATE MATERIALIZED VIEW total AS SELECT sum(clicks) AS clicks FROM minutes;",
    )


def test_time_is_scripted_and_windows_close_by_the_watermark(
    penstock_pipeline: PipelineTest,
) -> None:
    """State is kept from run to run, late rows are dropped, and what a sink sends is collected."""
    pipeline = penstock_pipeline
    with pytest.raises(PipelineTestFailed, match=r"call run\(\) first"):
        pipeline.table("minutes")
    pipeline.given("clicks", [{"page": "/"}], at="2026-01-01 10:00:10").run()
    pipeline.table("minutes").expect([])
    pipeline.given("clicks", [{"page": "/"}], at="2026-01-01 10:00:20")
    pipeline.given("clicks", [{"page": "/x"}], at="2026-01-01 10:02:00").run()
    first = {"minute": "2026-01-01 10:00", "page": "/", "clicks": 2}
    pipeline.table("minutes").expect([first])
    pipeline.given("clicks", [{"page": "/late"}], at="2026-01-01 10:00:30")
    pipeline.given("clicks", [{"page": "/"}], at="2026-01-01 10:10:00").run()
    second = {"minute": "2026-01-01 10:02", "page": "/x", "clicks": 1}
    pipeline.table("minutes").expect([first, second])
    pipeline.table("total").expect([{"clicks": 3}])
    pipeline.sent("alerts").expect([{"key": "/", "value": {"page": "/", "clicks": 2}}])
    with pytest.raises(PipelineTestFailed, match="no table hours: the tables are minutes, tot"):
        pipeline.table("hours")
    with pytest.raises(PipelineTestFailed, match=r"no flow sends to mails: .* alerts"):
        pipeline.sent("mails")
    pipeline.given("click", [{"page": "/"}])
    with pytest.raises(PipelineTestFailed, match=r"no flow reads the topic click: .* clicks"):
        pipeline.run()


RAW = """
@dp.temporary_view
def with_headers():
    return stream("clicks", startingOffsets="earliest", includeHeaders=True)


@dp.table
def raw():
    return spark.readStream.table("with_headers")


@dp.table
def decoded():
    return stream("clicks", startingOffsets="earliest", valueFormat="json",
                  valueSchema="n BIGINT", badRecords="deadletter",
                  deadLetterTopic="dead").select("offset", "value.*")


@dp.table
def later():
    return stream("clicks").select("offset")


@dp.materialized_view
def since():
    reader = spark.read.format("penstock").options(**BROKERS).option("subscribe", "clicks")
    return reader.option("startingTimestamp", "2000").load().select("partition", "offset")
"""


def test_sources_have_the_columns_and_options_of_a_real_source(
    tmp_path: Path, penstock_spark: Any
) -> None:
    """Bytes, headers, decoded values, dead letters, starting positions and batch reads."""
    project = tmp_path / "raw"
    project.mkdir()
    with PipelineTest(make(project, raw_py=RAW), penstock_spark) as pipeline:
        pipeline.given("clicks", [record({"n": 1}, key="k", headers={"h": "x"}), b"\xff"], at=1_000)
        pipeline.run()
        pipeline.given("clicks", [record({"n": 2}, partition=2, timestamp=2_000)]).run()
        rows = pipeline.table("raw")
        common = {"topic": "clicks", "timestampType": 0}
        header = {"key": "h", "value": b"x"}
        rows.expect(
            [
                {
                    **common,
                    "key": b"k",
                    "value": b'{"n": 1}',
                    "partition": 0,
                    "offset": 0,
                    "timestamp": "1970-01-01 00:00:01",
                    "headers": [header],
                },
                {
                    **common,
                    "key": None,
                    "value": b"\xff",
                    "partition": 0,
                    "offset": 1,
                    "timestamp": "1970-01-01 00:00:01",
                    "headers": [],
                },
                {
                    **common,
                    "key": None,
                    "value": b'{"n": 2}',
                    "partition": 2,
                    "offset": 0,
                    "timestamp": "1970-01-01 00:00:02",
                    "headers": [],
                },
            ]
        )
        pipeline.table("decoded").expect([{"offset": 0, "n": 1}, {"offset": 0, "n": 2}])
        pipeline.sent("dead").select("key", "value").expect([{"key": None, "value": b"\xff"}])
        pipeline.table("later").expect([{"offset": 0}])
        pipeline.table("since").expect([{"partition": 2, "offset": 0}])


QUARANTINES = """
from penstock.spark import expect


@dp.table
@expect("positive", "n > 0", on_violation="quarantine")
def kept():
    return stream("clicks", startingOffsets="earliest", valueFormat="json",
                  valueSchema="n BIGINT").select("offset", "value.*")


@dp.table
@expect("positive", "n > 0", on_violation="quarantine")
@expect("small", "n < 9", on_violation="quarantine", quarantine_topic="alerts")
def checked():
    return stream("clicks", startingOffsets="earliest", valueFormat="json",
                  valueSchema="n BIGINT").select("offset", "value.*")
"""


def test_quarantined_rows_are_in_a_table_or_a_topic(tmp_path: Path, penstock_spark: Any) -> None:
    """With the reasons; a second run adds what is new."""
    (project := tmp_path / "quarantines").mkdir()
    with PipelineTest(make(project, q_py=QUARANTINES), penstock_spark) as pipeline:
        pipeline.given("clicks", [{"n": -1}, {"n": 2}]).run()
        pipeline.table("kept").expect([{"offset": 1, "n": 2}])
        bad = {"offset": 0, "n": -1, "violations": ["positive"]}
        pipeline.table("kept_quarantine").expect([bad])
        header = {"key": "penstock.flow", "value": b"checked"}
        sent = {"key": None, "value": bad, "headers": [header]}
        pipeline.sent("alerts").expect([sent])
        pipeline.given("clicks", [{"n": 10}]).run()
        pipeline.table("checked").expect([{"offset": 1, "n": 2}])
        more = {"offset": 2, "n": 10, "violations": ["small"]}
        pipeline.sent("alerts").expect([sent, {**sent, "value": more}])


BATCH_QUARANTINE = """
from penstock.spark import expect


@dp.materialized_view
@expect("positive", "id > 0", on_violation="quarantine", quarantine_topic="alerts")
def t():
    return spark.range(3)
"""
NO_VALUE = """
dp.create_sink("s", "penstock", {**BROKERS, "topic": "alerts"})


@dp.append_flow(target="s")
def f():
    return stream("clicks").select("offset")
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '@dp.table\ndef t():\n    return stream("orders")',
            "reads the topic orders, but the te",
        ),
        ('@dp.table\ndef t():\n    return stream("clicks", grupId="x")', "did you mean groupId"),
        ("@dp.table\ndef t():\n    return spark.range(1)", "t writes to the table t, .* not a str"),
        ("@dp.materialized_view\ndef t():\n    return spark.table('u')", "t: .* `u` cannot be fou"),
        (NO_VALUE, "f: there is no value column"),
        (BATCH_QUARANTINE, "t: .* quarantine_topic is for streaming flows"),
    ],
    ids=[
        "unknown topic",
        "unknown option",
        "not a stream",
        "unknown table",
        "no value",
        "quarantine topic of a view",
    ],
)
def test_a_mistake_in_a_definition_is_reported(
    tmp_path: Path, penstock_spark: Any, text: str, reason: str
) -> None:
    """With the name of the flow, before anything is started."""
    (project := tmp_path / "wrong").mkdir()
    with PipelineTest(make(project, t_py=text), penstock_spark) as pipeline:
        with pytest.raises(PipelineTestFailed, match=reason):
            pipeline.run()
        with pytest.raises(PipelineTestFailed, match="given takes a list of rows"):
            pipeline.given("clicks", {"page": "/"})
