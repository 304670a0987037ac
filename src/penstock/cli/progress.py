"""A progress bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(total: int, quiet: bool) -> Iterator[Any]:
    """Shows a bar on stderr if that is a terminal. Yields the function that advances it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 -- slow to load, and for people only
    from rich.progress import (  # noqa: PLC0415 -- only when used
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("records", total=total)
        yield lambda number: progress.advance(task, number)
