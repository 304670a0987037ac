"""Runs every Python block of docs/CLIENTS.md, and checks the page's tables.

The blocks of a section (`##`) are one program, run from top to bottom in one namespace against a
real broker. Their output must match the lines after `#>`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import pydoc
import re
import subprocess
import sys
import warnings
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_type_hints

import pytest

import option_tables
import penstock
from penstock.client import option_hints
from penstock.client.option_help import describe
from penstock.client.options import (
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
)
from penstock.client.processing.run_options import RunKeywords, RunOptions
from penstock.testing import Broker
from penstock.testing.slowness import patient
from public_examples import patiently

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "CLIENTS.md"
BROKER_IN_THE_TEXT = "localhost:9092"


class Block(NamedTuple):
    line: int
    code: str
    prints: list[str]


def sections(text: str) -> dict[str, list[Block]]:
    """Returns the Python blocks under each heading."""
    found: dict[str, list[Block]] = {}
    heading = ""
    code: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line == "```python":
            code = []
        elif line == "```" and code is not None:
            prints = [each[3:] for each in code if each.startswith("#> ")]
            start = number - len(code)
            found.setdefault(heading, []).append(Block(start, "\n".join(code), prints))
            code = None
        elif code is not None:
            code.append(line)
        elif line.startswith("## "):
            heading = line[3:]
    return found


SECTIONS: Mapping[str, list[Block]] = sections(PAGE.read_text("utf-8"))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": "1"}) as running:
        running.new_topic(partitions=3, name="routed")
        yield running


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_examples_run(heading: str, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("example")
    # Dataclasses look up the names in their annotations in the module they come from.
    monkeypatch.setitem(sys.modules, "example", module)
    for block in SECTIONS[heading]:
        # Empty lines before the code keep the page's line numbers in tracebacks.
        code = patiently(block.code).replace(BROKER_IN_THE_TEXT, broker.bootstrap)
        source = "\n" * (block.line - 1) + code
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(PAGE), "exec", dont_inherit=True), module.__dict__)
        assert printed.getvalue().splitlines() == block.prints, f"the block at line {block.line}"


def test_the_page_has_examples() -> None:
    """If the blocks were no longer found, the other tests would pass without checking anything."""
    assert len(SECTIONS) >= 10
    assert sum(map(len, SECTIONS.values())) >= 14


def test_examples_are_typed() -> None:
    """Users copy the examples, so mypy must accept them."""
    # Always the same folder, so that mypy can use its cache.
    folder = ROOT / ".mypy_cache" / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    for number, blocks in enumerate(SECTIONS.values()):
        text = "\n\n".join(block.code for block in blocks)
        (folder / f"clients_page_{number}.py").write_text(text, "utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(110),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# -- tables --------------------------------------------------------------------------------------


def table_under(heading: str) -> list[list[str]]:
    """Returns the cells of the first table after a heading, without the header row."""
    text = PAGE.read_text("utf-8")
    lines = text[text.index(f"\n### {heading}\n") :].splitlines()[2:]
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize(
    ("heading", "options"),
    [
        ("All clients", ClientOptions),
        ("Producer", ProducerOptions),
        ("Consumer", ConsumerOptions),
        ("Admin", AdminOptions),
    ],
)
def test_the_tables_list_all_options_with_their_defaults(
    heading: str, options: type[ClientOptions]
) -> None:
    """The table lists all options in the order of the source, with their real defaults."""
    shared = set() if options is ClientOptions else ClientOptions.names()
    wanted = {each.name: each for each in fields(options) if each.name in options.names() - shared}
    rows = table_under(heading)
    assert [row[0].strip("`") for row in rows] == list(wanted)
    for name, default, _, _ in rows:
        field = wanted[name.strip("`")]
        given = literal_eval(default.strip("`"))
        assert field.metadata["read"](field.name, given) == field.default, field.name


def test_the_tables_are_up_to_date() -> None:
    """If this fails, run `python -m option_tables` in tests/."""
    page = PAGE.read_text("utf-8")
    assert page == option_tables.written(page)


@pytest.mark.parametrize(
    ("client", "options"),
    [
        (penstock.Producer, ProducerOptions),
        (penstock.aio.Producer, ProducerOptions),
        (penstock.Consumer, ConsumerOptions),
        (penstock.aio.Consumer, ConsumerOptions),
        (penstock.Admin, AdminOptions),
        (penstock.aio.Admin, AdminOptions),
    ],
)
def test_help_lists_all_options(client: type, options: type[ClientOptions]) -> None:
    """`help(penstock.Producer)` has every option with its default and its description."""
    text = pydoc.plain(pydoc.render_doc(client))
    for option in describe(options):
        assert f"{option.name} = {option.default}  (" in text
        assert option.text.endswith(".")
        assert option.text in " ".join(text.replace("|", " ").split()), option.name


@pytest.mark.parametrize("consumer", [penstock.Consumer, penstock.aio.Consumer])
def test_help_lists_all_options_of_run(consumer: type[penstock.Consumer[bytes, bytes]]) -> None:
    text = pydoc.plain(pydoc.render_doc(consumer.run))
    listed = {option.name: option for option in describe(RunOptions)}
    assert set(listed) == set(get_type_hints(RunKeywords))
    for option in listed.values():
        assert f"{option.name} = {option.default}" in text
        assert option.text in " ".join(text.split()), option.name


def _other_names(column: int) -> Sequence[str]:
    cells = [row[column] for row in table_under("Options that are called something else")]
    names = [name for cell in cells for name in re.findall(r"`([a-z_.]+)(?:=[^`]*)?`", cell)]
    assert names
    return names


def test_names_of_kafka_python_exist() -> None:
    """The migration table names options that kafka-python has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's use of importlib
        import kafka
    known = {*kafka.KafkaProducer.DEFAULT_CONFIG, *kafka.KafkaConsumer.DEFAULT_CONFIG}
    assert set(_other_names(2)) <= known


def test_names_of_aiokafka_exist() -> None:
    """The migration table names options that aiokafka has."""
    import aiokafka

    known = {
        *inspect.signature(aiokafka.AIOKafkaProducer).parameters,
        *inspect.signature(aiokafka.AIOKafkaConsumer).parameters,
    }
    assert set(_other_names(3)) <= known


def test_names_of_confluent_kafka_exist() -> None:
    """librdkafka refuses an unknown property by name."""
    import confluent_kafka

    names = _other_names(1)
    assert len(names) > 15
    for name in names:
        try:
            confluent_kafka.Consumer({"group.id": "g", name: "no such value"})
        except (confluent_kafka.KafkaException, TypeError) as error:
            assert "No such configuration property" not in str(error), name


def test_option_names_of_other_clients_get_a_hint() -> None:
    """The error for a name from another client suggests our name, as in the table."""
    known = {name for kind in (ProducerOptions, ConsumerOptions) for name in kind.names()}
    for row in table_under("Options that are called something else"):
        ours = row[0].strip("`").partition("=")[0]
        if ours not in known:
            continue
        for cell in row[1:]:
            for name in re.findall(r"`([a-z_.]+)`", cell):
                if name in known:
                    continue
                assert ours in str(option_hints.unknown(name, known, {})), name
