"""Reads the files of `deploy/`, and checks their commands with our own command line parser."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.broker.config import BrokerConfig, load_config
from penstock.cli.app import COMMANDS, build

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents(path: str) -> list[Any]:
    """Returns all YAML documents of a file."""
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra [dev]")
    return list(yaml.safe_load_all((DEPLOY / path).read_text("utf-8")))


def document(path: str) -> Any:
    (found,) = documents(path)
    return found


def parse(words: list[str]) -> dict[str, Any]:
    """Returns the options in the arguments of `penstock`; our parser refuses unknown ones."""
    name = words[0]
    assert name in COMMANDS, name
    group: Any = typer.main.get_command(build(name))
    command = group.commands[name] if hasattr(group, "commands") else group
    with command.make_context("penstock", words[1:]) as context:
        return dict(context.params)


def broker_config(toml: Path, settings: list[str]) -> BrokerConfig:
    """Loads the configuration of `penstock broker --config FILE --set ...`; refuses wrong keys."""
    tomllib.loads(toml.read_text("utf-8"))
    overrides = dict(each.split("=", 1) for each in settings)
    return load_config(str(toml)).with_overrides(overrides)
