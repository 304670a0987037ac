"""`penstock cluster rebalance`, `drain`, `undrain` and `reassign`: plan and make replica moves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.cli.cluster_plan import plan_json, plan_text
from penstock.cli.cluster_state import Found, look, moving_json
from penstock.cli.options import Bootstrap, Json, OnlyTopics
from penstock.cli.output import CommandFailed, count, emit, emit_json, pipe_guard
from penstock.cli.progress import progress_bar
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, connect, explain_client, run
from penstock.cli.tables import Column, table
from penstock.client.admin.admin import Admin
from penstock.client.admin.cordons import cordon, uncordon
from penstock.client.admin.moves import Ended, Moves, braked, lift_throttle, total_work
from penstock.metadata.rebalance import NotEnoughBrokers, Plan, Step, plan
from penstock.runtime import SystemClock
from penstock.topic_partition import TopicPartition

_REBALANCE_HELP = """Spread replicas and leaders evenly over brokers and racks.

Makes a plan with few moves and shows it; with --execute, carries it out and waits until it
is done. You can stop the command and run it again: it plans from where replicas are now, or where
they are moving to.

\b
Examples:
  penstock cluster rebalance
  penstock cluster rebalance --execute
  penstock cluster rebalance --execute --drain 2 --throttle 50000000
  penstock cluster rebalance --json | jq '.moves | length'
"""
_DRAIN_HELP = """Move all replicas away from BROKER.

Then it can be stopped for good. No other replicas move. If BROKER is not running, new replicas are
created on other brokers. If it is running, it also gets no new partitions until `penstock cluster
undrain`.

\b
Examples:
  penstock cluster drain 2 --dry-run
  penstock cluster drain 2
"""
_UNDRAIN_HELP = """Allow new partitions on BROKER again, after it was drained.

`penstock cluster rebalance` moves replicas back to it.

\b
Examples:
  penstock cluster undrain 2 && penstock cluster rebalance --execute
"""
_REASSIGN_HELP = """Show, await or cancel replica moves, or move replicas by hand.

\b
Examples:
  penstock cluster reassign --status
  penstock cluster reassign --wait
  penstock cluster reassign --cancel
  penstock cluster reassign --move orders-0=1,2,3 --move orders-1=2,3,1
