"""The graph of a pipeline: which flows read which topics and tables, and where they write.

Spark resolves the flows of a declarative pipeline before it starts them. This module reads the
resolved graph from the JVM, so it shows what Spark planned, with schemas, for Python and SQL alike.
The graph of a script's streaming queries is made from their progress reports, which name sources
and sinks.

    {"nodes": [{"id": "topic:views", "kind": "topic", "name": "views", ...}],
     "edges": [{"from": "topic:views", "to": "table:page_views", "schema": "user STRING, ..."}]}

Kinds of nodes: topic, pattern (all topics that match it), source (anything else that is read),
flow, table, view, sink. The flow that has the name of its table is not a node of its own: the table
has it as `flow`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.ports import Clock
from penstock.spark.pipelines.events import topic_offsets
from penstock.spark.pipelines.explain import short_name
from penstock.spark.pipelines.jvm import items, planned_run

TOPIC_FORMATS: Final = frozenset({"penstock", "kafka"})
UNKNOWN_TOPICS: Final = "other topics"
"""The name of a source whose topics are not known begins with this."""
_WITHOUT_TOPICS: Final = frozenset({"HadoopFsRelation", "JDBCRelation"})
"""Relations of batch reads that are no topics. Any other, such as that of Kafka, may read some."""
_STAND_IN: Final = "memory"
"""While Spark resolves a flow, this source stands in for a table of the pipeline."""
_EVERY_S: Final = 300.0
"""Sources may change their schemas while the definitions stay as they are."""
_SCHEMA_MAX: Final = 2_000
_LEAVES_MAX: Final = 200
Node = dict[str, Any]
Edge = dict[str, Any]


class Graph:
    """Collects nodes and edges. A node or edge that is added again is not repeated."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._edges: dict[tuple[str, str], Edge] = {}

    def node(self, kind: str, name: str, of: str = "", **more: Any) -> str:
        """Returns the id of the node. `of` tells nodes with the same name apart."""
        key = f"{kind}:{of}{name}"
        found = self._nodes.setdefault(key, {"id": key, "kind": kind, "name": name})
        found |= {field: value for field, value in more.items() if value}
        return key

    def edge(self, source: str, target: str, schema: str = "") -> None:
        found = self._edges.setdefault((source, target), {"from": source, "to": target})
        if schema:
            found["schema"] = shortened(schema)

    def as_dict(self) -> dict[str, Any]:
        return {"nodes": [*self._nodes.values()], "edges": [*self._edges.values()]}


def shortened(schema: str) -> str:
    return schema if len(schema) <= _SCHEMA_MAX else schema[: _SCHEMA_MAX - 1] + "…"


def topics_of(options: Mapping[str, str]) -> list[str]:
    """Returns the topics that the options of a source or sink name. For a pattern see
    `pattern_of`."""
    given = {name.lower(): value for name, value in options.items()}
    if given.get("subscribepattern"):
        return []
    if given.get("assign"):
        try:
            return sorted({str(topic) for topic in json.loads(given["assign"])})
        except (ValueError, TypeError):
            return []
    names = given.get("subscribe") or given.get("topic") or ""
    return [name for name in (part.strip() for part in names.split(",")) if name]


def pattern_of(options: Mapping[str, str]) -> str:
    """Returns the pattern of topics in the options of a source; empty if it has none."""
    return next((text for name, text in options.items() if name.lower() == "subscribepattern"), "")


