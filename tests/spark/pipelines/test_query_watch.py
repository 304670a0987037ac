"""Tests what is told about streaming queries: lag in seconds, watermark and state."""

from __future__ import annotations

from penstock.spark.pipelines.events import RunView, progress_event
from penstock.spark.pipelines.query_watch import LagAge

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
