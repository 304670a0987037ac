"""Tests Spark Connect: a server that has the data source, and a client in another process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, Producer
from penstock.runtime import SystemRandom
from penstock.testing import Broker
from penstock.testing.ports import free_port
from spark.cluster.processes import HOST, JAVA_OPTIONS, SPARK_HOME, Process, environment

pytestmark = pytest.mark.timeout(600)

CLIENT = """
import json, sys
from pyspark.sql import SparkSession

remote, bootstrap, topic, to, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
brokers = {"kafka.bootstrap.servers": bootstrap}
rows = spark.read.format("penstock").options(**brokers, subscribe=topic).load()
values = sorted(bytes(row.value).decode() for row in rows.select("value").collect())
query = (
    spark.readStream.format("penstock")
    .options(**brokers, subscribe=topic, startingOffsets="earliest")
    .load()
    .selectExpr("upper(CAST(value AS STRING)) AS value")
    .writeStream.format("penstock")
    .options(**brokers, topic=to, checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
try:
    spark.read.format("penstock").options(**brokers, subscribe="no-such-topic").load().collect()
    error = ""
except Exception as failed:
    error = str(failed)
said = {"values": values, "columns": rows.columns, "error": error}
print("ANSWER " + json.dumps({**said, "kind": type(spark).__module__}))
spark.stop()
"""


@pytest.fixture(scope="module")
def remote(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Runs a Connect server in its own process."""
    port = free_port(SystemRandom(), HOST)
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.memory": "800m",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.ui.enabled": "false",
    }
    server = Process(
        "connect",
        [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *(part for pair in settings.items() for part in ("--conf", "=".join(pair))),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "spark-internal",
        ],
        tmp_path_factory.mktemp("connect"),
        environment(),
    )
    try:
        server.wait_for("Spark Connect server started")
        yield f"sc://{HOST}:{port}"
    finally:
        server.stop()


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="set PENSTOCK_LONG=1, or make spark-cluster"
)
def test_reading_and_writing_through_connect(
    remote: str, broker: Broker, producer: Producer[Any, Any], tmp_path: Path
) -> None:
    """A batch, a stream from topic to topic, and an error that says what to do."""
    topic, to = broker.new_topic(partitions=2), broker.new_topic()
    for number in range(10):
        producer.send(topic, b"value %d" % number, partition=number % 2)
    producer.flush()
    arguments = [remote, broker.bootstrap, topic, to, str(tmp_path / "checkpoint")]
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(),
    )
    answer = re.search("^ANSWER (.*)$", ran.stdout, re.MULTILINE)
    assert answer is not None, re.sub(r"\n\s+at .*", "", ran.stderr)[-5000:]
    said = json.loads(answer[1])
    assert said["kind"].startswith("pyspark.sql.connect")
    assert said["values"] == [f"value {number}" for number in range(10)]
    assert said["columns"][:3] == ["key", "value", "topic"]
    assert "topic no-such-topic does not exist: create it with" in said["error"]
    with Consumer(broker.bootstrap) as consumer:
        written = consumer.read_table(to, headers=False).column("value").to_pylist()
    assert sorted(written) == [b"VALUE %d" % number for number in range(10)]
