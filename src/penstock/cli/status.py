"""`penstock status`: who the cluster is, and whether it is well."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from penstock.cli.local_processes import listening_process
from penstock.cli.output import count, emit, emit_json, pipe_guard, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, Bootstrap, Json, connect, run
from penstock.cli.tables import Column, table
from penstock.client.admin import BrokerInfo, PartitionInfo, TopicInfo
from penstock.client.administration import Admin
from penstock.runtime import SystemClock

_HELP = """Show the brokers of a cluster and the partitions that lack replicas.

Process ids are told for brokers of this machine that run as the same user. Exit code: 0; with
--check, 1 when a partition is under-replicated or has no leader.

\b
Examples:
  penstock status
  penstock status --watch
  penstock status --json | jq '.brokers[] | select(.controller).pid'
"""
_LISTED_MAX = 20


def register(root: typer.Typer) -> None:
    root.command("status", help=_HELP)(status)


def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="S", help="Between looks.")
    ] = 2.0,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when it is not well.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> bool:
        async with connect(bootstrap) as admin:
            while True:
                found = await _status(admin)
                _show(found, json, redraw=watch and sys.stdout.isatty())
                if not watch:
                    return bool(found["under_replicated_partitions"] or found["offline_partitions"])
                await SystemClock().sleep(interval)

    with pipe_guard():
        unwell = run(main())
    if check and unwell:
        raise typer.Exit(EXIT_REFUSED)


async def _status(admin: Admin) -> dict[str, Any]:
    info = await admin.describe_cluster()
    topics = await admin.list_topics(internal=True)
    partitions = [(topic, partition) for topic in topics for partition in topic.partitions]
    return {
        "cluster_id": info.cluster_id,
        "controller": info.controller_id,
        "brokers": [_broker(broker, info.controller_id) for broker in info.brokers],
        "topics": len(topics),
        "partitions": len(partitions),
        "under_replicated_partitions": [
            _partition(topic, partition)
            for topic, partition in partitions
            if partition.under_replicated
        ],
        "offline_partitions": [
            _partition(topic, partition) for topic, partition in partitions if partition.leader < 0
        ],
    }


def _broker(broker: BrokerInfo, controller_id: int) -> dict[str, Any]:
    pid = listening_process(broker.address)
    return {
        "id": broker.id,
        "address": str(broker.address),
        "host": broker.address.host,
        "port": broker.address.port,
        "rack": broker.rack,
        "controller": broker.id == controller_id,
        **({} if pid is None else {"pid": pid}),
    }


def _partition(topic: TopicInfo, partition: PartitionInfo) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partition": partition.index,
        "leader": partition.leader if partition.leader >= 0 else None,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync),
    }


def _show(found: dict[str, Any], as_json: bool, *, redraw: bool) -> None:
    if as_json:
        emit_json(found)
    else:
        emit(("\x1b[2J\x1b[H" if redraw else "") + _text(found))
    sys.stdout.flush()


def _text(found: dict[str, Any]) -> str:
    columns = (
        Column("broker", right=True),
        Column("address"),
        Column("rack"),
        Column("pid", right=True),
        Column("role"),
    )
    rows = [
        (
            broker["id"],
            broker["address"],
            broker["rack"],
            str(broker["pid"]) if "pid" in broker else None,
            "controller" if broker["controller"] else "",
        )
        for broker in found["brokers"]
    ]
    under = found["under_replicated_partitions"]
    offline = found["offline_partitions"]
    brokers = count(len(found["brokers"]), "broker")
    topics = f"{count(found['topics'], 'topic')}, {count(found['partitions'], 'partition')}"
    lines = [
        f"cluster {printable(str(found['cluster_id']))}: {brokers}, {topics}",
        "",
        table(columns, rows),
        "",
        f"{count(len(under), 'partition')} under-replicated, {len(offline)} without a leader",
    ]
    troubled = {(item["topic"], item["partition"]): item for item in (*under, *offline)}
    if troubled:
        shown = [
            (
                item["topic"],
                item["partition"],
                "none" if item["leader"] is None else item["leader"],
                item["replicas"],
                item["in_sync"],
            )
            for _, item in sorted(troubled.items())[:_LISTED_MAX]
        ]
        columns = (
            Column("topic"),
            Column("partition", right=True),
            Column("leader", right=True),
            Column("replicas"),
            Column("in sync"),
        )
        lines += ["", table(columns, shown)]
        if len(troubled) > _LISTED_MAX:
            lines.append(f"and {len(troubled) - _LISTED_MAX:,} more: use --json to see them")
    return "\n".join(lines)
