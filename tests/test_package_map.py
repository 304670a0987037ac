"""docs/PACKAGES.md shows the imports as they are."""

from __future__ import annotations

import re

from package_map import LAYERS, LEFT_OUT, PAGE, ROOT, SOURCE, graph, page, reduced


def test_the_page_is_up_to_date() -> None:
    """If this fails, run `python -m package_map` in tests/."""
    assert PAGE.read_text("utf-8") == page(reduced(graph()))


def test_every_package_is_drawn() -> None:
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    drawn = {name for names in LAYERS.values() for name in names}
    assert packages - drawn == set(LEFT_OUT)


def test_the_tree_of_packages_is_complete() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    tree = text.partition("    src/penstock/\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^      (\w+)/ ", tree, re.MULTILINE)
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert sorted(listed) == sorted(packages)


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    edges = {
        "a": frozenset({"b", "c"}),
        "b": frozenset({"c"}),
        "c": frozenset[str](),
    }
    assert reduced(edges) == {"a": {"b"}, "b": {"c"}, "c": set()}
