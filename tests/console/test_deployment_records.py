"""Tests what the console makes of the records of deployed pipelines."""

from __future__ import annotations

import json
from typing import Any

from penstock.console.deployment_records import (
    EVENTS_KEPT,
    NO_REPORTS,
    PROBLEMS_MAX,
    DeploymentRecords,
    backfills_of,
    described_schedule,
    flows_of,
    graph_of,
    recompute_of,
)
from penstock.spark.deployments import topics
from penstock.spark.deployments.model import (
    BackfillStatus,
    Deployment,
    Event,
    KeptGeneration,
    Recompute,
    Schedule,
    Status,
    WorkerStatus,
    encode,
)
from penstock.spark.stream_position import BackfillRequest

NOW_MS = 1_800_000_000_000


def records(state: str | None = "RUNNING", **fields: Any) -> DeploymentRecords:
    """A deployment in this state, with a worker that has just reported."""
    found = DeploymentRecords()
    found.apply(topics.DEFINITIONS, b"deployment/a", encode(Deployment("a", 1, 1)))
    worker = WorkerStatus("w", "box", "s", 0, fields.pop("reported_ms", NOW_MS))
    found.apply(topics.STATUS, b"worker/w", encode(worker))
    if state is not None:
        status = {"revision": 1, "version": 1, "worker": "w", **fields}
        found.apply(
            topics.STATUS,
            b"pipeline/a",
            encode(Status("a", state, **status)),  # type: ignore[arg-type]
        )
    return found


def test_the_state_is_what_a_live_worker_reports() -> None:
    assert records().state("a", NOW_MS) == ("RUNNING", "")
    assert records(None).state("a", NOW_MS)[0] == "WAITING FOR A WORKER"


def test_the_state_of_a_silent_worker_is_not_known() -> None:
    """But what has ended stays ended, whether its worker lives or not."""
    late = NOW_MS - 600_000
    assert records(reported_ms=late).state("a", NOW_MS)[0] == NO_REPORTS
    for state in ("STOPPED", "FAILED"):
        assert records(state, reported_ms=late).state("a", NOW_MS)[0] == state
    assert records(worker="another", updated_ms=late).state("a", NOW_MS)[0] == NO_REPORTS


def test_a_worker_that_is_long_gone_runs_nothing() -> None:
    """Whether another worker has removed its status or not."""
    gone = NOW_MS - 3_600_000
    for found in (records(reported_ms=gone), records(worker="removed", updated_ms=gone)):
        state, note = found.state("a", NOW_MS)
        assert state == "WAITING FOR A WORKER" and note
        row = found.row("a", NOW_MS, {})
        assert (row["state"], row["worker"], row["host"]) == (state, "", "")
        stopped = Deployment("a", 2, 1, wanted="STOPPED")
        found.apply(topics.DEFINITIONS, b"deployment/a", encode(stopped))
        assert found.state("a", NOW_MS)[0] == "STOPPED"


def test_a_change_that_no_worker_has_taken_up_is_mentioned() -> None:
    found = records()
    changed = Deployment("a", 2, 1, wanted="STOPPED")
    found.apply(topics.DEFINITIONS, b"deployment/a", encode(changed))
    assert found.state("a", NOW_MS) == (
        "RUNNING",
        "The last change has not reached its worker yet.",
    )


def test_rows_per_second_are_those_of_a_running_pipeline() -> None:
    """A pipeline that waits or is silent reads nothing, whatever it read before."""
    assert records().row("a", NOW_MS, {"x": 2.5, "y": 1.0})["rows_per_s"] == 3.5
    assert records("BACKING OFF").row("a", NOW_MS, {"x": 2.5})["rows_per_s"] == 0


def test_lag_is_the_sum_in_records_and_the_longest_in_time() -> None:
    flows = [{"name": "x", "lag": 2, "lag_s": 9.0}, {"name": "y", "lag": 3, "lag_s": 1.5}, {}]
    row = records(run={"flows": flows}).row("a", NOW_MS, {})
    assert (row["lag"], row["lag_s"]) == (5, 9.0)
    row = records(run={"flows": [{"name": "z"}]}).row("a", NOW_MS, {})
    assert (row["lag"], row["lag_s"]) == (None, None)


def test_runs_of_any_shape_do_no_harm() -> None:
    """Any client with the right to write can write anything."""
    for run in (
        {"flows": 5, "graph": []},
        {"flows": [7, {"name": [], "rows": "x", "lag": 2**70, "lag_s": True, "violations": [1]}]},
        {"graph": {"nodes": [{"id": 1}], "edges": [{"from": [], "to": "nowhere"}, 3]}},
    ):
        status = Status("a", "RUNNING", 1, 1, run=run)
        for flow in flows_of(status):
            assert (flow["rows"], flow["lag"], flow["lag_s"], flow["violations"]) == (
                0, None, None, {},
            )  # fmt: skip
        assert graph_of(status)["edges"] == []
        json.dumps([flows_of(status), graph_of(status)], allow_nan=False)


def test_a_flow_without_state_has_no_figures_of_it() -> None:
    flows = [
        {"name": "plain", "state_rows": 0, "state_bytes": 0},
        {"name": "empty", "state_rows": 0, "state_bytes": 640},
    ]
    found = flows_of(Status("a", "RUNNING", 1, 1, run={"flows": flows}))
    assert [(flow["state_rows"], flow["state_bytes"]) for flow in found] == [
        (None, None),
        (0, 640),
    ]


