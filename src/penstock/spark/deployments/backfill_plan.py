"""Decides whether a flow can be backfilled, and what the backfill would read. Pure.

What it finds is for the question to the user, and for the request. The source decides again, from
its checkpoint, when it begins the backfill: what the stream has read in the meantime is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.spark.deployments.flow_fingerprints import parse_fingerprint, quarantine_flow
from penstock.spark.deployments.model import BackfillStatus, Deployment, Status, Version
from penstock.spark.offset_ranges import Ranges, from_json, joined, size
from penstock.spark.offsets import Offsets, from_spark
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.stream_position import BackfillRequest, Position, clipped
from penstock.topic_partition import TopicPartition

REQUESTS_KEPT: Final = 20
"""How many requests a deployment keeps. Older ones are in the history."""
PARTITIONS_MAX: Final = 100_000
"""Of the topics of a flow. The status of a pipeline names them, and a client with the right to
write to its topic can write anything."""
OPEN_STATES: Final = frozenset({"REQUESTED", "RUNNING", "CANCELLING"})
"""The states of a backfill that has not ended: see `state_of`."""


@dataclass(frozen=True, slots=True)
class FlowToFill:
    """A flow that can be backfilled."""

    name: str
    sources: list[str]
    topics: dict[str, int]
    began: Offsets
    read: Ranges
    quarantine: str = ""
    """The flow that gets the quarantined rows of this flow. A backfill of this flow leaves them
    out."""

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, index)
            for topic, count in sorted(self.topics.items())
            for index in range(count)
        ]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the brokers say about the partitions of a flow."""

    earliest: Offsets
    latest: Offsets
    first: Offsets
    """The first offset at or after the beginning of the range."""
    last: Offsets
    """The first offset at or after its end."""
    first_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The time of the first record of the range."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a backfill would do."""

    ranges: Ranges
    records: int
    repeated: int
    """Records that the flow has read before, and that are read again."""
    left_out: int
    """Records in the range that the flow has read before, or reads itself."""
    deleted: int
    """Offsets that retention has deleted in partitions in which the range begins before the log."""
    oldest_ms: int
    """The time of the oldest record that is left in those partitions."""


