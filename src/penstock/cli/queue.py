"""`penstock queue`: puts, takes, shows and drains the jobs of queues."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from penstock.cli import queue_offsets
from penstock.cli.options import Bootstrap, Json, QueueTopic, ShareGroup, TargetTopic, Yes
from penstock.cli.output import (
    CommandFailed,
    Shown,
    bytes_text,
    count,
    emit,
    emit_json,
    json_text,
    pipe_guard,
    printable,
    time_text,
)
from penstock.cli.pipeline_redrive import redrive
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    checked,
    confirm,
    run,
)
from penstock.cli.tables import Column, table
from penstock.client.model import Record
from penstock.client.queues.queue import Queue
from penstock.client.queues.queue_stats import QueueStats

_PUT_HELP = """Put jobs into a queue: VALUES, or the lines of standard input.

Times are in seconds. --delay, --ttl, --priority and --dedup each need a setting of the topic. If it
is missing, the error names it.

\b
Examples:
  penstock queue put jobs "resize cat.png"
  penstock queue put jobs --key cats --header origin=web "resize cat.png"
  cat orders.txt | penstock queue put jobs --delay 60
"""
_TAKE_HELP = """Take jobs from a queue, print them and mark them as done.

Waits for jobs until --count of them were taken, or until none came for --timeout seconds. With
--release, jobs are printed and then given back.

\b
Examples:
  penstock queue take jobs
  penstock queue take jobs --count 10 --timeout 5 --json
  penstock queue take jobs --group resizers --release
"""
_PEEK_HELP = """Show the first jobs that are not done, without taking them.

They are read from the log. Workers may have some of them, and later ones may be done.

\b
Examples:
  penstock queue peek jobs
  penstock queue peek jobs --count 100 --json
"""
_STATS_HELP = """Show how many jobs a queue has, and how many workers.

The depth is the number of offsets that are not done: jobs that wait, and jobs in flight, which
workers have. Redelivered jobs were delivered before and are not done. Scheduled jobs have a due
time that is more than a minute after they were put; the depth does not count them. The oldest job
that is not done is shown by its time.

\b
Examples:
  penstock queue stats jobs
  penstock queue stats jobs --group resizers --json | jq .depth
"""
_DRAIN_HELP = """Mark all jobs of a queue as done, without processing them.

Jobs that workers have are not drained.

\b
Examples:
  penstock queue drain jobs
  penstock queue drain jobs --yes
"""
_REDRIVE_HELP = """Send the dead letters of TOPIC back to the queues that they came from.

If a redrive was interrupted, the next one continues where it stopped and sends no job twice. Dead
letters that --error or --limit leaves out stay in TOPIC.

\b
Examples:
  penstock queue redrive dlq.jobs --dry-run
  penstock queue redrive dlq.jobs --to jobs --limit 100
