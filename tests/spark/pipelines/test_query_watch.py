"""Tests what is told about streaming queries: lag in seconds, watermark and state."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from penstock.spark.pipelines import query_watch
from penstock.spark.pipelines.events import RunView, progress_event
from penstock.spark.pipelines.query_watch import LagAge, Watch
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

PROGRESS = {
    "batchId": 7,
    "numInputRows": 10,
    "inputRowsPerSecond": 4.0,
    "processedRowsPerSecond": 5.0,
    "timestamp": "2026-11-18T00:00:00Z",
    "eventTime": {"watermark": "2026-11-17T23:59:00.000Z"},
    "stateOperators": [
        {"numRowsTotal": 3, "memoryUsedBytes": 100},
        {"numRowsTotal": 4, "memoryUsedBytes": 50},
    ],
    "sources": [{"endOffset": {"clicks": {"0": 17}}}],
}


def test_the_age_of_the_lag_is_that_of_the_oldest_unread_record() -> None:
    age = LagAge()
    assert age.look(read=10, end=10, now=100.0) == 0.0
    assert age.look(read=10, end=15, now=101.0) == 0.0
    assert age.look(read=10, end=20, now=105.0) == 4.0
    # What came at 101 is read, what came at 105 is not.
    assert age.look(read=15, end=25, now=107.0) == 2.0
    assert age.look(read=25, end=25, now=108.0) == 0.0


def test_a_lag_that_does_not_change_gets_older() -> None:
    age = LagAge()
    assert [age.look(read=0, end=5, now=now) for now in (1.0, 2.0, 3.5)] == [0.0, 1.0, 2.5]


def test_a_view_has_watermark_state_and_both_rates() -> None:
    view = RunView("views")
    view.apply(progress_event("spark_catalog.default.clicks", PROGRESS))
    view.apply({"event": "lag", "flow": "clicks", "lag": 12, "lag_s": 0.8})
    (flow,) = view.as_dict()["flows"]
    assert flow["watermark"] == "2026-11-17T23:59:00.000Z"
    assert (flow["state_rows"], flow["state_bytes"]) == (7, 150)
    assert (flow["input_per_s"], flow["rows_per_s"]) == (4.0, 5.0)
    assert (flow["lag"], flow["lag_s"]) == (12, 0.8)


def test_a_query_without_state_and_watermark_has_none() -> None:
    event = progress_event("clicks", {"batchId": 0, "numInputRows": 1})
    assert (event["watermark"], event["state_rows"], event["state_bytes"]) == ("", 0, 0)


class Query:
    """A query of Spark that has committed one batch and ended."""

    def runId(self) -> Text:  # noqa: N802 (Spark's name)
        return Text("run-1")

    def name(self) -> str:
        return "clicks"

    def isActive(self) -> bool:  # noqa: N802
        return False

    def lastProgress(self) -> Report:  # noqa: N802
        return REPORT

    def recentProgress(self) -> list[Report]:  # noqa: N802
        return [REPORT]


class Text(str):
    def toString(self) -> str:  # noqa: N802
        return self


class Report:
    def json(self) -> str:
        return json.dumps(PROGRESS)

    def hashCode(self) -> int:  # noqa: N802
        return 1


REPORT = Report()


class Spark:
    def __init__(self) -> None:
        self._queries = [Query()]

    def streaming_queries(self) -> list[Any]:
        """Spark forgets a query that has ended."""
        found, self._queries = self._queries, []
        return found


def test_the_skew_of_tasks_is_asked_for_the_last_batch() -> None:
    """The run and the batch say which jobs of Spark belong to it."""
    asked: list[tuple[str, int, int]] = []

    def task_skew(run: str, batch: int, duration_ms: int) -> float:
        asked.append((run, batch, duration_ms))
        return 4.5

    told = Told()
    watch = Watch(Spark(), told, lambda: False, "", task_skew=task_skew)
    watch.end_round()
    watch.close()
    assert asked == [("run-1", 7, 0)]
    view = RunView("views")
    for event in told.events:
        view.apply(event)
    assert view.flows["clicks"].task_skew == 4.5
    view.apply({**progress_event("clicks", PROGRESS), "task_skew": None})
    assert view.flows["clicks"].task_skew == 4.5, "a short batch says nothing"


class Told:
    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []

    def tell(self, kind: str, **fields: object) -> None:
        self.write({"event": kind, **fields})

    def write(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [kind for each in self.events if (kind := str(each["event"])) != "position"]


class SlowAdmin:
    """A broker that answers when the test lets it."""

    asked = threading.Event()
    may_answer = threading.Event()

    def __init__(self, _bootstrap: str) -> None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...

    def list_offsets(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, OffsetAt]:
        self.asked.set()
        assert self.may_answer.wait(patient(30))
        return dict.fromkeys(wanted, OffsetAt(20))


class OffsetAt(NamedTuple):
    offset: int


def test_the_end_of_a_round_does_not_wait_for_a_broker_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch is reported at once. The lag follows when the driver ends, at the latest."""
    monkeypatch.setattr(query_watch, "Admin", SlowAdmin)
    told = Told()
    watch = Watch(Spark(), told, lambda: False, "localhost:9092")
    measuring = threading.Thread(target=watch.end_round)
    measuring.start()
    assert SlowAdmin.asked.wait(patient(30))
    watch.end_round(lag=False)
    assert told.kinds() == ["progress"]
    SlowAdmin.may_answer.set()
    watch.close()
    measuring.join()
    assert told.kinds() == ["progress", "lag"]
    assert told.events[-1]["lag"] == 3
