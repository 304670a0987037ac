"""What the console knows about deployed pipelines: the sum of the records in their topics. Pure.

A client with the right to write to the topics can write anything, so records of the wrong shape are
skipped, and the history of each pipeline is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from penstock.console.problems import Problem
from penstock.spark.deployments import backfill_requests, recompute_requests, topics
from penstock.spark.deployments.catalog_view import WORKER_SHOWN_S, CatalogView, is_silent
from penstock.spark.deployments.model import Deployment, Event, Status, Version, decode
from penstock.spark.deployments.waiting import waiting_reason

EVENTS_KEPT: Final = 500
"""For each pipeline."""
PIPELINES_MAX: Final = 10_000
"""The history of further pipelines replaces that of others."""
NODES_MAX: Final = 500
EDGES_MAX: Final = 2_000
"""A larger graph is not drawn completely."""
NO_REPORTS: Final = "NO REPORTS"
PROBLEMS_MAX: Final = 10
_FAILURES_TOLD: Final = 2
"""One failure is no problem: the pipeline starts again after a second."""
_TROUBLED: Final = frozenset({"FAILED", "WAITING FOR A WORKER", NO_REPORTS})
_SEE: Final = "see its history and its logs"
_UNDER_WAY: Final = frozenset(
    {"PREPARING", "STARTING", "RUNNING", "WAITING FOR ITS TIME", "BACKING OFF", "STOPPING"}
)
"""States in which a worker takes care of the pipeline."""
_RECOMPUTE_FIELDS: Final = ("generation", "version", "tables", "swap", "swap_asked", "began_ms")
"""Of the deployment. The other fields are what a worker reports."""


class DeploymentRecords:
    def __init__(self) -> None:
        self.view = CatalogView()
        self.events: dict[str, deque[Event]] = {}

    def apply(self, topic: str, key: bytes | None, value: bytes | None) -> Status | None:
        """Adds a record. Returns the status if it is one."""
        if topic == topics.HISTORY:
            event = decode(Event, value)
            if event is not None and (key or b"").decode(errors="replace") == event.name:
                self._add_event(event)
            return None
        self.view.apply(topic, key, value)
        kind, _, name = (key or b"").decode(errors="replace").partition("/")
        is_status = topic == topics.STATUS and kind == "pipeline" and value is not None
        return self.view.statuses.get(name) if is_status else None

    def forget(self, topic: str) -> None:
        """Forgets the records of a topic that is gone, or is read again from its beginning."""
        if topic == topics.DEFINITIONS:
            self.view.deployments.clear()
            self.view.versions.clear()
        elif topic == topics.STATUS:
            self.view.statuses.clear()
            self.view.workers.clear()
        else:
            self.events.clear()

    def _add_event(self, event: Event) -> None:
        known = self.events.get(event.name)
        if known is None:
            if len(self.events) >= PIPELINES_MAX:
                del self.events[next(iter(self.events))]
            known = self.events[event.name] = deque(maxlen=EVENTS_KEPT)
        known.append(event)

    # -- what is shown --------------------------------------------------------------------------

    def is_silent(self, worker: str, now_ms: int) -> bool:
        found = self.view.workers.get(worker)
        return found is None or is_silent(found, now_ms)

    def _is_long_gone(self, status: Status, now_ms: int) -> bool:
        """Whether the worker that reported last has lost the pipeline for certain. Its own status
        may have been removed."""
        worker = self.view.workers.get(status.worker)
        last_ms = max(status.updated_ms, 0 if worker is None else worker.updated_ms)
        return now_ms - last_ms >= WORKER_SHOWN_S * 1000

    def state(self, name: str, now_ms: int) -> tuple[str, str]:
        """Returns the state of a pipeline, and a sentence about it or an empty string.

        The status of a pipeline says what its worker reported last. If the worker is silent, the
        state is not known: the pipeline is not shown as running.
        """
        deployment, status = self.view.deployments[name], self.view.statuses.get(name)
        if status is None:
            if deployment.wanted == "STOPPED":
                return "STOPPED", "It was never started."
            return "WAITING FOR A WORKER", self._waiting(name, now_ms)
        if status.state in _UNDER_WAY and self.is_silent(status.worker, now_ms):
            if self._is_long_gone(status, now_ms):
                if deployment.wanted == "STOPPED":
                    return "STOPPED", "Its worker disappeared before the pipeline was stopped."
                return "WAITING FOR A WORKER", self._waiting(name, now_ms)
            return NO_REPORTS, (
                f"Worker {status.worker} is not reporting. When that worker's lease expires, "
                "another worker that can run the pipeline takes it over."
            )
        if status.state == "WAITING FOR A WORKER":
            return status.state, self._waiting(name, now_ms)
        if status.revision < deployment.revision:
            return status.state, "The last change has not reached its worker yet."
        return status.state, ""

    def _waiting(self, name: str, now_ms: int) -> str:
        view = self.view
        return waiting_reason(name, view.deployments, view.statuses, view.live_workers(now_ms))

    def problems(self, now_ms: int) -> list[Problem]:
        """Returns a problem for each pipeline that should run and does not."""
        found: list[Problem] = []
        for name, deployment in sorted(self.view.deployments.items()):
            status = self.view.statuses.get(name)
            state, note = self.state(name, now_ms)
            failures = 0 if status is None else status.failures
            error = "" if status is None else status.error
            if deployment.wanted == "STOPPED" or (
                state not in _TROUBLED and failures < _FAILURES_TOLD
            ):
                continue
            title = f"pipeline {name} is not running: {state.lower()}"
            if failures:
                title = f"pipeline {name} has failed {failures:,} times in a row"
            link = f"#/pipelines/{name}"
            found.append(Problem("warning", title, error or note or _SEE, link))
        return _shortened(found)

    def row(self, name: str, now_ms: int, rates: Mapping[str, float]) -> dict[str, Any]:
        """Returns a line of the list of deployments."""
        deployment = self.view.deployments[name]
        status = self.view.statuses.get(name)
        state, note = self.state(name, now_ms)
        flows = [] if status is None else flows_of(status)
        lags = [flow["lag"] for flow in flows if flow["lag"] is not None]
        delays = [flow["lag_s"] for flow in flows if flow["lag_s"] is not None]
        run = {} if status is None else status.run
        # If it waits for a worker, the last one that reported on it is gone or has given it up.
        has_worker = status is not None and state != "WAITING FOR A WORKER"
        return {
            "name": name,
            "state": state,
            "note": note,
            "wanted": deployment.wanted,
            "version": deployment.version,
            "running_version": 0 if status is None else status.version,
            "worker": status.worker if status is not None and has_worker else "",
            "host": status.host if status is not None and has_worker else "",
            "round": _whole(run.get("round")),
            "rows_per_s": round(sum(rates.values()), 1) if state == "RUNNING" else 0.0,
            "lag": sum(lags) if lags else None,
            "lag_s": max(delays) if delays else None,
            "failures": 0 if status is None else status.failures,
            "since_ms": 0 if status is None else status.since_ms,
            "updated_ms": 0 if status is None else status.updated_ms,
            "next_ms": 0 if status is None else status.next_ms,
            "error": "" if status is None else status.error or str(run.get("error") or ""),
            "schedule": described_schedule(deployment),
        }


def _shortened(found: list[Problem]) -> list[Problem]:
    more = len(found) - PROBLEMS_MAX
    if more <= 0:
        return found
    title = f"{more:,} more pipelines are not running"
    return [*found[:PROBLEMS_MAX], Problem("warning", title, _SEE, "#/pipelines")]


def described_schedule(deployment: Deployment) -> str:
    schedule = deployment.schedule
    if schedule.cron:
        return f"at {schedule.cron} (UTC)"
    if schedule.every_s:
        return f"every {schedule.every_s:g} s"
    return "continuous"


def _backfill(found: object) -> dict[str, Any] | None:
    """Returns the last backfill of a flow, or None if there was none."""
    given = _dict(found)
    number, done, total = (_whole(given.get(name)) for name in ("id", "done", "total"))
    if number is None or done is None or total is None:
        return None
    return {
        "id": number,
        "state": str(given.get("state") or ""),
        "done": done,
        "total": total,
        "lost": _whole(given.get("lost")) or 0,
        "per_s": _number(given.get("per_s")),
        "left_s": _number(given.get("left_s")),
    }


def backfills_of(deployment: Deployment, status: Status | None) -> list[dict[str, Any]]:
    """Returns the last backfills and how far they are, the newest first."""
    return [
        {**each, "per_s": _number(each["per_s"]), "left_s": _number(each["left_s"])}
        for each in reversed(backfill_requests.listed(deployment, status))
    ]


def recompute_of(
    deployment: Deployment, version: Version | None, status: Status | None
) -> dict[str, Any]:
    """Returns the recompute that is in progress, the tables that are kept from before the last
    swap, and the tables that a recompute computes; each is None if there is none, or unknown."""
    found = recompute_requests.described(deployment, status)
    recompute = found["recompute"]
    if recompute is not None:
        recompute = {
            **{name: recompute[name] for name in _RECOMPUTE_FIELDS},
            "stage": str(recompute["stage"]),
            "state": str(recompute["state"]),
            "caught_up": recompute["caught_up"] is True,
            "error": str(recompute.get("error") or ""),
            **{
                name: _whole(recompute.get(name))
                for name in ("rounds", "failures", "lag", "served_lag")
            },
        }
    parts = recompute_requests.parts_of(version, status)
    return {
        "recompute": recompute,
        "kept": found["kept"],
        "tables": None if parts is None else sorted(parts.streaming_tables),
    }


def flows_of(status: Status) -> list[dict[str, Any]]:
    """Returns the flows of the status's run with fields of the right types."""
    return [
        {
            "name": str(flow.get("name") or ""),
            "status": str(flow.get("status") or ""),
            "streaming": flow.get("streaming") is True,
            "rows": _whole(flow.get("rows")) or 0,
            "lag": _whole(flow.get("lag")),
            "lag_s": _number(flow.get("lag_s")),
            "batch": _whole(flow.get("batch")),
            "batch_rows": _whole(flow.get("batch_rows")),
            "batch_ms": _whole(flow.get("batch_ms")),
            # A flow without state reports 0 for both.
            "state_rows": _whole(flow.get("state_rows")) if _has_state(flow) else None,
            "state_bytes": _whole(flow.get("state_bytes")) if _has_state(flow) else None,
            "watermark": str(flow.get("watermark") or ""),
            "skew": _number(flow.get("skew")),
            "task_skew": _number(flow.get("task_skew")),
            "violations": {
                str(name): number
                for name, number in _dict(flow.get("violations")).items()
                if type(number) is int
            },
            "backfill": _backfill(flow.get("backfill")),
            "error": str(flow.get("error") or ""),
        }
        for flow in _dicts(status.run.get("flows"))
    ]


