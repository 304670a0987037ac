"""Which topics and tables the flows of a pipeline read and write, from its graph. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_OPEN: Final = "<("
_CLOSE: Final = ">)"


@dataclass(frozen=True, slots=True)
class Data:
    """A topic, a table, or something else outside of the pipeline."""

    kind: str
    name: str
    schema: str = ""
    """Its columns as Spark writes them: `user STRING,page STRING`."""


@dataclass(slots=True)
class FlowData:
    name: str
    inputs: list[Data] = field(default_factory=list)
    outputs: list[Data] = field(default_factory=list)


def flows_of(graph: Mapping[str, Any]) -> list[FlowData]:
    """Returns the flows of a graph (see `penstock.spark.pipelines.graph`). A view is no flow: what
    it reads is read by its readers."""
    nodes = {str(each["id"]): each for each in graph.get("nodes") or ()}
    edges = [
        each
        for each in graph.get("edges") or ()
        if each.get("from") in nodes and each.get("to") in nodes
    ]
    walk = _Walk(nodes, edges)
    found = []
    for key, node in nodes.items():
        if node.get("flow") and node["kind"] != "view":
            outputs = [walk.data(key)] if node["kind"] == "table" else [*walk.after(key, set())]
            found.append(FlowData(str(node["flow"]), [*walk.before(key, set())], outputs))
    return found


class _Walk:
    def __init__(
        self, nodes: Mapping[str, Mapping[str, Any]], edges: list[Mapping[str, Any]]
    ) -> None:
        self._nodes = nodes
        self._edges = edges

    def data(self, key: str, schema: str = "") -> Data:
        node = self._nodes[key]
        known = [str(each.get("schema") or "") for each in self._edges if each["from"] == key]
        return Data(str(node["kind"]), str(node["name"]), schema or next(filter(None, known), ""))

    def before(self, key: str, seen: set[str]) -> Iterator[Data]:
        for edge in self._edges:
            source = str(edge["from"])
            if edge["to"] != key or source in seen:
                continue
            seen.add(source)
            if self._nodes[source]["kind"] == "view":
                yield from self.before(source, seen)
            else:
                yield self.data(source, str(edge.get("schema") or ""))

    def after(self, key: str, seen: set[str]) -> Iterator[Data]:
        for edge in self._edges:
            target = str(edge["to"])
            if edge["from"] != key or target in seen:
                continue
            seen.add(target)
            topics = [each for each in self._edges if each["from"] == target]
            if self._nodes[target]["kind"] == "sink" and topics:
                yield from self.after(target, seen)
            else:
                yield self.data(target, str(edge.get("schema") or ""))


def columns_of(schema: str) -> list[tuple[str, str]]:
    """Returns the names and types of columns: `a INT,b MAP<STRING, INT>` has two."""
    found: list[tuple[str, str]] = []
    depth, begin, in_name = 0, 0, False
    for at, sign in enumerate(schema + ","):
        if sign == "`":
            in_name = not in_name
        elif in_name:
            continue
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif sign == "," and depth == 0:
            if column := _column(schema[begin:at].strip()):
                found.append(column)
            begin = at + 1
    return found


def _column(text: str) -> tuple[str, str] | None:
    if text.startswith("`"):
        end = text.find("`", 1)
        while end >= 0 and text[end + 1 : end + 2] == "`":
            end = text.find("`", end + 2)
        if end < 0:
            return None
        return text[1:end].replace("``", "`"), text[end + 1 :].strip()
    name, _, kind = text.partition(" ")
    return (name, kind.strip()) if name else None
