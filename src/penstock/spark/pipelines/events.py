"""Defines the events of a pipeline run, and the view that adds them up. Pure.

The driver writes events, one JSON object per line. The runner adds them up in a `RunView`, which
the live view draws and `status` shows later. Each event is small and can be understood without the
earlier ones.

    {"event": "phase", "text": "starting Spark"}
    {"event": "round", "number": 1}
    {"event": "flow", "flow": "clicks", "status": "RUNNING"}
    {"event": "progress", "flow": "clicks", "batch": 3, "rows": 100, "rows_per_s": 52.1, ...}
    {"event": "lag", "flow": "clicks", "lag": 12, "lag_s": 0.8}
    {"event": "dead letters", "topic": "clicks-dead", "records": 3}  (since the last such event)
    {"event": "graph", "nodes": [...], "edges": [...]}  (see `graph`)
    {"event": "position", "flow": "clicks", "began": {...}, ...}  (see `position_report`)
    {"event": "end", "state": "COMPLETED"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from penstock.spark.expectations import CHECKED, violation_counts
from penstock.spark.pipelines.explain import one_line, short_name
from penstock.spark.pipelines.skew import skew

State = Literal["STARTING", "RUNNING", "WAITING", "COMPLETED", "FAILED", "STOPPED"]
STATES: Final[tuple[State, ...]] = (
    "STARTING",
    "RUNNING",
    "WAITING",
    "COMPLETED",
    "FAILED",
    "STOPPED",
)
ENDED: Final = frozenset({"COMPLETED", "FAILED", "STOPPED"})

_STATUS: Final = re.compile(r"Flow '?(?P<flow>[^\s']+)'? (?:(?:is|has|was) )?(?P<status>[A-Z]+)\b")


_UNRESOLVED: Final = re.compile(r"Failed to resolve flow: '(?P<flow>[^']+)'")


def read_event(line: str) -> dict[str, Any]:
    """Returns the event in a line that a driver wrote. Raises ValueError if there is none."""
    try:
        found = json.loads(line, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict) or not isinstance(found.get("event"), str):
        raise ValueError('it is not an object with a string "event"')  # noqa: TRY004 (of the text)
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")


def flow_event(message: str, root: str = "") -> dict[str, Any] | None:
    """Returns the event for a message of Spark about a flow; None for other messages. `root` is the
    folder of the project."""
    found = _STATUS.match(message)
    status = found["status"] if found else "FAILED"
    found = found or _UNRESOLVED.match(message)
    if found is None:
        return None
    event: dict[str, Any] = {"event": "flow", "flow": short_name(found["flow"]), "status": status}
    if status == "FAILED":
        event["error"] = one_line(message.partition("\n")[2] or message, root)
    return event


def progress_event(flow: str, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of Spark's progress report on a micro-batch that is shown."""
    durations = progress.get("durationMs") or {}
    offsets: dict[str, dict[str, int]] = {}
    spans = []
    for source in progress.get("sources") or ():
        end = topic_offsets(source.get("endOffset"))
        offsets |= end
        spans.append((topic_offsets(source.get("startOffset")), end))
    written = (progress.get("sink") or {}).get("numOutputRows")
    violations, checked = _violations(progress)
    return {
        "event": "progress",
        "flow": short_name(flow),
        "batch": int(progress.get("batchId", 0)),
        "at": str(progress.get("timestamp", "")),
        "rows": int(progress.get("numInputRows") or 0),
        "rows_per_s": _finite(progress.get("processedRowsPerSecond")),
        "duration_ms": int(durations.get("triggerExecution") or 0),
        "input_per_s": _finite(progress.get("inputRowsPerSecond")),
        "watermark": str((progress.get("eventTime") or {}).get("watermark") or ""),
        **_state(progress),
        "violations": violations,
        "checked": checked,
        # Spark reports -1 if it does not know them.
        "output_rows": written if isinstance(written, int) and written >= 0 else None,
        "skew": skew(spans),
        "offsets": offsets,
    }


def _state(progress: Mapping[str, Any]) -> dict[str, int]:
    """Returns the size of the state that the query keeps for aggregations and joins."""
    found = [each for each in progress.get("stateOperators") or () if isinstance(each, Mapping)]
    return {
        "state_rows": sum(int(each.get("numRowsTotal") or 0) for each in found),
        "state_bytes": sum(int(each.get("memoryUsedBytes") or 0) for each in found),
    }


