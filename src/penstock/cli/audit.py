"""`penstock audit`: shows who did what, from the topic `__audit` or from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.options import Bootstrap
from penstock.cli.output import CommandFailed, emit, pipe_guard, printable
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    EXIT_REFUSED,
    TIMEOUT_MS,
    checked,
    run,
)
from penstock.cli.tables import Column, table
from penstock.client.audit_topic import FoundEvents, RawConsumer, read_audit_topic
from penstock.client.consumer import Consumer
from penstock.client.errors import TopicNotFound
from penstock.metadata.model import AUDIT_TOPIC
from penstock.runtime import SystemClock
from penstock.security.audit import AuditEvent, AuditQuery, format_time

_HELP = """Show who did what, from where, and which rule allowed or denied it.

The events are read from the topic __audit; this needs READ on that topic. With --file they are read
from the audit log of one broker, with its rotated files.

A time is 1h or 1d12h ago, or 2026-11-17T12:30 in UTC. An action is one such as topic.create, or a
group such as topic, acl, login or access. An outcome is allowed, denied or failed.

\b
Examples:
  penstock audit --since 1h --user alice
  penstock audit --action login --outcome denied
  penstock audit --since 2026-11-17T08:00 --action topic --json
  penstock audit --file /var/lib/penstock/audit.log
"""
_Since = Annotated[
    str, typer.Option("--since", metavar="TIME", help="Only events at or after this time.")
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only events before this time.")
]
_User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Only events of this user.")
]
_Action = Annotated[
    str | None,
    typer.Option("--action", metavar="NAME", help="Only this action, or this group of actions."),
]
_Outcome = Annotated[
    str | None,
    typer.Option("--outcome", metavar="NAME", help="Only this outcome: allowed, denied or failed."),
]
_Limit = Annotated[
    int, typer.Option("--limit", min=1, metavar="N", help="Show only the last N events.")
]
_File = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="PATH", help="Read this audit log of a broker instead of the topic."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def register(root: typer.Typer) -> None:
    root.command("audit", help=_HELP)(show)


def show(
    *,
    since: _Since = "1d",
    until: _Until = None,
    user: _User = None,
    action: _Action = None,
    outcome: _Outcome = None,
    limit: _Limit = 1000,
    file: _File = None,
    json: _Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    try:
        now_ms = SystemClock().wall_ms()
        query = AuditQuery.parse(now_ms, since, until, user, action, outcome)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    found = FoundEvents(query, limit)
    if file is not None:
        for path in _rotated(file):
            with path.open("rb") as lines:
                found.add(lines)
    else:
        run(_read_topic(bootstrap, found))
    with pipe_guard():
        _print(found, json=json)


def _rotated(path: Path) -> Iterator[Path]:
    """Yields the files of an audit log, the oldest first."""
    older = []
    for number in count(1):
        each = path.with_name(f"{path.name}.{number}")
        if not each.exists():
            break
        older.append(each)
    yield from reversed(older)
    yield path


async def _read_topic(bootstrap: str, found: FoundEvents) -> None:
    consumer: RawConsumer = Consumer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        request_timeout_ms=TIMEOUT_MS,
        default_api_timeout_ms=TIMEOUT_MS,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )
    async with consumer:
        try:
            await read_audit_topic(consumer, found)
        except TopicNotFound as error:
            raise CommandFailed(
                f"there is no topic {AUDIT_TOPIC}, or you may not read it. Brokers create it after "
                "their first event, if audit.enabled and audit.topic.enabled are true. To read the "
                "log of a broker, use --file",
                EXIT_REFUSED,
            ) from error


def _print(found: FoundEvents, *, json: bool) -> None:
    events = found.in_order()
    if json:
        for event in events:
            emit(event.to_json())
    elif events:
        emit(table([Column(name) for name in _COLUMNS], map(_row, events)))
    else:
        emit("no events")
    if found.left_out:
        sys.stderr.write(
            f"penstock: {found.left_out} earlier events are not shown: use --limit, or a narrower "
            "query\n"
        )
    if found.unreadable:
        sys.stderr.write(f"penstock: {found.unreadable} records are not audit events\n")


_COLUMNS: Final = ("time", "user", "address", "action", "outcome", "resource", "times", "why")


def _row(event: AuditEvent) -> tuple[object, ...]:
    why = "; ".join(text for text in (event.rule, event.detail) if text)
    return (
        format_time(event.time_ms),
        event.user,
        event.address,
        event.action,
        event.outcome.value,
        None if event.resource is None else printable(event.resource),
        event.count,
        why,
    )
