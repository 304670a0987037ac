"""Expectations on rows: which are kept, dropped, quarantined or refused, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import Expectation, check, expect
from penstock.spark.expectations import (
    CHECKED,
    METRICS_PREFIX,
    ExpectedQuery,
    OnViolation,
    violation_counts,
)
from penstock.spark.quarantine import ExpectationInvalid

ROWS = [(1, "/a"), (None, "/b"), (3, "x"), (None, "y")]
HAS_ID = "id IS NOT NULL"
IS_PAGE = "page LIKE '/%'"


def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "id INT, page STRING")


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


@pytest.mark.parametrize(
    ("on_id", "on_page", "kept", "quarantined"),
    [
        ("warn", "warn", [0, 1, 2, 3], {}),
        ("drop", "warn", [0, 2], {}),
        ("drop", "drop", [0], {}),
        ("quarantine", "warn", [0, 2], {1: ["has_id"], 3: ["has_id", "is_page"]}),
        ("quarantine", "drop", [0], {1: ["has_id"], 3: ["has_id", "is_page"]}),
        (
            "quarantine",
            "quarantine",
            [0],
            {1: ["has_id"], 2: ["is_page"], 3: ["has_id", "is_page"]},
        ),
    ],
)
def test_the_strictest_expectation_decides(
    spark: SparkSession,
    on_id: OnViolation,
    on_page: OnViolation,
    kept: list[int],
    quarantined: dict[int, list[str]],
) -> None:
    """No row is in both results, and only rows that are dropped are in none."""
    checked = check(
        rows(spark),
        Expectation("has_id", HAS_ID, on_id),
        Expectation("is_page", IS_PAGE, on_page),
    )
    assert found(checked.passed) == sorted((ROWS[number] for number in kept), key=str)
    expected = [(*ROWS[number], reasons) for number, reasons in quarantined.items()]
    assert found(checked.quarantined) == sorted(expected, key=str)


def test_a_row_that_fails_the_flow_is_not_quarantined(spark: SparkSession) -> None:
    """The flow of the quarantine does not fail. It would write the row, and after the repair of the
    flow the row would be in both places."""
    checked = check(
        rows(spark),
        Expectation("has_id", HAS_ID, "fail"),
        Expectation("is_page", IS_PAGE, "quarantine"),
    )
    assert found(checked.quarantined) == [(3, "x", ["is_page"])]


def test_a_condition_that_is_null_is_a_violation(spark: SparkSession) -> None:
    checked = check(rows(spark), Expectation("small", "id < 3", "drop"))
    assert found(checked.passed) == [(1, "/a")]


def test_a_flow_fails_with_the_row_in_the_error(spark: SparkSession) -> None:
    """Also if the same row would be dropped by another expectation."""
    checked = check(
        rows(spark), Expectation("has_id", HAS_ID, "drop"), Expectation("is_page", IS_PAGE, "fail")
    )
    with pytest.raises(PySparkException) as caught:
        checked.passed.collect()
    message = str(caught.value)
    assert f"a row violates the expectation is_page ({IS_PAGE})" in message
    assert '"page":"x"' in message or '"page":"y"' in message


def test_violations_of_a_stream_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever happens to the rows."""
    rows(spark).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id INT, page STRING").parquet(str(tmp_path / "in"))
    checked = check(
        stream,
        Expectation("has_id", HAS_ID),
        Expectation("is_page", IS_PAGE, "drop"),
        flow="page_views",
    )
    query = checked.passed.writeStream.format("memory").queryName("expected_rows").start()
    try:
        query.processAllAvailable()
        reports = [json.loads(each.json) for each in query.recentProgress]
    finally:
        query.stop()
    counts = [violation_counts(each.get("observedMetrics")) for each in reports]
    assert {"page_views": {CHECKED: 4, "has_id": 2, "is_page": 2}} in counts
    assert found(spark.table("expected_rows")) == sorted(ROWS[:2], key=str)


def test_decorators_add_up_in_their_order(spark: SparkSession) -> None:
    @expect("has_id", HAS_ID, on_violation="drop")
    @expect("is_page", IS_PAGE)
    def views() -> DataFrame:
        """Page views."""
        return rows(spark)

    assert isinstance(views, ExpectedQuery)
    assert [each.name for each in views.expectations] == ["has_id", "is_page"]
    assert (views.__name__, views.__doc__) == ("views", "Page views.")
    assert found(views()) == sorted([ROWS[0], ROWS[2]], key=str)


@pytest.mark.parametrize(
    ("name", "condition", "on_violation", "message"),
    [
        ("a name", HAS_ID, "warn", "letters, digits"),
        ("rows", HAS_ID, "warn", "another name"),
        ("has_id", " ", "warn", "no condition"),
        ("has_id", HAS_ID, "ignore", "warn, drop, fail, quarantine"),
    ],
)
def test_an_expectation_that_cannot_be_used_is_refused(
    name: str, condition: str, on_violation: Any, message: str
) -> None:
    with pytest.raises(ExpectationInvalid, match=message):
        expect(name, condition, on_violation)


def test_two_expectations_of_a_flow_cannot_have_one_name() -> None:
    def views() -> DataFrame:
        raise AssertionError("is not called")

    with pytest.raises(ExpectationInvalid, match=r"views has two expectations .* has_id: rename"):
        expect("has_id", HAS_ID)(expect("has_id", IS_PAGE)(views))


@pytest.mark.parametrize("observed", [None, [], {"other": {"a": 1}}, {METRICS_PREFIX + "f": 1}])
def test_other_metrics_are_not_counts_of_violations(observed: object) -> None:
    assert violation_counts(observed) == {}
