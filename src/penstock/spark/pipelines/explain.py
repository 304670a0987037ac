"""Extracts the useful line from an error of a pipeline. Pure.

Spark wraps an error in the query that failed, the plan of that query, and the stack traces of three
languages. The one line that is shown should say what to do. So this module looks for the innermost
message that was written for people; the rest stays in the log of the run.
"""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"\bpenstock(?:\.\w+)+: (?P<text>[^\n]+)")
_SPARK_CODE: Final = re.compile(r"\[(?P<code>[A-Z][A-Z0-9_.]+)\] ?(?P<text>[^\n]*)")
_WRAPPERS: Final = frozenset({"STREAM_FAILED", "PYTHON_DATA_SOURCE_ERROR", "JOB_ABORTED"})
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_PYTHON: Final = re.compile(r"^(?P<text>\w*(?:Error|Exception): [^\n]+)", re.MULTILINE)
_LENGTH_MAX: Final = 400


def one_line(text: str) -> str:
    """Returns the most useful message in the text of a Spark error."""
    if found := _OURS.search(text):
        return _clean(found["text"])
    for match in _SPARK_CODE.finditer(text):
        if match["code"] not in _WRAPPERS and match["text"].strip():
            return _clean(f"{match['text']} [{match['code']}]")
    # The last line of a Python traceback is the error.
    if traced := _PYTHON.findall(text):
        return _clean(traced[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    return _clean(lines[0]) if lines else "failed without an error message"


def _clean(text: str) -> str:
    plain = " ".join(_STATE.sub("", text).split())
    return plain if len(plain) <= _LENGTH_MAX else plain[: _LENGTH_MAX - 1] + "…"


def short_name(flow: str) -> str:
    """Returns the name of a flow in its project, without Spark's catalog and database."""
    return flow.rpartition(".")[2].strip("`'")
