"""Plans, requests and cancels backfills of deployed pipelines, for commands and the console.

`backfill_plan` decides. This module asks brokers for offsets and changes the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from penstock.client.admin.arguments import When
from penstock.client.admin.offsets import FoundOffset
from penstock.spark.deployments.backfill_plan import (
    Figures,
    FlowToFill,
    LogFacts,
    check_figures,
    figures,
    flow_to_fill,
    open_request,
    state_of,
    status_of,
    with_request,
)
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.model import Deployment, Status, Version
from penstock.spark.offset_ranges import to_json
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import BOOTSTRAP_SETTING
from penstock.spark.stream_position import BackfillRequest
from penstock.topic_partition import TopicPartition

_TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""


class OffsetReader(Protocol):
    """The method of `Admin` that a plan needs."""

    async def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]: ...


@dataclass(frozen=True, slots=True)
class PlannedBackfill:
    """A backfill, and what it would read. Nothing is changed yet."""

    request: BackfillRequest
    flow: FlowToFill
    found: Figures

    def check(self) -> None:
        """Raises `PipelineError` if there is nothing to read."""
        check_figures(self.flow, self.found, again=self.request.again)


def new_request(
    flow: str, from_ms: int, to_ms: int, now_ms: int, *, again: bool, bytes_max: int = 64 << 20
) -> BackfillRequest:
    """Returns a request without its ranges, or raises `PipelineError`."""
    if not 0 <= from_ms < to_ms <= _TIME_MAX_MS:
        raise PipelineError(
            "the range must begin in 1970 or later, end after it begins, and end before the year "
            "10000: give other times"
        )
    return BackfillRequest(
        0,
        flow,
        {},
        again=again,
        bytes_max=bytes_max,
        from_ms=from_ms,
        to_ms=to_ms,
        requested_ms=now_ms,
    )


def broker_address(deployment: Deployment, default: str) -> str:
    """Returns the address of the brokers whose topics a pipeline reads."""
    return deployment.settings.get(BOOTSTRAP_SETTING, default)


def checked_flow(
    deployment: Deployment,
    version: Version | None,
    status: Status | None,
    request: BackfillRequest,
) -> FlowToFill:
    """Returns the flow, or raises `PipelineError` with the reason why it cannot be backfilled."""
    name = deployment.name
    if version is None:
        raise PipelineError(f"{name} has no version {deployment.version}: deploy it again")
    flow = flow_to_fill(deployment, version, status, request.flow)
    with_request(deployment, status, request)
    return flow


async def planned(
    admin: OffsetReader, flow: FlowToFill, request: BackfillRequest
) -> PlannedBackfill:
    """Asks the brokers what the backfill would read. Changes nothing."""
    facts = await _facts(admin, flow.topic_partitions, request)
    found = figures(flow, facts, again=request.again)
    request = replace(request, ranges=to_json(found.ranges), sources=flow.sources)
    return PlannedBackfill(request, flow, found)


async def _facts(
    admin: OffsetReader, topic_partitions: Sequence[TopicPartition], request: BackfillRequest
) -> LogFacts:
    earliest, latest, first, last = [
        await admin.list_offsets(dict.fromkeys(topic_partitions, when))
        for when in ("earliest", "latest", request.from_ms, request.to_ms)
    ]
    ends = {each: 0 if at is None else at.offset for each, at in latest.items()}
    return LogFacts(
        {each: 0 if at is None else at.offset for each, at in earliest.items()},
        ends,
        {each: ends[each] if at is None else at.offset for each, at in first.items()},
        {each: ends[each] if at is None else at.offset for each, at in last.items()},
        {each: at.timestamp for each, at in first.items() if at is not None},
    )


async def requested(catalog: Catalog, name: str, plan: PlannedBackfill) -> BackfillRequest:
    """Adds the request to the deployment. Its worker then begins the backfill."""
    request = plan.request

    def change(old: Deployment) -> Deployment:
        numbered = replace(request, id=old.revision + 1, requested_by=catalog.user)
        return replace(old, backfills=with_request(old, catalog.statuses.get(name), numbered))

    again = ", again" if request.again else ""
    text = (
        f"{request.flow}: {plan.found.records:,} records of {_utc(request.from_ms)} to "
        f"{_utc(request.to_ms)}{again}"
    )
    await catalog.caught_up()
    change(catalog.deployment(name))  # A refusal comes before a transaction is begun.
    made = await catalog.change(name, change, "backfill-requested", text)
    return made.backfills[-1]


async def cancelled(catalog: Catalog, name: str, flow: str) -> BackfillRequest:
    """Ends the backfill of a flow where it is, or raises `PipelineError` if there is none."""
    ended: list[BackfillRequest] = []

    def change(old: Deployment) -> Deployment:
        found = open_request(old, catalog.statuses.get(name), flow)
        if found is None:
            raise PipelineError(
                f"{flow} has no backfill to cancel: see penstock pipeline backfill {name} --list"
            )
        ended.append(found)
        changed = [
            replace(each, cancelled=True) if each.id == found.id else each for each in old.backfills
        ]
        return replace(old, backfills=changed)

    await catalog.caught_up()
    change(catalog.deployment(name))  # A refusal comes before a transaction is begun.
    await catalog.change(name, change, "backfill-cancel-requested", flow)
    return ended[-1]


def _utc(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


# -- progress -------------------------------------------------------------------------------------


def listed(deployment: Deployment, status: Status | None) -> list[dict[str, Any]]:
    """Returns the last backfills of a deployment and how far they are, the oldest first."""
    found = []
    for each in deployment.backfills:
        known = status_of(status, each)
        rate = _rate(status, each) if known is not None and known.state == "RUNNING" else {}
        found.append(
            {
                "id": each.id,
                "flow": each.flow,
                "state": state_of(status, each),
                "done": 0 if known is None else known.done,
                "total": _total(each) if known is None else known.total,
                "lost": 0 if known is None else known.lost,
                "per_s": rate.get("per_s"),
                "left_s": rate.get("left_s"),
                "from_ms": each.from_ms,
                "to_ms": each.to_ms,
                "again": each.again,
                "requested_ms": each.requested_ms,
                "requested_by": each.requested_by,
            }
        )
    return found


def _rate(status: Status | None, request: BackfillRequest) -> Mapping[str, Any]:
    flows = [] if status is None else status.run.get("flows")
    for view in flows if isinstance(flows, list) else []:
        current = view.get("backfill") if isinstance(view, dict) else None
        if isinstance(current, dict) and view.get("name") == request.flow:
            return current if current.get("id") == request.id else {}
    return {}


def _total(request: BackfillRequest) -> int:
    return sum(
        end - start
        for partitions in request.ranges.values()
        for ranges in partitions.values()
        for start, end in ranges
    )
