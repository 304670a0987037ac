"""Tests how a driver reads rows of a table for people."""

from __future__ import annotations

import json
import queue
from typing import TYPE_CHECKING, Any

from penstock.spark.pipelines.preview import Previews, bounded, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 300.0


def test_identifiers_are_quoted() -> None:
    assert quoted("a`; DROP TABLE b") == "`a``; DROP TABLE b`"


def test_an_answer_is_bounded() -> None:
    rows = bounded([["x" * 350_000, None], ["y" * 60_000, 1], ["z", 2]])
    assert [len(row[0] or "") for row in rows] == [350_000]


def test_an_answer_is_bounded_by_its_bytes() -> None:
    """A character that is not ASCII takes several bytes in an event."""
    rows = bounded([["ж" * 500] * 8 for _ in range(50)])
    assert 0 < len(json.dumps(rows)) < 500_000


def test_rows_of_a_table_are_read(spark: SparkSession) -> None:
    """The newest file first, values as text and cut; errors are answers, too."""
    answers: queue.Queue[dict[str, Any]] = queue.Queue()
    previews = Previews(spark, "`spark_catalog`.`default`", answers.put)  # type: ignore[arg-type]

    def ask(table: str, limit: int = 50) -> dict[str, Any]:
        previews.ask({"id": "7", "table": table, "limit": limit, "within_s": WAIT_S})
        return answers.get(timeout=WAIT_S)

    spark.sql("CREATE TABLE previewed (user STRING, `odd name` INT, more STRUCT<a: INT>)")
    try:
        assert ask("previewed")["rows"] == []
        for user in ("old", "x" * 2_000):
            spark.sql(f"INSERT INTO previewed VALUES ('{user}', NULL, named_struct('a', 1))")
        found = ask("previewed")
        assert (found["event"], found["id"]) == ("preview", "7")
        assert found["columns"] == [
            ["user", "string"], ["odd name", "int"], ["more", "struct<a:int>"],
        ]  # fmt: skip
        assert found["rows"] == [["x" * 500, None, "{1}"]]
    finally:
        spark.sql("DROP TABLE previewed")
    assert "TABLE_OR_VIEW_NOT_FOUND" in ask("gone")["error"]


def test_a_pipeline_on_a_connect_server_has_no_rows() -> None:
    answers: queue.Queue[Any] = queue.Queue()
    Previews(None, "default", answers.put).ask({"id": "7"})
    assert "sc://" in answers.get(timeout=WAIT_S)["error"]
