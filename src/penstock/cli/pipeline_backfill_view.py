"""Shows how far the backfills of deployed pipelines are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.cli.output import printable, time_text
from penstock.cli.tables import Column

if TYPE_CHECKING:
    from penstock.spark.deployments.catalog import Catalog

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
    from penstock.spark.deployments.backfill_requests import listed  # noqa: PLC0415 -- for speed

    return listed(catalog.deployment(name), catalog.statuses.get(name))


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