"""
_TAKE_S: Final = 10.0


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Queues: put, take, peek, stats, drain, redrive, reset-offsets, delete-offsets.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("put", help=_PUT_HELP)(put)
    app.command("take", help=_TAKE_HELP)(take)
    app.command("peek", help=_PEEK_HELP)(peek)
    app.command("stats", help=_STATS_HELP)(stats)
    app.command("drain", help=_DRAIN_HELP)(drain)
    app.command("redrive", help=_REDRIVE_HELP)(redrive)
    app.command("reset-offsets", help=queue_offsets.RESET_HELP)(queue_offsets.reset_offsets)
    app.command("delete-offsets", help=queue_offsets.DELETE_HELP)(queue_offsets.delete_offsets)
    root.add_typer(app, name="queue")


def _open(bootstrap: str, topic: str, group: str | None = None, **options: Any) -> Queue[bytes]:
    return Queue(
        checked(bootstrap),
        topic,
        group_id=group,
        client_id=CLIENT_ID,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
        **options,
    )


def put(
    topic: TargetTopic,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[VALUE]...", help="The jobs.")
    ] = None,
    *,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of the jobs.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=TEXT", help="A header. Repeatable."),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Deliver the jobs after S seconds.")
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="S",
            help="Discard jobs that are not taken within S seconds after they are due.",
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="0 is the lowest priority.")
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(metavar="ID", help="Deliver only one job with this id.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    headers = [_header(text) for text in header or ()]

    async def main() -> int:
        number = 0
        async with _open(bootstrap, topic) as queue:
            for value in _values(values):
                await queue.put(
                    value,
                    key=key,
                    headers=headers,
                    delay=delay,
                    ttl=ttl,
                    priority=priority,
                    dedup=dedup,
                )
                number += 1
        return number

    number = run(main())
    if json:
        emit_json({"topic": topic, "put": number})
    else:
        emit(f"put {count(number, 'job')} into {printable(topic)}")


def _values(given: list[str] | None) -> Any:
    if given:
        return (value.encode() for value in given)
    if sys.stdin is None:
        raise CommandFailed("there is no standard input: give values")
    return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CommandFailed(f"--header {printable(text)}: give NAME=TEXT")
    return name, value.encode()


def take(
    topic: QueueTopic,
    *,
    number: Annotated[
        int, typer.Option("--count", "-n", min=1, metavar="N", help="Take at most N jobs.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Stop if no job arrives for S seconds.")
    ] = _TAKE_S,
    release: Annotated[
        bool, typer.Option("--release", help="Give the jobs back instead of marking them done.")
    ] = False,
    group: ShareGroup = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> int:
        taken = 0
        async with _open(bootstrap, topic, group, prefetch=min(number, 1_000)) as queue:
            held = []
            while taken < number and (job := await queue.take(timeout)) is not None:
                taken += 1
                emit(_shown(job.record, job.attempt, json=json))
                if release:
                    # Given back at the end: it would come again at once.
                    held.append(job)
                else:
                    await job.done()
        return taken

    with pipe_guard():
        if not run(main()):
            raise CommandFailed(f"no job arrived in {printable(topic)} within {timeout:g} s", 1)


def peek(
    topic: QueueTopic,
    *,
    number: Annotated[
        int, typer.Option("--count", "-n", min=1, metavar="N", help="Show at most N jobs.")
    ] = 10,
    group: ShareGroup = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> list[Record[bytes | None, bytes | None]]:
        async with _open(bootstrap, topic, group) as queue:
            return await queue.peek(number)

    with pipe_guard():
        records = run(main())
        for record in records:
            emit(_shown(record, None, json=json))
        if not records and not json:
            emit(f"{printable(topic)} has no jobs")


def _shown(record: Record[bytes | None, bytes | None], attempt: int | None, *, json: bool) -> str:
    if not json:
        return "null" if record.value is None else printable(_text(record.value) or "")
    shown: dict[str, object] = {
        "partition": record.partition,
        "offset": record.offset,
        "time": time_text(record.timestamp),
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": {name: _text(data) for name, data in record.headers},
    }
    if attempt is not None:
        shown["attempt"] = attempt
    return json_text(shown)


def _text(data: bytes | None) -> str | None:
    """Returns text as it is, and other data as hex digits."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return bytes_text(data, Shown.HEX)


def stats(
    topic: QueueTopic,
    *,
    group: ShareGroup = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> QueueStats:
        async with _open(bootstrap, topic, group) as queue:
            return await queue.stats()

    found = run(main())
    with pipe_guard():
        emit(_stats_json(found) if json else _stats_text(found))


def _stats_json(found: QueueStats) -> str:
    return json_text(
        {
            "topic": found.topic,
            "group": found.group,
            "state": found.state,
            "members": found.members,
            "depth": found.depth,
            "in_flight": found.in_flight,
            "redelivered": found.redelivered,
            "scheduled": found.scheduled,
            "oldest": None if found.oldest_ms is None else time_text(found.oldest_ms),
            "partitions": [
                {
                    "partition": part.partition,
                    "start_offset": part.start_offset,
                    "end_offset": part.end_offset,
                    "depth": part.depth,
                    "in_flight": part.in_flight,
                    "redelivered": part.redelivered,
                    "scheduled": part.scheduled,
                    "oldest": None if part.oldest_ms is None else time_text(part.oldest_ms),
                }
                for part in found.partitions
            ],
        }
    )


def _stats_text(found: QueueStats) -> str:
    columns = (
        Column("partition", right=True),
        Column("first not done", right=True),
        Column("end", right=True),
        Column("depth", right=True),
        Column("in flight", right=True),
        Column("redelivered", right=True),
        Column("scheduled", right=True),
        Column("oldest"),
    )
    rows = [
        (
            *(part.partition, part.start_offset, part.end_offset, part.depth),
            *(part.in_flight, part.redelivered, part.scheduled),
            None if part.oldest_ms is None else time_text(part.oldest_ms),
        )
        for part in found.partitions
    ]
    state = found.state or "no worker has joined yet"
    head = (
        f"{printable(found.topic)}: {count(found.depth, 'job')}, group {printable(found.group)} "
        f"({printable(state)}, {count(found.members, 'member')})"
    )
    return f"{head}\n{table(columns, rows)}"


def drain(
    topic: QueueTopic,
    *,
    yes: Yes = False,
    group: ShareGroup = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def depth() -> int:
        async with _open(bootstrap, topic, group) as queue:
            return (await queue.stats()).depth

    async def main() -> int:
        async with _open(bootstrap, topic, group, prefetch=1_000) as queue:
            return await queue.drain()

    waiting = run(depth())
    if waiting:
        confirm(f"mark {count(waiting, 'job')} of {printable(topic)} as done?", yes=yes)
    drained = run(main()) if waiting else 0
    if json:
        emit_json({"topic": topic, "drained": drained})
    else:
        emit(f"drained {count(drained, 'job')} from {printable(topic)}")
