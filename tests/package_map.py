"""Writes docs/PACKAGES.md from the imports: `python -m package_map`, in this folder.

An arrow leads from a package to one that it imports. An arrow that follows from two others is left
out: `a -> c` when there are `a -> b` and `b -> c`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "penstock"
PAGE = ROOT / "docs" / "PACKAGES.md"
LAYERS: Mapping[str, tuple[str, ...]] = {
    "applications": ("celery", "cli", "console", "spark", "testing"),
    "shells": ("broker", "client", "net", "storage", "stores", "tier", "runtime"),
    "pure": (
        *(
            "partition",
            "groups",
            "shares",
            "delays",
            "txns",
            "schedule",
            "coordination",
            "metadata",
        ),
        *("security", "records", "wire", "ports"),
    ),
}
LEFT_OUT = ("sim",)
"""It imports everything, so that its arrows would hide the others."""

Graph = Mapping[str, frozenset[str]]


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(tree: ast.Module) -> Iterable[str]:
    """The packages that a module imports, those for type checkers included."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "penstock" and rest:
                yield rest.partition(".")[0]


def graph() -> Graph:
    """Which package imports which others."""
    drawn = [name for names in LAYERS.values() for name in names]
    found: dict[str, set[str]] = {name: set() for name in drawn}
    for path in SOURCE.rglob("*.py"):
        package = package_of(path)
        if package in found:
            imported = imports_of(ast.parse(path.read_text("utf-8")))
            found[package] |= {name for name in imported if name in found and name != package}
    return {name: frozenset(imported) for name, imported in found.items()}


def reduced(edges: Graph) -> Graph:
    """The graph without arrows that follow from others. The graph must have no cycles."""

    def reach(name: str) -> set[str]:
        return {name}.union(*(reach(other) for other in edges[name]))

    return {
        name: frozenset(
            other
            for other in others
            if not any(other in reach(between) for between in others - {other})
        )
        for name, others in edges.items()
    }


def page(edges: Graph) -> str:
    lines = [
        "# Packages",
        "",
        "An arrow leads from a package to one that it imports. Imports point down only. An arrow",
        "that follows from others is left out. `sim`, the simulator, imports everything and is not",
        "drawn. The command `python -m package_map` in `tests/` writes this page.",
        "",
        "```mermaid",
        "graph TD",
    ]
    for layer, names in LAYERS.items():
        lines += [f"  subgraph {layer}", *(f"    {name}" for name in names), "  end"]
    for name, others in edges.items():
        lines += [f"  {name} --> {other}" for other in sorted(others)]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(page(reduced(graph())), "utf-8")
