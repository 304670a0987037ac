"""Extracts the useful line from an error of a pipeline. Pure.

Spark wraps an error in the query that failed, the plan of that query, and the stack traces of three
languages. The one line that is shown should say what to do. So this module looks for the innermost
message that was written for people; the rest stays in the log of the run. If the error comes from
the user's own code, its file and line come first.
"""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"\bpenstock(?:\.\w+)+: (?P<text>[^\n]+)")
_LOCKED: Final = re.compile(
    r"Another instance of Derby may have already booted the database (?P<path>\S+?)\.?(?:\s|$)"
)
_SPARK_CODE: Final = re.compile(r"\[(?P<code>[A-Z][A-Z0-9_.]+)\] ?(?P<text>[^\n]*)")
_WRAPPERS: Final = frozenset(
    {"STREAM_FAILED", "PYTHON_DATA_SOURCE_ERROR", "PYTHON_EXCEPTION", "JOB_ABORTED"}
)
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_PYTHON: Final = re.compile(r"^(?P<text>(?:\w+Error|\w*Exception): [^\n]+)", re.MULTILINE)
_FRAME: Final = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)'
    r"|was called from\n(?P<called>[^\n]+):(?P<at>\d+)$",
    re.MULTILINE,
)
"""A frame of a Python traceback, or the place where a column or DataFrame of a plan was made."""
_LIBRARY: Final = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d|/(?:pyspark|penstock)/|\.zip/|^<"
)
_LENGTH_MAX: Final = 400


def one_line(text: str, root: str = "") -> str:
    """Returns the most useful message in the text of a Spark error.

    Args:
        text: the error as Spark shows it.
        root: the folder of the project. Files in it are shown relative to it.
    """
    frame = _own_frame(text, root)
    where = "" if frame is None else f"{_place(frame, root)}: "
    return _clean(where + _message(text, frame))


def _message(text: str, frame: re.Match[str] | None) -> str:
    if found := _OURS.search(text):
        return found["text"]
    if found := _LOCKED.search(text):
        return (
            "another process, such as a shell or another run, is using the tables of this pipeline "
            f"({found['path']}): stop it and try again"
        )
    for match in _SPARK_CODE.finditer(text):
        if match["code"] not in _WRAPPERS and match["text"].strip():
            return f"{match['text']} [{match['code']}]"
    if frame is not None:
        # The traceback is indented. The error is the first line after it.
        for line in text[frame.end() :].splitlines()[1:]:
            if line.strip() and not line.startswith(" "):
                return line
    # The last line of a Python traceback is the error.
    if traced := _PYTHON.findall(text):
        return str(traced[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "failed without an error message"


def _own_frame(text: str, root: str) -> re.Match[str] | None:
    """Returns the innermost frame in the user's own code: in the folder of the project, or, if
    that is not known, outside of libraries."""
    own = None
    for frame in _FRAME.finditer(text):
        path = frame["file"] or frame["called"]
        if path.startswith(root.rstrip("/") + "/") if root else not _LIBRARY.search(path):
            own = frame
    return own


def _place(frame: re.Match[str], root: str) -> str:
    path = frame["file"] or frame["called"]
    shown = path.removeprefix(root.rstrip("/") + "/") if root else path.rpartition("/")[2]
    return f"{shown}, line {frame['line'] or frame['at']}"


def _clean(text: str) -> str:
    plain = " ".join(_STATE.sub("", text).split())
    return plain if len(plain) <= _LENGTH_MAX else plain[: _LENGTH_MAX - 1] + "…"


def short_name(flow: str) -> str:
    """Returns the name of a flow in its project, without Spark's catalog and database."""
    return flow.rpartition(".")[2].strip("`'")
