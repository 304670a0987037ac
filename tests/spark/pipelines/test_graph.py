"""Tests the graph of a pipeline: from Spark's plan, and from the progress of streaming queries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Admin
from penstock.spark.pipelines.events import RunView
from penstock.spark.pipelines.graph import (
    QueryGraphReport,
    _sources,
    pattern_of,
    query_graph,
    shortened,
    topics_of,
)
from penstock.testing import Broker
from penstock.testing.slowness import patient

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
RUN_S = 480
VIEW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.temporary_view
def raw_orders():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "graph-orders, graph-returns")
        .load()
    )


@dp.table
def orders():
    return spark.readStream.table("raw_orders").selectExpr("CAST(value AS STRING) AS body")


@dp.table
def assigned():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("assign", '{"graph-orders": [0]}')
        .load()
    )


@dp.materialized_view
def matched():
    return (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribePattern", "graph-ret.*")
        .load()
    )
"""


def test_the_options_of_a_source_or_sink_name_its_topics() -> None:
    """Several topics are separated by commas; names of options are in any case."""
    assert topics_of({"Subscribe": "a, b"}) == ["a", "b"]
    assert topics_of({"topic": "out"}) == ["out"]
    assert topics_of({"assign": '{"b": [0], "a": [1, 2]}'}) == ["a", "b"]
    assert topics_of({"assign": "not JSON"}) == topics_of({"assign": "5"}) == []
    assert topics_of({"subscribePattern": "web\\..*"}) == []
    assert pattern_of({"subscribePattern": "web\\..*"}) == "web\\..*"
    assert pattern_of({"subscribe": "a"}) == ""
    assert topics_of({"path": "/x"}) == []
    assert len(shortened("x" * 5_000)) == 2_000


class Collection:
    """Of Scala, as py4j shows it."""

    def __init__(self, found: Sequence[Any]) -> None:
        self._found = found

    def size(self) -> int:
        return len(self._found)

    def iterator(self) -> Elements:
        return Elements(iter(self._found))


class Elements:
    def __init__(self, found: Iterator[Any]) -> None:
        self._left = [*found]

    def hasNext(self) -> bool:  # noqa: N802 -- the name of Scala
        return bool(self._left)

    def next(self) -> Any:
        return self._left.pop(0)


class Named:
    """An object of the JVM. Each method returns what it is given for it."""

    def __init__(self, name: str, **methods: Any) -> None:
        for method, value in {"getClass": self, "getSimpleName": name, **methods}.items():
            setattr(self, method, lambda value=value: value)


def flow_of(*leaves: Named) -> Named:
    """A resolved flow whose plan has these leaves."""
    plan = Named("Project", collectLeaves=Collection(leaves))
    return Named("Flow", df=Named("Dataset", queryExecution=Named("Execution", analyzed=plan)))


def test_a_batch_read_of_an_unknown_format_may_read_any_topics() -> None:
    """Its options are not in the plan. Of files and JDBC it is known that they are no topics."""
    leaves = [
        Named(
            "LogicalRelation",
            relation=Named(relation),
            schema=Named("StructType", toDDL="value BINARY"),
        )
        for relation in ("KafkaRelation", "HadoopFsRelation", "JDBCRelation", "Other")
    ]
    assert list(_sources(flow_of(*leaves, Named("LocalRelation")))) == [
        (("source", "other topics (KafkaRelation)"), "value BINARY"),
        (("source", "other topics (Other)"), "value BINARY"),
    ]


def test_the_graph_of_streaming_queries_comes_from_their_progress() -> None:
    """Topics by their offsets; other sources and sinks by their descriptions."""
    progress = {
        "sources": [
            {"description": "x", "endOffset": {"clicks": {"0": 5}, "views": {"0": 1}}},
            {"description": "FileStreamSource[file:/in]", "endOffset": {"logOffset": 3}},
        ],
        "sink": {"description": "org.apache.spark.sql.execution.streaming.ConsoleTable$@1b2"},
    }
    found = query_graph({"counts": progress})
    assert {(edge["from"], edge["to"]) for edge in found["edges"]} == {
        ("topic:clicks", "flow:counts"),
        ("topic:views", "flow:counts"),
        ("source:FileStreamSource[file:/in]", "flow:counts"),
        ("flow:counts", "sink:counts/ConsoleTable$"),
    }
    assert query_graph({"empty": {}})["edges"] == []


