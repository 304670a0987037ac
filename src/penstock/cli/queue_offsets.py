"""`penstock queue reset-offsets` and `delete-offsets`: where a queue's group begins."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli import group_reset
from penstock.cli.options import Bootstrap, Json, QueueTopic, ShareGroup, Yes
from penstock.cli.output import CommandFailed, emit_json, pipe_guard, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm, connect, report, report_deleted, run
from penstock.client.admin.group_reset import Move, Target, plan_share_group
from penstock.client.errors import BrokerError
from penstock.client.times import TIME_FORMS
from penstock.topic_partition import TopicPartition

RESET_HELP: Final = f"""Set the first job that is not done. Shows the changes; --execute makes them.

Jobs from there on are delivered again, as if they had never been delivered. Jobs before it count as
done. The group must have no members: stop its workers first. An offset outside of the log is moved
to the nearest one in it.

TIME is {TIME_FORMS}.

\b
Examples:
  penstock queue reset-offsets jobs --to-earliest
  penstock queue reset-offsets jobs --to-datetime 2h --execute
  penstock queue reset-offsets jobs --partitions 0,1 --to-latest --execute
"""
DELETE_HELP: Final = """Forget which jobs of TOPIC the group has done.

If the group takes jobs of TOPIC again, it begins as a new group does. The group must have no
members: stop its workers first. To delete the group itself: penstock group delete.

\b
Examples:
  penstock queue delete-offsets jobs
  penstock queue delete-offsets jobs --group resizers --yes
"""


def reset_offsets(
    topic: QueueTopic,
    *,
    partitions: Annotated[
        str | None,
        typer.Option("--partitions", metavar="P,P...", help="Only these partitions."),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the start of the log: do all jobs again.")
    ] = False,
    to_latest: Annotated[
        bool,
        typer.Option("--to-latest", help="To the end of the log: discard jobs that are not done."),
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, metavar="N", help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="To the first job at or after this time."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="Add N; a negative N does jobs again."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Make the changes. The default only shows them.")
    ] = False,
    group: ShareGroup = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    target = group_reset.target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    chosen = None if partitions is None else _partitions(partitions)
    name = topic if group is None else group
    moves, outcomes = run(_plan_and_move(bootstrap, name, topic, chosen, target, execute=execute))
    with pipe_guard():
        if json:
            emit_json(
                {
                    "topic": topic,
                    "group": name,
                    "executed": execute,
                    "partitions": group_reset.moves_json(moves, outcomes),
                }
            )
        else:
            group_reset.show(moves, executed=execute)
    report(outcomes.values())


def _partitions(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise CommandFailed(f"--partitions {printable(text)}: write numbers, as in 0,1,2")
    return [int(number) for number in numbers]


async def _plan_and_move(
    bootstrap: str,
    group: str,
    topic: str,
    partitions: list[int] | None,
    target: Target,
    *,
    execute: bool,
) -> tuple[list[Move], dict[TopicPartition, BrokerError | None]]:
    """Returns the moves, and with `execute` their outcomes."""
    async with connect(bootstrap) as admin:
        moves = await plan_share_group(admin, group, {topic: partitions}, target)
        if not execute:
            return moves, {}
        wanted = {move.topic_partition: move.offset for move in moves}
        return moves, await admin.alter_share_group_offsets(group, wanted)


def delete_offsets(
    topic: QueueTopic,
    *,
    group: ShareGroup = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    name = topic if group is None else group
    confirm(
        f"Forget which jobs of {printable(topic)} the group {printable(name)} has done?", yes=yes
    )

    async def main() -> dict[str, BrokerError | None]:
        async with connect(bootstrap) as admin:
            return await admin.delete_share_group_offsets(name, [topic])

    report_deleted(f"the offsets of group {printable(name)} for", run(main()), json=json)
