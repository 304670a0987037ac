"""Joins orders with their payments and customers, and writes them to a topic and to a table.

    python -m examples.pipelines.orders --generate 200 --table /tmp/paid-orders

Orders and payments are two streams, joined if they are within ten minutes of each other. Customers
are a topic too, in which the last record of each key counts: it is read completely for every batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from examples.pipelines.common import (
    BEGIN,
    Event,
    chance,
    iso,
    make_topic,
    minutes,
    parser,
    read_json,
    send,
    session,
    trigger,
)

ORDERS, PAYMENTS, CUSTOMERS, PAID = "orders", "payments", "customers", "paid-orders"
COUNTRIES = ("de", "fr", "it")
CUSTOMER_COUNT = 7


def orders(number: int) -> Iterator[Event]:
    for index in range(number):
        at = BEGIN + minutes(index)
        customer = f"customer-{chance('customer', index) % CUSTOMER_COUNT}"
        amount = 100 + chance("amount", index) % 900
        value = {"order": f"o{index}", "customer": customer, "cents": amount, "at": iso(at)}
        yield Event(f"o{index}", value, at)


def payments(number: int) -> Iterator[Event]:
    """Most orders are paid, some too late, some never."""
    for index in range(number):
        waited = chance("waited", index) % 14
        if chance("paid", index) % 5:
            at = BEGIN + minutes(index + waited)
            yield Event(f"o{index}", {"order": f"o{index}", "at": iso(at)}, at)


def customers() -> Iterator[Event]:
    """Every customer moves once: the second record of each is the one that counts."""
    for turn in range(2):
        for index in range(CUSTOMER_COUNT):
            country = COUNTRIES[(index + turn) % len(COUNTRIES)]
            name = f"customer-{index}"
            yield Event(name, {"customer": name, "country": country}, BEGIN + minutes(turn))


def paid(spark: SparkSession, bootstrap: str, orders: str, payments: str) -> DataFrame:
    placed = read_json(
        spark, bootstrap, orders, "order STRING, customer STRING, cents INT, at TIMESTAMP"
    ).selectExpr("value.*")
    settled = read_json(spark, bootstrap, payments, "order STRING, at TIMESTAMP").selectExpr(
        "value.order AS paid_order", "value.at AS paid_at"
    )
    return placed.withWatermark("at", "20 minutes").join(
        settled.withWatermark("paid_at", "20 minutes"),
        sf.expr("order = paid_order AND paid_at >= at AND paid_at <= at + INTERVAL 10 MINUTES"),
    )


def last_of_each(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Returns a topic as a table with the last record of each key."""
    records = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("valueFormat", "json")
        .option("valueSchema", "customer STRING, country STRING")
        .load()
    )
    return records.groupBy("key").agg(sf.max_by("value", "offset").alias("last")).select("last.*")


def run(
    spark: SparkSession,
    bootstrap: str,
    table: str,
    checkpoint: str,
    *,
    orders: str = ORDERS,
    payments: str = PAYMENTS,
    customers: str = CUSTOMERS,
    out: str = PAID,
    continuous: bool = False,
) -> StreamingQuery:
    def write(batch: DataFrame, batch_id: int) -> None:
        known = last_of_each(spark, bootstrap, customers)
        rows = batch.join(known, "customer").select(
            "order", "customer", "country", "cents", "at", "paid_at"
        )
        rows.persist()
        # A batch that runs again overwrites the same folder, so each row is in the table once.
        rows.write.mode("overwrite").parquet(f"{table}/batch={batch_id}")
        (
            rows.select(sf.col("order").alias("key"), sf.to_json(sf.struct("*")).alias("value"))
            .write.format("penstock")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", out)
            .mode("append")
            .save()
        )
        rows.unpersist()

    return (
        paid(spark, bootstrap, orders, payments)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger(continuous))
        .start()
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--table", default="/tmp/penstock-paid-orders")
    given = arguments.parse_args()
    make_topic(given.bootstrap, PAID)
    if given.generate:
        send(given.bootstrap, CUSTOMERS, customers())
    send(given.bootstrap, ORDERS, orders(given.generate))
    send(given.bootstrap, PAYMENTS, payments(given.generate))
    spark = session("orders")
    run(
        spark,
        given.bootstrap,
        given.table,
        f"{given.checkpoint}/orders",
        continuous=given.continuous,
    ).awaitTermination()
    spark.read.parquet(given.table).groupBy("country").sum("cents").show()


if __name__ == "__main__":
    main()
