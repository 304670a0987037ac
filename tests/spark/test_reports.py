"""Tests reports of streaming queries: how Spark's events add up, and which records are reports."""

from __future__ import annotations

import json

import pytest

from penstock.spark.reports import Report, decode

PROGRESS = {
    "id": "q1",
    "runId": "r1",
    "name": "clicks",
    "batchId": 3,
    "numInputRows": 100,
    "processedRowsPerSecond": 52.14,
    "durationMs": {"triggerExecution": 1500},
    "sources": [
        {
            "description": "penstock[clicks]",
            "endOffset": {"clicks": {"0": 17, "1": 4}},
            "latestOffset": {"clicks": {"0": 20, "1": 4}},
        },
        {"description": "rate", "endOffset": 7, "latestOffset": 9},
    ],
    "sink": {"description": "memory"},
}


def test_progress_is_accumulated() -> None:
    """Rows of all batches; rate, duration and lag of the last one. A batch without
    rows changes none of them."""
    report = Report("q1", "r1", "clicks")
    report.on_progress(PROGRESS, 1_000)
    report.on_progress({**PROGRESS, "batchId": 4, "numInputRows": 20}, 2_000)
    report.on_progress({**PROGRESS, "batchId": 5, "numInputRows": 0}, 3_000)
    assert (report.rows, report.batch, report.batch_rows, report.batch_ms) == (120, 4, 20, 1500)
    assert (report.rows_per_s, report.lag, report.updated_ms) == (52.1, 3, 3_000)
    assert (report.sources, report.sink) == (["penstock[clicks]", "rate"], "memory")


def test_offsets_may_be_text() -> None:
    """As in Spark Connect. Other sources have no lag."""
    report = Report("q1")
    source = {"endOffset": '{"t": {"0": 1}}', "latestOffset": '{"t": {"0": 5}}'}
    report.on_progress({"sources": [source]}, 0)
    assert report.lag == 4
    report.on_progress({"sources": [{"endOffset": "7", "latestOffset": "nonsense"}]}, 0)
    assert report.lag is None


def test_the_end_is_reported_with_its_reason() -> None:
    """In one line, without Spark's wrapping."""
    report = Report("q1")
    report.on_end(None, 1)
    assert (report.state, report.error) == ("STOPPED", "")
    report.on_end("[STREAM_FAILED] it did\n[NO_SUCH_COLUMN] there is no x SQLSTATE: 1\n at y", 2)
    assert (report.state, report.error) == ("FAILED", "there is no x [NO_SUCH_COLUMN]")


def test_reports_survive_encoding_and_decoding() -> None:
    """Fields added by a later release are ignored."""
    report = Report("q1", "r1", "clicks", "app", "host")
    report.on_progress(PROGRESS, 1_000)
    assert decode(report.encode()) == report
    later = {**json.loads(report.encode()), "colour": "green"}
    assert decode(json.dumps(later).encode()) == report


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"no JSON",
        b"[]",
        b"[" * 100_000,
        b'{"name": "no id"}',
        b'{"id": "q", "rows": "many"}',
        b'{"id": "q", "sources": 3}',
        b'{"id": "q", "sources": [{}]}',
        b'{"id": "q", "rows_per_s": null}',
        b'{"id": "q", "error": ["x"]}',
    ],
)
def test_other_records_are_not_reports(value: bytes | None) -> None:
    """Any client can write to the topic."""
    assert decode(value) is None