def flow_to_fill(
    deployment: Deployment, version: Version, status: Status | None, flow: str
) -> FlowToFill:
    """Returns the flow, or raises `PipelineError` with the reason why it cannot be backfilled."""
    _check_kind(version, flow)
    if deployment.master.startswith("sc://"):
        raise PipelineError(
            f"{deployment.name} runs on a Connect server ({deployment.master}), and only a driver "
            "of a worker can do backfills: deploy it with another --master"
        )
    view = _view_of(status, flow)
    if view is None:
        raise PipelineError(
            f"{deployment.name} has not yet reported the offsets of {flow}: start it, and try "
            "again when it has read its topics (penstock pipeline status)"
        )
    if view.get("stateful"):
        raise _stateful(flow)
    assert status is not None, "it has a view"
    try:
        sources = [flow] if version.kind == "script" else _sources(status.run.get("graph"), flow)
        topics = {str(topic): int(count) for topic, count in view["topics"].items()}
        began, read = from_spark(view["began"]), from_json(view["backfilled"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise PipelineError(
            f"the status of {deployment.name} is not valid: restart the pipeline, so that its "
            "worker writes it again"
        ) from None
    partitions = sum(topics.values())
    if not min(topics.values()) > 0 or partitions > PARTITIONS_MAX:
        raise PipelineError(
            f"according to its status, {flow} reads {partitions:,} partitions, but a backfill "
            f"reads 1 to {PARTITIONS_MAX:,}: restart the pipeline, or split the flow"
        )
    quarantine = quarantine_flow(flow, version.flows)
    return FlowToFill(flow, sources, topics, began, read, quarantine)


def _check_kind(version: Version, flow: str) -> None:
    known = version.flows.get(flow)
    if known is None:
        raise PipelineError(
            f"{version.name} has no flow {flow}: the flows are "
            f"{', '.join(sorted(version.flows)) or 'unknown'}"
        )
    found = parse_fingerprint(known)
    if found is not None and found.kind == "batch":
        raise PipelineError(
            f"{flow} is a materialized view: it is computed from all records in every round, and "
            "needs no backfill"
        )
    if found is not None and found.stateful:
        raise _stateful(flow)


def _stateful(flow: str) -> PipelineError:
    return PipelineError(
        f"{flow} keeps state or has a watermark, so it cannot be backfilled: old records would be "
        "dropped as late, or be added to results that have been written. Restart it with an "
        f"earlier startingOffsets instead: penstock pipeline deploy --reset {flow}"
    )


def _view_of(status: Status | None, flow: str) -> Mapping[str, Any] | None:
    flows = [] if status is None else status.run.get("flows")
    for view in flows if isinstance(flows, list) else []:
        if isinstance(view, dict) and view.get("name") == flow and view.get("topics"):
            return view
    return None


def _sources(graph: object, flow: str) -> list[str]:
    """Returns the names of the sources that the flow reads: its own, and those of views that only
    it reads."""
    nodes = graph.get("nodes") or [] if isinstance(graph, dict) else []
    edges = graph.get("edges") or [] if isinstance(graph, dict) else []
    start = [each["id"] for each in nodes if each.get("flow") == flow]
    found = {flow}
    waiting = list(start)
    while waiting:
        target = waiting.pop()
        for view in [each["from"] for each in edges if each["to"] == target]:
            if not view.startswith("view:") or view.removeprefix("view:") in found:
                continue
            readers = {each["to"] for each in edges if each["from"] == view}
            name = view.removeprefix("view:")
            if len(readers) > 1:
                raise PipelineError(
                    f"{flow} reads the view {name}, which other flows also read; Spark does not "
                    "say for which of them it reads. Read the topic in the flow itself"
                )
            found.add(name)
            waiting.append(view)
    return sorted(found)


# -- figures --------------------------------------------------------------------------------------


def figures(flow: FlowToFill, facts: LogFacts, *, again: bool) -> Figures:
    """Returns what the backfill would read, as far as is known now."""
    asked = {
        each: joined([(facts.first[each], facts.last[each])]) for each in flow.topic_partitions
    }
    # The live position is not known exactly; the source applies it.
    position = Position(facts.latest, flow.began, flow.read)
    unread = clipped(asked, position, again=False)
    ranges = clipped(asked, position, again=again)
    cut_off = [
        each
        for each in flow.topic_partitions
        if facts.earliest[each] > 0 and facts.first[each] == facts.earliest[each]
    ]
    whole, records = _count(asked), _count(ranges)
    return Figures(
        ranges,
        records,
        repeated=records - _count(unread),
        left_out=whole - records,
        deleted=sum(facts.earliest[each] for each in cut_off),
        oldest_ms=min((facts.first_ms.get(each, 0) for each in cut_off), default=0),
    )


def _count(ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> int:
    return sum(map(size, ranges.values()))


def check_figures(flow: FlowToFill, found: Figures, *, again: bool) -> None:
    """Raises `PipelineError` if there is nothing to read."""
    if found.records:
        return
    if again or not found.left_out:
        raise PipelineError("there are no records in this range: there is nothing to backfill")
    if flow.began:
        why = f"{flow.name} has read them, or a backfill has"
    else:
        why = (
            f"{flow.name} began at the start of its topics, or its checkpoint is of a version of "
            "Penstock that did not note where it began"
        )
    raise PipelineError(
        f"the {found.left_out:,} records in this range count as already read: {why}. To read them "
        "again, add --again"
    )


# -- requests -------------------------------------------------------------------------------------


def status_of(status: Status | None, request: BackfillRequest) -> BackfillStatus | None:
    """Returns how far the backfill is; None if it has not begun or is not known any more."""
    for each in [] if status is None else status.backfills:
        if each.flow == request.flow and each.id == request.id:
            return each
    return None


def state_of(status: Status | None, request: BackfillRequest) -> str:
    found = status_of(status, request)
    if found is not None:
        return "CANCELLING" if request.cancelled and found.state == "RUNNING" else found.state
    newer = any(
        each.flow == request.flow and each.id > request.id
        for each in ([] if status is None else status.backfills)
    )
    if request.cancelled:
        return "CANCELLED"
    return "ENDED" if newer else "REQUESTED"


def open_request(
    deployment: Deployment, status: Status | None, flow: str
) -> BackfillRequest | None:
    """Returns the backfill of a flow that was requested and has not ended."""
    for each in deployment.backfills:
        waits = state_of(status, each) in OPEN_STATES
        if each.flow == flow and waits:
            return each
    return None


def with_request(
    deployment: Deployment, status: Status | None, request: BackfillRequest
) -> list[BackfillRequest]:
    """Returns the requests of the deployment with a new one, or raises `PipelineError`."""
    busy = open_request(deployment, status, request.flow)
    if busy is not None:
        raise PipelineError(
            f"backfill {busy.id} of {request.flow} has not ended: wait for it, or end it with "
            f"penstock pipeline backfill {deployment.name} {request.flow} --cancel"
        )
    return [*deployment.backfills, request][-REQUESTS_KEPT:]
