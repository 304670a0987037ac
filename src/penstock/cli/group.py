"""`penstock group`: shows consumer groups and their lag, resets offsets, deletes groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from penstock.cli import completion, group_reset
from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import (
    CommandFailed,
    count,
    emit_json,
    json_text,
    pipe_guard,
    printable,
)
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm, connect, report, report_deleted, run
from penstock.cli.tables import Column, table
from penstock.cli.watching import Interval, Watch, shown
from penstock.client.admin.admin import Admin
from penstock.client.admin.group_reset import Move, Target, plan
from penstock.client.admin.groups import SHARE, GroupListing
from penstock.client.errors import BrokerError, ClientError
from penstock.client.model import OffsetAndMetadata
from penstock.client.times import TIME_FORMS
from penstock.topic_partition import TopicPartition

_LIST_HELP = """List the groups: consumer groups, and the share groups of queues.

\b
Examples:
  penstock group list
  penstock group list --watch --interval 10
  penstock group list --json | jq -r '.groups[].group'
"""
_DESCRIBE_HELP = """Show GROUP's committed offsets and lag per partition.

Lag is the number of offsets between the committed offset and the end of the log. A partition
without a committed offset has no lag. Of a share group, the first offsets that are not done are
shown; penstock queue stats shows more.

\b
Examples:
  penstock group describe billing
  penstock group describe billing --watch
  penstock group describe billing --json | jq .lag
"""
_RESET_HELP = f"""Set GROUP's committed offsets. Shows the changes; --execute makes them.

The group must have no members: stop its consumers first. Without --topic this applies to all topics
for which the group has committed offsets. An offset outside of the log is moved to the nearest one
in it.

TIME is {TIME_FORMS}.

\b
Examples:
  penstock group reset-offsets billing --to-earliest
  penstock group reset-offsets billing --to-datetime 2h --execute
  penstock group reset-offsets billing --topic orders:0,1 --shift-by -100
"""
_DELETE_HELP = """Delete groups and their committed offsets.

\b
Examples:
  penstock group delete billing
"""

_PATIENCE_S: Final = 5.0
"""Optional details that take longer than this are left out of the output."""

_Group = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=completion.groups),
]


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Consumer groups: list, describe, reset-offsets, delete.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("list", help=_LIST_HELP)(list_)
    app.command("describe", help=_DESCRIBE_HELP)(describe)
    app.command("reset-offsets", help=_RESET_HELP)(reset_offsets)
    app.command("delete", help=_DELETE_HELP)(delete)
    root.add_typer(app, name="group")


def list_(
    *,
    watch: Watch = False,
    interval: Interval = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> None:
        async with connect(bootstrap) as admin:
            await shown(
                admin.list_groups,
                _list_json if json else _list_text,
                json=json,
                watch=watch,
                interval_s=interval,
            )

    with pipe_guard():
        run(main())


def _list_json(found: list[GroupListing]) -> str:
    rows = [
        {
            "group": group.group,
            "state": group.state,
            "protocol_type": group.protocol_type,
            "type": group.kind,
        }
        for group in found
    ]
    return json_text({"groups": rows})


def _list_text(found: list[GroupListing]) -> str:
    if not found:
        return "no groups yet: a group is created when a consumer joins it or commits offsets"
    columns = Column("group"), Column("state"), Column("protocol"), Column("type")
    rows = [(group.group, group.state, group.protocol_type, group.kind.lower()) for group in found]
    return table(columns, rows)


def describe(
    group: _Group,
    *,
    watch: Watch = False,
    interval: Interval = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> None:
        async with connect(bootstrap) as admin:
            await shown(
                lambda: _described(admin, group),
                json_text if json else _described_text,
                json=json,
                watch=watch,
                interval_s=interval,
            )

    with pipe_guard():
        run(main())


async def _described(admin: Admin, group: str) -> dict[str, Any]:
    info = await admin.describe_group(group)
    if info.protocol_type == SHARE:
        committed = await _begun(admin, group)
    else:
        committed = await admin.group_offsets(group)
    assigned = [topic_partition for member in info.members for topic_partition in member.assignment]
    topic_partitions = sorted({*committed, *assigned})
    bounds = await _bounds(admin, topic_partitions)
    partitions: list[dict[str, Any]] = []
    for topic_partition in topic_partitions:
        start, end = bounds.get(topic_partition, (None, None))
        at = committed.get(topic_partition)
        owner = info.owner(topic_partition)
        # Records that retention has deleted cannot be read any more, so they do not count as lag.
        behind = None if at is None or end is None else max(0, end - max(at.offset, start or 0))
        partitions.append(
            {
                "topic": topic_partition.topic,
                "partition": topic_partition.partition,
                "committed_offset": None if at is None else at.offset,
                "metadata": None if at is None else at.metadata,
                "first_offset": start,
                "next_offset": end,
                "lag": behind,
                "member_id": None if owner is None else owner.member_id,
                "client_id": None if owner is None else owner.client_id,
                "host": None if owner is None else owner.client_host,
            }
        )
    return {
        "group": group,
        "state": info.state,
        "protocol_type": info.protocol_type,
        "protocol": info.protocol,
        "coordinator": info.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "partitions": len(member.assignment),
            }
            for member in info.members
        ],
        "lag": sum(partition["lag"] or 0 for partition in partitions),
        "partitions": partitions,
    }


async def _begun(admin: Admin, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    offsets = await admin.share_group_offsets(group)
    return {
        where: OffsetAndMetadata(at.start_offset)
        for where, at in offsets.items()
        if at.start_offset is not None
    }


async def _bounds(
    admin: Admin, topic_partitions: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Returns the start and end offset of each log.

    Leaves out topics that do not answer: a group can have offsets of a deleted topic.
    """
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for topic in {topic_partition.topic for topic_partition in topic_partitions}:
        own = [
            topic_partition
            for topic_partition in topic_partitions
            if topic_partition.topic == topic
        ]
        try:
            async with asyncio.timeout(_PATIENCE_S):
                starts = await admin.list_offsets(dict.fromkeys(own, "earliest"))
                ends = await admin.list_offsets(dict.fromkeys(own, "latest"))
        except (ClientError, TimeoutError):
            continue
        for topic_partition in own:
            start, end = starts[topic_partition], ends[topic_partition]
            if start is not None and end is not None:
                bounds[topic_partition] = start.offset, end.offset
    return bounds


