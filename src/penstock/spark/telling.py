"""Shows errors to the user of Spark as one line, without a stack trace.

This package runs in Python processes that Spark starts, and Spark shows their exceptions with the
whole stack trace. That is right for a bug. For a topic that does not exist, it hides the one line
that helps. Spark leaves the trace out if an environment variable says so. It reads the variable
only after an exception, and the process ends with that exception. So the variable is set at the
moment when a `ClientError` is raised, and not for other exceptions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.errors import ClientError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_MARKS: Final = tuple(f"PYTHON_WORKER_FACTORY_{name}" for name in ("PORT", "SECRET", "SOCK_DIR"))
"""Variables that Spark sets only for the Python processes that it starts."""


@contextmanager
def told_plainly() -> Iterator[None]:
    """Makes Spark show a `ClientError` raised in the block without a stack trace."""
    try:
        yield
    except ClientError:
        if any(mark in os.environ for mark in _MARKS):
            os.environ[_HIDE] = "1"
        raise
