"""Tables for people. Drawn into strings: writing one is then like writing anything, closed pipes
included. Rich is loaded when the first table is drawn, so whoever asked for JSON does not wait."""

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
    """Numbers stand on the right."""


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> str:
    """Lines that fit the terminal; cells that are too long are folded, never cut."""
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
    """What rich makes of the parts, as lines for this terminal."""
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
