"""Tests that the commands in docs/PIPELINES.md are commands of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.test_help import ALL, penstock_words

PAGE = (Path(__file__).parents[2] / "docs/PIPELINES.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
CALLS = [words for block in BLOCKS for words in penstock_words(block)]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_a_command_in_a_block_parses(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (named,) = [path for path in ALL if list(path) == words[: len(path)]]
    with ALL[named].make_context("penstock", words[len(named) :]) as context:
        assert context.command is ALL[named]


def test_the_page_lists_every_command_about_deployments() -> None:
    listed = set(re.findall(r"`penstock pipeline ([\w-]+)", PAGE))
    local = {"init", "templates", "dev", "test", "run", "dry-run", "redrive"}
    names = {path[1] for path in ALL if path[0] == "pipeline"}
    assert names - local <= listed
    assert listed <= names


def test_the_page_lists_every_option_of_deploy() -> None:
    shared = {"--bootstrap", "--json", "--help"}
    options = {option for each in ALL["pipeline", "deploy"].params for option in each.opts}
    long_options = {option for option in options if option.startswith("--")} - shared
    assert long_options == {option for option in long_options if f"`{option}" in PAGE}
