"""Access to Spark's objects in the JVM of this process, through py4j."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


def connect_session(classic: Any, session: Any) -> Any:
    """Returns what the Connect server keeps for a session, or None if it has ended."""
    jvm = classic._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    key = jvm.org.apache.spark.sql.connect.service.SessionKey(
        session.client._user_id or "", session.session_id
    )
    found = getattr(service, "MODULE$").sessionManager().getIsolatedSessionIfPresent(key)
    return None if found.isEmpty() else found.get()


def items(found: Any, most: int = 1_000) -> Iterator[Any]:
    """Yields the elements of a Scala collection."""
    iterator = found.iterator()
    for _ in range(most):
        if not iterator.hasNext():
            return
        yield iterator.next()


class PlannedRun(NamedTuple):
    """A run of a pipeline, as Spark planned it: objects of the JVM."""

    graph: Any
    context: Any


def planned_run(classic: Any, session: Any, graph_id: str) -> PlannedRun | None:
    """Returns the plan of a run in progress; None before its graph is resolved."""
    holder = connect_session(classic, session)
    if holder is None:
        return None
    running = holder.getPipelineExecution(graph_id)
    if running.isEmpty():
        return None
    context = running.get()
    execution = context.pipelineExecution().graphExecution()
    if execution.isEmpty():
        return None
    return PlannedRun(execution.get().graphForExecution(), context)
