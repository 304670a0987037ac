"""Decides what happens to a record after a failed attempt, and how long a retry waits."""

from __future__ import annotations

import inspect
from typing import Any

from penstock.client.errors import OptionError
from penstock.client.model import Record
from penstock.client.processing.contracts import ErrorAction
from penstock.client.processing.run_options import RunOptions
from penstock.ports import Random


class FailurePolicy:
    """The options of a run that are about failures. `on_error` is asked first."""

    def __init__(self, options: RunOptions, *, has_dead_letters: bool) -> None:
        self._options = options
        self._has_dead_letters = has_dead_letters

    async def decide(
        self, record: Record[Any, Any], error: Exception, attempts: int
    ) -> ErrorAction:
        """Returns what to do with the record. Raises what `on_error` raises."""
        options = self._options
        if isinstance(error, OptionError):
            return "fail"
        if options.on_error is not None:
            answer = options.on_error(record, error, attempts)
            if inspect.isawaitable(answer):
                answer = await answer
            if answer == "dead_letter" and not self._has_dead_letters:
                return "fail"
            if answer is not None:
                return answer
        if attempts <= options.retries:
            return "retry"
        return "dead_letter" if self._has_dead_letters else "fail"

    def pause_s(self, attempts: int, random: Random) -> float:
        """Returns the pause before the next attempt. It doubles, and has jitter."""
        options = self._options
        doubled_ms: int = options.retry_backoff_ms * 2 ** (attempts - 1)
        pause_ms = min(doubled_ms, options.retry_backoff_max_ms)
        return pause_ms / 1000 * (0.5 + random.uniform())