def _described_text(group: dict[str, Any]) -> str:
    members = count(len(group["members"]), "member")
    protocol = f"  assignor {printable(group['protocol'])}" if group["protocol"] else ""
    head = (
        f"group {printable(group['group'])}  {printable(group['state'])}  {members}{protocol}  "
        f"coordinator {group['coordinator']}  lag {group['lag']:,}"
    )
    if not group["partitions"]:
        return f"{head}\nno offsets are committed"
    columns = (
        Column("topic"),
        Column("partition", right=True),
        Column("committed", right=True),
        Column("end", right=True),
        Column("lag", right=True),
        Column("client"),
        Column("host"),
    )
    rows = [
        (
            partition["topic"],
            partition["partition"],
            partition["committed_offset"],
            partition["next_offset"],
            partition["lag"],
            partition["client_id"],
            partition["host"],
        )
        for partition in group["partitions"]
    ]
    return f"{head}\n{table(columns, rows)}"


def reset_offsets(
    group: _Group,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,P...]",
            help="Only this topic, or these partitions of it. Repeatable.",
            autocompletion=completion.topics,
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the start of the log.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, metavar="N", help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="To the first record at or after this time."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="Add N; a negative N reads records again."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Make the changes. The default only shows them.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    target = group_reset.target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    topics = group_reset.parse_topics(topic or ())
    moves, outcomes = run(_plan_and_move(bootstrap, group, topics, target, execute=execute))
    if not moves:
        raise CommandFailed(
            f"group {printable(group)} has no committed offsets: choose the topics with --topic"
        )
    with pipe_guard():
        if json:
            emit_json(
                {
                    "group": group,
                    "executed": execute,
                    "partitions": group_reset.moves_json(moves, outcomes),
                }
            )
        else:
            group_reset.show(moves, executed=execute)
    report(outcomes.values())


async def _plan_and_move(
    bootstrap: str,
    group: str,
    topics: Mapping[str, list[int] | None],
    target: Target,
    *,
    execute: bool,
) -> tuple[list[Move], dict[TopicPartition, BrokerError | None]]:
    """Returns the moves, and with `execute` their outcomes."""
    async with connect(bootstrap) as admin:
        moves = await plan(admin, group, topics, target)
        wanted = {move.topic_partition: move.offset for move in moves}
        if not execute or not wanted:
            return moves, {}
        return moves, await admin.alter_group_offsets(group, wanted)


def delete(
    group: Annotated[
        list[str],
        typer.Argument(metavar="GROUP...", help="Group ids.", autocompletion=completion.groups),
    ],
    *,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    confirm(f"Delete {', '.join(printable(name) for name in group)} and its offsets?", yes=yes)

    async def main() -> dict[str, BrokerError | None]:
        async with connect(bootstrap) as admin:
            return await admin.delete_groups(group)

    report_deleted("group", run(main()), json=json)