def test_the_backfill_of_a_flow_is_shown() -> None:
    """Only if it is one."""
    given = {"id": 7, "state": "RUNNING", "done": 3, "total": 6, "lost": 0, "per_s": 1.5}
    flows = [{"name": "a", "backfill": given}, {"name": "b", "backfill": {"id": "x", "done": 1}}]
    found = flows_of(Status("a", "RUNNING", 1, 1, run={"flows": flows}))
    assert [flow["backfill"] for flow in found] == [{**given, "left_s": None}, None]


def test_edges_need_both_of_their_nodes() -> None:
    nodes = [{"id": "a", "kind": "topic", "name": "x"}, {"id": "b", "kind": "table", "line": 3}]
    edges = [{"from": "a", "to": "b", "schema": "c INT"}, {"from": "a", "to": "gone"}]
    found = graph_of(Status("a", "RUNNING", 1, 1, run={"graph": {"nodes": nodes, "edges": edges}}))
    assert found["edges"] == [{"from": "a", "to": "b", "schema": "c INT"}]
    assert [node["line"] for node in found["nodes"]] == [None, 3]


def test_the_history_of_a_pipeline_is_bounded() -> None:
    """The last events are kept. An event under the key of another pipeline is not used."""
    found = DeploymentRecords()
    for number in range(EVENTS_KEPT + 5):
        found.apply(topics.HISTORY, b"a", encode(Event("a", number, "failed")))
    found.apply(topics.HISTORY, b"b", encode(Event("a", 0, "forged")))
    assert len(found.events["a"]) == EVENTS_KEPT
    assert found.events["a"][-1].at_ms == EVENTS_KEPT + 4
    found.forget(topics.HISTORY)
    assert not found.events


def test_pipelines_that_should_run_and_do_not_are_problems() -> None:
    """One failure is none: the pipeline starts again by itself. Nor is one that was stopped."""

    def told(found: DeploymentRecords) -> list[str]:
        return [problem.title for problem in found.problems(NOW_MS)]

    assert told(records()) == told(records("BACKING OFF", failures=1)) == []
    assert told(records("BACKING OFF", failures=4)) == ["pipeline a has failed 4 times in a row"]
    assert told(records("FAILED")) == ["pipeline a is not running: failed"]
    assert told(records(None)) == ["pipeline a is not running: waiting for a worker"]
    assert told(records(reported_ms=NOW_MS - 600_000)) == ["pipeline a is not running: no reports"]
    stopped = records("FAILED")
    changed = Deployment("a", 2, 1, wanted="STOPPED")
    stopped.apply(topics.DEFINITIONS, b"deployment/a", encode(changed))
    assert told(stopped) == []


def test_many_problems_are_summed_up() -> None:
    found = DeploymentRecords()
    for number in range(15):
        name = f"p{number}"
        key = topics.deployment_key(name)
        found.apply(topics.DEFINITIONS, key, encode(Deployment(name, 1, 1)))
    told = found.problems(NOW_MS)
    assert len(told) == PROBLEMS_MAX + 1
    assert told[-1].title == "5 more pipelines are not running"


def test_schedules_are_described() -> None:
    def told(schedule: Schedule) -> str:
        return described_schedule(Deployment("a", 1, 1, schedule=schedule))

    assert told(Schedule(continuous=True)) == "continuous"
    assert told(Schedule(every_s=600)) == "every 600 s"
    assert told(Schedule(cron="0 * * * *")) == "at 0 * * * * (UTC)"


def test_the_progress_of_a_recompute_has_fields_of_the_right_types() -> None:
    """What a worker reported of an earlier one is left out."""
    deployment = Deployment("a", 1, 1, recompute=Recompute(7, 2, ["t"], "manual"), generations=7)
    odd = {"generation": 7, "stage": [], "caught_up": "yes", "lag": "many", "error": None}
    found = recompute_of(deployment, None, Status("a", "RUNNING", 1, 1, recompute=odd))
    assert found["tables"] is found["kept"] is None
    shown = found["recompute"]
    assert (shown["version"], shown["tables"], shown["swap"]) == (2, ["t"], "manual")
    assert (shown["stage"], shown["caught_up"], shown["lag"]) == ("[]", False, None)
    earlier = Status("a", "RUNNING", 1, 1, recompute={"generation": 6, "lag": 5})
    shown = recompute_of(deployment, None, earlier)["recompute"]
    assert (shown["stage"], shown["lag"]) == ("waiting for a worker", None)
    kept = Deployment("a", 1, 1, kept=KeptGeneration(0, 1, 9, 10), generation=7, generations=7)
    assert recompute_of(kept, None, None)["kept"]["until_ms"] == 10


def test_backfills_are_listed_with_the_newest_first() -> None:
    requests = [BackfillRequest(number, "f", {"t": {"0": [[0, 8]]}}) for number in (3, 5)]
    view = {"name": "f", "backfill": {"id": 5, "per_s": "fast", "left_s": 2}}
    done = [BackfillStatus("f", 5, "RUNNING", 4, 8)]
    status = Status("a", "RUNNING", 1, 1, run={"flows": [view]}, backfills=done)
    found = backfills_of(Deployment("a", 1, 1, backfills=requests), status)
    assert [(each["id"], each["state"]) for each in found] == [(5, "RUNNING"), (3, "ENDED")]
    assert (found[0]["done"], found[0]["per_s"], found[0]["left_s"]) == (4, None, 2.0)
