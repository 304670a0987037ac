"""Keeps the status of a pipeline within the size that a record may have. Pure.

A status that is too large would be refused for ever, and the pipeline with it: its driver is not
told to begin a round before the status is written. A pipeline with hundreds of tables has a large
graph, and a flow of thousands of partitions has many offsets. So what matters least is left out
first, until the rest fits: schemas, then the graph, then flows as a whole. A flow is never shown in
part, because backfills are planned with its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from penstock.spark.deployments.model import Status, encode

BYTES_MAX: Final = 700_000
"""The records of these topics may have 1 MB, with their headers."""
View = dict[str, Any]


def fitting(status: Status, bytes_max: int = BYTES_MAX) -> bytes:
    """Returns the status as it is stored."""
    data = encode(status)
    for reduced in _reductions(status):
        if len(data) <= bytes_max:
            break
        data = encode(reduced)
    return data


def _reductions(status: Status) -> Iterator[Status]:
    """Yields the status with less and less of what it shows."""
    for reduce in (_without_schemas, _without_graph):
        status = _of_both(status, reduce)
        yield status
    count = max(len(_flows(status.run)), len(_flows(status.recompute)))
    while count:
        count //= 2
        status = _of_both(status, _first_flows(count))
        yield status


def _of_both(status: Status, reduce: Callable[[View], View]) -> Status:
    """Reduces the view of the run and that of a recompute."""
    return replace(status, run=reduce(status.run), recompute=reduce(status.recompute))


def _flows(view: View) -> list[View]:
    flows = view.get("flows")
    return flows if isinstance(flows, list) else []


def _without_schemas(view: View) -> View:
    graph = view.get("graph")
    if not isinstance(graph, dict):
        return view
    edges = [{**edge, "schema": ""} for edge in graph.get("edges") or ()]
    return {**view, "graph": {**graph, "edges": edges}}


def _without_graph(view: View) -> View:
    return {**view, "graph": {}} if view.get("graph") else view


def _first_flows(count: int) -> Callable[[View], View]:
    """Keeps this many flows, those with errors first."""

    def reduce(view: View) -> View:
        if len(_flows(view)) <= count:
            return view
        by_error = sorted(_flows(view), key=lambda flow: not flow.get("error"))
        return {**view, "flows": by_error[:count]}

    return reduce
