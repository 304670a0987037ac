"""Follows the backfills of a pipeline: what the driver is told, and what the history says. Pure.

The checkpoint of a flow says how far its backfill is. A driver reports it with each change, and
again after it has started. The last state of each flow is in the status of the pipeline, so that
the history has each change once, whichever worker runs the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.spark.deployments.model import BackfillStatus, Status, decode_plain
from penstock.spark.stream_position import BackfillRequest


class Told(NamedTuple):
    """An entry for the history."""

    what: str
    text: str


class BackfillProgress:
    def __init__(self) -> None:
        self._known: dict[str, BackfillStatus] = {}

    def resume(self, status: Status | None) -> None:
        """Takes over what the last worker reported."""
        for each in [] if status is None else status.backfills:
            mine = self._known.get(each.flow)
            if mine is None or mine.id < each.id:
                self._known[each.flow] = each

    @property
    def statuses(self) -> list[BackfillStatus]:
        return [self._known[flow] for flow in sorted(self._known)]

    def wanted(self, requests: Iterable[BackfillRequest]) -> list[BackfillRequest]:
        """Returns the requests that the driver must know: those that have not ended. A flow whose
        checkpoint was deleted does not know what has ended."""
        return [each for each in requests if not self._has_ended(each)]

    def _has_ended(self, request: BackfillRequest) -> bool:
        known = self._known.get(request.flow)
        if known is None or known.id < request.id:
            return False
        return known.id > request.id or known.state != "RUNNING"

    def on_event(self, event: Mapping[str, Any]) -> list[Told]:
        """Takes an event `position` of the driver. Returns what is new for the history."""
        found = event.get("backfill")
        if not isinstance(found, Mapping):
            return []
        status = decode_plain(BackfillStatus, {**found, "flow": event.get("flow")})
        if status is None:
            return []
        before = self._known.get(status.flow)
        if before is not None and (before.id > status.id or _is_late(before, status)):
            return []
        self._known[status.flow] = status
        new = before is None or before.id < status.id
        name = f"{status.flow}: backfill {status.id}"
        told = []
        if new:
            told.append(Told("backfill-begun", f"{name} of {status.total:,} records"))
        if status.state != "RUNNING" and (new or before is None or before.state == "RUNNING"):
            lost = f", {status.lost:,} were deleted before they were read" if status.lost else ""
            of = f" of {status.total:,}" if status.done != status.total else ""
            text = f"{name}: {status.done:,}{of} records{lost}"
            told.append(Told(f"backfill-{status.state.lower()}", text))
        return told


def _is_late(before: BackfillStatus, status: BackfillStatus) -> bool:
    """Whether a report of a backfill comes after the one of its end."""
    return before.id == status.id and before.state != "RUNNING" and status.state == "RUNNING"
