"""Style rules, checked as tests.

A test checks that no file of this project breaks a rule of `style_rules`, and a bad snippet shows
that the rule works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from penstock.wire import generate
from style_rules import (
    ALLOWED,
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    GENERATED,
    ORPHANS_ALLOWED,
    Rule,
    Source,
    banned_calls,
    empty_assertions,
    hard_words,
    is_allowed,
    leftovers,
    long_files,
    long_functions,
    misnamed_tests,
    missing_docstrings,
    orphans,
    parse,
    sources,
    unexplained_suppressions,
    uses_of_banned,
)


def _complain(complaints: Iterator[str]) -> None:
    found = list(complaints)
    assert not found, "\n" + "\n".join(found)


def _all_sources() -> list[Source]:
    return [
        file for folder in ("src", "tests", "benchmarks", "examples") for file in sources(folder)
    ]


def test_files_are_short() -> None:
    _complain(long_files(_all_sources()))


def test_functions_are_short() -> None:
    _complain(long_functions(_all_sources()))


def test_only_the_generator_writes_generated_files() -> None:
    """No file escapes the limits by calling itself generated."""
    files = {f"src/penstock/wire/messages/{name}" for name in generate.render()}
    assert {file.path for file in _all_sources() if file.is_generated} <= files


def test_every_module_has_a_docstring() -> None:
    _complain(missing_docstrings(sources("src")))


def test_texts_use_plain_words() -> None:
    """In docstrings, log lines, errors and help."""
    _complain(hard_words(sources("src")))


def test_the_source_has_no_todo_notes() -> None:
    """No TODO and no FIXME in the source."""
    _complain(leftovers(sources("src")))


def test_every_suppressed_check_has_a_reason() -> None:
    """In the source. In tests the code of the check says enough."""
    _complain(unexplained_suppressions(sources("src")))


def test_the_outside_world_is_reached_only_through_ports() -> None:
    """Clock, randomness, files and standard output are used only where `ALLOWED` says so."""
    _complain(banned_calls(sources("src/penstock")))


def test_every_exception_is_still_needed() -> None:
    """An allowed file that no longer uses the banned name must be removed from the list.

    A folder may stay: it states a rule, not an exception.
    """
    files = sources("src/penstock")
    stale = [
        f"{topic_partition}: no longer uses {name}: take it off ALLOWED in tests/style_rules.py"
        for topic_partition, names in ALLOWED.items()
        for name in names
        if not topic_partition.endswith("/")
        and not any(
            is_allowed(file.path, name, {topic_partition: names})
            and name in {banned for _, _, banned in uses_of_banned(file)}
            for file in files
        )
    ]
    stale += [
        f"{module}: is gone: take it off ORPHANS_ALLOWED in tests/style_rules.py"
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
    (long_files, "src/penstock/a.py", "x = 1\n" * (FILE_LINES_MAX + 1), "module of its own"),
    (
        long_functions,
        "src/penstock/a.py",
        "class A:\n    async def f(self):\n" + "        x = 1\n" * FUNCTION_LINES_MAX,
        "a.py:2: f takes 61 lines",
    ),
    (missing_docstrings, "src/penstock/a.py", "", "a.py:1: no module docstring"),
    (missing_docstrings, "src/penstock/__init__.py", "x = 1\n", "no module docstring"),
    (hard_words, "src/penstock/a.py", "x = 'Mended.'\n", "a.py:1: mended: write repaired"),
    (leftovers, "src/penstock/a.py", "x = 1\n# TODO: more\n", "a.py:2: TODO"),
    (leftovers, "src/penstock/a.py", "x = 'FIXME'\n", "a.py:1: FIXME"),
    (unexplained_suppressions, "src/a.py", "x = f()  # type: ignore[misc]\n", "a.py:1: a check"),
    (unexplained_suppressions, "src/a.py", "# Why.\n\n\nx = 1  # noqa: E731\n", "a.py:4: a check"),
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
    (long_files, "src/penstock/a.py", "x = 1\n" * FILE_LINES_MAX),
    (
        long_files,
        "src/penstock/a.py",
        f'"""{GENERATED}a`."""\n' + "x = 1\n" * FILE_LINES_MAX,
    ),
    (
        long_functions,
        "src/penstock/a.py",
        "def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1),
    ),
    (
        banned_calls,
        "src/penstock/a.py",
        "def f(disk, clock):\n    disk.open('x')\n    clock.time()\n",
    ),
    (banned_calls, "src/penstock/a.py", "import time\n\ntime.gmtime(0)\n"),
    (banned_calls, "src/penstock/cli/a.py", "print('x')\n"),
    (missing_docstrings, "src/penstock/__init__.py", ""),
    (unexplained_suppressions, "src/a.py", "x = 1  # noqa: E731, B008 - why\n"),
    (unexplained_suppressions, "src/a.py", "# Why.\nx = f()  # type: ignore[misc, no-any]\n"),
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
