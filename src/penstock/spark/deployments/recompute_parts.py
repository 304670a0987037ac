"""Finds out without Spark what a recompute has to know of a pipeline. Pure.

The driver asks Spark for the same before it computes anything. This is for an early answer: None
means that only the driver can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from penstock.spark.deployments.flow_fingerprints import parse_fingerprint
from penstock.spark.deployments.flow_sources import ProjectCode
from penstock.spark.pipelines.recompute_scope import PipelineParts


def project_parts(files: Mapping[str, str], definitions: Collection[str]) -> PipelineParts | None:
    """Returns the parts of a project by its code. See `flow_fingerprints.project_flows`."""
    code = ProjectCode(files)
    flows = code.flows(definitions)
    if code.unnamed:
        return None
    tables = [flow for flow in flows if flow.target not in code.sinks]
    return PipelineParts(
        streaming_tables=sorted({flow.target for flow in tables if flow.kind == "streaming"}),
        views=sorted({flow.target for flow in tables if flow.kind == "batch"}),
        sink_flows=sorted(flow.name for flow in flows if flow.target in code.sinks),
    )


def running_parts(graph: Mapping[str, Any], flows: Mapping[str, str]) -> PipelineParts | None:
    """Returns the parts of a pipeline that has run, by the graph in its status and the fingerprints
    of its version."""
    try:
        nodes = {str(node["id"]): node for node in graph.get("nodes") or ()}
        edges = [(str(edge["from"]), str(edge["to"])) for edge in graph.get("edges") or ()]
    except (KeyError, TypeError, AttributeError):
        return None
    writers: dict[str, list[str]] = {}
    for key, node in nodes.items():
        if node.get("kind") in ("table", "sink") and node.get("flow"):
            writers.setdefault(key, []).append(str(node["flow"]))
    for source, target in edges:
        if nodes.get(source, {}).get("kind") == "flow":
            writers.setdefault(target, []).append(str(nodes[source].get("flow")))
    streaming: set[str] = set()
    views: set[str] = set()
    sinks: set[str] = set()
    for key, names in writers.items():
        kind, name = nodes.get(key, {}).get("kind"), str(nodes.get(key, {}).get("name"))
        if kind == "sink":
            sinks.update(names)
        elif kind == "table":
            (views if all(_is_batch(flows.get(each, "")) for each in names) else streaming).add(
                name
            )
    return PipelineParts(sorted(streaming), sorted(views), sorted(sinks)) if writers else None


def running_flows(flows: Collection[str], *graphs: Mapping[str, Any] | None) -> list[str]:
    """Returns the flows of the version that runs: those that its code shows, and those that write
    to topics in the graphs which Spark has planned. Not every quarantine can be seen in code."""
    planned = [running_parts(graph, {}) for graph in graphs if graph]
    sinks = [flow for parts in planned if parts is not None for flow in parts.sink_flows]
    return sorted({*flows, *sinks})


def topics_read(graph: Mapping[str, Any]) -> list[str]:
    """Returns the topics that a pipeline reads, by the graph in its status."""
    try:
        topics = {node["id"]: node["name"] for node in graph["nodes"] if node["kind"] == "topic"}
        read = {edge["from"] for edge in graph["edges"]}
    except (KeyError, TypeError):
        return []
    return sorted(str(name) for key, name in topics.items() if key in read)


def _is_batch(text: str) -> bool:
    fingerprint = parse_fingerprint(text)
    return fingerprint is not None and fingerprint.kind == "batch"
