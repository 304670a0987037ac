"""Shows how far the backfills of deployed pipelines are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.output import printable, time_text
from penstock.cli.tables import Column

if TYPE_CHECKING:
    from penstock.spark.deployments.catalog import Catalog
    from penstock.spark.deployments.model import Status
    from penstock.spark.stream_position import BackfillRequest

OPEN: Final = frozenset({"REQUESTED", "RUNNING", "CANCELLING"})
COLUMNS: Final = (
    Column("id", right=True),
    Column("flow"),
    Column("state"),
    Column("records", right=True),
    Column("of", right=True),
    Column("%", right=True),
    Column("rate"),
    Column("deleted", right=True),
    Column("from"),
    Column("to"),
    Column("by"),
)


def backfills_json(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    """Returns the last backfills of a deployment, the oldest first."""
    from penstock.spark.deployments.backfill_plan import (  # noqa: PLC0415 -- for speed
        state_of,
        status_of,
    )

    deployment = catalog.deployment(name)
    status = catalog.statuses.get(name)
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


def row(each: dict[str, Any]) -> tuple[object, ...]:
    return (
        each["id"],
        each["flow"],
        str(each["state"]).lower(),
        each["done"],
        each["total"],
        _percentage(each),
        _rate_text(each) or None,
        each["lost"] or None,
        time_text(each["from_ms"]),
        time_text(each["to_ms"]),
        each["requested_by"] or None,
    )


def _percentage(each: dict[str, Any]) -> int:
    return 100 * each["done"] // each["total"] if each["total"] else 100


def _rate_text(each: dict[str, Any]) -> str:
    per_s, left_s = each["per_s"], each["left_s"]
    if not isinstance(per_s, int | float) or not per_s:
        return ""
    left = f", {left_s:,.0f} s left" if isinstance(left_s, int | float) else ""
    return f"{per_s:,.0f}/s{left}"


def progress_text(each: dict[str, Any]) -> str:
    rate = _rate_text(each)
    lost = f", {each['lost']:,} were deleted before they were read" if each["lost"] else ""
    return (
        f"{str(each['state']).lower()}, {each['done']:,} of {each['total']:,} records "
        f"({_percentage(each)} %){lost}{', ' + rate if rate else ''}"
    )


def open_backfill_texts(found: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each backfill that has not ended, for the status of a pipeline."""
    return [
        f"backfill {each['id']} of {printable(each['flow'])}: {progress_text(each)}"
        for each in found
        if each["state"] in OPEN
    ]
