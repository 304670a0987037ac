"""Tests what is shown of each kind of node, and from which topics the rows of a table are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.fake_worker import EDGES, NODES, FakeWorker, create_topics
from console.running import Answer, Browserless, eventually, running_console
from penstock import Admin, Producer
from penstock.console.deployment_records import EDGES_MAX, graph_of
from penstock.spark.deployments.model import Status
from penstock.spark.deployments.previews import sources, unknown_sources
from penstock.testing.broker import Broker
from penstock.testing.slowness import patient

OTHERS = [
    {"id": "flow:more", "kind": "flow", "name": "more", "flow": "more"},
    {"id": "flow:idle", "kind": "flow", "name": "idle", "flow": "idle"},
    {"id": "view:v", "kind": "view", "name": "v"},
    {"id": "pattern:web.*", "kind": "pattern", "name": "web.*"},
    {"id": "source:rate", "kind": "source", "name": "rate"},
    {"id": "sink:a/KafkaTable", "kind": "sink", "name": "KafkaTable"},
    {"id": "sink:by_row", "kind": "sink", "name": "by_row", "format": "kafka"},
    {"id": "sink:files", "kind": "sink", "name": "files", "format": "parquet"},
]
"""Nodes beside those of the fake worker."""


def test_all_topics_before_a_node_count() -> None:
    graph = {
        "nodes": [*NODES, {"id": "topic:users", "kind": "topic", "name": "users"}],
        "edges": [*EDGES, {"from": "topic:users", "to": "table:page_counts"}],
    }
    assert sources(graph, "table:page_views") == {"page-views"}
    assert sources(graph, "table:page_counts") == {"page-views", "users"}
    assert sources({"nodes": NODES, "edges": []}, "table:page_views") == frozenset()


def test_a_circle_ends() -> None:
    """Anyone with the right to write a status can write such a graph."""
    circle = [{"from": "table:page_views", "to": "topic:page-views"}]
    graph = {"nodes": NODES, "edges": [*EDGES, *circle]}
    assert sources(graph, "table:page_views") == {"page-views"}


def shown(nodes: list[Any], edges: list[Any]) -> dict[str, Any]:
    """The graph that the console makes of a status."""
    graph = {"nodes": [*NODES, *nodes], "edges": [*EDGES, *edges]}
    return graph_of(Status("views", "RUNNING", 1, 1, run={"graph": graph}))


def test_a_table_is_shown_only_if_all_its_topics_are_known() -> None:
    """A source with a pattern reads topics that the user perhaps cannot see."""
    assert unknown_sources(shown([], []), "table:page_counts") == ""
    pattern = {"id": "pattern:web.*", "kind": "pattern", "name": "web.*"}
    other = {"id": "source:x", "kind": "source", "name": "other topics (kafka)"}
    file = {"id": "source:y", "kind": "source", "name": "csv /data"}
    for node, told in ((pattern, "match web.*"), (other, "not known"), (file, "")):
        graph = shown([node], [{"from": node["id"], "to": "table:page_views"}])
        found = unknown_sources(graph, "table:page_counts")
        assert (told in found) if told else not found


def test_a_table_of_a_graph_that_was_cut_is_not_shown() -> None:
    edges = [{"from": "topic:page-views", "to": "table:page_views"}] * EDGES_MAX
    assert "too large" in unknown_sources(shown([], edges), "table:page_views")
    dangling = [{"from": "topic:of-nobody", "to": "table:page_views"}]
    assert "too large" in unknown_sources(shown([], dangling), "table:page_views")


@pytest.fixture(scope="module")
def bootstrap(penstock_broker: Broker) -> str:
    return penstock_broker.bootstrap


@pytest.fixture(scope="module")
def visitor(bootstrap: str) -> Iterator[Browserless]:
    """Looks at a pipeline that was stopped. Only its records of the topic `long-views` exist."""
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        create_topics(admin)
        settings = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
        admin.create_topic("long-views", partitions=2, configs=settings)

        def write(topic: str, value: bytes | None, **how: Any) -> None:
            producer.send(topic, value, **how).result(timeout_s=patient(60))

        write("long-views", b"first", key=b"ann", partition=0, timestamp_ms=1_000)
        write("long-views", None, partition=1, timestamp_ms=2_500)
        write("long-views", b"\xff\x00", partition=0, timestamp_ms=2**61)
        worker = FakeWorker(write, "shown")
        worker.deploy(wanted="STOPPED")
        more = [{"from": "flow:more", "to": "table:page_views"}]
        graph = {"nodes": [*NODES, *OTHERS], "edges": [*EDGES, *more]}
        worker.report("STOPPED", run={"graph": graph})
        with running_console(bootstrap) as url:
            found = Browserless(url)
            assert found.log_in().status == 200
            page = "/api/deployments/shown"
            eventually(lambda: (got := found.get(page)).status == 200 and got.json["flows"], 120)
            eventually(lambda: found.get("/api/topics/long-views").status == 200)
            yield found


def look(visitor: Browserless, node: str) -> Answer:
    return visitor.post("/api/read/preview/shown", {"node": node})


@pytest.mark.parametrize("node", ["topic:long-views", "sink:long_views", "flow:send_long"])
def test_the_records_of_a_topic_are_shown(visitor: Browserless, node: str) -> None:
    """Of the topic itself, of a sink that writes it, and of a flow that writes the sink; the newest
    first, also while the pipeline is stopped. Bytes that are no text are shown in hexadecimal, and
    a time that no calendar has as a number."""
    answer = look(visitor, node)
    assert answer.status == 200, answer.body
    assert answer.json["of"] == "topic long-views"
    assert [name for name, _ in answer.json["columns"]] == [
        "topic", "partition", "offset", "time (UTC)", "key", "value",
    ]  # fmt: skip
    last, middle, first = answer.json["rows"]
    assert last[:4] == ["long-views", "0", "1", str(2**61)]
    assert last[4] is None and last[5].startswith("00000000  ff 00")
    assert middle == ["long-views", "1", "0", "1970-01-01 00:00:02.500", None, None]
    assert first == ["long-views", "0", "0", "1970-01-01 00:00:01.000", "ann", "first"]


@pytest.mark.parametrize(
    ("node", "status", "text"),
    [
        ("table:page_views", 404, "shown is not running (stopped)"),
        ("flow:more", 404, "shown is not running (stopped)"),
        ("flow:idle", 400, "flow idle: it writes nothing yet"),
        ("topic:page-views", 403, "may not read page-views, or it does not exist yet"),
        ("view:v", 400, "view v: Spark computes a view as a part of each flow"),
        ("pattern:web.*", 400, "pattern web.*: it stands for all topics"),
        ("source:rate", 400, "source rate: it is not in the cluster"),
        ("sink:files", 400, "files writes to no topic (format parquet)"),
        ("sink:a/KafkaTable", 400, "it is not known which topics KafkaTable writes"),
        ("sink:by_row", 400, "it is not known which topics by_row writes"),
        ("table:none", 400, "table:none is not in the graph"),
    ],
)
def test_a_node_without_rows_says_why(
    visitor: Browserless, node: str, status: int, text: str
) -> None:
    answer = look(visitor, node)
    assert answer.status == status, answer.body
    assert text in answer.error
