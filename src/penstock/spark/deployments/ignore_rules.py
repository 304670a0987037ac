"""Decides which files of a project are not deployed. Pure.

A `.penstockignore` has one pattern per line, in the style of .gitignore: `*.csv` (in any folder),
`data/` (a folder), `/notes.txt` or `data/*.csv` (from the project's folder), `data/**/raw`. Empty
lines and lines that begin with # are skipped. Exceptions (!) are not supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.spark.pipelines.errors import PipelineError

IGNORE_NAME: Final = ".penstockignore"
ALWAYS: Final = (
    ".git/",
    ".hg/",
    ".svn/",
    ".venv/",
    "venv/",
    "__pycache__/",
    "*.pyc",
    ".penstock/",
    ".pytest_cache/",
    ".mypy_cache/",
    ".ruff_cache/",
    "spark-warehouse/",
    "metastore_db/",
    "derby.log",
    ".DS_Store",
)
"""What is never deployed."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    of_name: bool
    """Whether the pattern is compared with the name, and not with the path."""
    folders_only: bool


class IgnoreRules:
    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = [_rule(pattern) for pattern in (*ALWAYS, *patterns)]

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether a file or folder is left out. The path is relative to the project's folder, with
        slashes."""
        name = path.rpartition("/")[2]
        return any(
            rule.pattern.fullmatch(name if rule.of_name else path)
            for rule in self._rules
            if is_folder or not rule.folders_only
        )


def parse_ignore(text: str) -> list[str]:
    """Returns the patterns of a `.penstockignore`."""
    found = []
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("!"):
            raise PipelineError(
                f"{IGNORE_NAME} has {line!r}: patterns with ! are not supported. List only what to "
                "leave out"
            )
        found.append(line)
    return found


def _rule(pattern: str) -> _Rule:
    folders_only = pattern.endswith("/")
    given = pattern.rstrip("/")
    of_name = "/" not in given
    try:
        compiled = re.compile(_expression(given.lstrip("/")), re.DOTALL)
    except re.error as error:
        raise PipelineError(
            f"{IGNORE_NAME} has the pattern {pattern!r}: {error.msg}. Correct what is in brackets"
        ) from None
    return _Rule(compiled, of_name, folders_only)


def _expression(pattern: str) -> str:
    """Returns the regular expression of a pattern. A * does not match a slash, ** does."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", pattern)
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    match part:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if part.startswith("[") and part.endswith("]"):
        inside = part[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(part)
