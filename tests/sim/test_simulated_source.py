"""The hash of the simulated source code: what it covers and what it ignores."""

from __future__ import annotations

from pathlib import Path

from penstock.broker import handled_apis
from penstock.sim.simulated_source import simulated_modules, source_hash
from penstock.wire import schema


def write(directory: Path, **sources: str) -> Path:
    """Writes a package `little` with these modules."""
    package = directory / "little"
    package.mkdir(exist_ok=True)
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    return package


def hash_of(directory: Path, **sources: str) -> str:
    return source_hash(["little.root"], write(directory, **sources))


ROOT = "def run():\n    from little.deep import depth\n    return depth\n"


def test_modules_imported_inside_functions_count(tmp_path: Path) -> None:
    """The packages that contain them count too."""
    package = write(tmp_path, __init__="", root=ROOT, deep="depth = 1\n", other="")
    assert sorted(simulated_modules(["little.root"], package)) == [
        "little",
        "little.deep",
        "little.root",
    ]


def test_code_changes_the_hash(tmp_path: Path) -> None:
    """A change in any imported module does; a module that is not imported does not."""
    before = hash_of(tmp_path, __init__="", root=ROOT, deep="depth = 1\n")
    assert hash_of(tmp_path, other="anything = 1\n") == before
    assert hash_of(tmp_path, deep="depth = 2\n") != before
    assert hash_of(tmp_path, deep="depth = 1\n") == before
    assert hash_of(tmp_path, __init__="import sys\n") != before


def test_prose_and_layout_do_not_change_the_hash(tmp_path: Path) -> None:
    """Results stay valid when only comments, docstrings or line breaks change."""
    before = hash_of(tmp_path, __init__="", root=ROOT, deep="depth = [1, 2]\n")
    prose = '"""Of depth."""\n\n# How deep it is.\ndepth = [\n    1,\n    2,\n]\n"""So deep."""\n'
    assert hash_of(tmp_path, deep=prose) == before


def test_a_simulation_runs_brokers_and_clients_but_no_command_line() -> None:
    """The driver of seeds and the planted bugs are not part of the simulated code either."""
    found = simulated_modules()
    for name in ("broker.broker", "client.cluster", "sim.loop", "storage.log", "records.reading"):
        assert f"penstock.{name}" in found
    by_name = {
        *handled_apis.HANDLED.values(),
        *handled_apis.CONSUMER_GROUP_APIS.values(),
        *handled_apis.SHARE_GROUP_APIS.values(),
        *schema._TABLES,
    }
    assert len(by_name) > 60
    assert by_name <= set(found)
    assert "penstock.spark.deployments.ownership" in found
    for name in ("cli.main", "sim.seeds", "sim.bugs.replication", "spark.watching", "spark.java"):
        assert f"penstock.{name}" not in found


def test_imports_for_type_checkers_do_not_count(tmp_path: Path) -> None:
    root = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import little.deep\n"
    before = hash_of(tmp_path, __init__="", root=root, deep="depth = 1\n")
    assert hash_of(tmp_path, deep="depth = 2\n") == before
