"""Tests the conventions of all commands: help with examples, 80 columns, JSON output."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli.app import build, run

SHELL = frozenset({"|", "&&", ">", "&"})
WITHOUT_JSON = {
    ("up",): "runs until it is stopped; its ready line is for programs",
    ("broker",): "as `up`",
    ("console",): "as `up`",
    ("pipeline", "worker"): "runs until it is stopped",
    ("pipeline", "test"): "shows what pytest prints; --junit-xml after -- is for programs",
}


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        children = getattr(command, "commands", None)
        if children is None:
            yield path, command
            return
        for name, child in children.items():
            yield from walk(child, (*path, name))

    yield from walk(typer.main.get_command(build("")), ())


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_a_terminal_and_shows_examples(
    path: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """80 columns; the parser accepts every example."""
    monkeypatch.chdir(tmp_path)
    for name in ("orders.txt", "orders.jsonl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0]
    assert f"penstock {' '.join(path)}" in examples
    for words in penstock_words(examples):
        (named,) = [each for each in ALL if list(each) == words[: len(each)]]
        with ALL[named].make_context("penstock", words[len(named) :]):
            pass  # it parses


def penstock_words(examples: str) -> Iterator[list[str]]:
    """Yields the arguments of each `penstock` call, without other programs and redirections."""
    for line in examples.splitlines():
        words = shlex.split(line, comments=True)
        calls = [list(call) for end, call in groupby(words, SHELL.__contains__) if not end]
        for call in calls:
            if call[0] == "penstock":
                yield call[1:]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_with_a_result_has_json_output(path: tuple[str, ...]) -> None:
    options = {name for each in ALL[path].params for name in each.opts}
    assert ("--json" in options) != (path in WITHOUT_JSON)


@pytest.mark.parametrize(
    "path", [("status",), ("topic", "list"), ("topic", "describe"), ("group", "describe")]
)
def test_commands_with_changing_results_have_watch(path: tuple[str, ...]) -> None:
    """Status, topics and lag."""
    options = {name for each in ALL[path].params for name in each.opts}
    assert {"--watch", "--interval"} <= options


def test_names_are_completed_in_every_command() -> None:
    """Topics, groups and transactional ids, as arguments and as options."""
    wanted = {"topic", "group", "transactional_id"}
    fresh = {("topic", "create"), ("topic", "from-table")}
    for path, command in ALL.items():
        for each in command.params:
            if each.name in wanted and path not in fresh:
                assert each._custom_shell_complete is not None, (path, each.name)
