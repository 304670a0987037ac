"""Reconstructs what happened to one partition, for a seed that failed.

During a run every part that notices something of interest adds a line: faults, changes of metadata,
new leaderships, batches that are written or truncated. Afterwards the lines of the partition in
question are merged with what its clients saw, in order of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.sim.history import OK, Drain, Entry, Latest, Poll, Send

LINES_MAX = 400


class Timeline:
    """Lines with their times. Lines without a topic partition are about the whole cluster."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.lines: list[tuple[float, str, str]] = []

    def add(self, subject: str, text: str) -> None:
        self.lines.append((self._now_s(), subject, text))


class RecordedCalls:
    """Forwards calls to an object, and adds each call to the timeline."""

    def __init__(self, timeline: Timeline, inner: object) -> None:
        self._timeline = timeline
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*given: object, **named: object) -> object:
            told = [repr(each) for each in given]
            told += [f"{key}={each!r}" for key, each in named.items()]
            self._timeline.add("", f"FAULT {name}({', '.join(told)})")
            return method(*given, **named)

        return call


def timeline_lines(
    timeline: Timeline, entries: Iterable[Entry], subject: str, lines_max: int = LINES_MAX
) -> list[str]:
    """Returns the last lines about a topic partition, or about everything if `subject` is empty."""
    lines = [
        (at, text if not where or subject else f"{where}: {text}")
        for at, where, text in timeline.lines
        if not subject or where in ("", subject)
    ]
    lines += [(at_ms / 1000, text) for at_ms, text in _of_clients(entries, subject)]
    lines.sort(key=lambda line: line[0])
    return [f"{at:9.3f}  {text}" for at, text in lines[-lines_max:]]


def _of_clients(entries: Iterable[Entry], subject: str) -> Iterator[tuple[float, str]]:
    for entry in entries:
        error = f": {entry.error}" if entry.error else ""
        match entry:
            case Send() if entry.partition_name == subject:
                acks = "all" if entry.acks < 0 else entry.acks
                at = f" at {entry.offset}" if entry.offset >= 0 else ""
                began = f"since {entry.begun_ms / 1000:.3f}"
                text = f"{entry.process} sent {entry.value} acks={acks}"
                yield entry.ended_ms, f"{text} {began}: {entry.status}{at}{error}"
            case Poll() if subject in entry.reads:
                read = entry.reads[subject]
                span = f"{read[0][0]}..{read[-1][0]} ({read[0][1]}..{read[-1][1]})"
                yield entry.ended_ms, f"{entry.process} read {span}"
            case Poll() if entry.status != OK:
                yield entry.ended_ms, f"{entry.process} could not poll{error}"
            case Latest() if entry.partition_name == subject:
                told = f"{entry.offset}" if entry.status == OK else f"{entry.status}{error}"
                yield entry.ended_ms, f"{entry.process} asked for the log end: {told}"
            case Drain() if entry.partition_name == subject:
                span = f"{entry.start_offset} to {entry.end_offset}"
                text = f"drained from {span}: {len(entry.records)} records{error}"
                yield entry.ended_ms, text
            case _:
                pass
