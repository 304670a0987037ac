"""`penstock topic`: create, list, describe, alter, delete and archive topics."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, NamedTuple

import typer

from penstock.cli import completion, topic_archive, topic_replay
from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import (
    CommandFailed,
    count,
    emit,
    emit_json,
    json_text,
    parse_settings,
    pipe_guard,
    printable,
)
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm, connect, report, report_deleted, run
from penstock.cli.tables import Column, table
from penstock.cli.watching import Interval, Watch, shown
from penstock.client.admin.admin import Admin
from penstock.client.admin.operations import BROKER_DEFAULT, CreatedTopic, TopicInfo
from penstock.client.errors import BrokerError, ClientError
from penstock.metadata.config_types import ConfigSource
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

_CREATE_HELP = """Create TOPIC.

Without --partitions or --replication-factor, the broker's default applies. Configs have the names
of Kafka's topic configs.

\b
Examples:
  penstock topic create orders --partitions 6
  penstock topic create users --config cleanup.policy=compact
  penstock topic create logs --config retention.ms=86400000 --if-not-exists
"""
_LIST_HELP = """List the topics.

\b
Examples:
  penstock topic list
  penstock topic list --watch
  penstock topic list --json | jq -r '.topics[].name'
"""
_DESCRIBE_HELP = """Show partitions, offsets and configs of topics.

Shows only configs that were changed, unless --all-configs is given.

\b
Examples:
  penstock topic describe orders
  penstock topic describe orders --watch
  penstock topic describe orders --all-configs
  penstock topic describe orders --json | jq '.topics[0].partitions'
"""
_ALTER_HELP = """Add partitions to TOPIC, or change its configs.

Partitions can be added, but not removed. Afterwards, new records of a key may go to a different
partition than its older records.

\b
Examples:
  penstock topic alter orders --partitions 12
  penstock topic alter orders --config retention.ms=3600000
  penstock topic alter orders --delete-config segment.bytes
"""
_DELETE_HELP = """Delete topics and all their records.

\b
Examples:
  penstock topic delete orders
  penstock topic delete orders users --yes
"""

_SOURCES: Final = {
    ConfigSource.UNKNOWN: "unknown",
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "cluster",
    ConfigSource.STATIC_BROKER_CONFIG: "broker file",
    ConfigSource.DEFAULT_CONFIG: "default",
}

_MISSING: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_PATIENCE_S: Final = 5.0
"""Optional details that take longer than this are left out of the output."""

_Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=completion.topics),
]
_Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topic names.", autocompletion=completion.topics),
]
_Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a config. Repeatable."),
]


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Topics: create, list, describe, alter, delete, archive.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("create", help=_CREATE_HELP)(create)
    app.command("list", help=_LIST_HELP)(list_)
    app.command("describe", help=_DESCRIBE_HELP)(describe)
    app.command("alter", help=_ALTER_HELP)(alter)
    app.command("delete", help=_DELETE_HELP)(delete)
    topic_archive.register(app)
    topic_replay.register(app)
    root.add_typer(app, name="topic")


def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The new topic's name.")],
    *,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="Replicas of each partition."),
    ] = None,
    config: _Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    configs = parse_settings(config or (), "--config")

    async def main() -> CreatedTopic | None:
        async with connect(bootstrap) as admin:
            try:
                return await admin.create_topic(
                    topic,
                    partitions or BROKER_DEFAULT,
                    replication_factor or BROKER_DEFAULT,
                    configs,
                )
            except BrokerError as error:
                if error.code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
                    return None
                raise

    created = run(main())
    if json:
        emit_json({"topic": topic, "created": created is not None, **_created_json(created)})
    elif created is None:
        emit(f"topic {printable(topic)} exists already")
    else:
        shape = ""
        if created.partitions > 0:
            shape = (
                f": {count(created.partitions, 'partition')}, "
                f"replication factor {created.replication_factor}"
            )
        emit(f"created topic {printable(topic)}{shape}")


def _created_json(created: CreatedTopic | None) -> dict[str, object]:
    if created is None:
        return {}
    return {
        "topic_id": created.topic_id,
        "partition_count": created.partitions,
        "replication_factor": created.replication_factor,
    }


def list_(
    *,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> None:
        async with connect(bootstrap) as admin:
            await shown(
                lambda: admin.list_topics(internal=internal),
                _list_json if json else _list_text,
                json=json,
                watch=watch,
                interval_s=interval,
            )

    with pipe_guard():
        run(main())


def _list_json(found: list[TopicInfo]) -> str:
    return json_text({"topics": [_listed_json(topic) for topic in found]})


def _list_text(found: list[TopicInfo]) -> str:
    if not found:
        return "no topics yet: create one with: penstock topic create TOPIC"
    columns = (
        Column("topic"),
        Column("partitions", right=True),
        Column("replicas", right=True),
        Column("under-replicated", right=True),
    )
    return table(columns, [_listed_row(topic) for topic in found])


def _under_replicated(topic: TopicInfo) -> int:
    return sum(partition.under_replicated for partition in topic.partitions)


def _listed_row(topic: TopicInfo) -> tuple[object, ...]:
    under = _under_replicated(topic)
    return topic.name, len(topic.partitions), topic.replication_factor, under or ""


def _listed_json(topic: TopicInfo) -> dict[str, object]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "internal": topic.internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "under_replicated": _under_replicated(topic),
    }


def describe(
    topic: _Topics,
    *,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Include configs with their default values.")
    ] = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def look(admin: Admin) -> _Looked:
        looked = _Looked([], [])
        for found in (await admin.describe_topics(topic)).values():
            if isinstance(found, BrokerError):
                looked.missing.append(found)
            else:
                looked.described.append(await _described(admin, found, all_configs))
        return looked

    async def main() -> _Looked:
        async with connect(bootstrap) as admin:
            return await shown(
                lambda: look(admin),
                _looked_json if json else _looked_text,
                json=json,
                watch=watch,
                interval_s=interval,
            )

    with pipe_guard():
        looked = run(main())
    report(looked.missing)


class _Looked(NamedTuple):
    described: list[dict[str, Any]]
    missing: list[BrokerError]


def _looked_json(looked: _Looked) -> str:
    return json_text({"topics": looked.described})


def _looked_text(looked: _Looked) -> str:
    return "\n\n".join(_described_text(one) for one in looked.described)


async def _described(admin: Admin, topic: TopicInfo, all_configs: bool) -> dict[str, Any]:
    led = [
        TopicPartition(topic.name, partition.index)
        for partition in topic.partitions
        if partition.leader >= 0
    ]
    first = await _offsets(admin, led, "earliest")
    after = await _offsets(admin, led, "latest")
    configs = await admin.describe_configs(topic=topic.name)
    return {
        **_listed_json(topic),
        "configs": [
            {
                "name": config.name,
                "value": None if config.sensitive else config.value,
                "source": _SOURCES[config.source],
            }
            for config in configs.values()
            if all_configs or config.source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        ],
        "partitions": [
            {
                "partition": partition.index,
                "leader": partition.leader if partition.leader >= 0 else None,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "in_sync": list(partition.in_sync),
                "first_offset": first.get(partition.index),
                "next_offset": after.get(partition.index),
            }
            for partition in topic.partitions
        ],
    }


async def _offsets(
    admin: Admin, topic_partitions: list[TopicPartition], when: str
) -> dict[int, int]:
    """Returns the offsets, or nothing if brokers do not answer: they are optional in the output."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found = await admin.list_offsets(dict.fromkeys(topic_partitions, when))
    except (ClientError, TimeoutError):
        return {}
    return {
        topic_partition.partition: offset.offset
        for topic_partition, offset in found.items()
        if offset
    }


