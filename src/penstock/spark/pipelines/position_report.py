"""Reports where the streams of a flow are, as far as backfills need it. Pure.

    {"event": "position", "flow": "clicks", "stateful": false, "began": {"clicks": {"0": 9}},
     "backfilled": {"clicks": {"0": [[0, 4]]}}, "backfill": {"id": 7, "state": "RUNNING", ...},
     "topics": {"clicks": 1}}

A flow with several sources has one position: its backfill is the sum of theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.spark.offset_ranges import to_json
from penstock.spark.offsets import to_spark
from penstock.spark.pipelines.events import topic_offsets
from penstock.spark.pipelines.explain import short_name
from penstock.spark.stream_position import OWN, Backfill, Position, position_from_spark, read_ranges

_RATE_S: Final = 60.0
"""The time over which the rate of a backfill is measured."""


def position_event(flow: str, progress: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the event for Spark's report on a query; None if it reads no topics of Penstock."""
    positions = _positions(progress)
    if not positions:
        return None
    began: dict[str, Any] = {}
    read: dict[str, Any] = {}
    topics: dict[str, int] = {}
    for position in positions:
        for topic, partition in position.live:
            topics[topic] = max(topics.get(topic, 0), partition + 1)
        began |= to_spark(position.began)
        read |= to_json(read_ranges(position))
    event_time = progress.get("eventTime") or {}
    return {
        "event": "position",
        "flow": short_name(flow),
        "stateful": bool(progress.get("stateOperators") or event_time.get("watermark")),
        "topics": topics,
        "began": began,
        "backfilled": read,
        "backfill": _sum([each.backfill for each in positions if each.backfill is not None]),
    }


def _positions(progress: Mapping[str, Any]) -> list[Position]:
    found = []
    for source in progress.get("sources") or ():
        end = source.get("endOffset")
        if not isinstance(end, Mapping) or not (topic_offsets(end) or OWN in end):
            continue
        try:
            found.append(position_from_spark(end))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # The offsets of another source.
    return found


def _sum(backfills: Sequence[Backfill]) -> dict[str, Any] | None:
    if not backfills:
        return None
    newest = max(each.id for each in backfills)
    mine = [each for each in backfills if each.id == newest]
    state = "RUNNING"
    if all(each.has_ended for each in mine):
        state = "CANCELLED" if any(each.cancelled for each in mine) else "COMPLETED"
    return {
        "id": newest,
        "state": state,
        "done": sum(each.count for each in mine),
        "total": sum(each.asked for each in mine),
        "lost": sum(each.lost for each in mine),
    }


class PositionReport:
    """Returns the events of one query that differ from the last one, with the backfill's rate."""

    def __init__(self) -> None:
        self._told: dict[str, Any] | None = None
        self._seen: deque[tuple[float, int]] = deque()
        self._id = 0

    def look(self, flow: str, progress: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        event = position_event(flow, progress)
        if event is None or event == self._told:
            return None
        self._told = event
        if event["backfill"] is None:
            return event
        return {**event, "backfill": {**event["backfill"], **self._rate(event["backfill"], now)}}

    def _rate(self, backfill: Mapping[str, Any], now: float) -> dict[str, float | None]:
        if backfill["id"] != self._id:
            self._id = backfill["id"]
            self._seen.clear()
        self._seen.append((now, backfill["done"]))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_S:
            self._seen.popleft()
        since, done = self._seen[0]
        per_s = (backfill["done"] - done) / (now - since) if now > since else 0.0
        left = backfill["total"] - backfill["done"]
        running = backfill["state"] == "RUNNING"
        return {
            "per_s": round(per_s, 1) if running else 0.0,
            "left_s": round(left / per_s, 1) if running and per_s > 0 else None,
        }
