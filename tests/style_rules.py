"""The style rules that `test_tidy` checks.

Each rule is a function from parsed files to complaints of the form `file:line: what is wrong`. The
exceptions to a rule are listed here by file, with the reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
SMALL_FILE_LINES_MAX = 500
SMALL_FUNCTION_LINES_MAX = 60
"""The limits of the tests and the simulator."""

BANNED: Mapping[str, str] = {
    "time.time": "take a Clock",
    "time.time_ns": "take a Clock",
    "time.monotonic": "take a Clock",
    "time.monotonic_ns": "take a Clock",
    "time.perf_counter": "take a Clock",
    "time.perf_counter_ns": "take a Clock",
    "time.sleep": "take a Clock",
    "datetime.datetime.now": "take a Clock",
    "datetime.datetime.utcnow": "take a Clock",
    "datetime.datetime.today": "take a Clock",
    "datetime.date.today": "take a Clock",
    "random": "take a Random",
    "secrets": "take a Random",
    "os.urandom": "take a Random",
    "uuid.uuid1": "take a Random",
    "uuid.uuid4": "take a Random",
    "open": "take a Disk",
    "io.open": "take a Disk",
    "os.open": "take a Disk",
    "print": "return the text, or log it; only the command line prints",
}
"""Calls that reach the outside world, and what to use instead. A module's name bans all of it."""

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "src/penstock/cli/": {"print": "the command line is what prints"},
    "src/penstock/sim/": {"random": "seeded generators: what the simulator offers as Random"},
    "src/penstock/sim/seeds.py": {
        "open": "what a replay is asked to write for people, after the simulation has ended"
    },
    "src/penstock/broker/config.py": {
        "open": "a configuration file, read before there is a broker"
    },
    "src/penstock/broker/main.py": {"open": "the lock and the runtime file of a real process"},
    "src/penstock/runtime.py": {
        "time.monotonic": "the real Clock",
        "time.time_ns": "the real Clock",
        "time.sleep": "no sleep: a turn for another thread",
        "random": "the real Random draws from the system's own",
        "os.urandom": "the real Random",
    },
    "src/penstock/storage/disk.py": {"os.open": "the real Disk"},
    "src/penstock/storage/readonly.py": {"os.open": "the real Disk, for looking only"},
    "src/penstock/stores/etcd_members.py": {
        "open": "certificates of a real etcd, which may not be ours to write; a Disk opens to write"
    },
    "src/penstock/wire/generate.py": {
        "open": "a tool for developers, run by hand: it writes source files, outside any broker"
    },
}
"""File (or folder, ending in a slash) -> banned name -> why this one may use it."""

HARD_WORDS: Mapping[str, str] = {
    "whoever": "what it is: the client, the broker, the caller",
    "whomever": "what it is: the client, the broker, the caller",
    "anew": "again",
    "mended": "repaired",
    "mend": "repair",
}
"""Words that make a text hard to read -> what to write instead. docs/GLOSSARY.md has the terms."""

ORPHANS_ALLOWED: Mapping[str, str] = {}
"""Module -> what loads it, if no import statement does."""


