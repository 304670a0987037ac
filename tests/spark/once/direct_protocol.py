"""Calls the exactly-once sink as Spark does, without Spark: plan, tasks, commit, in one process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from penstock import Admin, Consumer
from penstock.client.admin.transactions import TransactionListing
from penstock.spark.once.protocol import Batch
from penstock.spark.once.writers import OnceWriter, TaskWriter, WrittenOnce
from penstock.spark.source import PenstockDataSource
from penstock.testing import Broker
from spark.direct import Deadline

COLUMNS = StructType(
    [StructField("value", BinaryType()), StructField("partition", IntegerType())],
)
QUERY = "5b1e7a52-0000-4000-8000-000000000001"


def rows(values: Iterable[bytes], partition: int = 0) -> pa.RecordBatch:
    listed = list(values)
    return pa.RecordBatch.from_pydict(
        {"value": listed, "partition": pa.array([partition] * len(listed), pa.int32())}
    )


class Query:
    """A streaming query as its sink sees it; a new object is a restarted driver.

    `tasks` are the rows of each task of a micro-batch.
    """

    def __init__(
        self, broker: Broker, topic: str, sink: str, query_id: str = QUERY, **options: str
    ) -> None:
        self.options = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "topic": topic,
            "delivery": "exactly_once",
            "sink": sink,
            **options,
        }
        self.query_id = query_id

    def writer(self) -> OnceWriter:
        """Returns a new writer, because each call by Spark is in a process with its own writer."""
        made = PenstockDataSource(self.options).streamWriter(COLUMNS, overwrite=False)
        assert isinstance(made, OnceWriter)
        return made

    def plan(self) -> TaskWriter:
        made = pickle.loads(pickle.dumps(self.writer()))
        assert isinstance(made, TaskWriter)
        return made

    def write(
        self, planned: TaskWriter, number: int, tasks: Sequence[Sequence[bytes]]
    ) -> list[WrittenOnce]:
        return [
            self.write_task(planned, number, index, values) for index, values in enumerate(tasks)
        ]

    def write_task(
        self, planned: TaskWriter, number: int, index: int, values: Sequence[bytes]
    ) -> WrittenOnce:
        batch = Batch(self.query_id, number)
        written = planned.write_as(batch, index, iter([rows(values, index)]))
        copy = pickle.loads(pickle.dumps(written))
        assert isinstance(copy, WrittenOnce)
        return copy

    def run(self, number: int, tasks: Sequence[Sequence[bytes]]) -> list[WrittenOnce]:
        messages = self.write(self.plan(), number, tasks)
        self.writer().commit(messages, number)
        return messages


def settled(admin: Admin, sink: str = "") -> list[TransactionListing]:
    """Returns the transactions of a sink (or of all) once every decided one has completed."""
    deadline = Deadline(60)
    while True:
        listed = [
            each for each in admin.list_transactions() if each.transactional_id.startswith(sink)
        ]
        if not any(each.state.startswith("Prepare") for each in listed):
            return listed
        deadline.check("the end of a transaction that is decided")


def committed(broker: Broker, topic: str) -> list[bytes]:
    """Returns what a reader of committed records receives."""
    with Admin(broker.bootstrap) as admin:
        settled(admin)
    with Consumer(broker.bootstrap, isolation_level="read_committed") as consumer:
        table = consumer.read_table(topic)
    return [bytes(value) for value in table.column("value").to_pylist()]
