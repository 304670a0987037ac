"""Errors on their way to the user of Spark: the message first, without the stack above it.

Our code runs in Python processes that Spark starts, and Spark shows what they raise with the whole
stack. For a bug that is right. For a topic that does not exist it hides the one line that helps.
Spark leaves the stack out where its environment says so, and looks there only when something was
raised; the process ends with that error. So the wish is stated at the moment a `ClientError`
leaves, and for nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.errors import ClientError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_MARKS: Final = tuple(f"PYTHON_WORKER_FACTORY_{name}" for name in ("PORT", "SECRET", "SOCK_DIR"))
"""What Spark sets for the Python processes that it starts, and for no other."""


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors that say what to do are shown as the line that they are."""
    try:
        yield
    except ClientError:
        if any(mark in os.environ for mark in _MARKS):
            os.environ[_HIDE] = "1"
        raise
