"""What CONTRIBUTING.md and docs/ARCHITECTURE.md name exists: paths, calls and make targets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "penstock"
STARTS = ("broker/main", "cli/app", "spark/source", "spark/watching", "console/main", "__init__")
"""The modules that a user's command or import loads first."""
NOT_PRODUCTION = ("sim/", "testing/")
_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w/]*\w/\w+(?:\.py)?|\w+\.py")
_CALL = re.compile(r"((?:\w+/)*\w+)\.(\w+)(?:\.(\w+))?(?:\(\))?")
_PACKAGES = frozenset(path.name for path in SOURCE.iterdir() if path.is_dir())


@cache
def trees() -> Mapping[str, ast.Module]:
    """Every module of the package, parsed, by its path without `.py`."""
    return {
        path.relative_to(SOURCE).as_posix().removesuffix(".py"): ast.parse(path.read_text("utf-8"))
        for path in SOURCE.rglob("*.py")
    }


def modules_named(path: str) -> list[str]:
    """Modules whose path ends with this one: `fetch_reads`, `handlers/fetch_reads`, a package."""
    path = path.removesuffix(".py")
    return [
        name
        for name in trees()
        for known in (name, name.removesuffix("/__init__"))
        if f"/{known}".endswith(f"/{path}")
    ]


def names_in(tree: ast.Module) -> set[str]:
    """The functions, methods, classes and attributes that a module defines."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def modules_with_class(name: str) -> list[str]:
    return [
        module
        for module, tree in trees().items()
        if any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)
    ]


def complaint(quoted: str) -> str:
    """What is wrong with a reference to the source; empty for a good one, and for other text."""
    if _PATH.fullmatch(quoted):
        first = quoted.partition("/")[0]
        exists = (ROOT / quoted).exists() or (SOURCE / quoted).exists() or modules_named(quoted)
        refers = quoted.endswith(".py") or first in _PACKAGES
        return f"there is no module {quoted}" if refers and not exists else ""
    call = _CALL.fullmatch(quoted)
    if call is None:
        return ""
    owner, *names = (part for part in call.groups() if part)
    while names and modules_named(f"{owner}/{names[0]}"):
        owner = f"{owner}/{names.pop(0)}"
    modules = modules_named(owner) or modules_with_class(owner)
    if not modules:
        refers = "/" in owner and owner.partition("/")[0] in _PACKAGES
        return f"there is no module {owner}" if refers else ""
    for name in names:
        if not any(name in names_in(trees()[module]) for module in modules):
            return f"{owner} has no {name}"
    return ""


def complaints(text: str) -> list[str]:
    return [found for quoted in _QUOTED.findall(text) if (found := complaint(quoted))]


@cache
def production_modules() -> frozenset[str]:
    """The modules that users' commands and imports reach, by imports and by names in strings."""
    found: set[str] = set()
    waiting = [*STARTS]
    while waiting:
        name = waiting.pop()
        if name in found or name not in trees():
            continue
        found.add(name)
        waiting += _reached(trees()[name])
    return frozenset(found)


def _reached(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = [node.value]  # handlers are imported by name, when they are first needed
        for each in named:
            path = each.removeprefix("penstock.").replace(".", "/")
            yield from (path, f"{path}/__init__")


ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.mark.parametrize("text", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_the_modules_and_calls_that_a_guide_names_exist(text: str) -> None:
    assert complaints(text) == []
    assert len(_QUOTED.findall(text)) > 30


def test_the_walks_lead_through_modules_that_a_running_broker_or_client_uses() -> None:
    walks = ARCHITECTURE.partition("\n## Walks\n")[2].partition("\n## ")[0]
    named = [
        modules
        for quoted in _QUOTED.findall(walks)
        if (modules := modules_named((_CALL.fullmatch(quoted) or [quoted, quoted])[1]))
    ]
    assert len(named) > 50
    unused = [
        modules
        for modules in named
        if not any(
            module in production_modules() and not module.startswith(NOT_PRODUCTION)
            for module in modules
        )
    ]
    assert unused == []


def test_the_make_targets_that_a_guide_names_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([\w-]+)", CONTRIBUTING + ARCHITECTURE))
    named |= set(re.findall(r"^    make ([\w-]+)", CONTRIBUTING, re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`broker/dispatch` and `partitions/partition.append`, `partition/producers.check`", []),
        ("`broker/no_such_room`", ["there is no module broker/no_such_room"]),
        ("`shard_shell.no_such_call`", ["shard_shell has no no_such_call"]),
        ("`src/penstock/wire/nothing.py`", ["there is no module src/penstock/wire/nothing.py"]),
        ("`kill -9`, `min.insync.replicas`, `acks=all`", []),
    ],
)
def test_a_reference_to_nothing_is_found(text: str, found: list[str]) -> None:
    assert complaints(text) == found
