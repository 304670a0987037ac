"""`--watch`: the same look again and again, until Ctrl-C.

On a terminal each look takes the place of the one before; elsewhere they follow each other, as JSON
one object a line. A cluster that goes away while it is watched is what a watcher wants to see, not
a reason to stop: the error is shown, and the next look may find it back. The first look fails as
it would without `--watch`.
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

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.1, metavar="S", help="With --watch: between looks.")
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
    """Look and show; without `watch` once, and what was found is returned."""
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
