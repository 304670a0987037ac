"""The documentation runs: every Python block of the client's page, and its tables are true.

Blocks of a section (`##`) are one program, run from top to bottom in one namespace against a real
broker. What they print must be what the page says they print: the lines after `#>`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import subprocess
import sys
import warnings
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from penstock.client import option_hints
from penstock.client.options import (
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
)
from penstock.testing import Broker

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "CLIENTS.md"
BROKER_IN_THE_TEXT = "localhost:9092"


class Block(NamedTuple):
    line: int
    code: str
    prints: list[str]


def sections(text: str) -> dict[str, list[Block]]:
    """Python blocks by the heading they stand under."""
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
    """Each section's blocks do what the page says they do."""
    module = ModuleType("example")
    # Dataclasses look up what their annotations name in the module they come from.
    monkeypatch.setitem(sys.modules, "example", module)
    for block in SECTIONS[heading]:
        # Empty lines before it keep the line numbers of the page in tracebacks.
        source = "\n" * (block.line - 1) + block.code.replace(BROKER_IN_THE_TEXT, broker.bootstrap)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(PAGE), "exec", dont_inherit=True), module.__dict__)
        assert printed.getvalue().splitlines() == block.prints, f"the block at line {block.line}"


def test_the_page_has_examples() -> None:
    """A page whose blocks are no longer found would pass every test."""
    assert len(SECTIONS) >= 10
    assert sum(map(len, SECTIONS.values())) >= 14


def test_examples_are_typed() -> None:
    """mypy has nothing to say about what people will copy."""
    # At a place that stays the same, so that mypy's cache is of use.
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
        timeout=110,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# -- tables --------------------------------------------------------------------------------------


def table_under(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
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
def test_the_options_and_their_defaults(heading: str, options: type[ClientOptions]) -> None:
    """All of them, in the order of the source, with the default they really have."""
    shared = set() if options is ClientOptions else ClientOptions.names()
    wanted = {each.name: each for each in fields(options) if each.name in options.names() - shared}
    rows = table_under(heading)
    assert [row[0].strip("`") for row in rows] == list(wanted)
    for name, default, _ in rows:
        field = wanted[name.strip("`")]
        given = literal_eval(default.strip("`"))
        assert field.metadata["read"](field.name, given) == field.default, field.name


def _other_names(column: int) -> Sequence[str]:
    cells = [row[column] for row in table_under("Options that are called something else")]
    names = [name for cell in cells for name in re.findall(r"`([a-z_.]+)(?:=[^`]*)?`", cell)]
    assert names
    return names


def test_names_of_kafka_python_exist() -> None:
    """The migration table names options that the other client has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own use of importlib
        import kafka
    known = {*kafka.KafkaProducer.DEFAULT_CONFIG, *kafka.KafkaConsumer.DEFAULT_CONFIG}
    assert set(_other_names(2)) <= known


def test_names_of_aiokafka_exist() -> None:
    """The migration table names options that the other client has."""
    import aiokafka

    known = {
        *inspect.signature(aiokafka.AIOKafkaProducer).parameters,
        *inspect.signature(aiokafka.AIOKafkaConsumer).parameters,
    }
    assert set(_other_names(3)) <= known


def test_names_of_confluent_kafka_exist() -> None:
    """librdkafka refuses a property that it does not know, by name."""
    import confluent_kafka

    names = _other_names(1)
    assert len(names) > 15
    for name in names:
        try:
            confluent_kafka.Consumer({"group.id": "g", name: "no such value"})
        except (confluent_kafka.KafkaException, TypeError) as error:
            assert "No such configuration property" not in str(error), name


def test_other_names_are_answered() -> None:
    """Whoever types a name from the table is told what the table says."""
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
