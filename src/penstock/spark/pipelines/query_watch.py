"""Reports the progress of the streaming queries in a driver: rows, lag, watermark, state.

A thread asks Spark for its queries, in whichever session they were started, and writes an event for
each batch. It also asks the brokers how far the topics are, and so knows the lag: in records, and
in seconds, as the age of the oldest record that is not read yet.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.client.blocking.admin import Admin
from penstock.client.errors import ClientError
from penstock.runtime import SystemClock
from penstock.spark.offsets import from_spark, waiting
from penstock.spark.pipelines.dead_letters import DeadLetters
from penstock.spark.pipelines.events import progress_event
from penstock.spark.pipelines.position_report import PositionReport
from penstock.topic_partition import TopicPartition

_WATCH_EVERY_S: Final = 1.0
_ENDS_KEPT: Final = 3_600
"""How many looks at the log ends are kept: they are a second apart."""
STOPPING_SOON: Final = "stopping after this round (Ctrl-C again stops at once)"


class Queries(Protocol):
    def streaming_queries(self) -> list[Any]: ...


class Telling(Protocol):
    def tell(self, kind: str, **fields: object) -> None: ...

    def write(self, event: Mapping[str, Any]) -> None: ...


class LagAge:
    """Knows how old the oldest unread record of a flow is, from looks at the log ends."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=_ENDS_KEPT)

    def look(self, read: int, end: int, now: float) -> float:
        """Notes the sums of read offsets and log ends. Returns the age in seconds, which is known
        only since the first look."""
        if not self._ends or self._ends[-1][1] != end:
            self._ends.append((now, end))
        while self._ends and self._ends[0][1] <= read:
            self._ends.popleft()
        return round(now - self._ends[0][0], 1) if self._ends else 0.0


