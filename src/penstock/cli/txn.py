"""`penstock txn`: lists and describes transactions, finds hanging ones, and aborts them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from penstock.cli import completion
from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import (
    CommandFailed,
    count,
    emit,
    emit_json,
    pipe_guard,
    printable,
    time_text,
)
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, confirm, connect, report, run
from penstock.cli.tables import Column, table
from penstock.client.admin.admin import Admin
from penstock.client.admin.transactions import (
    HangingSearch,
    HangingTransaction,
    TransactionInfo,
    TransactionListing,
)
from penstock.client.errors import BrokerError, ClientError
from penstock.client.times import parse_time_ms
from penstock.topic_partition import TopicPartition

_LIST_HELP = """List transactional ids, or hanging transactions.

A transaction hangs when it is open in a partition but no coordinator knows it. No coordinator will
end it, and consumers that read committed records wait for it forever. --hanging searches every
partition for such transactions. Transactions that are merely open are not listed.

\b
Examples:
  penstock txn list
  penstock txn list --state Ongoing --longer-than 10m
  penstock txn list --pattern 'billing-.*' --json | jq .transactions
  penstock txn list --hanging
"""
_DESCRIBE_HELP = """Show transactional ids: state, producer and partitions.

\b
Examples:
  penstock txn describe billing-1
  penstock txn describe billing-1 billing-2 --json
"""
_ABORT_HELP = """Abort the transaction of an ID, or a hanging transaction.

With an ID, its coordinator aborts the open transaction and fences the producer that uses the ID.
That producer cannot send until it is restarted. With --partition, an abort marker in that partition
ends a hanging transaction. A transaction that does not hang is left alone.

\b
Examples:
  penstock txn abort billing-1
  penstock txn list --hanging
  penstock txn abort --partition orders:3 --start-offset 1841
"""

_PATIENCE_S: Final = 5.0
"""Optional details that take longer than this are left out of the output."""

_Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...", help="Transactional ids.", autocompletion=completion.transactional_ids
    ),
]


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which transactional ids to list."""

    states: Sequence[str]
    producer_ids: Sequence[int]
    longer_than: str | None
    pattern: str | None

    @property
    def is_set(self) -> bool:
        return bool(self.states or self.producer_ids or self.longer_than or self.pattern)


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Transactions: list, describe, abort.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("list", help=_LIST_HELP)(list_)
    app.command("describe", help=_DESCRIBE_HELP)(describe)
    app.command("abort", help=_ABORT_HELP)(abort)
    root.add_typer(app, name="txn")


# -- list ----------------------------------------------------------------------------------------