@dataclass(frozen=True, slots=True)
class Source:
    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The dotted name of a file under src."""
        name = self.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        return name.removesuffix(".__init__")

    @property
    def package(self) -> str:
        """The package that relative imports in this file start from."""
        return self.module if self.path.endswith("__init__.py") else self.module.rpartition(".")[0]


Rule = Callable[[Sequence[Source]], Iterator[str]]


def parse(path: str, text: str) -> Source:
    return Source(path, text, ast.parse(text, path))


@cache
def sources(folder: str) -> tuple[Source, ...]:
    """Returns every Python file below a folder of the project, if the folder exists."""
    return tuple(
        parse(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "__pycache__" not in path.parts
    )


def long_files(files: Sequence[Source], lines_max: int = FILE_LINES_MAX) -> Iterator[str]:
    for file in files:
        lines = len(file.text.splitlines())
        if lines > lines_max:
            yield (
                f"{file.path}:{lines}: {lines} lines, the limit is {lines_max}: find the seam "
                "where this file is two ideas, and split there"
            )


def long_functions(files: Sequence[Source], lines_max: int = FUNCTION_LINES_MAX) -> Iterator[str]:
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > lines_max:
                    yield (
                        f"{file.path}:{node.lineno}: {node.name} takes {lines} lines, the limit is "
                        f"{lines_max}: name its parts and call them"
                    )


def missing_docstrings(files: Sequence[Source]) -> Iterator[str]:
    """An empty `__init__.py` only marks a package and needs no docstring."""
    for file in files:
        marker = file.path.endswith("__init__.py") and not file.tree.body
        if not marker and not ast.get_docstring(file.tree):
            yield f"{file.path}:1: no module docstring: say what idea lives here"


def leftovers(files: Sequence[Source]) -> Iterator[str]:
    for file in files:
        for number, line in enumerate(file.text.splitlines(), start=1):
            if found := re.search(r"\b(TODO|FIXME)\b", line):
                yield f"{file.path}:{number}: {found[0]}: do it now or write it in the plan"


def hard_words(files: Sequence[Source]) -> Iterator[str]:
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for found in re.findall(r"\b[a-z]+\b", node.value.lower()):
                    if found in HARD_WORDS:
                        yield f"{file.path}:{node.lineno}: {found}: write {HARD_WORDS[found]}"


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Returns local name -> full name for all imports of a file."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    names[top] = top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _full_name(node: ast.expr, aliases: Mapping[str, str]) -> str | None:
    """Returns `time.time` for `t.time` after `import time as t`; builtins keep their name."""
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, aliases)
        return f"{owner}.{node.attr}" if owner else None
    if isinstance(node, ast.Name):
        return aliases.get(node.id) or (node.id if node.id in {"open", "print"} else None)
    return None


def _banned_name(full_name: str) -> str | None:
    if full_name in BANNED:
        return full_name
    owner = full_name.partition(".")[0]
    return owner if owner in {"random", "secrets"} else None


def is_allowed(path: str, banned: str, allowed: Mapping[str, Mapping[str, str]]) -> bool:
    return any(
        banned in names
        and (
            path == topic_partition
            or (topic_partition.endswith("/") and path.startswith(topic_partition))
        )
        for topic_partition, names in allowed.items()
    )


def uses_of_banned(file: Source) -> Iterator[tuple[int, str, str]]:
    """Yields line, full name and entry of `BANNED`: mentions count as much as calls."""
    aliases = _aliases(file.tree)
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            full_name = _full_name(node, aliases)
            # A module name alone (`random` in `random.random`) is part of a longer match.
            if full_name in {"random", "secrets"}:
                continue
            if full_name and (banned := _banned_name(full_name)):
                yield node.lineno, full_name, banned


def banned_calls(files: Sequence[Source]) -> Iterator[str]:
    for file in files:
        for line, name, banned in uses_of_banned(file):
            if not is_allowed(file.path, banned, ALLOWED):
                yield (
                    f"{file.path}:{line}: {name}: {BANNED[banned]} (penstock.ports), or add the "
                    "file to ALLOWED in tests/style_rules.py with the reason"
                )


def _imported(file: Source) -> Iterator[str]:
    """Yields every dotted name that a file imports, and every string that could be one."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = file.package.split(".")
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


def _entry_points() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
    return {target.partition(":")[0] for group in groups for target in group.values()}


def orphans(files: Sequence[Source], importers: Sequence[Source] = ()) -> Iterator[str]:
    """Packages are imported with their modules, so only modules can be orphans."""
    imported = {
        name for file in (*files, *importers) for name in _imported(file) if name != file.module
    }
    reached = imported | _entry_points() | set(ORPHANS_ALLOWED)
    for file in files:
        if file.path.endswith(("__init__.py", "__main__.py")) or file.module in reached:
            continue
        yield (
            f"{file.path}:1: nothing imports {file.module}: use it, delete it, or say in "
            "ORPHANS_ALLOWED (tests/style_rules.py) who loads it"
        )


def _is_test_file(path: str) -> bool:
    return Path(path).name.startswith("test_")


def misnamed_tests(files: Sequence[Source]) -> Iterator[str]:
    """pytest silently ignores a test with another name, or in a file with another name."""
    mentioned = {
        node.id if isinstance(node, ast.Name) else node.attr
        for file in files
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Name | ast.Attribute)
    } | {
        alias.name
        for file in files
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for file in files:
        for node in _module_and_class_functions(file.tree):
            if node.name.startswith("test_"):
                if not _is_test_file(file.path):
                    yield (
                        f"{file.path}:{node.lineno}: {node.name} never runs: pytest looks only "
                        "into files named test_*.py"
                    )
            elif (
                _is_test_file(file.path)
                and not node.decorator_list
                and not node.name.startswith(("__", "pytest_"))
                and (node.name.startswith("test") or node.name not in mentioned)
            ):
                yield (
                    f"{file.path}:{node.lineno}: {node.name}: a test needs a name that starts "
                    "with test_, and a helper somebody who calls it"
                )


def _module_and_class_functions(
    tree: ast.Module,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield child


def empty_assertions(files: Sequence[Source]) -> Iterator[str]:
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Assert) and (
                (isinstance(node.test, ast.Constant) and node.test.value)
                or (isinstance(node.test, ast.Tuple) and node.test.elts)
            ):
                yield f"{file.path}:{node.lineno}: this assertion cannot fail"
