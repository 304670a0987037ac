"""Defines the report of a streaming query that the console shows. Pure.

Spark's listener gets small events; a report is their sum. Reports are written to a compacted topic
with the query's id as the key, so the topic keeps the last report of each query, and its size
depends only on the number of queries.

Any client can write to the topic, so `decode` accepts only records of the right shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from penstock.spark.offsets import from_spark, waiting
from penstock.spark.pipelines.events import progress_event, topic_offsets
from penstock.spark.pipelines.explain import one_line

TOPIC: Final = "__penstock_spark_queries"
TOPIC_SETTINGS: Final = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}
"""The last report of a query is deleted after a week."""
_TEXT_MAX: Final = 2_000


@dataclass(slots=True)
class Report:
    id: str
    """The query's id, which stays the same after a restart from its checkpoint."""
    run_id: str = ""
    name: str = ""
    """The query's name; empty if it has none."""
    application: str = ""
    host: str = ""
    state: str = "RUNNING"
    """RUNNING, STOPPED, FAILED."""
    rows: int = 0
    """The number of rows read in this run."""
    rows_per_s: float = 0.0
    """The rate of the last batch that had rows."""
    lag: int | None = None
    """Records in its topics that it has not read yet; None if it reads no topic."""
    batch: int | None = None
    batch_rows: int = 0
    batch_ms: int = 0
    sources: list[str] = field(default_factory=list)
    sink: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    error: str = ""

    def on_progress(self, progress: Mapping[str, Any], now_ms: int) -> None:
        self.updated_ms = now_ms
        event = progress_event(self.name or self.id, progress)
        sources = [each for each in progress.get("sources") or () if isinstance(each, Mapping)]
        self.sources = [str(each.get("description") or "?")[:_TEXT_MAX] for each in sources]
        self.sink = str((progress.get("sink") or {}).get("description") or "")[:_TEXT_MAX]
        self.lag = _lag(sources)
        self.rows += event["rows"]
        if event["rows"]:
            # Spark also reports progress without rows. The last batch is the last one with rows.
            self.rows_per_s = event["rows_per_s"]
            self.batch = event["batch"]
            self.batch_rows = event["rows"]
            self.batch_ms = event["duration_ms"]

    def on_idle(self, now_ms: int) -> None:
        self.updated_ms = now_ms

    def on_end(self, error: str | None, now_ms: int) -> None:
        self.updated_ms = now_ms
        self.state = "FAILED" if error else "STOPPED"
        self.error = one_line(error)[:_TEXT_MAX] if error else ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False).encode()


def decode(value: bytes | None) -> Report | None:
    """Returns None if the value is not a report: a tombstone, or a record of another client."""
    try:
        content = json.loads(value or b"null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("id"), str):
        return None
    known = {each.name: content[each.name] for each in fields(Report) if each.name in content}
    report = Report(**known)
    return report if _is_sound(report) else None


def _is_sound(report: Report) -> bool:
    texts = (
        report.run_id, report.name, report.application, report.host, report.state, report.sink,
        report.error, *(report.sources if isinstance(report.sources, list) else (None,)),
    )  # fmt: skip
    numbers = (
        report.rows, report.batch_rows, report.batch_ms, report.started_ms, report.updated_ms,
        report.lag or 0, report.batch or 0,
    )  # fmt: skip
    return (
        all(isinstance(each, str) for each in texts)
        and all(type(each) is int for each in numbers)
        and isinstance(report.rows_per_s, int | float)
    )


def _lag(sources: list[Mapping[str, Any]]) -> int | None:
    """Returns the number of records between the read offsets and the log ends in Spark's report."""
    read = [_offsets(each.get("endOffset")) for each in sources]
    ends = [_offsets(each.get("latestOffset")) for each in sources]
    if not any(ends):
        return None
    return sum(
        waiting(from_spark(at), from_spark(end)) for at, end in zip(read, ends, strict=True) if end
    )


def _offsets(found: object) -> dict[str, dict[str, int]]:
    """Returns offsets that Spark reports as an object or as its JSON text."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return {}
    return topic_offsets(found)
