"""Draws tables as text.

A table is drawn into a string, so that printing it is like printing anything else, including the
handling of closed pipes. Rich is loaded when the first table is drawn, so JSON output is faster.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.output import printable, width

if TYPE_CHECKING:
    from rich.console import RenderableType


class Column(NamedTuple):
    name: str
    right: bool = False
    """Whether the column is aligned to the right, as numbers are."""


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> str:
    """Returns lines that fit the terminal. Long cells are folded, never cut off."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 -- rich is slow to load; --json needs none
    from rich.table import Table  # noqa: PLC0415 -- only when used
    from rich.text import Text  # noqa: PLC0415 -- only when used

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        drawn.add_column(column.name, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(printable(_cell(value))) for value in row))
    return draw([drawn])


def draw(parts: Iterable[RenderableType]) -> str:
    """Renders the parts with Rich to lines for this terminal."""
    from rich.console import Console  # noqa: PLC0415 -- as above

    out = io.StringIO()
    console = Console(
        file=out, width=width(), force_terminal=sys.stdout.isatty(), highlight=False, emoji=False
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    return str(value)