def list_(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only in this state. Repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", help="Only this producer. Repeatable."),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option("--longer-than", metavar="TIME", help="Only if open longer: 30s, 10m, 2h."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only ids that match REGEX completely."),
    ] = None,
    hanging: Annotated[
        bool, typer.Option("--hanging", help="List transactions that no coordinator will end.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="With --hanging: search only this topic. Repeatable.",
            autocompletion=completion.topics,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    wanted = _Filter(state or (), producer_id or (), longer_than, pattern)
    if hanging and wanted.is_set:
        raise CommandFailed(
            "--hanging can only be combined with --topic: hanging transactions have no state"
        )
    if topic and not hanging:
        raise CommandFailed(
            "--topic works only with --hanging: add --hanging, or leave out --topic"
        )
    if hanging:
        _list_hanging(bootstrap, topic, json=json)
    else:
        _list_ids(bootstrap, wanted, json=json)


def _list_ids(bootstrap: str, wanted: _Filter, *, json: bool) -> None:
    longer_than_ms = None if wanted.longer_than is None else _duration_ms(wanted.longer_than)

    async def main() -> list[TransactionListing]:
        async with connect(bootstrap) as admin:
            return await admin.list_transactions(
                states=wanted.states,
                producer_ids=wanted.producer_ids,
                running_longer_than_ms=longer_than_ms,
                pattern=wanted.pattern,
            )

    found = run(main())
    with pipe_guard():
        if json:
            emit_json({"transactions": [_listing_json(each) for each in found]})
        elif not found:
            emit(
                "no transactional id matches"
                if wanted.is_set
                else "no transactional ids yet: one is created when a producer with it starts"
            )
        else:
            emit(_listing_text(found))


def _duration_ms(text: str) -> int:
    try:
        # Parsed as "that long before 0", hence negative.
        duration_ms = -parse_time_ms(text, 0)
    except ValueError:
        duration_ms = 0
    if duration_ms <= 0:
        raise CommandFailed(f"--longer-than {text}: write a time span such as 30s, 10m or 2h")
    return duration_ms


def _listing_json(listing: TransactionListing) -> dict[str, Any]:
    return {
        "transactional_id": listing.transactional_id,
        "state": listing.state,
        "producer_id": listing.producer_id,
        "coordinator": listing.coordinator,
    }


def _listing_text(found: list[TransactionListing]) -> str:
    columns = (
        Column("transactional id"),
        Column("state"),
        Column("producer", right=True),
        Column("coordinator", right=True),
    )
    return table(
        columns,
        [(each.transactional_id, each.state, each.producer_id, each.coordinator) for each in found],
    )


def _list_hanging(bootstrap: str, topics: list[str] | None, *, json: bool) -> None:
    async def main() -> HangingSearch:
        async with connect(bootstrap) as admin:
            return await admin.find_hanging_transactions(topics)

    search = run(main())
    with pipe_guard():
        if json:
            emit_json(
                {
                    "hanging": [_hanging_json(each) for each in search.found],
                    "not_seen": [
                        {"topic": topic_partition.topic, "partition": topic_partition.partition}
                        for topic_partition in search.not_seen
                    ],
                }
            )
            return
        emit(_hanging_text(search.found) if search.found else "no hanging transactions")
        if search.not_seen:
            partitions = count(len(search.not_seen), "partition")
            emit(f"\n{partitions} not searched, because they have no leader: see penstock status")


def _hanging_json(each: HangingTransaction) -> dict[str, Any]:
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "start_offset": each.start_offset,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "coordinator_epoch": each.coordinator_epoch,
        "last_time_ms": each.last_time_ms,
        "transactional_id": each.transactional_id,
    }


def _hanging_text(found: tuple[HangingTransaction, ...]) -> str:
    columns = (
        Column("topic"),
        Column("partition", right=True),
        Column("start offset", right=True),
        Column("producer", right=True),
        Column("last write"),
        Column("id"),
    )
    rows = [
        (
            each.topic_partition.topic,
            each.topic_partition.partition,
            each.start_offset,
            f"{each.producer_id}:{each.producer_epoch}",
            time_text(each.last_time_ms),
            each.transactional_id,
        )
        for each in found
    ]
    return (
        f"{table(columns, rows)}\n\n"
        "end one with: penstock txn abort --partition TOPIC:PARTITION --start-offset N"
    )


# -- describe ------------------------------------------------------------------------------------


def describe(
    ids: _Ids,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> tuple[list[dict[str, Any]], list[BrokerError]]:
        async with connect(bootstrap) as admin:
            known = await admin.describe_transactions(ids)
            infos = [each for each in known.values() if isinstance(each, TransactionInfo)]
            errors = [each for each in known.values() if isinstance(each, BrokerError)]
            return [await _described(admin, info) for info in infos], errors

    described, errors = run(main())
    with pipe_guard():
        if json:
            emit_json({"transactions": described})
        elif described:
            emit("\n\n".join(_described_text(each) for each in described))
    report(errors)


async def _described(admin: Admin, info: TransactionInfo) -> dict[str, Any]:
    first_offsets = await _first_offsets(admin, info)
    return {
        "transactional_id": info.transactional_id,
        "state": info.state,
        "producer_id": info.producer_id,
        "producer_epoch": info.producer_epoch,
        "timeout_ms": info.timeout_ms,
        "start_time_ms": None if info.start_time_ms < 0 else info.start_time_ms,
        "coordinator": info.coordinator,
        "partitions": [
            {
                "topic": topic_partition.topic,
                "partition": topic_partition.partition,
                "start_offset": first_offsets.get(topic_partition),
            }
            for topic_partition in info.partitions
        ],
    }


async def _first_offsets(admin: Admin, info: TransactionInfo) -> dict[TopicPartition, int]:
    """Returns the transaction's first offset in each partition whose leader answers."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found = await admin.describe_producers(info.partitions)
    except (ClientError, TimeoutError):
        return {}
    return {
        topic_partition: producer.transaction_start_offset
        for topic_partition, producers in found.items()
        for producer in producers
        if producer.producer_id == info.producer_id and producer.transaction_start_offset >= 0
    }


def _described_text(described: dict[str, Any]) -> str:
    since = described["start_time_ms"]
    head = (
        f"transactional id {printable(described['transactional_id'])}  {described['state']}  "
        f"coordinator {described['coordinator']}\n"
        f"producer {described['producer_id']} epoch {described['producer_epoch']}  "
        f"timeout {described['timeout_ms'] / 1000:g} s"
        + ("" if since is None else f"  since {time_text(since)}")
    )
    if not described["partitions"]:
        return f"{head}\nno open transaction"
    columns = (
        Column("topic"),
        Column("partition", right=True),
        Column("start offset", right=True),
    )
    rows = [
        (each["topic"], each["partition"], each["start_offset"]) for each in described["partitions"]
    ]
    return f"{head}\n{table(columns, rows)}"


# -- abort ---------------------------------------------------------------------------------------


def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The transactional id.",
            autocompletion=completion.transactional_ids,
        ),
    ] = None,
    *,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            metavar="TOPIC:PARTITION",
            help="Abort the hanging transaction in this partition.",
        ),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset", min=0, metavar="N", help="The transaction's start, if several hang."
        ),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    if (transactional_id is None) == (partition is None):
        raise CommandFailed("give an ID, or --partition TOPIC:PARTITION for a hanging transaction")
    if transactional_id is not None:
        if start_offset is not None:
            raise CommandFailed("--start-offset works only with --partition: add it")
        _terminate(transactional_id, bootstrap, yes=yes, json=json)
    elif partition is not None:
        _abort_hanging(_topic_partition(partition), start_offset, bootstrap, yes=yes, json=json)


def _terminate(transactional_id: str, bootstrap: str, *, yes: bool, json: bool) -> None:
    shown = printable(transactional_id)
    confirm(f"Abort the open transaction of {shown}, and fence its producer?", yes=yes)

    async def main() -> None:
        async with connect(bootstrap) as admin:
            await admin.terminate_transaction(transactional_id)

    run(main())
    if json:
        emit_json({"aborted": {"transactional_id": transactional_id}})
        return
    emit(f"{shown} has no open transaction now, and its producer is fenced")


def _topic_partition(text: str) -> TopicPartition:
    topic, separator, index = text.rpartition(":")
    if not separator or not topic or not (index.isascii() and index.isdigit()):
        raise CommandFailed(f"--partition {text}: write it as TOPIC:PARTITION, such as orders:3")
    return TopicPartition(topic, int(index))


def _abort_hanging(
    topic_partition: TopicPartition,
    start_offset: int | None,
    bootstrap: str,
    *,
    yes: bool,
    json: bool,
) -> None:
    async def find() -> HangingTransaction:
        async with connect(bootstrap) as admin:
            return await _the_one(admin, topic_partition, start_offset)

    async def end(found: HangingTransaction) -> None:
        async with connect(bootstrap) as admin:
            await admin.abort_transaction(
                topic_partition,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                coordinator_epoch=found.coordinator_epoch,
            )

    found = run(find())
    what = (
        f"the transaction of producer {found.producer_id} on {printable(str(topic_partition))} "
        f"from offset {found.start_offset}"
    )
    confirm(f"Abort {what}, last written at {time_text(found.last_time_ms)}?", yes=yes)
    run(end(found))
    if json:
        hanging = {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
            "producer_id": found.producer_id,
            "start_offset": found.start_offset,
        }
        emit_json({"aborted": hanging})
    else:
        emit(f"aborted {what}")


async def _the_one(
    admin: Admin, topic_partition: TopicPartition, start_offset: int | None
) -> HangingTransaction:
    shown = printable(str(topic_partition))
    search = await admin.find_hanging_transactions([topic_partition.topic])
    hanging = [each for each in search.found if each.topic_partition == topic_partition]
    if start_offset is not None:
        hanging = [each for each in hanging if each.start_offset == start_offset]
    if len(hanging) == 1:
        return hanging[0]
    if hanging:
        offsets = ", ".join(str(each.start_offset) for each in hanging)
        raise CommandFailed(
            f"{len(hanging)} hanging transactions on {shown}: choose one with --start-offset: "
            f"{offsets}"
        )
    if topic_partition in search.not_seen:
        raise CommandFailed(f"{shown} has no leader at the moment: see penstock status")
    opened = [
        each.transaction_start_offset
        for each in (await admin.describe_producers([topic_partition]))[topic_partition]
        if each.transaction_start_offset >= 0
    ]
    if opened and start_offset in (None, *opened):
        raise CommandFailed(
            f"the open transaction on {shown} is not hanging: its coordinator will end it. To "
            f"abort "
            "it now, find its ID: penstock txn list --state Ongoing; then: penstock txn abort ID",
            EXIT_REFUSED,
        )
    where = "" if start_offset is None else f" from offset {start_offset}"
    raise CommandFailed(
        f"no transaction is open on {shown}{where}: see penstock txn list --hanging", EXIT_REFUSED
    )