def _violations(progress: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """Returns how many rows of the batch violate each expectation of the flow, and how many were
    checked."""
    found: dict[str, int] = {}
    checked = 0
    for counts in violation_counts(progress.get("observedMetrics")).values():
        found |= {name: number for name, number in counts.items() if name != CHECKED}
        checked += counts.get(CHECKED, 0)
    return found, checked


def topic_offsets(found: object) -> dict[str, dict[str, int]]:
    """Returns offsets of the form `{"topic": {"0": 17}}`. Other sources have other offsets, which
    are left out."""
    if not isinstance(found, Mapping):
        return {}
    return {
        topic: {str(partition): offset for partition, offset in offsets.items()}
        for topic, offsets in found.items()
        if isinstance(offsets, Mapping)
        and all(
            str(partition).isdecimal() and type(offset) is int
            for partition, offset in offsets.items()
        )
    }


def _finite(number: object) -> float:
    """Returns the number, or 0 for the NaN and Infinity of a batch that took no time."""
    if isinstance(number, int | float) and -1e18 < number < 1e18:
        return round(float(number), 1)
    return 0.0


@dataclass(slots=True)
class FlowView:
    name: str
    status: str = "QUEUED"
    rows: int = 0
    """Rows read by streams in all rounds of this run. Materialized views have no such count."""
    streaming: bool = False
    rows_per_s: float = 0.0
    """The rate of the last batch that had rows."""
    lag: int | None = None
    """Records in its topics that it has not read yet; None if it reads no topic."""
    batch: int | None = None
    batch_rows: int = 0
    batch_at: str = ""
    batch_ms: int = 0
    lag_s: float | None = None
    """The age of the oldest record that it has not read yet; None if it reads no topic."""
    input_per_s: float = 0.0
    """The rate at which rows arrived before the last batch that had rows."""
    watermark: str = ""
    """The event time before which rows are late; empty if it has none."""
    state_rows: int = 0
    """Rows that it keeps for aggregations and joins."""
    state_bytes: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    """How many rows of this run violate each expectation."""
    error: str = ""
    skew: float | None = None
    """Rows of the largest topic partition in a batch, divided by those of the median one; that of
    the last batch with enough rows."""
    task_skew: float | None = None
    """The duration of the longest task in a stage of a batch, divided by that of the median one;
    that of the last batch that took long enough."""
    stateful: bool = False
    """Whether it keeps state or has a watermark."""
    topics: dict[str, int] = field(default_factory=dict)
    """The topics that it reads, with their numbers of partitions."""
    began: dict[str, Any] = field(default_factory=dict)
    """The offsets at which the stream began; empty: at the start of the log, or unknown."""
    backfilled: dict[str, Any] = field(default_factory=dict)
    """The ranges of offsets that backfills have read."""
    backfill: dict[str, Any] = field(default_factory=dict)
    """The last backfill: id, state, done, total, lost, per_s, left_s."""


@dataclass(slots=True)
class RunView:
    """The state of a run, as the sum of its events."""

    name: str
    state: State = "STARTING"
    phase: str = "starting"
    round: int = 0
    flows: dict[str, FlowView] = field(default_factory=dict)
    error: str = ""
    graph: dict[str, Any] = field(default_factory=dict)
    """Nodes and edges, once Spark has planned them."""

    def apply(self, event: Mapping[str, Any]) -> None:
        """Adds an event. One with fields that are missing or wrong raises an ordinary error."""
        match event.get("event"):
            case "phase":
                self.phase = str(event["text"])
            case "round":
                self.round = int(event["number"])
                self.state = "RUNNING"
                self.phase = "running"
            case "waiting":
                self.state = "WAITING"
                self.phase = "waiting for the next round"
            case "flow":
                self._on_flow(event)
            case "progress":
                self._on_progress(event)
            case "lag":
                flow = self.flow(str(event["flow"]))
                flow.lag = int(event["lag"])
                flow.lag_s = float(event.get("lag_s") or 0.0)
            case "position":
                flow = self.flow(str(event["flow"]))
                flow.stateful = bool(event["stateful"])
                flow.topics = dict(event["topics"])
                flow.began, flow.backfilled = dict(event["began"]), dict(event["backfilled"])
                flow.backfill = dict(event["backfill"] or {})
            case "graph":
                self.graph = {"nodes": _objects(event["nodes"]), "edges": _objects(event["edges"])}
            case "end":
                self._on_end(event)

    def flow(self, name: str) -> FlowView:
        return self.flows.setdefault(name, FlowView(name))

    def _on_end(self, event: Mapping[str, Any]) -> None:
        if event["state"] not in ENDED:
            raise ValueError(f"a run cannot end in the state {event['state']}")
        self.state = event["state"]
        self.phase = event["state"].lower()
        self.error = str(event.get("error") or "")

    def _on_flow(self, event: Mapping[str, Any]) -> None:
        flow = self.flow(str(event["flow"]))
        flow.status = str(event["status"])
        flow.error = str(event.get("error") or "")

    def _on_progress(self, event: Mapping[str, Any]) -> None:
        rows = int(event["rows"])
        # Spark also reports progress without rows. The last batch is the last one with rows.
        batch = _batch(event) if rows else {}
        found = {name: int(number) for name, number in event["violations"].items() if rows}
        flow = self.flow(str(event["flow"]))
        flow.streaming = True
        if flow.status == "QUEUED":
            flow.status = "RUNNING"  # Spark reports no status of the queries of a script.
        flow.rows += rows
        for name, value in batch.items():
            setattr(flow, name, value)
        for name, number in found.items():
            flow.violations[name] = flow.violations.get(name, 0) + number

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "round": self.round,
            "error": self.error,
            # Copied first: another thread may add flows while the view is drawn.
            "flows": [asdict(flow) for flow in list(self.flows.values())],
            "graph": self.graph,
        }


def _batch(event: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a progress event says about its batch, as the fields of a `FlowView`."""
    found: dict[str, Any] = {
        "rows_per_s": float(event["rows_per_s"]),
        "batch": int(event["batch"]),
        "batch_rows": int(event["rows"]),
        "batch_at": str(event["at"]),
        "batch_ms": int(event["duration_ms"]),
        "input_per_s": float(event.get("input_per_s") or 0.0),
        "watermark": str(event.get("watermark") or ""),
        "state_rows": int(event.get("state_rows") or 0),
        "state_bytes": int(event.get("state_bytes") or 0),
    }
    for name in ("skew", "task_skew"):
        if event.get(name) is not None:
            found[name] = float(event[name])
    return found


def _objects(found: object) -> list[Any]:
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TypeError("it is not a list of objects")
    return found
