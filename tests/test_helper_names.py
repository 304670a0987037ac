"""Helper modules of the tests have names of their own, not those of libraries.

Otherwise a reader takes the helper for the library, and a script that is started in the folder of
the helper imports it instead of the library.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
LOADED_BY_NAME = ("late/sitecustomize.py",)
"""Python imports this module by its name when it starts."""


def library_names() -> set[str]:
    """Returns the names of all modules that can be imported without this project."""
    names = {*sys.stdlib_module_names, "sitecustomize"}
    for distribution in distributions():
        if distribution.name != "penstock":
            for file in distribution.files or []:
                first = file.parts[0]
                names.add(first.removesuffix(".py") if first.endswith(".py") else first)
    return names


def helpers() -> list[str]:
    """Returns the packages and the helper modules of the tests, as paths."""
    return [
        path.relative_to(TESTS).as_posix()
        for path in sorted(TESTS.rglob("*.py"))
        if not path.name.startswith(("test_", "conftest."))
    ]


def clashes(paths: list[str], names: set[str]) -> list[str]:
    return [
        path
        for path in paths
        if {*Path(path).with_suffix("").parts} & names and path not in LOADED_BY_NAME
    ]


def test_no_helper_module_has_the_name_of_a_library() -> None:
    assert clashes(helpers(), library_names()) == []


@pytest.mark.parametrize("path", ["broker/queue.py", "hypothesis/__init__.py", "pytest.py"])
def test_a_helper_with_the_name_of_a_library_is_found(path: str) -> None:
    assert clashes([path, "broker/harness.py"], library_names()) == [path]
