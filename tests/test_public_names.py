"""The public API: few names, all typed and documented, and each module is loaded only when used."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.testing.slowness import patient
from public_examples import MODULES, public_names

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "tests" / "sample_project"
ROOMS = (
    *("aio", "encryption", "errors", "interceptors", "routers", "serializers"),
    *("testing", "tracing"),
)


def test_the_package_exports_few_names() -> None:
    """About twenty, each with a module that defines it."""
    assert 12 <= len(penstock.__all__) <= 20
    assert list(penstock.__all__) == sorted(penstock._HOMES)
    for name in penstock.__all__:
        found = getattr(penstock, name)
        assert inspect.isclass(found) or inspect.isfunction(found), name
        assert name in dir(penstock)


@pytest.mark.parametrize("room", ROOMS)
def test_public_submodules_have_the_names_that_they_list(room: str) -> None:
    """Each public submodule is an attribute of `penstock`, and has every name in its `__all__`."""
    module = importlib.import_module(f"penstock.{room}")
    assert getattr(penstock, room) is module
    assert module.__doc__
    for name in module.__all__:
        assert hasattr(module, name), name


def test_every_public_name_is_documented() -> None:
    """Each name that a public module lists, and each method and property of a listed class."""
    assert {"penstock", *(f"penstock.{room}" for room in ROOMS)} <= set(MODULES)
    documented = {each.name: each.doc for each in public_names()}
    assert set(documented) > {f"penstock.{name}" for name in penstock.__all__}
    assert [name for name, doc in documented.items() if not doc] == []


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Prodcuer'"):
        _ = penstock.Prodcuer


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    return set(done.stdout.split())


def test_importing_penstock_loads_nothing_else() -> None:
    """A broker imports the package too, and must start in a fraction of a second."""
    loaded = loaded_by("import penstock")
    assert [name for name in loaded if name.startswith("penstock.")] == []
    assert not loaded & {"asyncio", "pyarrow", "typing", "uvloop"}


def test_a_broker_does_not_load_the_clients() -> None:
    """`penstock broker` imports no client and no Arrow."""
    loaded = loaded_by("import penstock.broker.main")
    assert [name for name in loaded if name.startswith("penstock.client")] == []
    assert "pyarrow" not in loaded


def test_clients_do_not_load_arrow_before_the_first_table() -> None:
    """pyarrow takes longer to import than the whole client."""
    loaded = loaded_by("from penstock import Admin, Consumer, Producer, aio, errors, routers")
    assert "pyarrow" not in loaded


def names_used(path: Path) -> set[str]:
    """Returns the dotted names of `penstock` that a file imports or uses through a module."""
    tree = ast.parse(path.read_text("utf-8"))
    used: set[str] = set()
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            for alias in node.names:
                used.add(f"{node.module}.{alias.name}")
                modules[alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{modules.get(node.value.id, '')}.{node.attr}")
    return used


def test_the_sample_project_uses_every_name() -> None:
    """Otherwise the type check below would miss some names."""
    used = set().union(*(names_used(path) for path in SAMPLE.rglob("*.py")))
    public = {f"penstock.{name}" for name in penstock.__all__}
    for room in ROOMS:
        module = importlib.import_module(f"penstock.{room}")
        public |= {f"penstock.{room}.{name}" for name in module.__all__}
    assert public - used == set()


def test_the_sample_project_is_typed() -> None:
    """`mypy --strict` accepts a user's project and infers exact types."""
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11"]
    done = subprocess.run(
        [
            *command,
            *("--config-file", os.devnull),
            # As for an installed package: errors inside it do not concern the user.
            *("--follow-imports", "silent"),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "sample_project")),
            "billing",
        ],
        cwd=SAMPLE,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=patient(110),
        check=False,
    )
    assert done.stdout.startswith("Success"), done.stdout + done.stderr
