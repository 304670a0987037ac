"""Tests the flows that run between rounds: without Spark, with stand-ins for its objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from penstock.runtime import SystemClock
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.explain import short_name
from penstock.spark.pipelines.jvm import PlannedRun
from penstock.spark.pipelines.live_flows import LiveFlows, divided
from penstock.spark.pipelines.query_watch import Watch


class Sequence:
    """A Scala sequence, as py4j shows it."""

    def __init__(self, elements: Iterable[object]) -> None:
        self._elements = [*elements]

    def iterator(self) -> Any:
        rest = self._elements

        class Iterator:
            def hasNext(self) -> bool:  # noqa: N802 (Scala's name)
                return bool(rest)

            def next(self) -> object:
                return rest.pop(0)

        return Iterator()


class Option:
    def __init__(self, value: object = None) -> None:
        self._value = value

    def isEmpty(self) -> bool:  # noqa: N802 (Scala's name)
        return self._value is None

    def get(self) -> object:
        return self._value


class Named:
    def __init__(self, name: str) -> None:
        self._name = name

    def unquotedString(self) -> str:  # noqa: N802 (Scala's name)
        return self._name

    def getSimpleName(self) -> str:  # noqa: N802 (Java's name)
        return self._name

    def same(self, flow: Flow) -> bool:
        return self._name == flow.destinationIdentifier().unquotedString()


class Element:
    """A table or view of a graph, or an input of a flow."""

    def __init__(self, kind: str, name: str = "", *, streaming: bool = False) -> None:
        self._kind = kind
        self._name = name
        self._streaming = streaming

    def getClass(self) -> Named:  # noqa: N802 (Java's name)
        return Named(self._kind)

    def identifier(self) -> Named:
        return Named(f"spark_catalog.default.{self._name}")

    def isStreaming(self) -> bool:  # noqa: N802 (Spark's name)
        return self._streaming


STREAM = Element("StreamingRelationV2", streaming=True)
FILES = Element("LogicalRelation")


class Flow:
    def __init__(
        self,
        kind: str,
        name: str,
        query: Query | None = None,
        *,
        target: str = "",
        leaves: tuple[Element, ...] = (STREAM,),
        tables: tuple[str, ...] = (),
        views: tuple[str, ...] = (),
    ) -> None:
        self._kind = kind
        self._name = name
        self._target = target or name
        self._leaves = leaves
        self._tables = tables
        self._views = views
        self.query = query or Query()

    def getClass(self) -> Named:  # noqa: N802 (Java's name)
        return Named(self._kind)

    # Its DataFrame, the plan of that, and what Spark found when it resolved the flow:

    def df(self) -> Flow:
        return self

    queryExecution = analyzed = funcResult = df  # noqa: N815 (Spark's names)

    def collectLeaves(self) -> Sequence:  # noqa: N802 (Spark's name)
        return Sequence(self._leaves)

    def batchInputs(self) -> Option:  # noqa: N802 (Spark's name)
        return Option(self._tables or None)

    def inputs(self) -> Sequence:
        return Sequence(Named(f"spark_catalog.default.{name}") for name in self._views)

    def identifier(self) -> Named:
        return Named(f"spark_catalog.default.{self._name}")

    def destinationIdentifier(self) -> Named:  # noqa: N802 (Scala's name)
        return Named(f"spark_catalog.default.{self._target}")

    # What the planner makes of it:

    def executeAsync(self) -> None:  # noqa: N802 (Scala's name)
        self.query.begin()

    def getStreamingQuery(self) -> Query:  # noqa: N802 (Scala's name)
        return self.query


class Failure:
    def __init__(self, message: str, cause: Failure | None = None) -> None:
        self._message = message
        self._cause = cause

    def getMessage(self) -> str:  # noqa: N802 (Java's name)
        return self._message

    def getCause(self) -> Failure | None:  # noqa: N802 (Java's name)
        return self._cause


class Query:
    def __init__(self, *, refuses: bool = False, batches: int = 0) -> None:
        self._refuses = refuses
        self._active = False
        self._busy = batches
        self.failure: Failure | None = None
        self.stopped_in_a_batch = False

    def begin(self) -> None:
        if self._refuses:
            raise RuntimeError("cannot start")
        self._active = True

    def fail(self, failure: Failure | None) -> None:
        self._active, self.failure = False, failure

    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        return self._active

    def status(self) -> Query:
        return self

    def isTriggerActive(self) -> bool:  # noqa: N802 (Spark's name)
        self._busy -= 1
        return self._busy >= 0

    def exception(self) -> Option:
        return Option(self.failure)

    def stop(self) -> None:
        self.stopped_in_a_batch = self._busy > 0
        self._active = False


class Jvm:
    """Answers as the classes that are used; a planner returns the flow itself."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object) -> Any:
        return self

    def plan(self, flow: Flow) -> Flow:
        return flow


