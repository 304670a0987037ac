"""Tests the exactly-once sink with a real broker.

Most tests call it as Spark does; a few run real Spark.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType

from penstock import Admin, Producer
from penstock.client.connection import Connection
from penstock.client.errors import ApiNotServed, OptionError
from penstock.spark.once.asking import PROGRESS
from penstock.spark.once.protocol import NotCommitted, SinkRefused
from penstock.spark.once.writers import PlanFailed
from penstock.spark.options import parse_sink
from penstock.spark.source import PenstockDataSource
from penstock.spark.writers import BatchWriter
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import EndTransactionsRequest
from spark.conftest import Read
from spark.direct import Deadline
from spark.once.direct_protocol import COLUMNS, Query, committed, settled

END_S = 200
OTHER_QUERY = "5b1e7a52-0000-4000-8000-000000000002"
TWO = [[b"a", b"b"], [b"c"]]


@pytest.fixture
def sink(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"sink of {request.node.name}"


def ends(broker: Broker, topic: str, partitions: int = 3) -> list[int]:
    """Returns the log end offsets of a topic, which count everything ever written,
    committed or not, with markers."""
    with Admin(broker.bootstrap) as admin:
        settled(admin)
        topic_partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
        found = admin.list_offsets(dict.fromkeys(topic_partitions, "latest"))
        return [each.offset for each in found.values() if each is not None]


def running(admin: Admin, sink: str) -> list[str]:
    """Returns the sink's open transactions."""
    return [each.transactional_id for each in settled(admin, sink) if each.state == "Ongoing"]


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_is_readable_once_it_is_committed(broker: Broker, sink: str) -> None:
    topic = broker.new_topic(partitions=3)
    query = Query(broker, topic, sink)
    messages = query.write(query.plan(), 0, [*TWO, []])
    assert [message.transaction is None for message in messages] == [False, False, True]
    assert messages[0].records == {topic: 2}
    assert committed(broker, topic) == []
    query.writer().commit(messages, 0)
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c"]


def test_batches_are_counted_under_the_sinks_name(broker: Broker, admin: Admin, sink: str) -> None:
    """The group's one offset is the number of batches, with the query's id as metadata. A
    batch without rows counts."""
    topic = broker.new_topic(partitions=3)
    query = Query(broker, topic, sink)
    batches: list[list[list[bytes]]] = [TWO, [[], []], [[b"d"]]]
    for number, tasks in enumerate(batches):
        query.run(number, tasks)
        settled(admin, sink)
        (found,) = admin.group_offsets(sink).items()
        assert found[0] == PROGRESS
        assert (found[1].offset, found[1].metadata) == (number + 1, query.query_id)
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c", b"d"]


def test_a_committed_batch_that_is_run_again_writes_nothing(broker: Broker, sink: str) -> None:
    """Not even records that are aborted: the tasks know that the batch is committed."""
    topic = broker.new_topic(partitions=3)
    Query(broker, topic, sink).run(0, TWO)
    before = ends(broker, topic)
    messages = Query(broker, topic, sink).run(0, TWO)
    assert [message.transaction for message in messages] == [None, None]
    assert ends(broker, topic) == before
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c"]


def test_a_driver_that_crashes_before_its_commit_leaves_nothing(
    broker: Broker, admin: Admin, sink: str
) -> None:
    """Its successor aborts the open transactions, also those of tasks
    that it does not have itself."""
    topic = broker.new_topic(partitions=3)
    lost = Query(broker, topic, sink)
    lost.write(lost.plan(), 0, [[b"a"], [b"b"], [b"c"]])
    assert len(running(admin, sink)) == 3
    Query(broker, topic, sink).run(0, TWO)
    assert running(admin, sink) == []
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c"]