def query_graph(queries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the graph of streaming queries, from the last progress report of each."""
    graph = Graph()
    for name, progress in queries.items():
        flow = graph.node("flow", name, flow=name)
        for source in progress.get("sources") or ():
            topics = topic_offsets(source.get("endOffset"))
            for topic in topics:
                graph.edge(graph.node("topic", topic), flow)
            if not topics:
                described = short_text(str(source.get("description") or "?"))
                graph.edge(graph.node("source", described), flow)
        sink = short_text(str((progress.get("sink") or {}).get("description") or ""))
        if sink:
            graph.edge(flow, graph.node("sink", sink, of=f"{name}/"))
    return graph.as_dict()


def short_text(description: str) -> str:
    """Returns the name in the description of a source or sink, without its object identity."""
    return description.partition("@")[0].rpartition(".")[2][:100]


class QueryGraphReport:
    """Reports the graph of a script's streaming queries, when it changes."""

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        self._write = write
        self._queries: dict[str, Mapping[str, Any]] = {}
        self._told: dict[str, Any] = {}

    def note(self, name: str, progress: Mapping[str, Any]) -> None:
        """Takes the last progress report of a query."""
        self._queries[short_name(name)] = {
            "sources": progress.get("sources"),
            "sink": progress.get("sink"),
        }
        found = query_graph(self._queries)
        if found != self._told:
            self._told = found
            self._write({"event": "graph", **found})


class GraphReport:
    """Reports the graph of a round, once Spark has planned it, if it differs from the last one.

    To read it takes some hundred calls to the JVM, in competition with the round. So it is read
    when the definitions have changed, and seldom otherwise.
    """

    def __init__(
        self, spark: Any, project: Path, write: Callable[[Mapping[str, Any]], None], clock: Clock
    ) -> None:
        self._spark = spark
        self._project = project
        self._write = write
        self._clock = clock
        self._next_at = 0.0
        self._told: dict[str, Any] = {}
        self._found_in = ""
        self._definitions: Sequence[object] = ()

    def expect(self, definitions: Sequence[object]) -> None:
        """The next round has these definitions."""
        if definitions != self._definitions:
            self._definitions = definitions
            self._next_at = 0.0

    def look(self, graph_id: str) -> None:
        """Call it with every event of a round. It does nothing after it has found the graph."""
        if self._spark.classic is None or self._found_in == graph_id:
            return
        if self._clock.monotonic() < self._next_at:
            return
        try:
            planned = planned_run(self._spark.classic, self._spark.session, graph_id)
            found = None if planned is None else _ReadGraph(planned.graph, self._project).read()
        except Exception as error:  # noqa: BLE001 (the run is more important than its picture)
            sys.stderr.write(f"cannot read the graph of the pipeline: {error}\n")
            self._done(graph_id)
            return
        if found is None:
            return
        self._done(graph_id)
        if found != self._told:
            self._told = found
            self._write({"event": "graph", **found})

    def _done(self, graph_id: str) -> None:
        self._found_in = graph_id
        self._next_at = self._clock.monotonic() + _EVERY_S


class _ReadGraph:
    """Reads Spark's graph through py4j."""

    def __init__(self, planned: Any, project: Path) -> None:
        self._planned = planned
        self._project = project
        self._graph = Graph()
        self._ids: dict[str, str] = {}
        """Spark's identifier of a table, view or sink -> the id of its node."""
        self._schemas: dict[str, str] = {}
        self._through_views: dict[str, set[str]] = {}
        """The id of a view -> the sources in its plan, which are also in the plans of its
        readers."""

    def read(self) -> dict[str, Any]:
        planned = self._planned
        views = {_identity(each) for each in items(planned.views())}
        for table in items(planned.tables()):
            self._add("table", table)
        for view in items(planned.views()):
            self._add("view", view)
        for sink in items(planned.sinks()):
            key = self._add("sink", sink, format=sink.format())
            options = _mapping(sink.options())
            if sink.format() in TOPIC_FORMATS:
                for topic in topics_of(options):
                    self._graph.edge(key, self._graph.node("topic", topic))
        flows = [*items(planned.resolvedFlows())]
        for flow in flows:
            target = flow.destinationIdentifier().unquotedString()
            if self._ids.get(target):
                self._schemas[self._ids[target]] = str(flow.schema().toDDL())
        # Views first, so that it is known which sources their readers have from them.
        flows.sort(key=lambda flow: flow.destinationIdentifier().unquotedString() not in views)
        for flow in flows:
            self._on_flow(flow)
        return self._graph.as_dict()

    def _add(self, kind: str, element: Any, **more: Any) -> str:
        identity = _identity(element)
        key = self._graph.node(kind, short_name(identity), **self._place(element), **more)
        self._ids[identity] = key
        return key

    def _place(self, element: Any) -> dict[str, Any]:
        """Returns the file, relative to the project, and the line of a definition."""
        origin = element.origin()
        if origin.filePath().isEmpty():
            return {}
        path = Path(str(origin.filePath().get()))
        if path.is_absolute():  # that of a SQL file is relative
            path = path.resolve()
            inside = path.is_relative_to(self._project)
            path = path.relative_to(self._project) if inside else Path(path.name)
        place: dict[str, Any] = {"file": str(path)}
        if not origin.line().isEmpty():
            place["line"] = int(origin.line().get())
        return place

    def _on_flow(self, flow: Any) -> None:
        name = flow.identifier().unquotedString()
        target = self._ids.get(flow.destinationIdentifier().unquotedString())
        if target is None:
            return
        schema = str(flow.schema().toDDL())
        if name == flow.destinationIdentifier().unquotedString():
            place = self._place(flow)
            key = self._graph.node(*target.split(":", 1), flow=short_name(name), **place)
        else:
            short = short_name(name)
            key = self._graph.node("flow", short, flow=short, **self._place(flow))
            self._graph.edge(key, target, schema)
        known: set[str] = set()
        for identity in (each.unquotedString() for each in items(flow.inputs())):
            read = self._ids.get(identity) or self._graph.node("table", short_name(identity))
            self._graph.edge(read, key, self._schemas.get(read, ""))
            known |= self._through_views.get(read, set())
        for identity in (
            each.unquotedString() for each in items(flow.funcResult().usedExternalInputs())
        ):
            self._graph.edge(self._graph.node("table", short_name(identity)), key)
        sources = dict(_sources(flow))
        for (kind, source), columns in sources.items():
            if f"{kind}:{source}" not in known:
                self._graph.edge(self._graph.node(kind, source), key, columns)
        if key.startswith("view:"):
            mine = {f"{kind}:{source}" for kind, source in sources}
            self._through_views[key] = known | mine


def _sources(flow: Any) -> Iterator[tuple[tuple[str, str], str]]:
    """Yields topics and other sources that a flow reads outside the pipeline, with schemas."""
    leaves = flow.df().queryExecution().analyzed().collectLeaves()
    if int(leaves.size()) > _LEAVES_MAX:
        yield ("source", UNKNOWN_TOPICS), ""
    for leaf in items(leaves, _LEAVES_MAX):
        match leaf.getClass().getSimpleName():
            case "StreamingRelationV2":
                form, options = leaf.sourceName(), _strings(leaf.extraOptions())
            case "DataSourceV2Relation":
                options = _strings(leaf.options())
                form = "penstock" if topics_of(options) or pattern_of(options) else ""
            case "StreamingRelation":
                form, options = leaf.sourceName(), {}
            case "LogicalRelation":
                relation = str(leaf.relation().getClass().getSimpleName())
                if relation not in _WITHOUT_TOPICS:
                    yield ("source", f"{UNKNOWN_TOPICS} ({relation})"), str(leaf.schema().toDDL())
                continue
            case _:
                continue
        if form in TOPIC_FORMATS:
            for kind_and_name in _topic_nodes(form, options):
                yield kind_and_name, str(leaf.schema().toDDL())
        elif form and form != _STAND_IN:
            path = options.get("path", "")
            yield ("source", f"{form} {path}".strip()), str(leaf.schema().toDDL())


def _topic_nodes(form: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the kinds and names of the nodes for a source that reads topics: at least one."""
    if pattern := pattern_of(options):
        return [("pattern", pattern)]
    named = [("topic", topic) for topic in topics_of(options)]
    return named or [("source", f"{UNKNOWN_TOPICS} ({form})")]


def _identity(element: Any) -> str:
    return str(element.identifier().unquotedString())


def _mapping(found: Any) -> dict[str, str]:
    return {str(pair._1()): str(pair._2()) for pair in items(found)}


def _strings(options: Any) -> dict[str, str]:
    """Returns the options of a source. CaseInsensitiveStringMap is a Java map."""
    return {str(name): str(options.get(name)) for name in options.keySet()}
