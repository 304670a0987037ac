"""Errors of a worker that are counted and logged, and end neither the worker nor a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.errors import BrokerError, ClientError, RecordTooLarge, TopicNotFound
from penstock.spark.pipelines.errors import PipelineError

_log = logging.getLogger(__name__)
WRITE_ERRORS: Final = (ClientError, PipelineError)
"""What a write to the cluster may raise. A refusal that names the right is a `PipelineError`."""
_TOLD_EVERY: Final = 100


def is_refused(error: BaseException) -> bool:
    """Whether the same write fails again until someone changes something."""
    if isinstance(error, BrokerError):
        return not error.retriable
    return isinstance(error, PipelineError | RecordTooLarge)


def advice(error: BaseException) -> str:
    """Returns what to do, if the error does not say it."""
    if isinstance(error, TopicNotFound):
        return "start a worker again: it creates the topics"
    if isinstance(error, RecordTooLarge):
        return "raise max.message.bytes of the topic"
    if isinstance(error, OSError):
        return "make room on the disk, or correct the rights of the folder"
    if isinstance(error, PipelineError):
        return ""  # It names the right.
    return "" if is_refused(error) else "it is tried again"


@contextmanager
def only_logged(doing: str, name: str) -> Iterator[None]:
    """An unexpected error of one pipeline must not reach the others, nor end the worker."""
    try:
        yield
    except Exception:  # noqa: BLE001 - see above
        _log.exception("cannot %s %s; trying again", doing, name)


class FailedWrites:
    """Counts the failures of one kind of write. The same error is not logged each second."""

    def __init__(self, what: str) -> None:
        """`what` completes the sentence "cannot write"."""
        self.count = 0
        self._what = what
        self._last = ""
        self._repeated = 0

    def note(self, error: BaseException) -> None:
        self.count += 1
        told = "; ".join(filter(None, (str(error) or type(error).__name__, advice(error))))
        self._repeated = self._repeated + 1 if told == self._last else 0
        self._last = told
        if self._repeated % _TOLD_EVERY == 0:
            _log.warning(
                "cannot write %s: %s (%d failures so far; the pipelines continue)",
                self._what, told, self.count,
            )  # fmt: skip

    def worked(self) -> None:
        """The next failure is logged again."""
        self._last = ""
