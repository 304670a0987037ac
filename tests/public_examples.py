"""Finds the examples in the docstrings of public names.

An example is the indented block below a line `Example:`. A line after `#>` shows what it prints. A
name that is neither a class nor a function has its docstring below its assignment.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

from penstock.testing.slowness import patient

MODULES = (
    "penstock",
    "penstock.aio",
    "penstock.encryption",
    "penstock.errors",
    "penstock.interceptors",
    "penstock.routers",
    "penstock.serializers",
    "penstock.testing",
    "penstock.tracing",
    "penstock.spark",
)


class PublicName(NamedTuple):
    """A name that a module lists in its `__all__`, or a method or property of a listed class."""

    name: str
    """With the module through which users get it, such as `penstock.Producer.send`."""
    doc: str
    is_member: bool

    @property
    def examples(self) -> list[str]:
        return examples_in(self.doc)


class Example(NamedTuple):
    name: str
    code: str

    @property
    def prints(self) -> list[str]:
        return re.findall(r"^ *#> (.*)$", self.code, re.MULTILINE)


def examples_in(doc: str) -> list[str]:
    """Returns the code of each example in a docstring."""
    found = []
    for part in re.split(r"^Example:\n", doc, flags=re.MULTILINE)[1:]:
        block = re.match(r"(?: {4}.*\n|\n)+", part + "\n")
        found.append(textwrap.dedent(block[0]).strip() if block else "")
    return found


def patiently(code: str) -> str:
    """Returns an example with times that a busy machine can keep. It shows those of a usual one."""
    given = 'request_timeout_ms": 100, "delivery_timeout_ms": 200'
    request_ms, delivery_ms = int(patient(2_000)), int(patient(5_000))
    for shown, used in (
        ("(timeout_ms=5_000", f"(timeout_ms={int(patient(10_000))}"),
        ("(timeout_ms=10_000", f"(timeout_ms={int(patient(10_000))}"),
        ("timeout_s=10)", f"timeout_s={patient(10)})"),
        (given, f'request_timeout_ms": {request_ms}, "delivery_timeout_ms": {delivery_ms}'),
        ("linger_ms=1_000", "linger_ms=60_000"),
        # These are waited for.
        ("idle_timeout_ms=1_000", f"idle_timeout_ms={int(min(15_000, patient(6_000)))}"),
        ("max_block_ms=200", f"max_block_ms={int(patient(3_000))}"),
    ):
        code = code.replace(shown, used)
    return code


def public_names() -> Iterator[PublicName]:
    """Returns the names that all public modules list, and the members of the classes."""
    for path in MODULES:
        module = importlib.import_module(path)
        for name in module.__all__:
            found = getattr(module, name)
            yield PublicName(f"{path}.{name}", _doc(module, name, found), False)
            if inspect.isclass(found):
                for member in sorted(_members(found)):
                    doc = inspect.getdoc(getattr(found, member)) or ""
                    yield PublicName(f"{path}.{name}.{member}", doc, True)


def all_examples() -> list[Example]:
    """Returns the examples of all names. A class that two modules list is there once."""
    found: dict[str, str] = {}
    for each in public_names():
        for code in each.examples:
            found.setdefault(code, each.name)
    return [Example(name, code) for code, name in found.items()]


def _doc(module: ModuleType, name: str, found: Any) -> str:
    if inspect.isclass(found) or inspect.isfunction(found):
        # Not `getdoc`, which would return the docstring of a base class.
        return inspect.cleandoc(found.__doc__ or "")
    return _attribute_doc(_home(module, name), name)


def _home(module: ModuleType, name: str) -> ModuleType:
    """Returns the module from which a public module imports a name."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and name in [each.name for each in node.names]:
            return importlib.import_module(str(node.module))
    raise AssertionError(f"{module.__name__} does not import {name}")


def _attribute_doc(module: ModuleType, name: str) -> str:
    """Returns the text below an assignment."""
    body = ast.parse(inspect.getsource(module)).body
    for node, below in pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            match below:
                case ast.Expr(ast.Constant(str() as text)):
                    return inspect.cleandoc(text)
    return ""


def _members(found: type) -> set[str]:
    """Returns the public methods and properties that a class of this project defines."""
    return {
        name
        for base in found.__mro__
        if base.__module__.startswith("penstock")
        for name, value in vars(base).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
    }
