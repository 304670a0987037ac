"""How a run goes about its work: checked once, before anything is polled. Pure."""

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
    """Attempts after the first."""
    retry_backoff_ms: int = 100
    """Before the first retry; it doubles from one to the next."""
    retry_backoff_max_ms: int = 10_000
    dead_letter_topic: str | None = None
    on_error: OnError[Any, Any] | None = None
    commit_interval_ms: int = 1_000
    in_progress_max: int = 1_000
    """Records held at a time: waiting, being handled, or ended before one in front of them."""
    drain_timeout_ms: int = 30_000
    """How long handlers may take to end when their partition leaves, or the run ends."""
    stop: asyncio.Event | None = None
    """Set it to end the run."""

    def __post_init__(self) -> None:
        if self.ordering not in get_args(Ordering):
            raise OptionError(f'ordering is "partition", "key" or "none", not {self.ordering!r}')
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
                raise OptionError(f"{name} is a whole number from {smallest} up, not {value!r}")