def test_the_graph_of_a_script_is_reported_when_it_changes() -> None:
    """Another query changes it; another batch does not."""
    told: list[Any] = []
    report = QueryGraphReport(told.append)
    source = {"description": "x", "endOffset": {"clicks": {"0": 5}}}
    report.note("a.counts", {"sources": [source]})
    later = {"description": "x", "endOffset": {"clicks": {"0": 9}}}
    report.note("a.counts", {"sources": [later], "batchId": 2})
    assert len(told) == 1
    report.note("totals", {"sources": [source]})
    assert len(told) == 2
    assert [node["id"] for node in told[1]["nodes"]] == [
        "flow:counts", "topic:clicks", "flow:totals",
    ]  # fmt: skip


def test_the_view_of_a_run_keeps_the_graph() -> None:
    view = RunView("shop")
    assert view.as_dict()["graph"] == {}
    nodes = [{"id": "topic:a", "kind": "topic", "name": "a"}]
    view.apply({"event": "graph", "nodes": nodes, "edges": []})
    assert view.as_dict()["graph"] == {"nodes": nodes, "edges": []}


@pytest.mark.timeout(1_500)
@pytest.mark.usefixtures("java")
def test_the_graph_of_a_pipeline_is_what_spark_planned(
    broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    """Python and SQL definitions, a temporary view, a sink to a topic; files, lines and schemas."""
    env = {
        **os.environ,
        "PENSTOCK_BOOTSTRAP": broker.bootstrap,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }

    def penstock(folder: Path, *words: str) -> str:
        done = subprocess.run(
            [*PENSTOCK, "pipeline", *words],
            cwd=folder, env=env, capture_output=True, text=True, check=False,
            timeout=patient(RUN_S),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    project = tmp_path / "shop"
    penstock(tmp_path, "init", "shop")
    (project / "transformations" / "orders.py").write_text(VIEW)
    for topic in ("graph-orders", "graph-returns"):
        admin.create_topic(topic, partitions=1)
    penstock(project, "run", "--master", "local[2]", "--conf", "spark.driver.memory=1g")
    log = (project / ".penstock" / "last-run.log").read_text()
    graph = json.loads(penstock(project, "status", "--json"))["graph"]
    assert graph, log[-3_000:]
    edges: dict[tuple[str, str], Any] = {
        (edge["from"], edge["to"]): edge.get("schema", "") for edge in graph["edges"]
    }
    assert set(edges) == {
        ("topic:shop-page-views", "table:page_views"),
        ("table:page_views", "table:page_counts"),
        ("table:page_views", "flow:send_long_views"),
        ("flow:send_long_views", "sink:long_views"),
        ("sink:long_views", "topic:shop-long-views"),
        ("topic:graph-orders", "view:raw_orders"),
        ("topic:graph-returns", "view:raw_orders"),
        ("view:raw_orders", "table:orders"),
        ("topic:graph-orders", "table:assigned"),
        ("pattern:graph-ret.*", "table:matched"),
    }
    assert "seconds DOUBLE" in edges["table:page_views", "table:page_counts"]
    assert "value" in edges["topic:shop-page-views", "table:page_views"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    views = nodes["table:page_views"]
    assert (views["file"], views["flow"]) == ("transformations/page_views.py", "page_views")
    assert views["line"] > 1
    assert nodes["table:page_counts"]["file"] == "transformations/page_counts.sql"
    assert nodes["sink:long_views"]["format"] == "penstock"
    admin.delete_topics(["shop-page-views", "shop-long-views", "graph-orders", "graph-returns"])
    admin.delete_group("shop")
