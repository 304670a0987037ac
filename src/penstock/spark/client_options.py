"""`kafka.*` options as the client takes them.

They come as text and are turned into what the client wants by the type of its default. The driver
checks all of them, also those that only executors use: a mistake is told once, where the job was
started, and not by every task.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from penstock.client.errors import OptionError
from penstock.client.options import (
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
)
from penstock.spark.options import SinkOptions, SourceOptions


def check_client(options: SourceOptions | SinkOptions) -> ClientOptions:
    """What the consumer or producer will go by, or what is wrong with it."""
    kind = ConsumerOptions if isinstance(options, SourceOptions) else ProducerOptions
    try:
        return kind.parse(options.bootstrap_servers, keywords(options.client, kind))
    except OptionError as error:
        raise OptionError(_as_given(str(error), {*kind.names(), *options.client})) from None


def _as_given(text: str, names: Collection[str]) -> str:
    """The client's words with its options as a job writes them: fetch_min_bytes is
    kafka.fetch.min.bytes here."""

    def spelled(found: re.Match[str]) -> str:
        name = found[0]
        return "kafka." + name.replace("_", ".") if name in names else name

    return re.sub(r"\w+", spelled, text)


def admin_keywords(options: SourceOptions | SinkOptions) -> Any:
    """Those that an admin takes too."""
    known = AdminOptions.names()
    return keywords(
        {name: text for name, text in options.client.items() if name in known}, AdminOptions
    )


def keywords(given: Mapping[str, str], kind: type[ClientOptions]) -> Any:
    """Texts as the values they stand for; what the client does not know it refuses itself."""
    defaults = {field.name: field.default for field in fields(kind)}
    return {name: _value(text.strip(), defaults.get(name)) for name, text in given.items()}


def _value(text: str, default: object) -> object:
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(default, int) and text.lstrip("-").isdecimal():
        return int(text)
    return text