class Session:
    _jvm = Jvm()


class Graph:
    """All flows write to tables of their names, unless they have another target."""

    def __init__(self, *flows: Flow, views: tuple[Flow, ...] = ()) -> None:
        self._flows = flows
        self._views = views

    def materializedFlows(self) -> Sequence:  # noqa: N802 (Scala's name)
        return Sequence(self._flows)

    def resolvedFlows(self) -> Sequence:  # noqa: N802 (Scala's name)
        return Sequence(self._flows + self._views)

    def tables(self) -> Sequence:
        return Sequence(flow for flow in self._flows if flow.identifier().same(flow))

    def views(self) -> Sequence:
        return Sequence(self._views)


def live(*flows: Flow) -> tuple[LiveFlows, list[Mapping[str, Any]]]:
    told: list[Mapping[str, Any]] = []
    planned = PlannedRun(Graph(*flows), None)
    return LiveFlows(Session(), planned, 1.0, "/project", told.append, SystemClock()), told


def test_streaming_flows_run_and_materialized_views_do_not() -> None:
    flows, told = live(
        Flow("StreamingFlow", "views"),
        Flow("CompleteFlow", "counts"),
        Flow("AppendOnceFlow", "old"),
    )
    flows.start()
    assert flows.names == {"views"}
    assert flows.computed == ["spark_catalog.default.counts"]
    assert told == [{"event": "flow", "flow": "views", "status": "RUNNING"}]
    flows.check()


def division(*flows: Flow, views: tuple[Flow, ...] = ()) -> tuple[list[str], list[str]]:
    live, computed = divided(Graph(*flows, views=views))
    return [short_name(flow.identifier().unquotedString()) for flow in live], [
        short_name(name) for name in computed
    ]


def test_a_stream_that_also_reads_a_table_is_run_in_rounds() -> None:
    """Otherwise it would see the table as it was when its query started."""
    plain = Flow("StreamingFlow", "plain")
    assert division(plain, Flow("StreamingFlow", "joined", leaves=(STREAM, FILES))) == (
        ["plain"],
        ["joined"],
    )
    assert division(plain, Flow("StreamingFlow", "joined", tables=("users",)))[1] == ["joined"]
    named = Flow("TemporaryView", "named", leaves=(STREAM, FILES))
    through = Flow("StreamingFlow", "through", views=("named",))
    assert division(plain, through, views=(named,)) == (["plain"], ["through"])
    constant = Flow("StreamingFlow", "constant", leaves=(STREAM, Element("Range")))
    assert division(constant) == (["constant"], [])


def test_a_pipeline_that_cannot_be_divided_is_run_in_rounds() -> None:
    """A round can compute chosen tables, but not a chosen sink or one of the flows of a table."""
    plain = Flow("StreamingFlow", "plain")
    to_sink = Flow("StreamingFlow", "joined", target="out", leaves=(STREAM, FILES))
    assert division(plain, to_sink) == ([], [])
    same = Flow("StreamingFlow", "joined", target="plain", leaves=(STREAM, FILES))
    assert division(plain, same) == ([], [])


