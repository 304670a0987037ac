"""Makes OpenLineage run events from what happens to a pipeline. Pure.

The run of a driver is a run of the job NAME. Each of its flows is a job of its own, NAME.FLOW, with
the run of the driver as its parent, and with the topics and tables that it reads and writes.

    START      Spark is ready; for a flow: it was planned
    RUNNING    a round was completed, at most once a minute
    COMPLETE   a script has returned
    FAIL       it failed, with the error
    ABORT      it was stopped

Events follow version 2-0-2 of the specification, facets theirs: see https://openlineage.io/spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from penstock.spark.deployments.lineage.datasets import Data, FlowData, columns_of, flows_of

PRODUCER: Final = "urn:penstock:pipelines"
SCHEMA_URL: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets"
_RUNNING_EVERY_MS: Final = 60_000
_FLOWS_MAX: Final = 500

EventType = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
LineageEvent = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Namespaces:
    jobs: str
    """Of pipelines and their tables."""
    topics: str


def namespaces(bootstrap: str) -> Namespaces:
    """Returns the names by which other tools know the cluster."""
    first = bootstrap.partition(",")[0].strip()
    return Namespaces(f"penstock://{first}", f"kafka://{first}")


@dataclass(slots=True)
class _Flow:
    run: str
    data: FlowData
    error: str = ""


class PipelineLineage:
    """`new_id` returns a UUID."""

    def __init__(self, name: str, spaces: Namespaces, new_id: Callable[[], str]) -> None:
        self._name = name
        self._spaces = spaces
        self._new_id = new_id
        self._run = ""
        self._flows: dict[str, _Flow] = {}
        self._told_ms = 0

    def on_event(self, event: Mapping[str, Any], now_ms: int) -> list[LineageEvent]:
        """Takes an event of a driver."""
        match event.get("event"):
            case "ready":
                self._run, self._flows, self._told_ms = self._new_id(), {}, now_ms
                return [self._event("START", now_ms)]
            case "graph" if self._run:
                return self._on_graph(event, now_ms)
            case "flow" if (flow := self._flows.get(str(event.get("flow")))) is not None:
                flow.error = str(event.get("error") or "")
            case "waiting" if self._run and now_ms - self._told_ms >= _RUNNING_EVERY_MS:
                self._told_ms = now_ms
                found = [self._event("RUNNING", now_ms)]
                return found + [self._event("RUNNING", now_ms, each) for each in self._all()]
        return []

    def on_end(self, now_ms: int, *, completed: bool, error: str) -> list[LineageEvent]:
        """The driver has ended."""
        if not self._run:
            return []
        kind: EventType = "FAIL" if error else "COMPLETE" if completed else "ABORT"
        found = []
        for flow in self._all():
            # Without an error of a flow, it is not known which of them failed.
            told = "FAIL" if flow.error else "ABORT" if error else kind
            found.append(self._event(told, now_ms, flow, flow.error))
        found.append(self._event(kind, now_ms, error=error))
        self._run, self._flows = "", {}
        return found

    def _all(self) -> list[_Flow]:
        return list(self._flows.values())

    def _on_graph(self, graph: Mapping[str, Any], now_ms: int) -> list[LineageEvent]:
        found = []
        for data in flows_of(graph)[:_FLOWS_MAX]:
            known = self._flows.get(data.name)
            if known is None:
                known = self._flows[data.name] = _Flow(self._new_id(), data)
                found.append(self._event("START", now_ms, known))
            elif known.data != data:
                known.data = data
                found.append(self._event("RUNNING", now_ms, known))
        return found

    def _event(
        self, kind: EventType, now_ms: int, flow: _Flow | None = None, error: str = ""
    ) -> LineageEvent:
        name = self._name if flow is None else f"{self._name}.{flow.data.name}"
        at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        run: dict[str, Any] = {"runId": self._run if flow is None else flow.run, "facets": {}}
        if flow is not None:
            run["facets"]["parent"] = _facet(
                "1-2-0/ParentRunFacet",
                run={"runId": self._run},
                job={"namespace": self._spaces.jobs, "name": self._name},
            )
        if error:
            run["facets"]["errorMessage"] = _facet(
                "1-0-1/ErrorMessageRunFacet", message=error, programmingLanguage="PYTHON"
            )
        kinds = {"processingType": "STREAMING", "integration": "SPARK"}
        return {
            "eventType": kind,
            "eventTime": at,
            "producer": PRODUCER,
            "schemaURL": SCHEMA_URL,
            "run": run,
            "job": {
                "namespace": self._spaces.jobs,
                "name": name,
                "facets": {
                    "jobType": _facet(
                        "2-0-4/JobTypeJobFacet",
                        **kinds,
                        jobType="PIPELINE" if flow is None else "FLOW",
                    )
                },
            },
            "inputs": [] if flow is None else [self._data(each) for each in flow.data.inputs],
            "outputs": [] if flow is None else [self._data(each) for each in flow.data.outputs],
        }

    def _data(self, data: Data) -> dict[str, Any]:
        columns = columns_of(data.schema.removesuffix("…"))
        facets = {}
        if columns:
            fields = [{"name": name, "type": kind} for name, kind in columns]
            facets["schema"] = _facet("1-2-0/SchemaDatasetFacet", fields=fields)
        if data.kind in ("topic", "pattern"):
            return {"namespace": self._spaces.topics, "name": data.name, "facets": facets}
        name = f"{self._name}.{data.name}"
        return {"namespace": self._spaces.jobs, "name": name, "facets": facets}


def _facet(path: str, **content: Any) -> dict[str, Any]:
    kind = path.rpartition("/")[2]
    url = f"{_FACETS}/{path}.json#/$defs/{kind}"
    return {"_producer": PRODUCER, "_schemaURL": url, **content}