def test_an_aborted_batch_leaves_nothing(broker: Broker, admin: Admin, sink: str) -> None:
    """Whether or not some of its tasks have finished."""
    topic = broker.new_topic(partitions=3)
    query = Query(broker, topic, sink)
    messages = query.write(query.plan(), 0, TWO)
    query.writer().abort([messages[0], None], 0)
    assert running(admin, sink) == []
    query.write(query.plan(), 0, TWO)
    query.writer().abort([None, None], 0)
    assert running(admin, sink) == []
    assert committed(broker, topic) == []
    query.run(0, TWO)
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c"]


# -- late drivers and tasks ------------------------------------------------------------------------


def test_a_driver_whose_sink_was_taken_over_cannot_commit(broker: Broker, sink: str) -> None:
    """Its abort does not affect the new driver."""
    topic = broker.new_topic(partitions=3)
    old, new = Query(broker, topic, sink), Query(broker, topic, sink)
    messages = old.write(old.plan(), 0, TWO)
    planned = new.plan()
    with pytest.raises(NotCommitted, match="was not committed"):
        old.writer().commit(messages, 0)
    assert committed(broker, topic) == []
    written = new.write(planned, 0, TWO)
    old.writer().abort(messages, 0)
    new.writer().commit(written, 0)
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c"]


def test_the_last_attempt_of_a_repeated_task_is_committed(broker: Broker, sink: str) -> None:
    topic = broker.new_topic(partitions=3)
    query = Query(broker, topic, sink)
    planned = query.plan()
    query.write_task(planned, 0, 0, [b"a", b"half"])
    query.writer().commit(query.write(planned, 0, TWO), 0)
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c"]


def test_a_fenced_attempt_cannot_be_committed(broker: Broker, sink: str) -> None:
    """If Spark reports the older attempt, nothing of the batch is committed."""
    topic = broker.new_topic(partitions=3)
    query = Query(broker, topic, sink)
    planned = query.plan()
    messages = query.write(planned, 0, TWO)
    query.write_task(planned, 0, 1, [b"c"])
    with pytest.raises(NotCommitted):
        query.writer().commit(messages, 0)
    query.writer().abort(messages, 0)
    assert committed(broker, topic) == []


def test_a_batch_that_exceeds_its_transaction_timeout_is_not_committed(
    broker: Broker, admin: Admin, sink: str
) -> None:
    topic = broker.new_topic(partitions=3)
    # Both tasks must have written by then.
    timeout_s = min(30.0, patient(8.0))
    query = Query(broker, topic, sink, transactionTimeout=f"{timeout_s:.0f}s")
    messages = query.write(query.plan(), 0, TWO)
    deadline = Deadline(60 + timeout_s)
    while running(admin, sink):
        deadline.check("the timeout of the transactions")
    with pytest.raises(NotCommitted, match="transactionTimeout"):
        query.writer().commit(messages, 0)
    assert committed(broker, topic) == []


# -- refusals --------------------------------------------------------------------------------------


def test_the_name_of_another_query_is_refused(broker: Broker, sink: str) -> None:
    """For example after its checkpoint was deleted: its batches begin at 0 again and
    must not count as committed."""
    topic = broker.new_topic(partitions=3)
    Query(broker, topic, sink).run(0, TWO)
    before = ends(broker, topic)
    other = Query(broker, topic, sink, OTHER_QUERY)
    with pytest.raises(SinkRefused, match="belongs to another query"):
        other.run(0, [[b"new"]])
    assert ends(broker, topic) == before


