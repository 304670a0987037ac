"""Tests how the skew of a batch is measured."""

from __future__ import annotations

import pytest

from penstock.spark.pipelines.events import RunView, progress_event
from penstock.spark.pipelines.skew import Offsets, skew


def span(first: list[int], last: list[int], topic: str = "t") -> tuple[Offsets, Offsets]:
    def offsets(given: list[int]) -> Offsets:
        return {topic: {str(number): at for number, at in enumerate(given)}}

    return offsets(first), offsets(last)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ([0, 0, 0], [100, 100, 100], 1.0),
        ([50, 0, 0], [950, 100, 100], 9.0),
        ([0, 0, 0], [300, 0, 0], 300.0),  # The median is 0: counted as 1.
        ([0, 0], [5, 5], None),  # Too small.
        ([0], [1_000], None),  # One partition.
    ],
)
def test_the_largest_partition_to_the_median_one(
    first: list[int], last: list[int], expected: float | None
) -> None:
    assert skew([span(first, last)]) == expected


def test_the_most_uneven_topic_counts() -> None:
    even, uneven = span([0, 0], [100, 100], "a"), span([0, 0, 0], [400, 100, 100], "b")
    assert skew([even, uneven]) == 4.0


def test_partitions_without_a_first_offset_are_left_out() -> None:
    """The first batch of a query has none, and neither has a partition that was just added."""
    assert skew([({}, span([], [100, 900])[1])]) is None
    first, last = span([0, 0], [100, 200])
    assert skew([(first, {"t": {**last["t"], "2": 10_000}})]) == 1.3


def test_a_small_batch_keeps_the_skew_of_the_last_large_one() -> None:
    view = RunView("views")
    for first, last in (([0, 0, 0], [500, 100, 100]), ([500, 100, 100], [501, 100, 100])):
        start, end = span(first, last)
        source = {"startOffset": start, "endOffset": end}
        view.apply(progress_event("clicks", {"numInputRows": 1, "sources": [source]}))
    assert view.flows["clicks"].skew == 5.0


def test_written_and_checked_rows_are_reported() -> None:
    progress = {
        "numInputRows": 100,
        "sink": {"numOutputRows": 90},
        "observedMetrics": {"penstock.expectations.clicks": {"rows": 100, "known": 10}},
    }
    event = progress_event("clicks", progress)
    assert (event["output_rows"], event["checked"]) == (90, 100)
    assert event["violations"] == {"known": 10}
    assert progress_event("clicks", {"sink": {"numOutputRows": -1}})["output_rows"] is None