def test_a_flow_that_fails_is_named_with_the_line_of_its_code() -> None:
    one, two = Flow("StreamingFlow", "one"), Flow("StreamingFlow", "two")
    flows, told = live(one, two)
    flows.start()
    traceback = '  File "/project/flows.py", line 7, in parse\nValueError: not a number\n'
    two.query.fail(Failure("the query failed", Failure(traceback)))
    with pytest.raises(PipelineError, match=r"flows\.py, line 7: .*not a number"):
        flows.wait(60)
    assert told[-1]["flow"] == "two" and told[-1]["status"] == "FAILED"


def test_a_flow_that_ends_without_an_error_is_a_failure_too() -> None:
    one = Flow("StreamingFlow", "one")
    flows, _ = live(one)
    flows.start()
    one.query.fail(None)
    with pytest.raises(PipelineError, match="one ended although"):
        flows.check()


def test_a_stop_waits_for_the_end_of_a_batch_and_is_no_failure() -> None:
    one = Flow("StreamingFlow", "one", Query(batches=3))
    flows, _ = live(one)
    flows.start()
    flows.stop()
    assert not one.query.isActive() and not one.query.stopped_in_a_batch
    flows.wait(60)
    flows.stop()


def test_if_a_flow_cannot_be_started_the_others_are_stopped() -> None:
    one = Flow("StreamingFlow", "one")
    flows, _ = live(one, Flow("StreamingFlow", "two", Query(refuses=True)))
    with pytest.raises(RuntimeError, match="cannot start"):
        flows.start()
    assert not one.query.isActive()


class Report:
    def __init__(self, batch: int, rows: int) -> None:
        self._text = json.dumps({"batchId": batch, "numInputRows": rows, "timestamp": f"{batch}"})
        self.asked = 0

    def json(self) -> str:
        self.asked += 1
        return self._text

    def hashCode(self) -> int:  # noqa: N802 (Java's name)
        return id(self)


class WatchedQuery(Query):
    def __init__(self) -> None:
        super().__init__()
        self.begin()
        self.reports: list[Report] = []

    def runId(self) -> WatchedQuery:  # noqa: N802 (Spark's name)
        return self

    def toString(self) -> str:  # noqa: N802 (Java's name)
        return "run"

    def name(self) -> str:
        return "views"

    def lastProgress(self) -> Report | None:  # noqa: N802 (Spark's name)
        return self.reports[-1] if self.reports else None

    def recentProgress(self) -> list[Report]:  # noqa: N802 (Spark's name)
        return self.reports


class Recorder:
    def __init__(self) -> None:
        self.batches: list[int] = []

    def tell(self, kind: str, **fields: object) -> None:
        raise AssertionError(f"{kind} {fields}")

    def write(self, event: Mapping[str, Any]) -> None:
        self.batches.append(event["batch"])


def test_each_batch_of_a_query_that_outlives_a_round_is_reported_once() -> None:
    """Also, an old report is read once: Spark keeps a hundred of them."""
    query, recorder = WatchedQuery(), Recorder()

    class Queries:
        def streaming_queries(self) -> list[Any]:
            return [query] if query.isActive() else []

    watch = Watch(Queries(), recorder, lambda: False, "")
    try:
        for batch in range(3):
            query.reports.append(Report(batch, 10))
        watch.end_round()
        query.reports.append(Report(2, 0))
        query.reports.append(Report(3, 10))
        watch.end_round()
        watch.end_round()
        query.fail(None)
        query.reports.append(Report(4, 10))
        watch.end_round()
        watch.end_round()
    finally:
        watch.close()
    assert recorder.batches == [0, 1, 2, 3, 4]
    assert query.reports[0].asked == 1
