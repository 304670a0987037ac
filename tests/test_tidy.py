"""Style rules, checked as tests.

Each rule is a function from parsed files to complaints of the form `file:line: what is wrong`. A
test checks that no file of this project breaks the rule, and a bad snippet shows that the rule
works. The exceptions to a rule are listed here by file, with the reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80

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


def long_files(files: Sequence[Source]) -> Iterator[str]:
    for file in files:
        lines = len(file.text.splitlines())
        if lines > FILE_LINES_MAX:
            yield (
                f"{file.path}:{lines}: {lines} lines, the limit is {FILE_LINES_MAX}: find the seam "
                "where this file is two ideas, and split there"
            )


def long_functions(files: Sequence[Source]) -> Iterator[str]:
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    yield (
                        f"{file.path}:{node.lineno}: {node.name} takes {lines} lines, the limit is "
                        f"{FUNCTION_LINES_MAX}: name its parts and call them"
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


def _allowed(path: str, banned: str, allowed: Mapping[str, Mapping[str, str]]) -> bool:
    return any(
        banned in names and (path == place or (place.endswith("/") and path.startswith(place)))
        for place, names in allowed.items()
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
            if not _allowed(file.path, banned, ALLOWED):
                yield (
                    f"{file.path}:{line}: {name}: {BANNED[banned]} (penstock.ports), or add the "
                    "file to ALLOWED in tests/test_tidy.py with the reason"
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
            "ORPHANS_ALLOWED (tests/test_tidy.py) who loads it"
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


def _complain(complaints: Iterator[str]) -> None:
    found = list(complaints)
    assert not found, "\n" + "\n".join(found)


def test_files_are_short() -> None:
    _complain(long_files(sources("src/penstock")))


def test_functions_are_short() -> None:
    _complain(long_functions(sources("src/penstock")))


def test_every_module_has_a_docstring() -> None:
    _complain(missing_docstrings(sources("src")))


def test_texts_use_plain_words() -> None:
    """In docstrings, log lines, errors and help."""
    _complain(hard_words(sources("src")))


def test_the_source_has_no_todo_notes() -> None:
    """No TODO and no FIXME in the source."""
    _complain(leftovers(sources("src")))


def test_the_outside_world_is_reached_only_through_ports() -> None:
    """Clock, randomness, files and standard output are used only where `ALLOWED` says so."""
    _complain(banned_calls(sources("src/penstock")))


def test_every_exception_is_still_needed() -> None:
    """An allowed file that no longer uses the banned name must be removed from the list.

    A folder may stay: it states a rule, not an exception.
    """
    files = sources("src/penstock")
    stale = [
        f"{place}: no longer uses {name}: take it off ALLOWED in tests/test_tidy.py"
        for place, names in ALLOWED.items()
        for name in names
        if not place.endswith("/")
        and not any(
            _allowed(file.path, name, {place: names})
            and name in {banned for _, _, banned in uses_of_banned(file)}
            for file in files
        )
    ]
    stale += [
        f"{module}: is gone: take it off ORPHANS_ALLOWED in tests/test_tidy.py"
        for module in ORPHANS_ALLOWED
        if module not in {file.module for file in files}
    ]
    _complain(iter(stale))


def test_no_module_is_an_orphan() -> None:
    """Every module is imported by the product, tests or benchmarks, or is an entry point."""
    importers = [
        *(file for file in sources("src") if not file.path.startswith("src/penstock/")),
        *sources("tests"),
        *sources("benchmarks"),
    ]
    _complain(orphans(sources("src/penstock"), importers))


def test_every_test_runs() -> None:
    """Every function that looks like a test has a name that pytest collects."""
    _complain(misnamed_tests(sources("tests")))


def test_every_assertion_can_fail() -> None:
    """No `assert True` in any form."""
    _complain(empty_assertions(sources("tests")))


BAD: Sequence[tuple[Rule, str, str, str]] = [
    (long_files, "src/penstock/a.py", "x = 1\n" * (FILE_LINES_MAX + 1), "find the seam"),
    (
        long_functions,
        "src/penstock/a.py",
        "class A:\n    async def f(self):\n" + "        x = 1\n" * FUNCTION_LINES_MAX,
        "a.py:2: f takes 81 lines",
    ),
    (missing_docstrings, "src/penstock/a.py", "", "a.py:1: no module docstring"),
    (missing_docstrings, "src/penstock/__init__.py", "x = 1\n", "no module docstring"),
    (hard_words, "src/penstock/a.py", "x = 'Mended.'\n", "a.py:1: mended: write repaired"),
    (leftovers, "src/penstock/a.py", "x = 1\n# TODO: more\n", "a.py:2: TODO"),
    (leftovers, "src/penstock/a.py", "x = 'FIXME'\n", "a.py:1: FIXME"),
    (banned_calls, "src/penstock/a.py", "import time\n\ntime.time()\n", "a.py:3: time.time:"),
    (banned_calls, "src/penstock/a.py", "import time as t\nt.sleep(1)\n", "a.py:2: time.sleep:"),
    (
        banned_calls,
        "src/penstock/a.py",
        "from time import monotonic as now\ndef f(clock=now): ...\n",
        "a.py:2: time.monotonic:",
    ),
    (banned_calls, "src/penstock/a.py", "import random\nrandom.choice([1])\n", "random.choice:"),
    (
        banned_calls,
        "src/penstock/a.py",
        "from random import choice\nchoice([1])\n",
        "random.choice",
    ),
    (banned_calls, "src/penstock/a.py", "import os\nos.urandom(8)\n", "os.urandom:"),
    (banned_calls, "src/penstock/a.py", "from uuid import uuid4\nuuid4()\n", "uuid.uuid4:"),
    (
        banned_calls,
        "src/penstock/a.py",
        "from datetime import datetime\ndatetime.now()\n",
        "datetime.datetime.now:",
    ),
    (
        banned_calls,
        "src/penstock/a.py",
        "import datetime\ndatetime.datetime.now()\n",
        "datetime.datetime.now:",
    ),
    (banned_calls, "src/penstock/a.py", "with open('x') as f: ...\n", "a.py:1: open:"),
    (banned_calls, "src/penstock/a.py", "print('x')\n", "a.py:1: print:"),
    (orphans, "src/penstock/lonely.py", "import penstock.lonely\n", "nothing imports"),
    (misnamed_tests, "tests/test_a.py", "def check_a(): ...\n", "test_a.py:1: check_a"),
    (misnamed_tests, "tests/test_a.py", "class TestA:\n    def tests_b(self): ...\n", "tests_b"),
    (misnamed_tests, "tests/a.py", "def test_a(): ...\n", "a.py:1: test_a never runs"),
    (empty_assertions, "tests/test_a.py", "def test_a():\n    assert True\n", "test_a.py:2:"),
    (empty_assertions, "tests/test_a.py", "def test_a():\n    assert (1, 'x')\n", "test_a.py:2:"),
]


@pytest.mark.parametrize(
    ("rule", "path", "text", "complaint"), BAD, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_rule_reports_a_violation(rule: Rule, path: str, text: str, complaint: str) -> None:
    """Each rule finds the violation, and reports where it is."""
    found = list(rule([parse(path, text)]))
    assert len(found) == 1, found
    assert complaint in found[0]


GOOD: Sequence[tuple[Rule, str, str]] = [
    (
        banned_calls,
        "src/penstock/a.py",
        "def f(disk, clock):\n    disk.open('x')\n    clock.time()\n",
    ),
    (banned_calls, "src/penstock/a.py", "import time\n\ntime.gmtime(0)\n"),
    (banned_calls, "src/penstock/cli/a.py", "print('x')\n"),
    (missing_docstrings, "src/penstock/__init__.py", ""),
    (misnamed_tests, "tests/test_a.py", "def helper(): ...\ndef test_a():\n    helper()\n"),
    (empty_assertions, "tests/test_a.py", "def test_a():\n    assert False, 'unreachable'\n"),
]


@pytest.mark.parametrize(
    ("rule", "path", "text"), GOOD, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_rule_accepts_sound_code(rule: Rule, path: str, text: str) -> None:
    """A rule that complains about sound code would soon be switched off."""
    assert not list(rule([parse(path, text)]))


def test_every_form_of_import_counts_as_a_use() -> None:
    """Absolute, relative, aliased and dynamic imports count."""
    target = parse("src/penstock/a/target.py", "")
    for text in (
        "import penstock.a.target",
        "from penstock.a import target",
        "from penstock.a.target import name",
        "from . import target",
        "from .target import name",
        "from ..a.target import name",
        "load('penstock.a.target')",
        "load('penstock.a.target:main')",
    ):
        importer = parse("src/penstock/a/__init__.py", text)
        if text.startswith("from .."):
            importer = parse("src/penstock/b/__init__.py", text)
        assert not list(orphans([target], [importer])), text
    assert list(orphans([target], [parse("src/penstock/a/__init__.py", "import penstock.a")]))