class Watch:
    """Reports every batch and the lag, from its own thread, until it is closed."""

    def __init__(
        self,
        spark: Queries,
        events: Telling,
        is_stopping: Callable[[], bool],
        bootstrap: str,
        on_progress: Callable[[str, Mapping[str, Any]], None] | None = None,
        task_skew: Callable[[str, int, int], float | None] = lambda _run, _batch, _ms: None,
    ) -> None:
        self._spark = spark
        self._events = events
        self._is_stopping = is_stopping
        self._bootstrap = bootstrap
        self._on_progress = on_progress
        """Called with the last progress report of each query."""
        self._task_skew = task_skew
        """Called with the run of a query, the number of its last batch and the duration."""
        self._admin: Admin | None = None
        self._queries: dict[str, tuple[str, Any]] = {}
        self._told: dict[str, int] = {}
        self._last: dict[str, tuple[str, dict[str, Any]]] = {}
        """The last report of each query that was read."""
        self._marks: dict[str, int] = {}
        """Identifies the last report of each query."""
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._lag: dict[str, tuple[int, float]] = {}
        self._ages: dict[str, LagAge] = {}
        self._positions: dict[str, PositionReport] = {}
        self._clock = SystemClock()
        self._dead_letters = DeadLetters(self._clock.wall_ms())
        self._turn = threading.Lock()
        """The main thread reports, too, at the end of a round: no batch may be reported twice."""
        self._lag_turn = threading.Lock()
        """The same for the lag. The end of a round does not wait for answers of brokers."""
        self._owes_lag = False
        """Whether a round has ended whose lag was not reported yet."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=10)
        if self._owes_lag:
            self._tell_lag()
        if self._admin is not None:
            self._admin.close()

    def end_round(self, *, lag: bool = True) -> None:
        """Reports the last batches of queries that have ended, and forgets these queries. Then it
        reports the lag, unless there is time for that later."""
        with self._turn:
            self._look()
            for run, (_, query) in list(self._queries.items()):
                if not query.isActive():
                    del self._queries[run]
                    self._told.pop(run, None)
                    self._last.pop(run, None)
                    self._marks.pop(run, None)
        self._owes_lag = True
        if lag:
            self._tell_lag()

    def _run(self) -> None:
        told = False
        while not self._closed.wait(_WATCH_EVERY_S):
            if self._is_stopping() and not told:
                # The signal handler cannot write this: it may have interrupted a write.
                told = True
                self._events.tell("phase", text=STOPPING_SOON)
            # A JVM that is shutting down raises all kinds of errors.
            with suppress(Exception):
                with self._turn:
                    self._look()
                self._tell_lag()

    def _look(self) -> None:
        for query in self._spark.streaming_queries():
            run = query.runId().toString()
            if run not in self._queries:
                self._queries[run] = (_name(query), query)
                self._dead_letters.note(query)
        for run, (name, query) in list(self._queries.items()):
            reports = self._new_progress(run, query)
            for found in reports:
                batch = int(found.get("batchId", 0))
                # Spark repeats the number of a batch when it reports that there was no data.
                if batch <= self._told.get(run, -1) or not found.get("numInputRows"):
                    self._note_offsets(name, found)
                    continue
                self._told[run] = batch
                self._note_offsets(name, found)
                event = progress_event(name, found)
                if found is reports[-1]:
                    event["task_skew"] = self._task_skew(run, batch, event["duration_ms"])
                self._events.write(event)
            if run in self._last:
                latest = self._last[run][1]
                self._tell_position(name, latest)
                if self._on_progress is not None:
                    self._on_progress(name, latest)

    def _new_progress(self, run: str, query: Any) -> list[dict[str, Any]]:
        """Returns the reports since the last look, oldest first.

        Spark keeps the last hundred of a query. To read them all each time would be some hundred
        calls to the JVM, and to write even one as JSON takes it some milliseconds.
        """
        newest = query.lastProgress()
        mark = 0 if newest is None else newest.hashCode()  # Of the object, not of its content.
        if self._marks.get(run) == mark:
            return []
        self._marks[run] = mark
        reports = query.recentProgress()
        last = self._last[run][0] if run in self._last else ""
        found: list[dict[str, Any]] = []
        for place in range(len(reports) - 1, -1, -1):
            text = str(reports[place].json())
            if text == last:
                break
            found.append(json.loads(text))
            if len(found) == 1:
                self._last[run] = text, found[0]
        return found[::-1]

    def _tell_position(self, name: str, progress: Mapping[str, Any]) -> None:
        report = self._positions.setdefault(name, PositionReport())
        position = report.look(name, progress, self._clock.monotonic())
        if position is not None:
            self._events.write(position)

    def _note_offsets(self, name: str, progress: Mapping[str, Any]) -> None:
        event = progress_event(name, progress)
        if event["offsets"]:
            self._offsets[str(event["flow"])] = from_spark(event["offsets"])

    def _tell_lag(self) -> None:
        if self._offsets and self._bootstrap:
            with self._lag_turn:
                self._owes_lag = False
                self._measure_lag()

    def _measure_lag(self) -> None:
        try:
            if self._admin is None:
                self._admin = Admin(self._bootstrap)
                self._admin.start()
            for flow, offsets in list(self._offsets.items()):
                found = self._admin.list_offsets(dict.fromkeys(offsets, "latest"))
                ends = {
                    topic_partition: at.offset
                    for topic_partition, at in found.items()
                    if at is not None
                }
                age = self._ages.setdefault(flow, LagAge())
                read, end = sum(offsets.values()), sum(ends.values())
                lag = waiting(offsets, ends), age.look(read, end, self._clock.monotonic())
                if self._lag.get(flow) != lag:
                    self._lag[flow] = lag
                    self._events.tell("lag", flow=flow, lag=lag[0], lag_s=lag[1])
            for topic, records in self._dead_letters.look(self._admin).items():
                self._events.tell("dead letters", topic=topic, records=records)
        except ClientError as error:
            sys.stderr.write(f"cannot measure the lag: {error}\n")


def _name(query: Any) -> str:
    """Returns the query's name; a query of a script may have none, but has an id."""
    return str(query.name() or query.id().toString())
