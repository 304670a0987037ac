"""The descriptions of options in `options`, as text for `help()` and as rows for the docs. Pure."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from penstock.client.option_values import ResetPolicy
from penstock.client.options import ClientOptions

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

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


def describe(options: type[Any]) -> Iterator[OptionHelp]:
    """Returns the options that a dataclass defines, in the order of their definition."""
    for option in fields(options):
        if option.metadata.get("text"):
            kafka = option.metadata["kafka"]
            yield OptionHelp(
                option.name,
                option.metadata.get("shown") or _written(option),
                option.name.replace("_", ".") if kafka is None else kafka,
                option.metadata["text"],
            )


def with_help(options: type[ClientOptions]) -> Callable[[C], C]:
    """Lists the options in the docstring of a client's constructor, where `help()` shows them."""

    def add(client: C) -> C:
        entries = [
            _entry(option, f"  (Kafka: {option.kafka})" if option.kafka else "  (not in Kafka)")
            for option in describe(options)
        ]
        # mypy expects that `__init__` is not accessed on an instance; `client` is a class.
        client.__init__.__doc__ = _HEAD + "".join(entries)  # type: ignore[misc]
        return client

    return add


def with_options(options: type[Any]) -> Callable[[F], F]:
    """Lists the options of a method at the end of its docstring."""

    def add(method: F) -> F:
        entries = "".join(_entry(option, "") for option in describe(options))
        text = inspect.cleandoc(method.__doc__ or "")
        method.__doc__ = f"{text}\n\nThe options, with their defaults:\n\n{entries}"
        return method

    return add


def _entry(option: OptionHelp, note: str) -> str:
    text = textwrap.indent(textwrap.fill(option.text, _WIDTH), "    ")
    return f"{option.name} = {option.default}{note}\n{text}\n"


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
