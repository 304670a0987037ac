"""docs/PACKAGES.md shows the imports as they are."""

from __future__ import annotations

from package_map import LAYERS, LEFT_OUT, PAGE, SOURCE, graph, page, reduced


def test_the_page_is_up_to_date() -> None:
    """If this fails, run `python -m package_map` in tests/."""
    assert PAGE.read_text("utf-8") == page(reduced(graph()))


def test_every_package_is_drawn() -> None:
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    drawn = {name for names in LAYERS.values() for name in names}
    assert packages - drawn == set(LEFT_OUT)


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    edges = {
        "a": frozenset({"b", "c"}),
        "b": frozenset({"c"}),
        "c": frozenset[str](),
    }
    assert reduced(edges) == {"a": {"b"}, "b": {"c"}, "c": set()}
