"""Keeps the streaming flows of a continuous pipeline running between rounds.

Spark runs a declarative pipeline in rounds: every flow reads what there is, and ends. A round takes
some seconds even if there is little to read: the definitions are loaded and resolved, each query
starts, and Spark looks only now and then which flow has ended. So a record would wait for seconds.

A deployed continuous pipeline therefore runs only its first round in this way. It creates the
tables and reads what has accumulated. Then the same flows, as Spark planned them in that round, run
without an end, with the checkpoints of the round. Materialized views, and streams that also read
tables, are computed in further rounds, in which Spark runs nothing else.

Spark's planner makes the queries, so that checkpoints, tables and settings are exactly those of a
round, and a later round can continue them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from penstock.ports import Clock
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.explain import one_line, short_name
from penstock.spark.pipelines.jvm import PlannedRun, items

_STREAMING: Final = frozenset({"StreamingFlow", "AutoCdcMergeFlow"})
"""Spark's classes of flows that can run without an end."""
_COMPUTED: Final = "CompleteFlow"
"""Spark's class of the flow of a materialized view."""
_CONSTANT: Final = frozenset({"OneRowRelation", "Range"})
"""Spark's classes of inputs that never change."""
_MS: Final = 1_000
_BATCH_END_S: Final = 10.0
"""How long a stop waits for the end of a batch. An interrupted batch is repeated later."""
_LOOK_EVERY_S: Final = 0.02
_CAUSES_MAX: Final = 10


def divided(graph: Any) -> tuple[list[Any], list[str]]:
    """Returns the flows that can run without an end, and the tables that are computed in rounds, by
    Spark's identifiers.

    A stream that also reads a table as it is, as for an enrichment, belongs to the rounds: Spark
    would list the files of that table only once, when the query starts. If its target cannot be
    computed alone, the whole pipeline is run in rounds, and no flow is returned.
    """
    targets = [*items(graph.materializedFlows())]
    names = {str(view.identifier().unquotedString()) for view in items(graph.views())}
    views = {_target(flow): flow for flow in items(graph.resolvedFlows()) if _target(flow) in names}
    tables = {str(table.identifier().unquotedString()) for table in items(graph.tables())}
    live, computed = [], set()
    for flow in targets:
        kind = _kind(flow)
        if kind in _STREAMING and not _reads_tables(flow, views):
            live.append(flow)
        elif kind == _COMPUTED or kind in _STREAMING:
            computed.add(_target(flow))
    if computed - tables or computed & {_target(flow) for flow in live}:
        return [], []
    return live, sorted(computed)


class LiveFlows:
    """The streaming flows of a pipeline, running without an end."""

    def __init__(
        self,
        classic: Any,
        planned: PlannedRun,
        interval_s: float,
        root: str,
        write: Callable[[Mapping[str, Any]], None],
        clock: Clock,
    ) -> None:
        """`root` is the folder of the project."""
        self._classic = classic
        self._planned = planned
        self._interval_ms = max(round(interval_s * _MS), 0)
        self._root = root
        self._write = write
        self._clock = clock
        self._queries: dict[str, Any] = {}
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._flows, self.computed = divided(planned.graph)

    @property
    def names(self) -> frozenset[str]:
        """The flows that run, by their short names."""
        return frozenset(self._queries)

    def start(self) -> None:
        """Starts all flows. If one cannot be started, those that run are stopped."""
        jvm = self._classic._jvm
        trigger = jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(self._interval_ms)
        # The planner asks a function for the trigger of a flow. A Scala map is such a function.
        none = getattr(getattr(jvm, "scala.collection.immutable.Map$"), "MODULE$").empty()
        planner = jvm.org.apache.spark.sql.pipelines.graph.FlowPlanner(
            self._planned.graph, self._planned.context, none.withDefaultValue(trigger)
        )
        try:
            for flow in self._flows:
                with self._lock:
                    if self._stopped.is_set():
                        return
                    running = planner.plan(flow)
                    running.executeAsync()
                    name = short_name(_identity(flow))
                    self._queries[name] = running.getStreamingQuery()
                self._write({"event": "flow", "flow": name, "status": "RUNNING"})
        except BaseException:
            self.stop()
            raise

    def refresh_tables(self) -> None:
        """Lets the next round see what the flows have written: Spark remembers the files of a
        table that it has read."""
        catalog = self._planned.context.spark().catalog()
        for table in items(self._planned.graph.tables()):
            catalog.refreshTable(str(table.identifier().quotedString()))

    def check(self) -> None:
        """Raises `PipelineError` if a flow has ended, unless it was stopped."""
        for name, query in self._queries.items():
            if not query.isActive() and not self._stopped.is_set():
                error = self._error(name, query)
                self._write({"event": "flow", "flow": name, "status": "FAILED", "error": error})
                raise PipelineError(error)

    def wait(self, timeout_s: float) -> None:
        """Waits for a stop. Raises `PipelineError` if a flow ends in the meantime."""
        until = self._clock.monotonic() + timeout_s
        while (rest := until - self._clock.monotonic()) > 0:
            self.check()
            if self._stopped.wait(min(rest, 0.25)):
                return
        self.check()

    def stop(self) -> None:
        """Stops the flows, each after its batch if that ends soon. Can be called repeatedly, and
        from another thread."""
        self._stopped.set()
        with self._lock:
            until = self._clock.monotonic() + _BATCH_END_S
            for query in self._queries.values():
                while query.isActive() and query.status().isTriggerActive():
                    if self._clock.monotonic() >= until:
                        break
                    threading.Event().wait(_LOOK_EVERY_S)
                with suppress(Exception):  # It takes too long, or the JVM ends: so does the driver.
                    query.stop()

    def _error(self, name: str, query: Any) -> str:
        failed = query.exception()
        if failed.isEmpty():
            return f"the query of the flow {name} ended although it was not stopped"
        texts: list[str] = []
        cause = failed.get()
        while cause is not None and len(texts) < _CAUSES_MAX:
            texts.append(str(cause.getMessage() or cause.toString()))
            cause = cause.getCause()
        return one_line("\n".join(texts), self._root)


def _kind(flow: Any) -> str:
    return str(flow.getClass().getSimpleName())


def _identity(flow: Any) -> str:
    return str(flow.identifier().unquotedString())


def _target(flow: Any) -> str:
    return str(flow.destinationIdentifier().unquotedString())


def _reads_tables(flow: Any, views: Mapping[str, Any]) -> bool:
    """Whether a stream reads anything else than streams, itself or through views."""
    if not flow.funcResult().batchInputs().isEmpty():
        return True
    for leaf in items(flow.df().queryExecution().analyzed().collectLeaves()):
        if not leaf.isStreaming() and _kind(leaf) not in _CONSTANT:
            return True
    read = (str(each.unquotedString()) for each in items(flow.inputs()))
    return any(_reads_tables(views[name], views) for name in read if name in views)