def _has_state(flow: dict[str, Any]) -> bool:
    return bool(flow.get("state_rows") or flow.get("state_bytes"))


def graph_of(status: Status) -> dict[str, Any]:
    """Returns the nodes and edges of the status's run; edges without both nodes are left out.
    `complete` is false if anything was left out."""
    found = _dict(status.run.get("graph"))
    nodes: dict[str, dict[str, Any]] = {}
    given = _dicts(found.get("nodes")), _dicts(found.get("edges"))
    for node in given[0][:NODES_MAX]:
        key = str(node.get("id") or "")
        nodes[key] = {
            "id": key,
            "kind": str(node.get("kind") or ""),
            "name": str(node.get("name") or ""),
            "flow": str(node.get("flow") or ""),
            "format": str(node.get("format") or ""),
            "file": str(node.get("file") or ""),
            "line": _whole(node.get("line")),
        }
    edges = [
        {
            "from": str(edge.get("from")),
            "to": str(edge.get("to")),
            "schema": str(edge.get("schema") or ""),
        }
        for edge in given[1]
        if str(edge.get("from")) in nodes and str(edge.get("to")) in nodes
    ][:EDGES_MAX]
    complete = (len(nodes), len(edges)) == (len(given[0]), len(given[1]))
    return {"nodes": [*nodes.values()], "edges": edges, "complete": complete}


def _dict(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _dicts(found: object) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _whole(found: object) -> int | None:
    return found if type(found) is int and abs(found) < 2**53 else None


def _number(found: object) -> float | None:
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if abs(found) < 2**53 else None
