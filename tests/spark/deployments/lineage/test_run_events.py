"""Tests OpenLineage events against those that the official client makes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from openlineage.client import event_v2, facet_v2
from openlineage.client.serde import Serde

from console.fake_worker import EDGES, NODES
from penstock.spark.deployments.lineage.datasets import columns_of, flows_of
from penstock.spark.deployments.lineage.run_events import (
    PRODUCER,
    LineageEvent,
    PipelineLineage,
    namespaces,
)

GRAPH = {"event": "graph", "nodes": NODES, "edges": EDGES}
NOW_MS = 1_767_261_700_123
RUN = "00000000-0000-4000-8000-000000000000"
JOBS, TOPICS = "penstock://broker-0:9092", "kafka://broker-0:9092"


def ids() -> Iterator[str]:
    for number in count():
        yield f"00000000-0000-4000-8000-{number:012}"


@pytest.fixture
def lineage() -> PipelineLineage:
    made = ids()
    return PipelineLineage("views", namespaces("broker-0:9092,broker-1:9092"), lambda: next(made))


def kinds(events: list[LineageEvent]) -> list[tuple[str, str]]:
    return [(event["eventType"], event["job"]["name"]) for event in events]


def official(kind: str, flow: str, run: str, inputs: list[Any], outputs: list[Any]) -> Any:
    """Returns the event of a flow as the official client writes it."""
    event = event_v2.RunEvent(
        eventType=event_v2.RunState[kind],
        eventTime="2026-01-01T10:01:40.123+00:00",
        producer=PRODUCER,
        run=event_v2.Run(
            run,
            facets={
                "parent": facet_v2.parent_run.ParentRunFacet(
                    run=facet_v2.parent_run.Run(RUN),
                    job=facet_v2.parent_run.Job(JOBS, "views"),
                    producer=PRODUCER,
                )
            },
        ),
        job=event_v2.Job(
            JOBS,
            f"views.{flow}",
            facets={
                "jobType": facet_v2.job_type_job.JobTypeJobFacet(
                    processingType="STREAMING",
                    integration="SPARK",
                    jobType="FLOW",
                    producer=PRODUCER,
                )
            },
        ),
        inputs=inputs,
        outputs=outputs,
    )
    return Serde.to_dict(event)


def schema(**columns: str) -> dict[str, Any]:
    fields = [
        facet_v2.schema_dataset.SchemaDatasetFacetFields(name, kind)
        for name, kind in columns.items()
    ]
    return {"schema": facet_v2.schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)}


def test_the_events_of_flows_are_those_of_the_official_client(lineage: PipelineLineage) -> None:
    """Job, run, parent, inputs with their columns, and outputs."""
    lineage.on_event({"event": "ready"}, NOW_MS)
    found = lineage.on_event(GRAPH, NOW_MS)
    assert kinds(found) == [
        ("START", "views.page_views"), ("START", "views.page_counts"), ("START", "views.send_long"),
    ]  # fmt: skip
    rows = schema(user="STRING", page="STRING")
    raw = event_v2.InputDataset(TOPICS, "page-views", facets=schema(key="BINARY", value="BINARY"))
    table = event_v2.OutputDataset(JOBS, "views.page_views", facets=rows)
    run = "00000000-0000-4000-8000-000000000001"
    expected = official("START", "page_views", run, [raw], [table])
    assert compact(found[0]) == compact(expected)
    read = event_v2.InputDataset(JOBS, "views.page_views", facets=rows)
    sent = event_v2.OutputDataset(TOPICS, "long-views")
    run = "00000000-0000-4000-8000-000000000003"
    expected = official("START", "send_long", run, [read], [sent])
    assert compact(found[2]) == compact(expected)


def compact(found: Any) -> Any:
    """Returns an event without empty values: the official client writes some of them."""
    if isinstance(found, dict):
        kept = {name: compact(value) for name, value in found.items()}
        return {name: value for name, value in kept.items() if value not in (None, {}, [])}
    return [compact(each) for each in found] if isinstance(found, list) else found


def test_a_failure_names_the_flow_and_the_error(lineage: PipelineLineage) -> None:
    lineage.on_event({"event": "ready"}, NOW_MS)
    lineage.on_event(GRAPH, NOW_MS)
    failed = {"event": "flow", "flow": "page_views", "status": "FAILED", "error": "KeyError: 'x'"}
    lineage.on_event(failed, NOW_MS)
    found = lineage.on_end(NOW_MS, completed=False, error="page_views: KeyError: 'x'")
    assert kinds(found) == [
        ("FAIL", "views.page_views"), ("ABORT", "views.page_counts"), ("ABORT", "views.send_long"),
        ("FAIL", "views"),
    ]  # fmt: skip
    facet = facet_v2.error_message_run.ErrorMessageRunFacet(
        message="KeyError: 'x'", programmingLanguage="PYTHON", producer=PRODUCER
    )
    told = found[0]["run"]["facets"]["errorMessage"]
    assert told == {
        "_producer": PRODUCER,
        "_schemaURL": facet._schemaURL,
        "message": "KeyError: 'x'",
        "programmingLanguage": "PYTHON",
    }
    assert lineage.on_end(NOW_MS, completed=False, error="") == []


def test_a_run_begins_goes_on_and_ends(lineage: PipelineLineage) -> None:
    """With one id. Rounds are reported at most once a minute."""
    waiting = {"event": "waiting"}
    assert lineage.on_event(waiting, NOW_MS) == []
    found = lineage.on_event({"event": "ready"}, NOW_MS)
    assert lineage.on_event(waiting, NOW_MS + 59_999) == []
    found += lineage.on_event(waiting, NOW_MS + 60_000)
    assert lineage.on_event(waiting, NOW_MS + 60_001) == []
    found += lineage.on_end(NOW_MS + 61_000, completed=True, error="")
    assert kinds(found) == [("START", "views"), ("RUNNING", "views"), ("COMPLETE", "views")]
    assert {event["run"]["runId"] for event in found} == {RUN}
    lineage.on_event({"event": "ready"}, NOW_MS)
    (aborted,) = lineage.on_end(NOW_MS, completed=False, error="")
    assert aborted["eventType"] == "ABORT" and aborted["run"]["runId"] != RUN


def test_a_graph_that_is_told_again_is_no_event(lineage: PipelineLineage) -> None:
    lineage.on_event({"event": "ready"}, NOW_MS)
    lineage.on_event(GRAPH, NOW_MS)
    assert lineage.on_event(GRAPH, NOW_MS) == []
    users = {"id": "topic:users", "kind": "topic", "name": "users"}
    more = {"from": "topic:users", "to": "table:page_views", "schema": "value BINARY"}
    graph = {**GRAPH, "nodes": [*NODES, users], "edges": [*EDGES, more]}
    changed = lineage.on_event(graph, NOW_MS)
    assert kinds(changed) == [("RUNNING", "views.page_views")]


def test_what_a_view_reads_is_read_by_its_readers() -> None:
    graph = {
        "nodes": [
            {"id": "topic:t", "kind": "topic", "name": "t"},
            {"id": "view:v", "kind": "view", "name": "v", "flow": "v"},
            {"id": "table:a", "kind": "table", "name": "a", "flow": "a"},
        ],
        "edges": [
            {"from": "topic:t", "to": "view:v", "schema": "value BINARY"},
            {"from": "view:v", "to": "table:a", "schema": "user STRING"},
        ],
    }
    (flow,) = flows_of(graph)
    assert [(each.kind, each.name, each.schema) for each in flow.inputs] == [
        ("topic", "t", "value BINARY")
    ]
    assert [each.name for each in flow.outputs] == ["a"]


def test_columns_of_a_schema() -> None:
    text = "a INT,`b, ``c` MAP<STRING, INT> NOT NULL,d DECIMAL(10,2),e STRUCT<x: INT, y: INT>"
    assert columns_of(text) == [
        ("a", "INT"),
        ("b, `c", "MAP<STRING, INT> NOT NULL"),
        ("d", "DECIMAL(10,2)"),
        ("e", "STRUCT<x: INT, y: INT>"),
    ]
    assert columns_of("") == []
