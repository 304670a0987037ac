"""Tests from which topics the rows of a table are made."""

from __future__ import annotations

from console.fake_worker import EDGES, NODES
from penstock.console.previews import sources


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
