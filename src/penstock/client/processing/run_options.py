# ruff: noqa: RUF009 (`_option` is `field` with a description; nothing it returns is shared)
"""The options of `run`, validated once before the first poll. Pure.

`RunOptions` is the only description of these options: `option_help` shows it in `help()`, and the
table in docs/CLIENTS.md is written from it. `RunKeywords` declares the same options for type
checkers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar, get_args

from penstock.client.errors import OptionError
from penstock.client.processing.contracts import OnError, Ordering

K = TypeVar("K")
V = TypeVar("V")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"text": text, "kafka": ""})


@dataclass(frozen=True, slots=True)
class RunOptions:
    ordering: Ordering = _option(
        "partition",
        'Records of one "partition" or of one "key" are handled in order, or in any order: "none".',
    )
    concurrency: int = _option(1, "How many records are handled at the same time.")
    retries: int = _option(3, "How many attempts follow the first if the handler raises an error.")
    retry_backoff_ms: int = _option(
        100, "The pause before the first retry. It doubles for each further retry."
    )
    retry_backoff_max_ms: int = _option(10_000, "The longest pause between two attempts.")
    dead_letter_topic: str | None = _option(
        None, "Where records go after the last attempt. Without it, the run ends with the error."
    )
    on_error: OnError[Any, Any] | None = _option(
        None,
        "A function (record, error, attempts) that is called after each failed attempt. It returns "
        '"retry", "dead_letter", "skip" or "fail", or None to leave the decision to the options.',
    )
    commit_interval_ms: int = _option(1_000, "How often the offsets are committed.")
    in_progress_max: int = _option(
        1_000,
        "How many records are held at most: waiting, being handled, or finished before an earlier "
        "record.",
    )
    drain_timeout_ms: int = _option(
        30_000,
        "How long handlers may take to finish when their partition is revoked or the run ends.",
    )
    stop: asyncio.Event | None = None

    def __post_init__(self) -> None:
        if self.ordering not in get_args(Ordering):
            raise OptionError(
                f'ordering must be "partition", "key" or "none", not {self.ordering!r}'
            )
        least = {
            "concurrency": 1,
            "retries": 0,
            "retry_backoff_ms": 0,
            "retry_backoff_max_ms": 0,
            "commit_interval_ms": 1,
            "in_progress_max": 1,
            "drain_timeout_ms": 0,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < smallest:
                raise OptionError(
                    f"{name} must be a whole number of at least {smallest}, not {value!r}"
                )


class RunKeywords(TypedDict, Generic[K, V], total=False):
    ordering: Ordering
    concurrency: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    dead_letter_topic: str | None
    on_error: OnError[K, V] | None
    commit_interval_ms: int
    in_progress_max: int
    drain_timeout_ms: int
