"""Reads some days of a topic again, as a batch, into a table of revenue by day and product.

    python -m examples.pipelines.backfill --generate 1000 --since 2026-02-01 --until 2026-02-02

Only the range is read: the broker finds its start and end by the timestamps of the records. Only
the days of the range are replaced in the table, so a backfill may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from examples.pipelines.common import BEGIN, Event, chance, minutes, parser, send, session

TOPIC = "sales"
PRODUCTS = ("tea", "coffee", "cake")


def events(number: int) -> Iterator[Event]:
    """Yields sales over three days, in chronological order."""
    for index in range(number):
        at = BEGIN + minutes(3 * 24 * 60 * index / number)
        product = PRODUCTS[chance("product", index) % len(PRODUCTS)]
        yield Event(product, {"product": product, "cents": 100 + chance("c", index) % 400}, at)


def run(
    spark: SparkSession,
    bootstrap: str,
    table: str,
    since: datetime,
    until: datetime,
    *,
    topic: str = TOPIC,
) -> None:
    """Replaces the days from `since` up to but not including `until`."""
    sales = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingTimestamp", round(since.timestamp() * 1000))
        .option("endingTimestamp", round(until.timestamp() * 1000))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("valueFormat", "json")
        .option("valueSchema", "product STRING, cents INT")
        .load()
    )
    # Producers' clocks differ: between the two offsets there may be records of other days.
    within = sales.where(sf.col("timestamp").between(since, until) & (sf.col("timestamp") < until))
    days = (
        within.withColumn("day", sf.to_date("timestamp"))
        .groupBy("day", "value.product")
        .agg(sf.count("*").alias("sales"), sf.sum("value.cents").alias("cents"))
    )
    (
        days.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("day")
        .parquet(table)
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--table", default="/tmp/penstock-sales")
    arguments.add_argument("--since", type=datetime.fromisoformat, default=BEGIN)
    arguments.add_argument("--until", type=datetime.fromisoformat, default="2026-02-03")
    given = arguments.parse_args()
    send(given.bootstrap, TOPIC, events(given.generate))
    spark = session("backfill")
    since, until = (each.replace(tzinfo=UTC) for each in (given.since, given.until))
    run(spark, given.bootstrap, given.table, since, until)
    spark.read.parquet(given.table).orderBy("day", "product").show()


if __name__ == "__main__":
    main()
