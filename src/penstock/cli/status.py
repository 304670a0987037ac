"""`penstock status`: shows the brokers of a cluster, its problems, and what to do about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from penstock.cli.cluster_state import Found, look
from penstock.cli.local_processes import listening_process
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import count, json_text, pipe_guard, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, connect, run
from penstock.cli.tables import Column, table
from penstock.cli.watching import Interval, Watch, shown
from penstock.client.admin.admin import Admin
from penstock.client.admin.operations import BrokerInfo, PartitionInfo
from penstock.client.errors import BrokerError

_HELP = """Show a cluster's brokers, its problems, and what to do.

Lists partitions that are under-replicated or have no leader. Shows the process ids of brokers that
run on this machine as the same user. Exit code: 0; with --check, 1 if a partition is
under-replicated or has no leader.

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
    watch: Watch = False,
    interval: Interval = 2.0,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if there is a problem.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> dict[str, Any]:
        async with connect(bootstrap) as admin:
            return await shown(
                lambda: gather(admin),
                json_text if json else _text,
                json=json,
                watch=watch,
                interval_s=interval,
            )

    with pipe_guard():
        found = run(main())
    unwell = found["under_replicated_partitions"] or found["offline_partitions"]
    if check and unwell:
        raise typer.Exit(EXIT_REFUSED)


async def gather(admin: Admin) -> dict[str, Any]:
    """Returns the object that `--json` prints."""
    found = await look(admin, sizes=False)
    partitions = [
        (*topic_partition, partition) for topic_partition, partition in found.partitions()
    ]
    under = [each for each in partitions if each[2].under_replicated]
    least = await _least_in_sync(admin, {topic for topic, _, _ in under})
    loads = found.loads()
    status = {
        "cluster_id": found.info.cluster_id,
        "controller": found.info.controller_id,
        "brokers": [_broker(broker, found, loads[broker.id]) for broker in found.info.brokers],
        "missing_brokers": found.missing,
        "topics": len(found.topics),
        "partitions": len(partitions),
        "moving_partitions": len(found.moving),
        "not_led_by_preferred": len(found.not_preferred()),
        "under_replicated_partitions": [_partition(*each) for each in under],
        "under_min_isr_partitions": [
            _partition(*each)
            for each in under
            if len(each[2].in_sync) < min(least.get(each[0], 1), len(each[2].replicas))
        ],
        "offline_partitions": [_partition(*each) for each in partitions if each[2].leader < 0],
    }
    return {**status, "advice": advice(status)}


async def _least_in_sync(admin: Admin, topics: Collection[str]) -> dict[str, int]:
    """Returns the min.insync.replicas of each topic that still exists."""
    least: dict[str, int] = {}
    for topic in sorted(topics):
        try:
            configs = await admin.describe_configs(topic=topic)
        except BrokerError:
            continue  # deleted meanwhile
        entry = configs.get("min.insync.replicas")
        if entry is not None and (entry.value or "").isdigit():
            least[topic] = int(entry.value or 1)
    return least


