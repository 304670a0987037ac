"""Runs every Python block of docs/SPARK.md, and checks its tables.

The blocks of a section (`##`) are one program, run from top to bottom in one namespace with the
session and the broker of the tests. Their output must equal the lines after `#>`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from penstock.client.errors import ClientError
from penstock.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, parse_sink, parse_source
from penstock.testing import Broker
from test_docs import BROKER_IN_THE_TEXT, sections

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "SPARK.md"
TEXT = PAGE.read_text("utf-8")
SECTIONS = sections(TEXT)
FOLDER_IN_THE_TEXT = "/data/"


@pytest.fixture(scope="module")
def page_broker() -> Iterator[Broker]:
    """A separate broker, because the page creates topics with fixed names."""
    with Broker({"num.partitions": "1"}) as running:
        yield running


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_examples_run(
    heading: str,
    spark: SparkSession,
    page_broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The output of each section's blocks is what the page says."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    settings = dict(spark.conf.getAll)
    try:
        for block in SECTIONS[heading]:
            code = block.code.replace(BROKER_IN_THE_TEXT, page_broker.bootstrap)
            code = code.replace(FOLDER_IN_THE_TEXT, f"{tmp_path}/")
            # Empty lines before the block keep the page's line numbers in tracebacks.
            source = "\n" * (block.line - 1) + code
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, str(PAGE), "exec", dont_inherit=True), module.__dict__)
            assert printed.getvalue().splitlines() == block.prints, f"line {block.line}"
    finally:
        for name in set(dict(spark.conf.getAll)) - set(settings):
            spark.conf.unset(name)


def test_the_page_has_examples() -> None:
    """If the blocks were no longer found, every test would pass."""
    assert sum(map(len, SECTIONS.values())) >= 6
    assert sum(len(block.prints) for blocks in SECTIONS.values() for block in blocks) >= 8


# -- tables --------------------------------------------------------------------------------------


def table_under(heading: str) -> list[list[str]]:
    """Returns the cells of the first table after a heading, without its header."""
    lines = TEXT[TEXT.index(f" {heading}\n") :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


SOURCE = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
SINK = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
STREAM_ONLY = {"latest"}


def _parse_source(given: dict[str, str]) -> object:
    return parse_source(SOURCE | given, streaming=False)


def _parse_sink(given: dict[str, str]) -> object:
    return parse_sink(SINK | given)


@pytest.mark.parametrize(
    ("heading", "names", "parse"),
    [
        ("Source options", SOURCE_OPTIONS, _parse_source),
        ("Sink options", SINK_OPTIONS, _parse_sink),
    ],
)
def test_the_tables_list_all_options_and_defaults(
    heading: str, names: tuple[str, ...], parse: Callable[[dict[str, str]], object]
) -> None:
    """In the order of the code. Giving a default explicitly changes nothing."""
    rows = table_under(heading)
    assert [row[0].strip("`") for row in rows] == list(names)
    for name, default, *_ in rows:
        for value in re.findall(r"`([^`]+)`", default):
            if value not in STREAM_ONLY or name != "`startingOffsets`":
                assert parse({name.strip("`"): value}) == parse({}), name


def test_the_table_marks_options_for_batches_only() -> None:
    """The page says which options a stream refuses."""
    batch_only = {row[0].strip("`") for row in table_under("Source options") if row[2] == "batch"}
    values = {
        "endingOffsets": "latest",
        "endingTimestamp": "1",
        "endingOffsetsByTimestamp": '{"t": {"0": 1}}',
    }
    refused = set()
    for name, value in values.items():
        try:
            parse_source(SOURCE | {name: value}, streaming=True)
        except ClientError:
            refused.add(name)
    assert refused == batch_only - {"filterPushdown"}
    assert refused == set(values)


def test_documented_error_messages_exist() -> None:
    """So a user who searches for an error finds it on the page."""
    ours = "".join(
        path.read_text("utf-8") for path in sorted((ROOT / "src/penstock/spark").rglob("*.py"))
    )
    # Joins string literals that span lines, so that messages are found completely.
    joined = re.sub(r'"\s*\n\s*f?"', "", ours)
    import pyspark

    theirs = Path(pyspark.__file__).parent
    known = joined + (theirs / "errors" / "error-conditions.json").read_text("utf-8")
    known += "DATA_SOURCE_NOT_FOUND No module named 'penstock' penstock"
    checked = 0
    for row in table_under("Troubleshooting"):
        for words in re.findall(r"`([^`]+)`", row[0]):
            assert words in known, words
            checked += 1
    assert checked >= 18
