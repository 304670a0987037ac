"""Computes a hash of the source code that a simulated cluster executes.

Results of seeds are valid as long as this hash stays the same. The hash covers every module that
`penstock.sim.workload` and `penstock.sim.focus` import, directly or through other modules, also
inside functions, and the handlers and schema tables, which are imported by name. Imports for type
checkers, comments, docstrings and layout do not count, so a commit that changes only prose keeps
the results.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

ROOTS: Final = ("penstock.sim.workload", "penstock.sim.focus")
BY_NAME: Final = ("broker.handlers", "wire.schema")
"""Packages whose modules are imported by their names in a table, when they are first needed."""
PACKAGE_DIRECTORY: Final = Path(__file__).resolve().parents[1]


def source_hash(roots: Sequence[str] = ROOTS, directory: Path = PACKAGE_DIRECTORY) -> str:
    """Returns the hash of all modules that the roots need. `directory` is the package's."""
    total = blake2b(digest_size=12)
    for name, tree in sorted(simulated_modules(roots, directory).items()):
        parts = [name]
        _write(tree, parts)
        total.update(" ".join(parts).encode("utf-8", "surrogatepass"))
    return total.hexdigest()


def simulated_modules(
    roots: Sequence[str] = ROOTS, directory: Path = PACKAGE_DIRECTORY
) -> dict[str, ast.Module]:
    """Returns the modules that the roots need, by name, including the roots."""
    found: dict[str, ast.Module] = {}
    waiting = [*roots]
    for package in BY_NAME:
        folder = directory.joinpath(*package.split("."))
        waiting += [f"{directory.name}.{package}.{path.stem}" for path in folder.glob("*.py")]
    while waiting:
        name = waiting.pop()
        path = _path(name, directory)
        if name in found or path is None:
            continue
        found[name] = tree = ast.parse(path.read_bytes(), str(path))
        waiting += _imports(tree, directory.name)
        # Importing a module runs its parent packages first.
        waiting += [name.rpartition(".")[0]]
    return found


def _path(name: str, directory: Path) -> Path | None:
    """Returns the file of a module. None if it is not a module of the package."""
    first, *rest = name.split(".")
    if first != directory.name:
        return None
    module = directory.joinpath(*rest)
    for path in (module / "__init__.py", module.with_suffix(".py")):
        if path.is_file() and (rest or path.name == "__init__.py"):
            return path
    return None


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Returns all nodes below this one, except the imports that only type checkers make."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith(package))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(package):
            yield node.module
            # A name that is imported from a package may be a module of it.
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _write(node: object, parts: list[str]) -> None:
    """Writes a tree as text. Empty fields are left out, because newer versions of Python
    add some."""
    if isinstance(node, ast.AST):
        parts.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            # The context of a name (load or store) follows from its position.
            if value is not None and value != [] and name != "ctx":
                parts.append(name)
                _write(value, parts)
        parts.append(")")
    elif isinstance(node, list):
        for each in node:
            if not _is_docstring(each):
                _write(each, parts)
    else:
        parts.append(repr(node))


def _is_docstring(node: object) -> bool:
    """Returns whether a node is a standalone string: of a module, class, function or attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
