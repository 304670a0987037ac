"""Tests that tables in which Spark would lose rows silently are refused."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from penstock import Producer
from penstock.spark.pipelines.driver import Pipeline
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.table_writers import (
    Flow,
    check_log,
    check_writers,
    flows_to_reset,
    latest_batch,
    local_names,
)
from penstock.testing import Broker
from penstock.testing.pipelines import PipelineTest, PipelineTestFailed
from spark.pipelines.test_pipeline import FAST, penstock

ONE, TWO = Flow("c.d.one", "c.d.both"), Flow("c.d.two", "c.d.both")
SPEC = """\
name: both
storage: storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.penstock.topics: "TOPIC:1"
"""
HEAD = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_streaming_table("both")
"""
FLOW = """

@dp.append_flow(target="both")
def NAME():
    source = spark.readStream.format("penstock").option("subscribe", "TOPIC")
    source = source.option(
        "kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap", "localhost:9092")
    )
    source = source.option("startingOffsets", "earliest").option("valueFormat", "string")
    return source.load().selectExpr("value")
"""


@pytest.mark.parametrize("form", ["parquet", "ORC", "json"])
def test_several_flows_into_files_are_refused(form: str) -> None:
    with pytest.raises(PipelineError, match=r"table both has 2 flows \(one, two\).*union"):
        check_writers({"c.d.both": form}, [ONE, TWO])


def test_a_flow_that_is_gone_does_not_keep_others_from_beginning_again() -> None:
    assert flows_to_reset([ONE, TWO], ["gone", "two", "two"]) == ([TWO], ["gone"])
    assert flows_to_reset([ONE], []) == ([], [])


def test_the_driver_goes_on_without_a_flow_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Flow] = []
    told: list[tuple[str, dict[str, object]]] = []

    class Definitions:
        flows = (ONE,)

        def check(self) -> None: ...

        def reset(self, _: str, flows: list[Flow]) -> list[str]:
            begun.extend(flows)
            return []

    pipeline = Pipeline.__new__(Pipeline)
    monkeypatch.setattr(pipeline, "_defined", lambda: nullcontext(("graph", Definitions())))
    monkeypatch.setattr(pipeline, "_spec", SimpleNamespace(storage="storage"), raising=False)
    events = SimpleNamespace(tell=lambda kind, **fields: told.append((kind, fields)))
    monkeypatch.setattr(pipeline, "_events", events, raising=False)
    pipeline._reset(["gone", "one"])
    assert begun == [ONE]
    ((kind, fields),) = told
    assert kind == "reset-dropped" and fields["flows"] == ["gone"]
    assert "this flow no longer exists" in str(fields["text"])


def test_several_flows_into_a_table_with_transactions_are_allowed() -> None:
    check_writers({"c.d.both": "delta"}, [ONE, TWO])
    check_writers({"c.d.both": "parquet"}, [ONE, Flow("c.d.two", "c.d.other")])
    check_writers({"c.d.both": "parquet"}, [Flow("c.d.one", "sink"), Flow("c.d.two", "sink")])


def test_the_last_batch_of_a_log() -> None:
    assert latest_batch(["0", "9.compact", "10", ".10.crc", "x", "11.tmp"]) == 10
    assert latest_batch([]) == -1


def test_a_flow_that_lost_its_checkpoint_is_refused() -> None:
    for written, begun in ((-1, -1), (4, 4), (4, 5), (-1, 3)):
        check_log(ONE, written, begun)
    with pytest.raises(PipelineError, match=r"both has 5 batches.* one has 0.*skip the next 5"):
        check_log(ONE, 4, -1)


def make(folder: Path, topic: str, *flows: str) -> None:
    (folder / "transformations").mkdir(exist_ok=True)
    (folder / "spark-pipeline.yml").write_text(SPEC.replace("TOPIC", topic))
    text = HEAD + "".join(FLOW.replace("NAME", name).replace("TOPIC", topic) for name in flows)
    (folder / "transformations" / "flows.py").write_text(text)


def rows(folder: Path) -> list[str]:
    return sorted(pq.read_table(folder / "spark-warehouse" / "both").column("value").to_pylist())


def test_a_test_of_a_pipeline_refuses_them_too(tmp_path: Path, penstock_spark: object) -> None:
    make(tmp_path, "words", "one", "two")
    with PipelineTest(tmp_path, penstock_spark) as test:
        test.given("words", ["a"])
        with pytest.raises(PipelineTestFailed, match="table both has 2 flows"):
            test.run()


@pytest.mark.timeout(1_500)
@pytest.mark.usefixtures("java")
def test_runs_that_would_lose_rows_are_refused(broker: Broker, tmp_path: Path) -> None:
    """Two flows, and then a flow that was renamed. After a full refresh everything is there."""
    env = {
        **os.environ,
        "PENSTOCK_BOOTSTRAP": broker.bootstrap,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    folder, topic = tmp_path / "both", broker.new_topic()
    folder.mkdir()
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"first")
    make(folder, topic, "one", "two")
    refused = penstock(env, folder, "pipeline", "dry-run", *FAST)
    assert refused.returncode and "the table both has 2 flows (one, two)" in refused.stderr

    make(folder, topic, "one")
    done = penstock(env, folder, "pipeline", "run", *FAST)
    assert done.returncode == 0, done.stderr
    assert rows(folder) == ["first"]

    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"second")
    make(folder, topic, "renamed")
    refused = penstock(env, folder, "pipeline", "run", *FAST)
    assert refused.returncode and "--full-refresh" in refused.stderr
    assert "the table both has 1 batches, and the checkpoint of its flow renamed has 0" in (
        refused.stderr
    )
    done = penstock(env, folder, "pipeline", "run", "--full-refresh", *FAST)
    assert done.returncode == 0, done.stderr
    assert rows(folder) == ["first", "second"]
    again = penstock(env, folder, "pipeline", "run", *FAST)
    assert again.returncode == 0, again.stderr
    assert rows(folder) == ["first", "second"]


def test_names_in_a_folder_that_does_not_exist_or_is_a_file_are_none(tmp_path: Path) -> None:
    (tmp_path / "3").write_text("")
    assert local_names(str(tmp_path)) == ["3"]
    assert local_names(str(tmp_path / "3")) == []
    assert local_names(str(tmp_path / "other")) == []
