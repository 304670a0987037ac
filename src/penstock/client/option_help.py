"""The descriptions of options in `options`, as text for `help()` and as rows for the docs. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from penstock.client.option_values import ResetPolicy
from penstock.client.options import ClientOptions

T = TypeVar("T", bound=type)

_HEAD = """Checks the options and raises `OptionError` for one that is unknown or not valid.

The options, with their defaults and their names in Kafka:

"""
_WIDTH = 92


class OptionHelp(NamedTuple):
    """One option as a user sees it."""

    name: str
    default: str
    """As it is written in Python."""
    kafka: str
    """The same option of Kafka's Java client; empty if there is none."""
    text: str


def describe(options: type[ClientOptions]) -> Iterator[OptionHelp]:
    """Returns the options of a client in the order of their definition, those of all clients
    first."""
    for option in fields(options):
        if option.name in options.names():
            kafka = option.metadata["kafka"]
            yield OptionHelp(
                option.name,
                option.metadata["shown"] or _written(option),
                option.name.replace("_", ".") if kafka is None else kafka,
                option.metadata["text"],
            )


def help_text(options: type[ClientOptions]) -> str:
    """Returns the docstring of a constructor that takes these options."""
    parts = [_HEAD]
    for option in describe(options):
        kafka = f"Kafka: {option.kafka}" if option.kafka else "not in Kafka"
        text = textwrap.indent(textwrap.fill(option.text, _WIDTH), "    ")
        parts.append(f"{option.name} = {option.default}  ({kafka})\n{text}\n")
    return "".join(parts)


def with_help(options: type[ClientOptions]) -> Callable[[T], T]:
    """Lists the options in the docstring of a client's constructor, where `help()` shows them."""

    def add(client: T) -> T:
        client.__init__.__doc__ = help_text(options)  # type: ignore[misc]
        return client

    return add


def _written(option: Field[Any]) -> str:
    match option.default:
        case bool() | None:
            return str(option.default)
        case IntEnum():
            return f'"{option.default.name.lower()}"'
        case int():
            return f"{option.default:_}"
        case ResetPolicy():
            return f'"{option.default.kind}"'
        case str():
            return f'"{option.default}"'
        case tuple():
            return "[{}]".format(", ".join(f'"{item}"' for item in option.default))
    raise AssertionError(f"{option.name} has a default without a spelling: give `shown`")
