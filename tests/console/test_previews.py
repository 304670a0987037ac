"""Tests from which topics the rows of a table are made."""

from __future__ import annotations

from typing import Any

from console.fake_worker import EDGES, NODES
from penstock.console.deployment_records import EDGES_MAX, graph_of
from penstock.spark.deployments.model import Status
from penstock.spark.deployments.previews import sources, unknown_sources


def test_all_topics_before_a_node_count() -> None:
    graph = {
        "nodes": [*NODES, {"id": "topic:users", "kind": "topic", "name": "users"}],
        "edges": [*EDGES, {"from": "topic:users", "to": "table:page_counts"}],
    }
    assert sources(graph, "table:page_views") == {"page-views"}
    assert sources(graph, "table:page_counts") == {"page-views", "users"}
    assert sources({"nodes": NODES, "edges": []}, "table:page_views") == frozenset()


def test_a_circle_ends() -> None:
    """Anyone with the right to write a status can write such a graph."""
    circle = [{"from": "table:page_views", "to": "topic:page-views"}]
    graph = {"nodes": NODES, "edges": [*EDGES, *circle]}
    assert sources(graph, "table:page_views") == {"page-views"}


def shown(nodes: list[Any], edges: list[Any]) -> dict[str, Any]:
    """The graph that the console makes of a status."""
    graph = {"nodes": [*NODES, *nodes], "edges": [*EDGES, *edges]}
    return graph_of(Status("views", "RUNNING", 1, 1, run={"graph": graph}))


def test_a_table_is_shown_only_if_all_its_topics_are_known() -> None:
    """A source with a pattern reads topics that the user perhaps cannot see."""
    assert unknown_sources(shown([], []), "table:page_counts") == ""
    pattern = {"id": "pattern:web.*", "kind": "pattern", "name": "web.*"}
    other = {"id": "source:x", "kind": "source", "name": "other topics (kafka)"}
    file = {"id": "source:y", "kind": "source", "name": "csv /data"}
    for node, told in ((pattern, "match web.*"), (other, "not known"), (file, "")):
        graph = shown([node], [{"from": node["id"], "to": "table:page_views"}])
        found = unknown_sources(graph, "table:page_counts")
        assert (told in found) if told else not found


def test_a_table_of_a_graph_that_was_cut_is_not_shown() -> None:
    edges = [{"from": "topic:page-views", "to": "table:page_views"}] * EDGES_MAX
    assert "too large" in unknown_sources(shown([], edges), "table:page_views")
    dangling = [{"from": "topic:of-nobody", "to": "table:page_views"}]
    assert "too large" in unknown_sources(shown([], dangling), "table:page_views")