"""

_Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Carry out the plan, or only show it.")
]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        min=0,
        metavar="BYTES",
        help="How much a broker may copy per second; 0: no limit.",
        show_default="20 MB, doubled after every minute without progress",
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        min=1,
        metavar="N",
        help="How many partitions may move at a time.",
        show_default="one per broker, up to 20 while each takes less than a second",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0.0, metavar="S", help="Stop waiting after S seconds. The moves continue."
    ),
]


@dataclass(frozen=True, slots=True)
class Pace:
    """How moves are carried out."""

    throttle: int | None
    at_once: int | None
    timeout_s: float | None


def register(app: typer.Typer) -> None:
    app.command("rebalance", help=_REBALANCE_HELP)(rebalance)
    app.command("drain", help=_DRAIN_HELP)(drain)
    app.command("undrain", help=_UNDRAIN_HELP)(undrain)
    app.command("reassign", help=_REASSIGN_HELP)(reassign)


def rebalance(
    *,
    execute: _Execute = False,
    drained: Annotated[
        list[int] | None,
        typer.Option(
            "--drain", metavar="BROKER", help="Move all replicas off this broker. Repeatable."
        ),
    ] = None,
    exclude: Annotated[
        list[int] | None,
        typer.Option(
            "--exclude", metavar="BROKER", help="Add no replicas to this broker. Repeatable."
        ),
    ] = None,
    throttle: Throttle = None,
    at_once: AtOnce = None,
    timeout: Timeout = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    pace = Pace(throttle, at_once, timeout)
    _plan_and_do(
        bootstrap, drained or (), exclude or (), execute=execute, pace=pace, json=json, level=True
    )


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.", min=0)],
    *,
    execute: _Execute = True,
    throttle: Throttle = None,
    at_once: AtOnce = None,
    timeout: Timeout = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    pace = Pace(throttle, at_once, timeout)
    _plan_and_do(bootstrap, [broker], (), execute=execute, pace=pace, json=json, level=False)
    if execute and not json:
        emit(f"broker {broker} has no replicas and gets no new ones: you can stop it")


def undrain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.", min=0)],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> bool:
        async with connect(bootstrap) as admin:
            known = [each.id for each in (await admin.describe_cluster()).brokers]
            if broker not in known:
                raise CommandFailed(
                    f"broker {broker} is not running, so it cannot be undrained: start it first. "
                    f"Running brokers: {sorted(known)}",
                    EXIT_REFUSED,
                )
            return await uncordon(admin, broker)

    was_drained = run(main())
    if json:
        emit_json({"broker": broker, "was_drained": was_drained})
    elif was_drained:
        emit(f"broker {broker} can get partitions again; to use it: penstock cluster rebalance")
    else:
        emit(f"broker {broker} was not drained")


def _plan_and_do(
    bootstrap: str,
    drained: Sequence[int],
    excluded: Sequence[int],
    *,
    execute: bool,
    pace: Pace,
    json: bool,
    level: bool,
) -> None:
    async def main() -> tuple[Plan, Ended | None]:
        async with connect(bootstrap) as admin:
            found = await look(admin, sizes=True)
            _check_brokers(found, (*drained, *excluded))
            planned = _planned(found, drained, excluded, level=level)
            if not json:
                with pipe_guard():
                    emit(plan_text(planned, found))
            if not execute:
                return planned, None
            for broker in drained:
                if broker in found.racks:
                    await cordon(admin, broker)
            return planned, await carry_out(admin, planned.steps, found, pace, lead=True)

    planned, ended = run(main())
    if json:
        emit_json({**plan_json(planned), "executed": execute, **ended_json(ended)})
    elif planned.steps and ended is None:
        emit("nothing was changed: add --execute to carry out the plan")
    elif planned.steps and ended is not None:
        report_ended(ended)
    if ended is not None and not ended.is_whole:
        raise typer.Exit(EXIT_REFUSED)


def _planned(found: Found, drained: Sequence[int], excluded: Sequence[int], *, level: bool) -> Plan:
    exclude = {*excluded, *found.cordoned} - {*drained}
    try:
        return plan(found.racks, found.placed(), drain=drained, exclude=exclude, level=level)
    except NotEnoughBrokers as error:
        raise CommandFailed(str(error), EXIT_REFUSED) from error


def _check_brokers(found: Found, named: Sequence[int]) -> None:
    known = {*found.racks, *found.missing}
    unknown = [each for each in named if each not in known]
    if unknown:
        raise CommandFailed(
            f"there is no broker {unknown[0]}: use one of {sorted(known)}", EXIT_REFUSED
        )


async def carry_out(
    admin: Admin,
    steps: Sequence[Step],
    found: Found,
    pace: Pace,
    *,
    begun: bool = False,
    lead: bool = False,
) -> Ended:
    """Carries out the steps, or with `begun` only watches them, until they end or the timeout."""
    moves = Moves(admin, steps, SystemClock(), pace.at_once, lead=lead)
    awaited = {each for step in steps for each in step.added} - found.racks.keys()
    if awaited:
        _say(f"waiting for broker {sorted(awaited)[0]}, which is not running")
    with progress_bar(total_work(steps), quiet=False) as advance:
        try:
            async with asyncio.timeout(pace.timeout_s):
                if begun:
                    return await moves.watch(advance)
                async with braked(admin, moves, pace.throttle, SystemClock(), _say_eased):
                    return await moves.run(advance)
        except TimeoutError:
            raise CommandFailed(
                f"not done after {pace.timeout_s:g} s: {_how_to_go_on(moves)}", EXIT_REFUSED
            ) from None
        except asyncio.CancelledError:
            _say(f"stopped: {_how_to_go_on(moves)}")
            raise


def _how_to_go_on(moves: Moves) -> str:
    left = f"; {count(moves.left, 'move')} not started yet (run the same command to continue)"
    return (
        f"{count(moves.under_way, 'move')} under way, which the cluster will finish"
        f"{left if moves.left else ''}. To show, await or cancel them: "
        "penstock cluster reassign --status | --wait | --cancel"
    )


def _say_eased(rate: int) -> None:
    _say(f"no progress for a while: raised the throttle to {rate // 10**6} MB/s per broker")


def _say(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
    sys.stderr.flush()


def ended_json(ended: Ended | None) -> dict[str, Any]:
    if ended is None:
        return {}
    return {
        "done": len(ended.done),
        "refused": [str(error) for error in ended.refused],
        "cancelled": [str(topic_partition) for topic_partition in ended.cancelled],
    }


def report_ended(ended: Ended) -> None:
    emit(f"done: {count(len(ended.done), 'partition')} moved")
    for error in (*ended.refused, *ended.unled):
        _say(explain_client(error))
    if ended.cancelled:
        _say(
            f"{count(len(ended.cancelled), 'move')} cancelled by another client, "
            f"for example {ended.cancelled[0]}; to plan them again: penstock cluster rebalance"
        )


# Moves by hand


def reassign(
    *,
    status: Annotated[bool, typer.Option("--status", help="Show the moves under way.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the moves, and remove the throttle.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the moves, then remove the throttle.")
    ] = False,
    move: Annotated[
        list[str] | None,
        typer.Option("--move", metavar="TOPIC-N=B,B,...", help="Move this partition. Repeatable."),
    ] = None,
    topic: OnlyTopics = None,
    throttle: Throttle = None,
    at_once: AtOnce = None,
    timeout: Timeout = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    if sum((status, cancel, wait, bool(move))) != 1:
        raise CommandFailed("give exactly one of --status, --wait, --cancel and --move")
    if move and topic:
        raise CommandFailed("--move already names its topics: leave out --topic")
    wanted = dict(_parse_move(each) for each in move or ())
    pace = Pace(throttle, at_once, timeout)

    async def main() -> Ended | None:
        async with connect(bootstrap) as admin:
            found = await look(admin, sizes=False)
            steps = _steps(found, wanted) if move else _begun(found, topic)
            if status:
                _show_moves(found, steps, json)
                return None
            if cancel:
                ended = await _cancel(admin, steps)
            else:
                ended = await carry_out(admin, steps, found, pace, begun=wait)
            if wait or cancel:
                await lift_throttle(admin)
            return ended

    ended = run(main())
    if ended is None:
        return
    if json:
        emit_json(ended_json(ended))
    elif cancel:
        emit(f"cancelled {count(len(ended.done), 'move')}")
        for error in ended.refused:
            _say(explain_client(error))
    else:
        report_ended(ended)
    if not ended.is_whole:
        raise typer.Exit(EXIT_REFUSED)


def _parse_move(text: str) -> tuple[TopicPartition, tuple[int, ...]]:
    name, _, brokers = text.partition("=")
    try:
        return TopicPartition.parse(name), tuple(int(each) for each in brokers.split(","))
    except ValueError:
        raise CommandFailed(
            f"--move {text}: write it as TOPIC-PARTITION=BROKER,BROKER,... "
            "with the preferred leader first"
        ) from None


def _steps(found: Found, wanted: dict[TopicPartition, tuple[int, ...]]) -> list[Step]:
    known = {(each.topic, each.index): each.replicas for each in found.placed()}
    # A partition that is not known goes to the cluster as well, which refuses it.
    return [
        Step(*topic_partition, known.get(topic_partition, ()), replicas, None)
        for topic_partition, replicas in wanted.items()
    ]


def _begun(found: Found, topics: Sequence[str] | None) -> list[Step]:
    return [
        Step(
            *topic_partition,
            tuple(each for each in move.replicas if each not in move.adding),
            move.target,
            None,
        )
        for topic_partition, move in sorted(found.moving.items())
        if not topics or topic_partition.topic in topics
    ]


async def _cancel(admin: Admin, steps: Sequence[Step]) -> Ended:
    ended = Ended()
    topic_partitions = [TopicPartition(step.topic, step.index) for step in steps]
    if topic_partitions:
        answers = await admin.alter_partition_reassignments(dict.fromkeys(topic_partitions))
        ended.done = [
            topic_partition for topic_partition, error in answers.items() if error is None
        ]
        ended.refused = [error for error in answers.values() if error is not None]
    return ended


def _show_moves(found: Found, steps: Sequence[Step], json: bool) -> None:
    shown = {
        topic_partition: found.moving[topic_partition]
        for topic_partition in (TopicPartition(step.topic, step.index) for step in steps)
    }
    in_sync = {
        topic_partition: partition.in_sync for topic_partition, partition in found.partitions()
    }
    with pipe_guard():
        if json:
            emit_json({"moving": moving_json(shown)})
        elif not shown:
            emit("no moves under way")
        else:
            columns = (
                Column("partition"),
                Column("to"),
                Column("adding"),
                Column("caught up"),
                Column("removing"),
            )
            rows = [
                (
                    str(topic_partition),
                    move.target,
                    move.adding,
                    [each for each in move.adding if each in in_sync.get(topic_partition, ())],
                    move.removing,
                )
                for topic_partition, move in shown.items()
            ]
            emit(table(columns, rows))
            emit(f"{count(len(shown), 'move')} under way")
