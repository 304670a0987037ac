"""Tests what can be backfilled, what a backfill would read, and how its progress is told."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.dataclass_json import plain
from penstock.spark.deployments.backfill_plan import (
    REQUESTS_KEPT,
    FlowToFill,
    LogFacts,
    check_figures,
    figures,
    flow_to_fill,
    open_request,
    state_of,
    with_request,
)
from penstock.spark.deployments.backfill_progress import BackfillProgress
from penstock.spark.deployments.change_plan import Change, revised
from penstock.spark.deployments.flow_fingerprints import Fingerprint
from penstock.spark.deployments.model import (
    BackfillStatus,
    Deployment,
    Status,
    Version,
    decode,
    encode,
)
from penstock.spark.pipelines.driver_control import Control, Watchdog
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.events import RunView
from penstock.spark.pipelines.position_report import PositionReport, position_event
from penstock.spark.stream_position import (
    Backfill,
    BackfillRequest,
    Position,
    cancelled,
    position_to_spark,
)
from penstock.topic_partition import TopicPartition

T0, T1 = TopicPartition("in", 0), TopicPartition("in", 1)
STREAM = str(Fingerprint("streaming", False, "s", "p", "d"))
VERSION = Version("views", 1, "project", "x.yml", "0" * 64, 1, flows={"copied": STREAM})
DEPLOYMENT = Deployment("views", 4, 1)
REQUEST = BackfillRequest(5, "copied", {"in": {"0": [[0, 9]]}}, ["copied"])


def status(graph: dict[str, Any] | None = None, **flow: Any) -> Status:
    view = {
        "name": "copied",
        "topics": {"in": 2},
        "began": {"in": {"0": 9, "1": 9}},
        "backfilled": {},
        "stateful": False,
        **flow,
    }
    return Status("views", "RUNNING", 4, 1, run={"flows": [view], "graph": graph or {}})


def test_a_flow_is_filled_from_the_topics_that_it_has_reported() -> None:
    found = flow_to_fill(DEPLOYMENT, VERSION, status(), "copied")
    assert (found.topic_partitions, found.sources) == ([T0, T1], ["copied"])
    assert found.began == {T0: 9, T1: 9}


def test_the_flow_of_the_quarantined_rows_is_named() -> None:
    """The backfill of a flow drops the rows that it quarantines."""
    assert flow_to_fill(DEPLOYMENT, VERSION, status(), "copied").quarantine == ""
    for name in ("copied_quarantine", "copy_function_quarantine"):
        version = replace(VERSION, flows={"copied": STREAM, name: STREAM})
        assert flow_to_fill(DEPLOYMENT, version, status(), "copied").quarantine == name
    other = str(Fingerprint("streaming", False, "s", "p", "another definition"))
    version = replace(VERSION, flows={"copied": STREAM, "more_quarantine": other})
    assert flow_to_fill(DEPLOYMENT, version, status(), "copied").quarantine == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"flow": "other"}, "has no flow other: the flows are copied"),
        ({"flows": {"copied": STREAM.replace("streaming", "batch")}}, "materialized view"),
        ({"flows": {"copied": STREAM.replace("stateless", "stateful")}}, "--reset copied"),
        ({"status": status(stateful=True)}, "keeps state or has a watermark"),
        ({"status": None}, "has not yet reported the offsets"),
        ({"status": status(topics={})}, "has not yet reported the offsets"),
        ({"status": status(began="x")}, "the status of views is not valid"),
        ({"master": "sc://there"}, "Connect server"),
    ],
)
def test_what_cannot_be_filled_is_refused(change: dict[str, Any], text: str) -> None:
    version = replace(VERSION, flows=change.get("flows", VERSION.flows))
    deployment = replace(DEPLOYMENT, master=change.get("master", "local[2]"))
    with pytest.raises(PipelineError) as refused:
        reported = change.get("status", status())
        flow_to_fill(deployment, version, reported, change.get("flow", "copied"))
    assert text in str(refused.value)


def graph(*edges: tuple[str, str]) -> dict[str, Any]:
    return {
        "nodes": [{"id": "table:copied", "kind": "table", "flow": "copied"}],
        "edges": [{"from": start, "to": end} for start, end in edges],
    }


def test_a_flow_is_filled_through_a_view_that_only_it_reads() -> None:
    shape = graph(
        ("topic:in", "view:raw"), ("view:raw", "view:clean"), ("view:clean", "table:copied")
    )
    found = flow_to_fill(DEPLOYMENT, VERSION, status(shape), "copied")
    assert found.sources == ["clean", "copied", "raw"]
    shared = graph(("view:raw", "table:copied"), ("view:raw", "table:other"))
    with pytest.raises(PipelineError, match="reads the view raw, which other flows also read"):
        flow_to_fill(DEPLOYMENT, VERSION, status(shared), "copied")


FLOW = FlowToFill("copied", ["copied"], {"in": 2}, {T0: 9, T1: 9}, {T0: ((0, 3),)})
FACTS = LogFacts({T0: 2, T1: 0}, {T0: 20, T1: 20}, {T0: 2, T1: 5}, {T0: 15, T1: 15}, {T0: 77})


def test_figures_say_what_is_read_repeated_left_out_and_deleted() -> None:
    found = figures(FLOW, FACTS, again=False)
    assert found.ranges == {T0: ((3, 9),), T1: ((5, 9),)}
    assert (found.records, found.repeated, found.left_out) == (10, 0, 13)
    assert (found.deleted, found.oldest_ms) == (2, 77)
    check_figures(FLOW, found, again=False)
    again = figures(FLOW, FACTS, again=True)
    assert (again.records, again.repeated, again.left_out) == (23, 13, 0)


def test_a_range_without_unread_records_is_refused() -> None:
    old = replace(FLOW, began={}, read={})
    with pytest.raises(PipelineError, match=r"23 records .* began at the start.* --again"):
        check_figures(old, figures(old, FACTS, again=False), again=False)
    read = replace(FLOW, read={T0: ((0, 9),), T1: ((0, 9),)})
    with pytest.raises(PipelineError, match="has read them, or a backfill has"):
        check_figures(read, figures(read, FACTS, again=False), again=False)
    empty = replace(FACTS, first=FACTS.last)
    with pytest.raises(PipelineError, match="no records in this range"):
        check_figures(FLOW, figures(FLOW, empty, again=True), again=True)


# -- requests --------------------------------------------------------------------------------------


def test_a_flow_has_one_backfill_at_a_time() -> None:
    busy = replace(DEPLOYMENT, backfills=[REQUEST])
    with pytest.raises(PipelineError, match=r"backfill 5 of copied has not ended.*--cancel"):
        with_request(busy, None, replace(REQUEST, id=6))
    assert with_request(busy, None, replace(REQUEST, id=6, flow="other"))
    ended = ended_status("COMPLETED")
    assert open_request(busy, ended, "copied") is None
    many = replace(DEPLOYMENT, backfills=[REQUEST] * REQUESTS_KEPT)
    assert len(with_request(many, ended, replace(REQUEST, id=6))) == REQUESTS_KEPT


def ended_status(state: Any, id_: int = 5) -> Status:
    return replace(status(), backfills=[BackfillStatus("copied", id_, state, 4, 9)])


@pytest.mark.parametrize(
    ("known", "cancelled", "state"),
    [
        (None, False, "REQUESTED"),
        (None, True, "CANCELLED"),
        (ended_status("RUNNING"), False, "RUNNING"),
        (ended_status("RUNNING"), True, "CANCELLING"),
        (ended_status("COMPLETED"), True, "COMPLETED"),
        (ended_status("RUNNING", 6), False, "ENDED"),
    ],
)
def test_the_state_of_a_request(known: Status | None, cancelled: bool, state: str) -> None:
    assert state_of(known, replace(REQUEST, cancelled=cancelled)) == state


def test_records_of_older_versions_have_no_backfills() -> None:
    assert decode(Deployment, b'{"name": "views", "revision": 1, "version": 1}') is not None
    made = replace(DEPLOYMENT, backfills=[REQUEST])
    assert decode(Deployment, encode(made)) == made
    assert decode(Status, encode(ended_status("RUNNING"))) == ended_status("RUNNING")


def test_a_flow_that_begins_again_forgets_its_backfills() -> None:
    """Its new checkpoint does not know that they were done."""
    old = replace(DEPLOYMENT, backfills=[REQUEST, replace(REQUEST, flow="other")])
    new = revised(old, old, None, ["copied"], Change("me", 1))
    assert [each.flow for each in new.backfills] == ["other"]


# -- progress --------------------------------------------------------------------------------------


def progress(backfill: Backfill | None, **more: Any) -> dict[str, Any]:
    position = Position({T0: 20, T1: 8}, {T0: 9, T1: 5}, {}, backfill)
    return {"sources": [{"endOffset": position_to_spark(position)}], **more}


RUNNING = Backfill(5, {T0: ((0, 9),)}, {T0: 4}, asked=9)


def test_a_position_is_reported_when_it_changes() -> None:
    report = PositionReport()
    assert report.look("spark_catalog.default.copied", progress(None), 1.0) == {
        "event": "position",
        "flow": "copied",
        "stateful": False,
        "topics": {"in": 2},
        "began": {"in": {"0": 9, "1": 5}},
        "backfilled": {},
        "backfill": None,
    }
    assert report.look("copied", progress(None), 2.0) is None
    begun = report.look("copied", progress(replace(RUNNING, done={})), 10.0)
    later = report.look("copied", progress(RUNNING), 12.0)
    assert begun is not None
    assert later is not None
    assert (begun["backfill"]["per_s"], begun["backfill"]["left_s"]) == (0.0, None)
    assert (later["backfill"]["per_s"], later["backfill"]["left_s"]) == (2.0, 2.5)
    assert later["backfilled"] == {"in": {"0": [[0, 4]]}}


def test_other_sources_have_no_position() -> None:
    assert position_event("copied", {"sources": [{"endOffset": {"logOffset": 3}}]}) is None
    assert position_event("copied", {"sources": [{"endOffset": 3}]}) is None


def test_a_watermark_counts_as_state() -> None:
    event = position_event("copied", progress(None, eventTime={"watermark": "1970-01-01"}))
    assert event is not None
    assert event["stateful"]


def event(backfill: Backfill) -> dict[str, Any]:
    found = position_event("copied", progress(backfill))
    assert found is not None
    view = RunView("views")
    view.apply(found)
    assert view.flow("copied").backfill["id"] == backfill.id
    return found


def test_the_history_has_the_beginning_and_the_end_once() -> None:
    """Whichever worker sees them, and however often a driver starts."""
    follower = BackfillProgress()
    whats = [each.what for each in follower.on_event(event(RUNNING))]
    assert whats == ["backfill-begun"]
    assert follower.on_event(event(replace(RUNNING, done={T0: 6}))) == []
    (told,) = follower.on_event(event(replace(RUNNING, done={T0: 9}, lost=2)))
    assert told.what == "backfill-completed"
    assert "2 were deleted" in told.text
    other = BackfillProgress()
    other.resume(replace(status(), backfills=follower.statuses))
    assert other.on_event(event(replace(RUNNING, done={T0: 9}, lost=2))) == []
    assert other.on_event(event(RUNNING)) == [], "a late report"
    assert other.statuses == follower.statuses


def test_a_short_backfill_has_both_entries() -> None:
    whats = [each.what for each in BackfillProgress().on_event(event(cancelled(RUNNING)))]
    assert whats == ["backfill-begun", "backfill-cancelled"]


def test_the_driver_is_told_what_has_not_ended() -> None:
    """A checkpoint that was deleted does not know what has ended."""
    follower = BackfillProgress()
    later = replace(REQUEST, id=7)
    assert follower.wanted([REQUEST, later]) == [REQUEST, later]
    follower.on_event(event(RUNNING))
    assert follower.wanted([REQUEST, later]) == [REQUEST, later], "it may be cancelled"
    follower.on_event(event(replace(RUNNING, done={T0: 9})))
    assert follower.wanted([REQUEST, later]) == [later]


def test_a_driver_passes_requests_on_before_it_begins() -> None:
    """So its first round knows them."""
    heard: list[object] = []
    lines = [
        json.dumps({"backfills": plain([REQUEST]), "stop": "soon"}),
        json.dumps({"backfills": []}),
    ]
    ended = threading.Event()
    watchdog = Watchdog(lambda: None)
    control = Control(lines, watchdog, ended.set, heard.append)
    assert control.assignment() is None
    assert ended.wait(60)
    watchdog.close()
    assert heard == [[REQUEST], []]


def test_a_damaged_report_is_ignored() -> None:
    assert BackfillProgress().on_event({"flow": "copied", "backfill": {"id": "x"}}) == []
