"""Tests the parts of `penstock.testing.pipelines` that need no Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from penstock.testing.pipelines import PipelineTestFailed, Rows, record
from penstock.testing.pipelines.definitions import split_statements
from penstock.testing.pipelines.records import FIRST_TIME_MS, Topics, to_bytes, to_ms
from penstock.topic_partition import TopicPartition

COUNTS = Rows("counts", [{"page": "/", "views": 2}, {"page": "/x", "views": 1}])


def test_expected_rows_may_be_in_any_order() -> None:
    expected = [{"page": "/x", "views": 1}, {"page": "/", "views": 2}]
    COUNTS.expect(expected)
    with pytest.raises(AssertionError, match="in another order"):
        COUNTS.expect(expected, ordered=True)
    COUNTS.expect(expected[::-1], ordered=True)


def test_a_difference_shows_missing_and_extra_rows() -> None:
    with pytest.raises(AssertionError) as found:
        COUNTS.expect([{"page": "/", "views": 3}, {"page": "/x", "views": 1}])
    assert str(found.value) == (
        "counts has 2 rows, and 2 were expected\n"
        "1 missing:\n  page='/', views=3\n"
        "1 extra:\n  page='/', views=2"
    )
    with pytest.raises(AssertionError, match="1 extra:\n  page='/'") as found:
        COUNTS.expect([{"page": "/x", "views": 1}])
    assert "missing" not in str(found.value)


def test_a_difference_names_columns_that_only_one_side_has() -> None:
    with pytest.raises(AssertionError, match="columns that only one side has: views"):
        COUNTS.expect([{"page": "/"}, {"page": "/x"}])
    COUNTS.select("page").expect([{"page": "/"}, {"page": "/x"}])
    with pytest.raises(PipelineTestFailed, match="counts has no column pages: it has page, views"):
        COUNTS.select("pages")


def test_equal_rows_are_counted() -> None:
    with pytest.raises(AssertionError, match="1 extra"):
        Rows("twice", [{"a": 1}, {"a": 1}]).expect([{"a": 1}])


def test_long_differences_are_cut() -> None:
    with pytest.raises(AssertionError, match=r"\.\.\. and 80 more"):
        Rows("many", [{"a": number} for number in range(100)]).expect([])


def test_times_may_be_written_as_text_and_numbers_may_be_near() -> None:
    when = datetime(2026, 1, 1, 10, tzinfo=UTC)
    found = Rows("t", [{"at": when, "day": date(2026, 1, 1), "list": [{"x": 0.1 + 0.2}]}])
    near = [{"x": pytest.approx(0.3)}]
    found.expect([{"at": "2026-01-01 10:00", "day": "2026-01-01", "list": near}])
    found.expect([{"at": "2026-01-01 12:00+02:00", "day": date(2026, 1, 1), "list": near}])
    with pytest.raises(AssertionError, match="at=2026-01-01 10:00:00, day="):
        found.expect([])


def test_records_have_offsets_and_times() -> None:
    """Offsets count in each partition. A record without a time has that of the one before."""
    topics = Topics({"views": 3})
    topics.add("views", ["a", record("b", partition=2, timestamp="2026-01-01 00:00:05"), "c"], None)
    topics.add("views", ["d"], 7)
    first, _, third, fourth = topics.records["views"]
    assert (first.offset, first.timestamp_ms) == (0, FIRST_TIME_MS)
    assert (third.offset, third.timestamp_ms) == (1, FIRST_TIME_MS + 5_000)
    assert (fourth.offset, fourth.timestamp_ms) == (2, 7)
    assert [one.value for one in topics.of(TopicPartition("views", 2))] == ["b"]
    assert len(topics.topic_partitions("views")) == 3
    assert to_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000
    with pytest.raises(PipelineTestFailed, match="'noon' is not a time: write it as"):
        topics.add("views", ["e"], "noon")
    with pytest.raises(PipelineTestFailed, match="partition -1: use 0 or more"):
        topics.add("views", [record("e", partition=-1)], None)


def test_values_become_bytes() -> None:
    assert [to_bytes(value) for value in (None, b"\xff", "é", {"a": 1}, 3)] == [
        None,
        b"\xff",
        "é".encode(),
        b'{"a": 1}',
        b"3",
    ]


def test_sql_is_split_at_semicolons() -> None:
    text = """
    -- counts; of pages
    CREATE MATERIALIZED VIEW a AS SELECT ';' AS `x;y`, "it''s;" /* no; end */ FROM t;
    CREATE MATERIALIZED VIEW b AS SELECT 1;;
    """
    assert split_statements(text) == [
        "CREATE MATERIALIZED VIEW a AS SELECT ';' AS `x;y`, \"it''s;\"  FROM t",
        "CREATE MATERIALIZED VIEW b AS SELECT 1",
    ]