def advice(status: Mapping[str, Any]) -> list[str]:
    """Returns what the operator should do, the most urgent first."""
    found: list[str] = []
    missing = ", ".join(str(each) for each in status["missing_brokers"])
    offline = len(status["offline_partitions"])
    below = len(status["under_min_isr_partitions"])
    under = len(status["under_replicated_partitions"])
    if offline:
        found.append(
            f"{count(offline, 'partition')} without a leader: writes and reads fail until a broker "
            "with an in-sync replica is back. If none can come back: penstock cluster elect "
            "--unclean, which loses the records that only those brokers had"
        )
    if below > offline:
        found.append(
            f"{count(below, 'partition')} below min.insync.replicas: writes with acks=all are "
            "refused until more replicas have caught up"
        )
    for each in status["missing_brokers"]:
        found.append(
            f"broker {each} is not running: start it; if it will not come back: "
            f"penstock cluster drain {each}"
        )
    if under and not missing and not offline and not status["moving_partitions"]:
        found.append(
            f"{count(under, 'partition')} under-replicated while all brokers run: replicas are "
            "catching up, or a broker is too slow; check again with --watch, then see its log"
        )
    if status["moving_partitions"]:
        moves = count(status["moving_partitions"], "partition")
        found.append(f"{moves} being moved: penstock cluster reassign --status")
    if status["not_led_by_preferred"] and not missing:
        others = count(status["not_led_by_preferred"], "partition")
        found.append(f"{others} not led by the preferred replica: penstock cluster elect")
    empty = [
        each["id"] for each in status["brokers"] if not each["replicas"] and not each["cordoned"]
    ]
    if empty and len(empty) < len(status["brokers"]) and status["partitions"] >= len(empty):
        found.append(
            f"broker {empty[0]} has no replicas: move some to it with penstock cluster rebalance"
        )
    return found


def _broker(broker: BrokerInfo, found: Found, load: Mapping[str, int]) -> dict[str, Any]:
    pid = listening_process(broker.address)
    return {
        "id": broker.id,
        "address": str(broker.address),
        "host": broker.address.host,
        "port": broker.address.port,
        "rack": broker.rack,
        "controller": broker.id == found.info.controller_id,
        "cordoned": broker.id in found.cordoned,
        "replicas": load["replicas"],
        "leads": load["leads"],
        **({} if pid is None else {"pid": pid}),
    }


def _partition(topic: str, index: int, partition: PartitionInfo) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": index,
        "leader": partition.leader if partition.leader >= 0 else None,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync),
    }


def _text(found: dict[str, Any]) -> str:
    brokers = count(len(found["brokers"]), "broker")
    topics = f"{count(found['topics'], 'topic')}, {count(found['partitions'], 'partition')}"
    under = found["under_replicated_partitions"]
    offline = found["offline_partitions"]
    lines = [
        f"cluster {printable(str(found['cluster_id']))}: {brokers}, {topics}",
        "",
        _brokers_table(found["brokers"]),
        "",
        (
            f"{count(len(under), 'partition')} under-replicated, "
            f"{len(found['under_min_isr_partitions'])} below min.insync.replicas, "
            f"{len(offline)} without a leader"
        ),
    ]
    troubled = {(item["topic"], item["partition"]): item for item in (*under, *offline)}
    if troubled:
        lines += ["", _troubled_table([item for _, item in sorted(troubled.items())])]
        if len(troubled) > _LISTED_MAX:
            lines.append(f"and {len(troubled) - _LISTED_MAX:,} more: use --json to see them")
    if found["advice"]:
        lines += ["", *(f"- {each}" for each in found["advice"])]
    return "\n".join(lines)


def _brokers_table(brokers: Iterable[Mapping[str, Any]]) -> str:
    columns = (
        Column("broker", right=True),
        Column("address"),
        Column("rack"),
        Column("pid", right=True),
        Column("replicas", right=True),
        Column("leads", right=True),
        Column("role"),
    )
    rows = [
        (
            broker["id"],
            broker["address"],
            broker["rack"],
            str(broker["pid"]) if "pid" in broker else None,
            broker["replicas"],
            broker["leads"],
            next((each for each in ("controller", "cordoned") if broker[each]), ""),
        )
        for broker in brokers
    ]
    return table(columns, rows)


def _troubled_table(items: Sequence[Mapping[str, Any]]) -> str:
    columns = (
        Column("topic"),
        Column("partition", right=True),
        Column("leader", right=True),
        Column("replicas"),
        Column("in sync"),
    )
    rows = [
        (
            item["topic"],
            item["partition"],
            "none" if item["leader"] is None else item["leader"],
            item["replicas"],
            item["in_sync"],
        )
        for item in items[:_LISTED_MAX]
    ]
    return table(columns, rows)