def test_missing_progress_is_refused_unless_accepted(
    broker: Broker, admin: Admin, sink: str
) -> None:
    topic = broker.new_topic(partitions=3)
    Query(broker, topic, sink).run(0, TWO)
    admin.delete_groups([sink])
    with pytest.raises(SinkRefused, match=r"has no batches recorded as .* this is batch 1"):
        Query(broker, topic, sink).run(1, [[b"d"]])
    Query(broker, topic, sink, missingProgress="accept").run(1, [[b"d"]])
    Query(broker, topic, sink).run(2, [[b"e"]])
    assert sorted(committed(broker, topic)) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_cluster_without_multi_commit_is_refused(
    broker: Broker, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first batch is planned, with the reason."""
    asked = Connection.version_of

    def other_kafka(self: Connection, kind: type[Any], *more: Any) -> int:
        if kind is EndTransactionsRequest:
            raise ApiNotServed("the broker does not serve EndTransactions")
        return asked(self, kind, *more)

    monkeypatch.setattr(Connection, "version_of", other_kafka)
    with pytest.raises(PlanFailed, match=r"needs a Penstock cluster.*at_least_once"):
        Query(broker, broker.new_topic(), sink).plan()


def test_a_timeout_above_what_the_broker_allows_is_refused(broker: Broker, sink: str) -> None:
    with pytest.raises(PlanFailed, match="transactionTimeout is longer"):
        Query(broker, broker.new_topic(), sink, transactionTimeout="1d").plan()


def test_an_unreachable_cluster_is_reported(sink: str) -> None:
    lonely = Broker()
    lonely.bootstrap = "127.0.0.1:9"
    with pytest.raises(PlanFailed, match="cannot connect to"):
        Query(lonely, "topic", sink).plan()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sink": ""}, "needs a name that stays the same"),
        ({"delivery": "twice"}, "delivery is twice: use at_least_once or exactly_once"),
        ({"delivery": "at_least_once"}, "sink works only with delivery=exactly_once"),
        (
            {"delivery": "at_least_once", "sink": "", "transactionTimeout": "1s"},
            "transactionTimeout works only with",
        ),
        ({"missingProgress": "maybe"}, "missingProgress is maybe"),
        ({"transactionTimeout": "soon"}, "transactionTimeout is soon"),
        ({"kafka.transactional.id": "mine"}, "chooses the ids itself"),
        ({"kafka.transaction.timeout.ms": "1"}, "use transactionTimeout"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, str], message: str) -> None:
    given = {"kafka.bootstrap.servers": "localhost:9", "topic": "t"}
    given |= {"delivery": "exactly_once", "sink": "s", **options}
    with pytest.raises(OptionError, match=message):
        PenstockDataSource(given).streamWriter(COLUMNS, overwrite=False)


def test_the_query_name_is_the_default_sink_name() -> None:
    given = {"kafka.bootstrap.servers": "localhost:9", "topic": "t", "delivery": "exactly_once"}
    assert parse_sink({**given, "queryname": "nightly"}).sink == "nightly"
    assert parse_sink({**given, "queryname": "nightly", "sink": "other"}).sink == "other"


def test_batch_writes_cannot_be_exactly_once() -> None:
    given = {"kafka.bootstrap.servers": "localhost:9", "topic": "t", "delivery": "exactly_once"}
    with pytest.raises(OptionError, match="is only for streams"):
        BatchWriter(parse_sink(given), COLUMNS, overwrite=False)


# -- by Spark --------------------------------------------------------------------------------------

Start = Callable[[], None]


class Job:
    """A query from one topic to another, restarted repeatedly from its checkpoint."""

    def __init__(
        self, broker: Broker, producer: Producer[Any, Any], read_stream: Read, folder: Path
    ) -> None:
        self.broker = broker
        self.source = broker.new_topic(partitions=2)
        self.target = broker.new_topic(partitions=3)
        self.checkpoint = folder / "checkpoint"
        self.name = f"job of {self.target}"
        self._producer = producer
        self._read_stream = read_stream
        self._written = 0

    def feed(self, count: int) -> None:
        for number in range(self._written, self._written + count):
            self._producer.send(self.source, b"%d" % number, partition=number % 2)
        self._producer.flush()
        self._written += count

    def run(self, shape: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> None:
        stream = self._read_stream(self.source, startingOffsets="earliest").select("value")
        query = (
            shape(stream)
            .writeStream.format("penstock")
            .queryName(self.name)
            .option("kafka.bootstrap.servers", self.broker.bootstrap)
            .option("topic", self.target)
            .option("delivery", "exactly_once")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(patient(END_S)))

    def forget_last_commit(self) -> None:
        """Makes the checkpoint look as if the driver was killed after its commit,
        before Spark recorded it."""
        folder = self.checkpoint / "commits"
        last = max(int(each.name) for each in folder.iterdir() if each.name.isdecimal())
        (folder / str(last)).unlink()
        (folder / f".{last}.crc").unlink(missing_ok=True)

    @property
    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def check(self) -> None:
        values = [int(value) for value in committed(self.broker, self.target)]
        assert sorted(values) == list(range(self._written))


@pytest.fixture
def job(
    spark: SparkSession,
    broker: Broker,
    producer: Producer[Any, Any],
    read_stream: Read,
    tmp_path: Path,
) -> Iterator[Job]:
    yield Job(broker, producer, read_stream, tmp_path)


def test_spark_repeats_a_batch_that_is_already_committed(job: Job, admin: Admin) -> None:
    """The query runs twice. Then Spark has lost the record of its last batch, and
    repeats it without effect."""
    for _ in range(2):
        job.feed(50)
        job.run()
    job.check()
    settled(admin, job.name)
    noted = admin.group_offsets(job.name)[PROGRESS]
    assert (noted.offset, noted.metadata) == (2, job.query_id)
    before = ends(job.broker, job.target)
    job.forget_last_commit()
    job.run()
    assert ends(job.broker, job.target) == before
    job.feed(10)
    job.run()
    job.check()


def test_a_new_driver_follows_one_that_crashed_during_a_batch(job: Job, admin: Admin) -> None:
    """Records that the crashed driver wrote for the next batch are aborted, and written again."""
    job.feed(20)
    job.run()
    lost = Query(job.broker, job.target, job.name, job.query_id)
    lost.write(lost.plan(), 1, [[b"20"], [b"21"], [b"22"]])
    assert len(running(admin, job.name)) == 3
    job.feed(20)
    job.run()
    job.check()
    assert running(admin, job.name) == []


def test_a_deleted_checkpoint_is_refused(job: Job) -> None:
    """The query fails with the reason, and nothing is written."""
    job.feed(20)
    job.run()
    before = ends(job.broker, job.target)
    shutil.rmtree(job.checkpoint)
    with pytest.raises(PySparkException, match="belongs to another query"):
        job.run()
    assert ends(job.broker, job.target) == before
    job.check()


def test_a_failed_task_leaves_nothing(job: Job, admin: Admin) -> None:
    """Spark aborts the batch: no transaction stays open, and none of its rows is readable. Once the
    cause is fixed, the same batch is written.

    The bad row waits until the other task has written. Spark cancels that task without waiting for
    it, and a transaction that it opened after the abort would stay open until the next batch.
    """
    bootstrap, turns = job.broker.bootstrap, int(patient(600))
    topic_partitions = [TopicPartition(job.target, partition) for partition in range(3)]

    @udf(BinaryType())
    def broken(value: bytes) -> bytes:
        if value == b"19":
            with Admin(bootstrap) as asking:
                for _ in range(turns):
                    found = asking.list_offsets(dict.fromkeys(topic_partitions, "latest"))
                    if any(each is not None and each.offset > 0 for each in found.values()):
                        raise ValueError("row 19 is bad")
                    time.sleep(0.1)
            raise TimeoutError("the other task has written nothing")
        return value

    job.feed(20)
    with pytest.raises(PySparkException, match="row 19 is bad"):
        job.run(lambda frame: frame.select(broken("value").alias("value")))
    assert running(admin, job.name) == []
    assert committed(job.broker, job.target) == []
    job.run()
    job.check()


def test_a_batch_that_cannot_be_planned_is_reported_in_one_line(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says what to do, not that an object cannot be pickled."""
    job.feed(1)
    job.broker = Broker()
    job.broker.bootstrap = "127.0.0.1:9"
    with pytest.raises(PySparkException) as told:
        job.run()
    assert "cannot connect to kafka.bootstrap.servers=127.0.0.1:9" in str(told.value)
    assert "serialize" not in str(told.value)
