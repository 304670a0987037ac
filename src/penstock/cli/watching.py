"""`--watch`: shows the same output repeatedly until Ctrl-C.

On a terminal each output replaces the one before. Elsewhere they follow each other, with `--json`
as one object per line. If the cluster stops answering, the command shows the error and tries again:
that is what the user wants to see. Only the first query fails as it would without `--watch`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from penstock.cli.output import emit, json_text
from penstock.cli.session import explain_client
from penstock.client.errors import ClientError
from penstock.ports import Clock
from penstock.runtime import SystemClock

T = TypeVar("T")
Look = Callable[[], Awaitable[T]]
CLEAR = "\x1b[2J\x1b[H"

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")]
Interval = Annotated[
    float,
    typer.Option("--interval", min=0.1, metavar="S", help="With --watch: seconds between repeats."),
]


async def shown(
    look: Look[T],
    text: Callable[[T], str],
    *,
    json: bool,
    watch: bool,
    interval_s: float,
    clock: Clock | None = None,
) -> T:
    """Calls `look` and prints the result: once, and returns it, or with `watch` repeatedly."""
    clock = clock or SystemClock()
    seen = False
    redraw = watch and not json and sys.stdout.isatty()
    while True:
        try:
            found = await look()
        except ClientError as error:
            if not (watch and seen):
                raise
            reason = explain_client(error)
            _draw(json_text({"error": reason}) if json else f"penstock: {reason}", redraw)
        else:
            _draw(text(found), redraw)
            seen = True
            if not watch:
                return found
        await clock.sleep(interval_s)


def _draw(text: str, redraw: bool) -> None:
    emit((CLEAR if redraw else "") + text)
    sys.stdout.flush()
