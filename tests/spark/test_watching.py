"""Tests `penstock.spark.watch` with real Spark: unmodified queries report to consoles."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import penstock.spark
from penstock import Consumer, Producer
from penstock.spark.reports import TOPIC, Report, decode
from penstock.testing import Broker
from penstock.topic_partition import TopicPartition
from public_examples import all_examples
from spark.conftest import Read
from spark.direct import Deadline


class Reports:
    """The latest report of each query, by its name."""

    def __init__(self, consumer: Consumer[Any, Any]) -> None:
        self._consumer = consumer
        self._last: dict[str, Report] = {}
        consumer.assign([TopicPartition(TOPIC, 0)])

    def wait(self, name: str, wanted: Callable[[Report], bool]) -> Report:
        deadline = Deadline(120.0)
        while name not in self._last or not wanted(self._last[name]):
            deadline.check(f"a report of {name}")
            for record in self._consumer.poll(timeout_ms=500):
                report = decode(record.value)
                assert report is not None
                self._last[report.name] = report
        return self._last[name]


def test_queries_are_reported_with_their_end(
    spark: SparkSession,
    broker: Broker,
    producer: Producer[Any, Any],
    read_stream: Read,
    checkpoint: str,
) -> None:
    """Rows and lag while a query runs, and the reason of a failed one in one line."""
    topic = broker.new_topic()
    for number in range(10):
        producer.send(topic, b"%d" % number)
    producer.flush()
    with (
        penstock.spark.watch(spark, broker.bootstrap),
        Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        reports = Reports(consumer)
        frame = read_stream(topic, startingOffsets="earliest")
        writing = frame.writeStream.format("noop").queryName("watched")
        query = writing.option("checkpointLocation", checkpoint).start()
        found = reports.wait("watched", lambda report: report.rows == 10)
        # Another test may have given the session another name.
        application = spark.conf.get("spark.app.name")
        assert (found.state, found.lag, found.application) == ("RUNNING", 0, application)
        query.stop()
        reports.wait("watched", lambda report: report.state == "STOPPED")

        def fail(batch: Any, number: int) -> None:
            raise ValueError("the table is gone")

        broken = frame.writeStream.foreachBatch(fail).queryName("broken")
        assert broken.option("checkpointLocation", f"{checkpoint}-2").start() is not None
        ended = reports.wait("broken", lambda report: report.state != "RUNNING")
        assert ended.state == "FAILED"
        # The user's own line comes first.
        assert re.fullmatch(
            r"test_watching\.py, line \d+: ValueError: the table is gone", ended.error
        )


def test_the_examples_run(spark: SparkSession, broker: Broker) -> None:
    """Those in the docstrings of `penstock.spark`. `tests/test_examples.py` runs all others."""
    examples = [each for each in all_examples() if each.name.startswith("penstock.spark.")]
    assert examples
    for example in examples:
        code = example.code.replace("localhost:9092", broker.bootstrap)
        exec(code, {"penstock": penstock, "spark": spark})
