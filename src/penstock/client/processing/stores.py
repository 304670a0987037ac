"""Offsets in the user's own database: exactly-once results, independent of the cluster.

If results and offsets are written in one transaction of one database, they cannot disagree: after a
crash the offsets say exactly which records' results are there. Two things remain. The consumer must
start from these offsets and not from the group's: `Consumer(offset_store=store)` calls `store.load`
whenever partitions are assigned to it, and seeks. And a slow consumer that has lost a partition
without noticing must not write any more: `SqlOffsets.save` moves an offset only if it is not beyond
the first record that is being written, and raises `CommitFailed` otherwise. The transaction is then
rolled back, and nothing is written twice.

    database = sqlite3.connect("orders.db")
    offsets = SqlOffsets(database, "billing")
    with Consumer(topics=["orders"], group_id="billing", offset_store=offsets) as consumer:
        while records := consumer.poll(1000):
            with database:
                database.executemany("INSERT INTO ...", rows(records))
                offsets.save(records)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from penstock.client.errors import CommitFailed, OptionError
from penstock.client.model import Record
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class OffsetStore(Protocol):
    """Loads offsets from the database that has the results, for `Consumer(offset_store=...)`.

    The user writes the offsets, in the transaction that writes the results. `SqlOffsets` is one.

    Example:
        class AfterTheTea:
            def load(self, topic_partitions):
                return {each: 1 for each in topic_partitions}

        with Consumer("localhost:9092", topics="orders", offset_store=AfterTheTea()) as consumer:
            print(consumer.poll(timeout_ms=10_000)[0].value)
        #> b'milk'
    """

    def load(
        self, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int] | Awaitable[Mapping[TopicPartition, int]]:
        """Returns the next offset to read of each partition.

        Partitions without an offset are left out; they start where the consumer would start them.
        """


class Span(NamedTuple):
    """The part of a partition that a list of records covers: its first offset, and the next to
    read."""

    first: int
    next: int


def spans(records: Iterable[Record[Any, Any]]) -> dict[TopicPartition, Span]:
    """Returns what these records cover. Those of one partition are in offset order, as polled."""
    found: dict[TopicPartition, Span] = {}
    for record in records:
        topic_partition = record.topic_partition
        known = found.get(topic_partition)
        found[topic_partition] = Span(
            record.offset if known is None else known.first, record.offset + 1
        )
    return found


class Seeks(Protocol):
    def seek(self, topic_partition: TopicPartition, offset: int) -> None: ...


class StoreListener:
    """Moves a consumer to the stored offsets whenever partitions are assigned to it."""

    def __init__(self, consumer: Seeks, store: OffsetStore) -> None:
        self._consumer = consumer
        self._store = store

    async def on_assigned(self, topic_partitions: Collection[TopicPartition]) -> None:
        found = self._store.load(topic_partitions)
        offsets = await found if inspect.isawaitable(found) else found
        for topic_partition, offset in offsets.items():
            self._consumer.seek(topic_partition, offset)


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def close(self) -> Any: ...


class Connection(Protocol):
    """A connection according to the Python database API (PEP 249)."""

    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...


class SqlOffsets:
    """Stores offsets in a table of a database that supports the SQL of SQLite and PostgreSQL.

    Results and offsets are written in one transaction, so that each record takes effect once.
    `placeholder` is how the driver writes a parameter: `?` for sqlite3, `%s` for psycopg. The table
    is created if it does not exist; a name that is no table name raises `OptionError`. A sync
    consumer calls `load` on the thread that polls, an async consumer on the thread of its event
    loop. Use the connection only between polls.

    Example:
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE bills (customer TEXT, item TEXT)")
        offsets = SqlOffsets(database, "billing")
        with Consumer(
            "localhost:9092", topics="orders", auto_offset_reset="earliest", offset_store=offsets
        ) as consumer:
            records = consumer.poll(timeout_ms=10_000)
            with database:
                rows = [(record.key, record.value) for record in records]
                database.executemany("INSERT INTO bills VALUES (?, ?)", rows)
                offsets.save(records)
        print(offsets.load([TopicPartition("orders", 0)]))
        #> {TopicPartition(topic='orders', partition=0): 3}
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        *,
        table: str = "penstock_offsets",
        placeholder: Literal["?", "%s"] = "?",
    ) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", table):
            raise OptionError(f"{table!r} is not a table name: use NAME or SCHEMA.NAME")
        self._connection = connection
        self._group = group
        self._table = table
        mark = placeholder
        # The table's name was checked above. All other values are passed as parameters.
        self._select = (
            f"SELECT partition_index, next_offset FROM {table} "  # noqa: S608
            f"WHERE group_name = {mark} AND topic = {mark}"
        )
        # As above: the table's name was checked.
        self._upsert = (
            f"INSERT INTO {table} (group_name, topic, partition_index, next_offset) "  # noqa: S608
            f"VALUES ({mark}, {mark}, {mark}, {mark}) "
            "ON CONFLICT (group_name, topic, partition_index) "
            "DO UPDATE SET next_offset = excluded.next_offset "
            f"WHERE {table}.next_offset <= {mark}"
        )
        cursor: Cursor = connection.cursor()
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (group_name TEXT NOT NULL, topic TEXT NOT NULL, "
            "partition_index INTEGER NOT NULL, next_offset BIGINT NOT NULL, "
            "PRIMARY KEY (group_name, topic, partition_index))"
        )
        cursor.close()
        connection.commit()

    def load(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Loads the stored offsets. Ends the transaction it reads in, so that the next one sees new
        data."""
        wanted = set(topic_partitions)
        found: dict[TopicPartition, int] = {}
        cursor: Cursor = self._connection.cursor()
        for topic in sorted({topic_partition.topic for topic_partition in wanted}):
            cursor.execute(self._select, (self._group, topic))
            for partition, offset in cursor.fetchall():
                found[TopicPartition(topic, partition)] = offset
        cursor.close()
        self._connection.commit()
        return {
            topic_partition: offset
            for topic_partition, offset in found.items()
            if topic_partition in wanted
        }

    def save(self, records: Iterable[Record[K, V]]) -> None:
        """Stores the offsets of these records, within the transaction that writes their results.

        Raises `CommitFailed` if another consumer has already written some of them: roll back then.
        """
        cursor: Cursor = self._connection.cursor()
        try:
            for topic_partition, span in sorted(spans(records).items()):
                cursor.execute(
                    self._upsert,
                    (
                        self._group,
                        topic_partition.topic,
                        topic_partition.partition,
                        span.next,
                        span.first,
                    ),
                )
                if cursor.rowcount != 1:
                    raise CommitFailed(
                        f"another consumer has already stored offset {span.first} of "
                        f"{topic_partition}: roll back this transaction and continue to poll"
                    )
        finally:
            cursor.close()
