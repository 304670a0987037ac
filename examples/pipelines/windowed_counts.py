"""Counts clicks in a topic by page and minute, and sends the counts to another topic.

    python -m examples.pipelines.windowed_counts --generate 1000

A minute is complete when a click arrives that is more than a minute later than its end (the
watermark). Until then its count is kept in Spark's state. Each count is sent once.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession
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

TOPIC = "clicks"
COUNTS = "page-counts"
SCHEMA = "user STRING, page STRING, at TIMESTAMP"
PAGES = ("/", "/pricing", "/docs", "/blog")
LATE = "1 minute"


def events(number: int, span_minutes: float = 30) -> Iterator[Event]:
    """Yields clicks that arrive up to twenty seconds out of order."""
    for index in range(number):
        late = minutes(chance("late", index) % 20 / 60)
        at = BEGIN + minutes(span_minutes * index / number) - late
        user = f"user-{chance('user', index) % 20}"
        page = PAGES[chance("page", index) % len(PAGES)]
        yield Event(user, {"user": user, "page": page, "at": iso(at)}, at)


def run(
    spark: SparkSession,
    bootstrap: str,
    checkpoint: str,
    *,
    topic: str = TOPIC,
    counts: str = COUNTS,
    continuous: bool = False,
    batch_records: int = 100_000,
) -> StreamingQuery:
    clicks = read_json(
        spark, bootstrap, topic, SCHEMA, maxOffsetsPerTrigger=batch_records, groupId="counts"
    ).select("value.*")
    counted = clicks.withWatermark("at", LATE).groupBy(sf.window("at", "1 minute"), "page").count()
    value = sf.struct("page", sf.col("window.start").alias("minute"), "count")
    return (
        counted.select(sf.col("page").alias("key"), sf.to_json(value).alias("value"))
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", counts)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(**trigger(continuous))
        .start()
    )


def main() -> None:
    given = parser(__doc__).parse_args()
    make_topic(given.bootstrap, COUNTS, 1)
    send(given.bootstrap, TOPIC, events(given.generate))
    spark = session("windowed counts")
    run(
        spark,
        given.bootstrap,
        f"{given.checkpoint}/windowed-counts",
        continuous=given.continuous,
    ).awaitTermination()
    print(f"see them with: penstock consume {COUNTS} --from-beginning -b {given.bootstrap}")


if __name__ == "__main__":
    main()
