"""The options of a run, validated once before the first poll. Pure."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, get_args

from penstock.client.errors import OptionError
from penstock.client.processing.contracts import OnError, Ordering


@dataclass(frozen=True, slots=True)
class RunOptions:
    ordering: Ordering = "partition"
    concurrency: int = 1
    retries: int = 3
    """The number of attempts after the first."""
    retry_backoff_ms: int = 100
    """The pause before the first retry. It doubles for each further retry."""
    retry_backoff_max_ms: int = 10_000
    dead_letter_topic: str | None = None
    on_error: OnError[Any, Any] | None = None
    commit_interval_ms: int = 1_000
    in_progress_max: int = 1_000
    """The maximum number of records held: waiting, being handled, or finished before an earlier
    record."""
    drain_timeout_ms: int = 30_000
    """How long handlers may take to finish when their partition is revoked or the run ends."""
    stop: asyncio.Event | None = None
    """Set it to end the run."""

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
