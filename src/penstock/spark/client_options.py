"""Converts `kafka.*` options into the client's options.

They come as text and are converted to the type of the client's default. The driver checks all of
them, even those that only executors use: a mistake is reported once, where the job was started, and
not by every task.
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
from penstock.client.security_options import SECRETS
from penstock.spark.options import SinkOptions, SourceOptions


def check_client(options: SourceOptions | SinkOptions) -> ClientOptions:
    """Returns the options of the consumer or producer, or raises `OptionError`."""
    kind = ConsumerOptions if isinstance(options, SourceOptions) else ProducerOptions
    try:
        return kind.parse(options.bootstrap_servers, keywords(options.client, kind))
    except OptionError as error:
        raise OptionError(_as_given(str(error), {*kind.names(), *options.client})) from None


def _as_given(text: str, names: Collection[str]) -> str:
    """Returns the client's message with option names as a job writes them: kafka.fetch.min.bytes
    for fetch_min_bytes."""

    def spelled(found: re.Match[str]) -> str:
        name = found[0]
        return "kafka." + name.replace("_", ".") if name in names else name

    return re.sub(r"\w+", spelled, text)


def admin_keywords(options: SourceOptions | SinkOptions) -> Any:
    """Returns the options that an admin has, too."""
    known = AdminOptions.names()
    return keywords(
        {name: text for name, text in options.client.items() if name in known}, AdminOptions
    )


def keywords(given: Mapping[str, str], kind: type[ClientOptions]) -> Any:
    """Converts texts to values. The client itself refuses options that it does not know."""
    defaults = {field.name: field.default for field in fields(kind)}
    return {
        name: text if name in SECRETS else _value(text.strip(), defaults.get(name))
        for name, text in given.items()
    }


def _value(text: str, default: object) -> object:
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(default, int) and text.lstrip("-").isdecimal():
        return int(text)
    return text
