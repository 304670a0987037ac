"""`penstock pipeline redrive`: sends dead letters back to the topics that they came from."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from penstock.cli import completion
from penstock.cli.options import Bootstrap, Json, NoProgressBar
from penstock.cli.output import CommandFailed, count, emit, emit_json, printable
from penstock.cli.progress import progress_bar
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    EXIT_REFUSED,
    checked,
    confirm,
    run,
)
from penstock.client.errors import Fenced
from penstock.client.redrive import Redrive, Redriven, fenced_text

_HELP = """Send dead letters back to the topics that they came from.

TOPIC is the dead-letter topic of a Spark source with badRecords=deadletter, of Consumer.run, or of
a share group. Headers say where its records came from and what went wrong. Correct the cause first,
or the records come back.

Each record is sent back once, even if the command is interrupted and run again. Records that
--error leaves out stay in TOPIC for a later redrive. They are moved to its end.

\b
Examples:
  penstock pipeline redrive people.bad --dry-run
  penstock pipeline redrive people.bad --error 'is not JSON' --limit 100
  penstock pipeline redrive people.bad --to people-again --yes
"""


def register(app: typer.Typer) -> None:
    app.command("redrive", help=_HELP)(redrive)


def redrive(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The dead-letter topic.", autocompletion=completion.topics
        ),
    ],
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="TOPIC", help="Send all records to this topic instead.")
    ] = "",
    error: Annotated[
        str, typer.Option("--error", metavar="TEXT", help="Only records with TEXT in their error.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Send at most N records back.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the records; send nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    quiet: NoProgressBar = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    if to == topic:
        raise CommandFailed("--to must name a topic other than the dead-letter topic itself")

    def work() -> Redrive:
        return Redrive(
            checked(bootstrap),
            topic,
            to=to,
            error=error,
            limit=limit,
            client_id=CLIENT_ID,
            socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
        )

    if dry_run or not yes:
        found = run(work().preview())
        if dry_run:
            _show(topic, found, json=json, verb="would be sent")
            return
        if found.sent:
            confirm(f"send {_targets(found)}?", yes=False)
    try:
        done = run(_run(work(), quiet=quiet or json))
    except Fenced as failure:
        raise CommandFailed(fenced_text(printable(topic)), EXIT_REFUSED) from failure
    _show(topic, done, json=json, verb="sent")


async def _run(work: Redrive, *, quiet: bool) -> Redriven:
    with ExitStack() as shown:
        bars: list[Any] = []
        seen = 0

        def advance(result: Redriven) -> None:
            nonlocal seen
            if not bars:
                bars.append(shown.enter_context(progress_bar(result.total, quiet)))
            bars[0](result.read - seen)
            seen = result.read

        return await work.run(advance)


def _targets(found: Redriven) -> str:
    return ", ".join(
        f"{count(number, 'record')} to {printable(target)}"
        for target, number in sorted(found.sent.items())
    )


def _show(topic: str, found: Redriven, *, json: bool, verb: str) -> None:
    if json:
        emit_json(
            {
                "topic": topic,
                "read": found.read,
                "sent": dict(found.sent),
                "left": found.left,
                "unknown": found.unknown,
                "without_copy": found.without_copy,
                "errors": dict(found.errors),
            }
        )
        return
    if not found.read:
        emit(f"{printable(topic)} has no dead letters left to send back")
        return
    emit(f"{verb}: {_targets(found) or 'nothing'}")
    for text, number in found.errors.most_common(5):
        emit(f"  {number:,} x {printable(text)}")
    if found.left:
        emit(f"left in {printable(topic)}: {count(found.left, 'record')} with other errors")
    if found.unknown:
        emit(
            f"left in {printable(topic)}: {count(found.unknown, 'record')} without a header "
            "penstock.original.topic: name a topic with --to"
        )
    if found.without_copy:
        emit(
            f"left in {printable(topic)}: {count(found.without_copy, 'letter')} without a copy of "
            "the record: set errors.deadletterqueue.copy.record.enable=true for the share group"
        )