def _described_text(topic: dict[str, Any]) -> str:
    head = (
        f"topic {printable(topic['name'])}  id {topic['topic_id'] or 'none'}  "
        f"{count(topic['partition_count'], 'partition')}  "
        f"replication factor {topic['replication_factor']}"
    )
    columns = (
        Column("partition", right=True),
        Column("leader", right=True),
        Column("replicas"),
        Column("in sync"),
        Column("first offset", right=True),
        Column("next offset", right=True),
    )
    rows = [
        (
            partition["partition"],
            "none" if partition["leader"] is None else partition["leader"],
            partition["replicas"],
            partition["in_sync"],
            partition["first_offset"],
            partition["next_offset"],
        )
        for partition in topic["partitions"]
    ]
    lines = [head, table(columns, rows)]
    if topic["configs"]:
        config_columns = Column("config"), Column("value"), Column("set by")
        config_rows = [
            (config["name"], config["value"], config["source"]) for config in topic["configs"]
        ]
        lines += ["", table(config_columns, config_rows)]
    return "\n".join(lines)


def alter(
    topic: _Topic,
    *,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="New number of partitions.")
    ] = None,
    config: _Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config", metavar="KEY", help="Reset a config to its default. Repeatable."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    settings = parse_settings(config or (), "--config")
    if partitions is None and not settings and not delete_config:
        raise CommandFailed(
            "nothing to change: give --partitions, --config KEY=VALUE or --delete-config KEY"
        )

    async def main() -> None:
        async with connect(bootstrap) as admin:
            if settings or delete_config:
                await admin.alter_configs(
                    topic=topic, set_values=settings, delete=delete_config or ()
                )
            if partitions is not None:
                await admin.create_partitions(topic, partitions)

    run(main())
    if json:
        emit_json(
            {
                "topic": topic,
                "set": settings,
                "deleted": delete_config or [],
                "partition_count": partitions,
            }
        )
        return
    done = [f"{key}={value}" for key, value in settings.items()]
    done += [f"{key} reset to its default" for key in delete_config or ()]
    done += [] if partitions is None else [count(partitions, "partition")]
    emit(f"altered topic {printable(topic)}: {printable(', '.join(done))}")


def delete(
    topic: _Topics,
    *,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed if the topic does not exist.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    names = ", ".join(printable(name) for name in topic)
    confirm(f"Delete {names} and all records?", yes=yes)

    async def main() -> dict[str, BrokerError | None]:
        async with connect(bootstrap) as admin:
            return await admin.delete_topics(topic)

    outcomes = run(main())
    report_deleted("topic", outcomes, json=json, fine=_MISSING if if_exists else None)
