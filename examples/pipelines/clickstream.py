"""Writes clicks from a topic to a typed Parquet table, each click once, in a folder per day.

    python -m examples.pipelines.clickstream --generate 1000 --table /tmp/clicks

Browsers send a click again if they are not sure that it arrived. A click has an id, and within an
hour each id is accepted only once. Records that are not clicks go to a dead letter topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession
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
DEAD_LETTERS = "clicks-dead"
SCHEMA = "id STRING, user STRING, page STRING, at TIMESTAMP"
PAGES = ("/", "/pricing", "/docs", "/blog")


def events(number: int) -> Iterator[Event]:
    """Yields clicks over four hours; about one in ten is sent twice, some minutes apart."""
    repeated: list[Event] = []
    for index in range(number):
        at = BEGIN + minutes(240 * index / number)
        user = f"user-{chance('user', index) % 20}"
        page = PAGES[chance("page", index) % len(PAGES)]
        event = Event(user, {"id": f"c{index}", "user": user, "page": page, "at": iso(at)}, at)
        yield event
        if chance("again", index) % 10 == 0:
            repeated.append(event)
        if len(repeated) > 3:
            yield repeated.pop(0)
    yield from repeated


def run(
    spark: SparkSession,
    bootstrap: str,
    table: str,
    checkpoint: str,
    *,
    topic: str = TOPIC,
    dead_letters: str = DEAD_LETTERS,
    continuous: bool = False,
    batch_records: int = 100_000,
) -> StreamingQuery:
    clicks = read_json(
        spark,
        bootstrap,
        topic,
        SCHEMA,
        badRecords="deadletter",
        deadLetterTopic=dead_letters,
        maxOffsetsPerTrigger=batch_records,
        groupId="clickstream",
    ).select("value.*")
    once = clicks.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
    return (
        once.selectExpr("*", "to_date(at) AS day")
        .writeStream.partitionBy("day")
        .format("parquet")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger(continuous))
        .start()
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--table", default="/tmp/penstock-clicks")
    given = arguments.parse_args()
    make_topic(given.bootstrap, DEAD_LETTERS, 1)
    send(given.bootstrap, TOPIC, events(given.generate))
    spark = session("clickstream")
    run(
        spark,
        given.bootstrap,
        given.table,
        f"{given.checkpoint}/clickstream",
        continuous=given.continuous,
    ).awaitTermination()
    spark.read.parquet(given.table).groupBy("day").count().orderBy("day").show()


if __name__ == "__main__":
    main()
