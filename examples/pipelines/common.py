"""Shared by the example pipelines: a Spark session, a JSON source, arguments and sample data."""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock import Admin, BrokerError, Producer
from penstock.spark.java import JavaMissing, check_java

BEGIN = datetime(2026, 1, 31, 22, 0, tzinfo=UTC)
"""When the sample events begin: two hours before a new day and a new month."""


class Event(NamedTuple):
    """A record to send: its key, its value, and when it happened."""

    key: str
    value: dict[str, Any]
    at: datetime


def chance(*words: object) -> int:
    """Returns a number that looks random and is the same every time."""
    return zlib.crc32(repr(words).encode())


def iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def make_topic(bootstrap: str, topic: str, partitions: int = 3) -> None:
    with Admin(bootstrap) as admin:
        if isinstance(admin.describe_topics([topic])[topic], BrokerError):
            # The events are in the past, so retention would delete them.
            admin.create_topic(topic, partitions, configs={"retention.ms": "-1"})


def send(bootstrap: str, topic: str, events: Iterable[Event]) -> int:
    """Sends events as JSON, with the time they happened as the timestamp of the record."""
    make_topic(bootstrap, topic)
    number = 0
    with Producer(bootstrap) as producer:
        for event in events:
            value = json.dumps(event.value).encode()
            timestamp_ms = round(event.at.timestamp() * 1000)
            producer.send(topic, value, key=event.key.encode(), timestamp_ms=timestamp_ms)
            number += 1
    return number


def session(name: str, **settings: str) -> SparkSession:
    """Returns a session with these settings; double underscores in their names stand for dots."""
    try:
        check_java()
    except JavaMissing as error:
        sys.exit(str(error))
    # Spark finds the data source through the Python of its workers, which must be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    return (  # type: ignore[no-any-return] # pyspark's builder is a property of no known type
        builder.config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config(map={key.replace("__", "."): value for key, value in settings.items()})
        .getOrCreate()
    )


def read_json(
    spark: SparkSession, bootstrap: str, topic: str, schema: str, **options: object
) -> DataFrame:
    """Returns a topic of JSON as a stream with a column `value` of that schema."""
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", schema)
        .options(**options)  # type: ignore[arg-type] # Spark accepts strings
        .load()
    )


def trigger(continuous: bool) -> dict[str, Any]:
    """Reads what is there and stops, or looks for more every two seconds."""
    return {"processingTime": "2 seconds"} if continuous else {"availableNow": True}


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--bootstrap", default="localhost:9092")
    made.add_argument("--generate", type=int, default=0, metavar="N", help="first make N events")
    made.add_argument("--continuous", action="store_true", help="go on until Ctrl-C")
    made.add_argument("--checkpoint", default="/tmp/penstock-example", help="where it has come to")
    return made
