"""Groups clicks into sessions: what a user does without a pause of half an hour.

    python -m examples.pipelines.sessions --generate 1000

The end of a session is not known while it lasts, so this needs state and a timer. One session per
user is kept open, every click moves its end, and a timer closes it after half an hour of event
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

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
SESSIONS = "sessions"
SCHEMA = "user STRING, page STRING, at TIMESTAMP"
PAUSE = timedelta(minutes=30)
PAUSE_MS = round(PAUSE.total_seconds() * 1000)
LATE = "10 minutes"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def events(number: int) -> Iterator[Event]:
    """Ten users over eight hours, each coming and going; clicks are up to a minute late."""
    for index in range(number):
        at = BEGIN + minutes(480 * index / number)
        # A user is active in some half hours and not in others.
        user = next(
            name
            for turn in range(40)
            if chance(name := f"user-{chance('u', index, turn) % 10}", at.hour, at.minute // 30) % 3
            == 0
            or turn == 39
        )
        at -= minutes(chance("late", index) % 60 / 60)
        yield Event(user, {"user": user, "page": f"/{index % 7}", "at": iso(at)}, at)


class Sessions(StatefulProcessor):
    """One open session per user: its first click, its last click, and the number of clicks.

    Timestamps are numbers here: how Spark converts a TIMESTAMP to Python depends on time zones.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getValueState(
            "open", "started_ms BIGINT, ended_ms BIGINT, clicks BIGINT"
        )

    def handleInputRows(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 -- Spark's name
    ) -> Iterator[Row]:
        current = self._open.get() if self._open.exists() else None
        for at_ms in sorted(row.at_ms for row in rows):
            if current is not None and at_ms - current[1] > PAUSE_MS:
                yield finished(key, current)
                current = None
            if current is None:
                current = (at_ms, at_ms, 1)
            else:
                current = (min(current[0], at_ms), max(current[1], at_ms), current[2] + 1)
        if current is not None:
            self._open.update(tuple(current))
            self._set_timer(current[1] + PAUSE_MS + 1)

    def handleExpiredTimer(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 -- Spark's name
        expiredTimerInfo: Any,  # noqa: N803 -- Spark's name
    ) -> Iterator[Row]:
        if self._open.exists():
            yield finished(key, self._open.get())
            self._open.clear()

    def close(self) -> None:
        pass

    def _set_timer(self, at_ms: int) -> None:
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(at_ms)


def finished(key: Any, state: Any) -> Row:
    return Row(user=key[0], started_ms=state[0], ended_ms=state[1], clicks=state[2])


def run(
    spark: SparkSession,
    bootstrap: str,
    checkpoint: str,
    *,
    topic: str = TOPIC,
    out: str = SESSIONS,
    continuous: bool = False,
    batch_records: int = 100_000,
) -> StreamingQuery:
    """The Spark session must use RocksDB for state: set STATE_STORE to ROCKS."""
    clicks = (
        read_json(spark, bootstrap, topic, SCHEMA, maxOffsetsPerTrigger=batch_records)
        .selectExpr("value.*", "unix_millis(value.at) AS at_ms")
        .withWatermark("at", LATE)
    )
    found = clicks.groupBy("user").transformWithState(
        statefulProcessor=Sessions(),
        outputStructType="user STRING, started_ms BIGINT, ended_ms BIGINT, clicks BIGINT",
        outputMode="append",
        timeMode="eventTime",
    )
    value = sf.struct(
        "user",
        sf.timestamp_millis("started_ms").alias("started"),
        sf.timestamp_millis("ended_ms").alias("ended"),
        "clicks",
    )
    return (
        found.select(sf.col("user").alias("key"), sf.to_json(value).alias("value"))
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", out)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(**trigger(continuous))
        .start()
    )


def main() -> None:
    given = parser(__doc__).parse_args()
    make_topic(given.bootstrap, SESSIONS, 1)
    send(given.bootstrap, TOPIC, events(given.generate))
    spark = session("sessions")
    spark.conf.set(STATE_STORE, ROCKS)
    run(
        spark, given.bootstrap, f"{given.checkpoint}/sessions", continuous=given.continuous
    ).awaitTermination()
    print(f"see them with: penstock consume {SESSIONS} --from-beginning -b {given.bootstrap}")


if __name__ == "__main__":
    main()
