"""`penstock cluster`: commands for the whole cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import cluster_rebalance, cluster_replicate
from penstock.cli.cluster_state import Found, look, moving_json
from penstock.cli.options import Bootstrap, Json, OnlyTopics, Yes
from penstock.cli.output import count, emit, emit_json, pipe_guard, printable, size_text
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm, connect, report, run
from penstock.cli.tables import Column, table
from penstock.client.errors import BrokerError
from penstock.metadata.rebalance import plan
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

_DESCRIBE_HELP = """Show the load of each broker, and replica moves under way.

\b
Examples:
  penstock cluster describe
  penstock cluster describe --json | jq '.brokers[].replicas'
"""
_ELECT_HELP = """Elect the preferred leader of every partition.

The preferred leader is the partition's first replica. With --unclean, elects any live replica for
each partition without a leader instead. Records that this replica does not have are lost for good.

\b
Examples:
  penstock cluster elect
  penstock cluster elect --topic orders
  penstock cluster elect --topic orders --unclean
"""
_FORGET_HELP = """Remove a stopped BROKER from the cluster's metadata.

Refused while the broker runs, or while a partition has a replica on it. So exit code 0 means that
nothing is lost.

\b
Examples:
  penstock cluster drain 2 && penstock cluster forget 2
"""


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="The cluster: describe, rebalance, drain, elect leaders and more.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("describe", help=_DESCRIBE_HELP)(describe)
    cluster_rebalance.register(app)
    cluster_replicate.register(app)
    app.command("elect", help=_ELECT_HELP)(elect)
    app.command("forget", help=_FORGET_HELP)(forget)
    root.add_typer(app, name="cluster")


def describe(*, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    async def main() -> Found:
        async with connect(bootstrap) as admin:
            return await look(admin, sizes=True)

    found = run(main())
    described = _described(found)
    with pipe_guard():
        if json:
            emit_json(described)
        else:
            emit(_described_text(described, found))


def _described(found: Found) -> dict[str, Any]:
    addresses = {broker.id: broker for broker in found.info.brokers}
    brokers = []
    for broker_id, load in found.loads().items():
        broker = addresses.get(broker_id)
        brokers.append(
            {
                "id": broker_id,
                "address": None if broker is None else str(broker.address),
                "rack": None if broker is None else broker.rack,
                "controller": broker_id == found.info.controller_id,
                "cordoned": broker_id in found.cordoned,
                **load,
            }
        )
    planned = None
    if found.racks:
        planned = plan(found.racks, found.placed(), exclude=found.cordoned)
    return {
        "cluster_id": found.info.cluster_id,
        "controller": found.info.controller_id,
        "brokers": brokers,
        "topics": len(found.topics),
        "partitions": sum(len(topic.partitions) for topic in found.topics),
        "not_led_by_preferred": len(found.not_preferred()),
        "uneven_racks": 0 if planned is None else planned.before.uneven_racks,
        "moves_to_balance": 0 if planned is None else len(planned.steps),
        "moving": moving_json(found.moving),
    }


def _described_text(described: dict[str, Any], found: Found) -> str:
    columns = (
        Column("broker", right=True),
        Column("address"),
        Column("rack"),
        Column("replicas", right=True),
        Column("leads", right=True),
        Column("size", right=True),
        Column("role"),
    )
    rows = [
        (
            broker["id"],
            broker["address"] or "not running",
            broker["rack"],
            broker["replicas"],
            broker["leads"],
            size_text(broker["size_bytes"]) if found.sizes else None,
            next((each for each in ("controller", "cordoned") if broker[each]), ""),
        )
        for broker in described["brokers"]
    ]
    topics = f"{count(described['topics'], 'topic')}, {count(described['partitions'], 'partition')}"
    lines = [
        f"cluster {printable(str(described['cluster_id']))}: {topics}",
        "",
        table(columns, rows),
        "",
    ]
    cordoned = [broker["id"] for broker in described["brokers"] if broker["cordoned"]]
    if cordoned:
        lines.append(
            f"drained, gets no new partitions: broker {', '.join(map(str, cordoned))}; "
            f"to undo: penstock cluster undrain {cordoned[0]}"
        )
    if described["moving"]:
        moves = count(len(described["moving"]), "partition")
        lines.append(f"{moves} being moved: penstock cluster reassign --status")
    if described["not_led_by_preferred"]:
        others = count(described["not_led_by_preferred"], "partition")
        lines.append(f"{others} not led by the preferred replica: penstock cluster elect")
    if described["uneven_racks"]:
        lines.append(f"{count(described['uneven_racks'], 'partition')} not spread over racks")
    if described["moves_to_balance"]:
        moves = count(described["moves_to_balance"], "partition")
        lines.append(f"{moves} to move for an even balance: penstock cluster rebalance")
    else:
        lines.append("the cluster is balanced: no replica or leader needs to move")
    return "\n".join(lines)


def elect(
    *,
    topic: OnlyTopics = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Elect any live replica. May lose records.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    if unclean:
        confirm("Elect replicas that may lack records? Those records are lost for good.", yes=yes)

    async def main() -> dict[TopicPartition, BrokerError | None]:
        async with connect(bootstrap) as admin:
            topic_partitions = None
            if topic:
                found = await admin.describe_topics(topic)
                report(each for each in found.values() if isinstance(each, BrokerError))
                topic_partitions = [
                    TopicPartition(each.name, part.index)
                    for each in found.values()
                    if not isinstance(each, BrokerError)
                    for part in each.partitions
                ]
            return await admin.elect_leaders(topic_partitions, unclean=unclean)

    outcomes = {
        topic_partition: error
        for topic_partition, error in run(main()).items()
        if error is None or error.code != ErrorCode.ELECTION_NOT_NEEDED
    }
    elected = [topic_partition for topic_partition, error in outcomes.items() if error is None]
    if json:
        emit_json(
            {
                "elected": [{"topic": name, "partition": index} for name, index in elected],
                "refused": [
                    {
                        "topic": topic_partition.topic,
                        "partition": topic_partition.partition,
                        "reason": error.message,
                    }
                    for topic_partition, error in outcomes.items()
                    if error is not None
                ],
            }
        )
    elif outcomes:
        emit(f"{count(len(elected), 'partition')} got a new leader")
    else:
        emit("no election was needed")
    report(outcomes.values())


def forget(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.", min=0)],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> bool:
        async with connect(bootstrap) as admin:
            try:
                await admin.unregister_broker(broker)
            except BrokerError as error:
                if error.code != ErrorCode.BROKER_ID_NOT_REGISTERED:
                    raise
                return False
            return True

    was_known = run(main())
    if json:
        emit_json({"broker": broker, "was_known": was_known})
    else:
        emit(
            f"broker {broker} was removed, with its settings"
            if was_known
            else f"broker {broker} is not registered: there is nothing to remove"
        )
