"""Which profile a command uses: `--profile NAME`, `PENSTOCK_PROFILE`, or `penstock profile use`.

A profile takes the place of an address: `--profile prod` means `--bootstrap profile:prod`. So it
works for every command that connects to a cluster. `--bootstrap` and `PENSTOCK_BOOTSTRAP` come
first: a user who gives an address means that address.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import typer

from penstock.cli.output import CommandFailed
from penstock.client import profiles

_OPTION: Final = "--profile"
_ADDRESS: Final = ("--bootstrap", "-b")
_ADDRESS_VARIABLE: Final = "PENSTOCK_BOOTSTRAP"


def with_profile(app: typer.Typer, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the address of the profile, if the command has one."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words, rest = list(arguments[:end]), list(arguments[end:])
    given, words = _take(words)
    has_address = any(word.partition("=")[0] in _ADDRESS for word in words)
    if given is not None and has_address:
        raise CommandFailed("use --profile or --bootstrap, not both")
    name = given
    if name is None and not has_address and _ADDRESS_VARIABLE not in os.environ:
        name = os.environ.get(profiles.PROFILE_VARIABLE) or profiles.current()
    if name is None:
        return [*words, *rest]
    if not _connects(app, words):
        if given is not None:
            raise CommandFailed("this command does not connect to a cluster: leave out --profile")
        return [*words, *rest]
    return [*words, _ADDRESS[0], profiles.PREFIX + name, *rest]


def without_profile(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments without --profile, to find the name of the command."""
    return _take(list(arguments))[1]


def _take(words: list[str]) -> tuple[str | None, list[str]]:
    """Takes --profile NAME out of the words."""
    for place, word in enumerate(words):
        if word == _OPTION:
            if place + 1 == len(words):
                raise CommandFailed(
                    "--profile needs the name of a profile; to list them: penstock profile list"
                )
            return words[place + 1], words[:place] + words[place + 2 :]
        if word.startswith(f"{_OPTION}="):
            return word.partition("=")[2], words[:place] + words[place + 1 :]
    return None, words


def _connects(app: typer.Typer, words: Sequence[str]) -> bool:
    """Returns whether the command has --bootstrap."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return any(option.name == "bootstrap" for option in command.params)
