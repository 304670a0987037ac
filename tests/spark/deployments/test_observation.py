"""Tests what can be observed of a pipeline on a real worker, a real broker and real Spark."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.aio import Consumer, Producer
from penstock.runtime import SystemClock, SystemRandom
from penstock.spark.deployments import topics
from penstock.spark.deployments.model import Schedule, decode, encode
from penstock.spark.deployments.previews import Asking, Preview, PreviewAnswer
from penstock.testing import Broker
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from spark.deployments.deployed import (
    WAIT_S,
    Cluster,
    NewVersion,
    WorkerProcess,
    make_project,
    run,
)

pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.usefixtures("java"),
    pytest.mark.skipif(
        not os.environ.get("PENSTOCK_LONG"), reason="several minutes: set PENSTOCK_LONG=1"
    ),
]
TABLE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def numbers():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "{name}-in")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "n INT")
        .option("badRecords", "deadletter")
        .option("deadLetterTopic", "{name}-dead")
        .load()
        .selectExpr("CAST(key AS STRING) AS key", "value.n AS n")
    )
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


async def rows(bootstrap: str) -> Preview:
    """Asks for rows, as the console does, until there are some."""
    place, random = TopicPartition(topics.PREVIEWS, 0), SystemRandom().bytes
    async with (
        asyncio.timeout(patient(WAIT_S)),
        Producer(bootstrap) as producer,
        Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([place])
        asked: dict[str, Asking] = {}
        while True:
            asking = Asking(random)
            asked[asking.id] = asking
            request = asking.request("table", "table:numbers", SystemClock().wall_ms())
            key = topics.preview_request_key("table")
            await producer.send(topics.PREVIEWS, encode(request), key=key)
            for record in await consumer.poll(timeout_ms=2_000):
                answer = decode(PreviewAnswer, record.value)
                if answer is not None and answer.id in asked:
                    found = asked[answer.id].opened(answer)
                    if found is not None and found.rows:
                        return found


async def scraped(port: int, wanted: str) -> str:
    """Waits until a scrape has this line."""

    def look() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    async with asyncio.timeout(patient(WAIT_S)):
        while wanted not in (text := await asyncio.to_thread(look)):
            await SystemClock().sleep(0.5)
    return text


def test_metrics_rows_and_lineage_of_a_running_pipeline(broker: Broker, tmp_path: Path) -> None:
    """Its records and dead letters are counted, its rows can be seen, and its run is reported."""
    port, lineage = free_port(SystemRandom()), tmp_path / "lineage.jsonl"
    broker.new_topic(name="table-in", partitions=2)
    broker.new_topic(name="table-dead")
    options = ["--no-spare", "--metrics-port", str(port), "--openlineage", str(lineage)]
    worker = WorkerProcess(broker, tmp_path / "data", *options)

    async def main(cluster: Cluster) -> None:
        archive = make_project(tmp_path / "project", "table", TABLE)
        schedule = Schedule(continuous=True, interval_s=0.2)
        await cluster.catalog.deploy(
            NewVersion("table", "project", "spark-pipeline.yml", archive, schedule=schedule)
        )
        async with Producer(broker.bootstrap) as producer:
            for number in range(40):
                value = b'{"n": %d}' % number if number % 10 else b"bad"
                await producer.send("table-in", value, key=b"%d" % number)
        await cluster.state("table", "RUNNING")
        text = await scraped(port, 'penstock_pipeline_dead_letters_total{pipeline="table"} 4.0')
        assert 'penstock_pipeline_state{pipeline="table",state="RUNNING"} 1.0' in text
        await scraped(
            port, 'penstock_pipeline_input_rows_total{flow="numbers",pipeline="table"} 36.0'
        )
        found = await rows(broker.bootstrap)
        assert found.columns == [["key", "string"], ["n", "int"]]
        assert all(row[0] == row[1] for row in found.rows)
        assert worker.terminate() == 0

    try:
        run(broker, main)
    finally:
        worker.close()
    events = [json.loads(line) for line in lineage.read_text().splitlines()]
    told = [(event["eventType"], event["job"]["name"]) for event in events]
    assert told[0] == ("START", "table") and ("ABORT", "table") in told
    planned = events[told.index(("START", "table.numbers"))]
    (read,) = planned["inputs"]
    assert read["name"] == "table-in" and read["facets"]["schema"]["fields"]
    assert [each["name"] for each in planned["outputs"]] == ["table.numbers"]
