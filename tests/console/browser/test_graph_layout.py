"""Tests the layout of graphs, in a browser: `layout.js` is a pure module of the page."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

LAYOUT = """async ([ids, edges]) => {
  const { layout } = await import("/static/layout.js");
  const found = layout(ids.map((id) => ({ id })), edges.map(([from, to]) => ({ from, to })));
  return { ...found, boxes: Object.fromEntries(found.boxes) };
}"""


def layout(page: Any, ids: list[str], edges: list[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(LAYOUT, [ids, edges])
    for one, other in combinations(found["boxes"].values(), 2):
        apart = (
            abs(one["x"] - other["x"]) >= one["width"]
            or abs(one["y"] - other["y"]) >= one["height"]
        )
        assert apart, (one, other)
    for box in found["boxes"].values():
        assert 0 <= box["x"] <= found["width"] - box["width"]
        assert 0 <= box["y"] <= found["height"] - box["height"]
    return found


def test_data_flows_from_left_to_right(page: Any) -> None:
    """A node that nothing writes to stands directly before its reader, not at the left side."""
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("late", "d"), ("a", "d")]
    boxes = layout(page, ["a", "b", "c", "d", "late"], edges)["boxes"]
    for source, target in edges:
        assert boxes[source]["x"] < boxes[target]["x"]
    assert boxes["late"]["x"] == boxes["c"]["x"]


def test_an_edge_over_several_layers_goes_around_the_boxes(page: Any) -> None:
    """It has a place of its own in every layer between."""
    found = layout(page, ["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c")])
    box = found["boxes"]["b"]
    long = next(path["d"] for path in found["paths"] if path["edge"] == {"from": "a", "to": "c"})
    crossing = page.evaluate(
        """([d, box]) => {
          const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
          path.setAttribute("d", d);
          const length = path.getTotalLength();
          return Array.from({ length: 200 }, (_, at) => path.getPointAtLength(length * at / 199))
            .some(({ x, y }) => x > box.x && x < box.x + box.width
              && y > box.y && y < box.y + box.height);
        }""",
        [long, box],
    )
    assert crossing is False


def test_circles_and_lonely_nodes_are_drawn(page: Any) -> None:
    """A pipeline may write to a topic that it reads."""
    edges = [("topic", "flow"), ("flow", "topic"), ("flow", "flow")]
    found = layout(page, ["topic", "flow", "alone"], edges)
    assert len(found["paths"]) == 2  # an edge from a node to itself is left out
    assert layout(page, [], []) == {"boxes": {}, "paths": [], "width": 0, "height": 0}


def test_boxes_never_overlap(page: Any) -> None:
    """In random graphs, with circles."""
    chosen = random.Random(7)
    for _ in range(40):
        ids = [f"n{number}" for number in range(chosen.randrange(2, 30))]
        count = chosen.randrange(1, 60)
        edges = [(chosen.choice(ids), chosen.choice(ids)) for _ in range(count)]
        layout(page, ids, edges)
