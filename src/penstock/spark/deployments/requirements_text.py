"""What a requirements.txt says, as far as a deployment has to know it.

A virtual environment may be shared by all projects with the same requirements.txt only if the text
says everything. A line may also refer to files of the project: to further lists, constraints,
wheels, or the project itself. `refers_to_files` is true for all lines that are not clearly of
another kind.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.spark.deployments.archive import REQUIREMENTS_NAME
from penstock.spark.pipelines.errors import PipelineError

_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_NAMED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^]]*\])?\s*"
    r"($|[<>=!~(;]|--hash=|@\s*(?P<url>\S+))"
)
"""A package of an index, or of a URL."""
_REMOTE: Final = re.compile(
    r"((git|hg|svn|bzr)\+)?(https?|ssh|git|svn)://|git\+git@", re.IGNORECASE
)
_ARCHIVES: Final = (
    ".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar.lz",
    ".tlz", ".tar.lzma",
)  # fmt: skip
"""A name that ends like this is the name of a file, for pip too."""
_FLAGS: Final = frozenset({"--no-index", "--pre", "--prefer-binary", "--require-hashes"})
_WITH_TEXT: Final = frozenset({"--no-binary", "--only-binary", "--trusted-host", "--use-feature"})
_WITH_URL: Final = frozenset(
    {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-e", "--editable"}
)
_EDITABLE: Final = ("-e", "--editable", "--ed")
_LISTS: Final = (("-r", "--requirement", "--requirem"), ("-c", "--constraint", "--cons"))
"""Short and long names of options, and the shortest prefix of the long name that pip knows."""


class Line(NamedTuple):
    file: str
    number: int
    text: str


def refers_to_files(content: bytes) -> bool:
    """Whether the packages depend on files, and not only on this text."""
    return any(not _is_complete(line.text) for line in _lines(REQUIREMENTS_NAME, content))


def editable_line(root: Path) -> Line | None:
    """Returns the first line of the project's requirements.txt, or of a list that it includes,
    that installs a folder in editable mode."""
    return _editable(root.resolve(), root.resolve() / REQUIREMENTS_NAME, set())


def check_requirements(root: Path) -> None:
    """Raises `PipelineError` for requirements that cannot work on workers."""
    line = editable_line(root)
    if line is not None:
        _, _, folder = line.text.lstrip("-").replace("=", " ", 1).partition(" ")
        raise PipelineError(
            f"{line.file}, line {line.number}: {line.text}: an editable package is a link into the "
            "project's folder, and a worker removes that folder when it has a newer version: write "
            f"{folder.strip() or '.'}"
        )


def _editable(root: Path, file: Path, seen: set[Path]) -> Line | None:
    if file in seen or not file.is_relative_to(root) or not file.is_file():
        return None
    seen.add(file)
    for line in _lines(file.relative_to(root).as_posix(), file.read_bytes()):
        if not line.text.startswith("-"):
            continue
        words = _words(line.text)
        if any(not _REMOTE.match(each) for each in _values(words, _EDITABLE)):
            return line
        for option in _LISTS:
            for included in _values(words, option):
                found = _editable(root, (file.parent / included).resolve(), seen)
                if found is not None:
                    return found
    return None


def _lines(file: str, content: bytes) -> Iterator[Line]:
    """Yields the lines as pip reads them: without comments, and with continued lines joined."""
    text, first = "", 0
    lines = content.decode("utf-8-sig", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        first = first or number
        if line.endswith("\\") and not _COMMENT.match(line) and number < len(lines):
            text += line.removesuffix("\\")
            continue
        text = _COMMENT.sub("", text + line).strip()
        if text:
            yield Line(file, first, text)
        text, first = "", 0


def _is_complete(line: str) -> bool:
    """Whether the line means the same in every project."""
    if line.startswith("-"):
        return _is_complete_option(_words(line))
    if _REMOTE.match(line):
        return True
    found = _NAMED.match(line)
    if found is None or found["name"].lower().endswith(_ARCHIVES):
        return False
    return found["url"] is None or _REMOTE.match(found["url"]) is not None


def _is_complete_option(words: list[str]) -> bool:
    left = [part for word in words for part in _parts(word)]
    while left:
        option = left.pop(0)
        if option in _FLAGS:
            continue
        value = left.pop(0) if left else ""
        if option in _WITH_TEXT or (option in _WITH_URL and _REMOTE.match(value)):
            continue
        return False
    return True


def _parts(word: str) -> list[str]:
    """Returns --option=value as two words."""
    return word.split("=", 1) if word.startswith("--") else [word]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _values(words: list[str], option: tuple[str, str, str]) -> Iterator[str]:
    """Yields the values that an option has in a line."""
    short, long, least = option
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, is_given, value = word.partition("=")
        if name.startswith(least) and long.startswith(name):
            yield value if is_given else following
        elif word.startswith(short) and not word.startswith("--"):
            yield word.removeprefix(short) or following
