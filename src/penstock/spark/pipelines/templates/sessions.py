"""The template `sessions`: events of users, grouped into sessions, which are sent when they end."""

from __future__ import annotations

from typing import Final

from penstock.spark.pipelines.templates.frame import Generator, ProjectTemplate, once_text

_README: Final = """\
# $name

Groups the events of each user into sessions: a session ends when its user has done nothing for 10
minutes. Finished sessions are in the table `sessions`, and are sent to the topic
`$name-sessions`.

    python generate.py            # sends 1,000 events of the last day
    penstock pipeline run         # brings the tables up to date
    penstock pipeline test        # runs tests/, without a broker

| file | |
|---|---|
| `transformations/sessions.py` | a streaming table: open sessions are Spark's state |
| `transformations/finished_sessions.py` | a sink: sends each finished session |

A session is finished when the watermark has passed its end. The watermark is 5 minutes behind the
latest event of any user, so an event may be 5 minutes late. Later ones are dropped. If no new
events arrive, the watermark stays where it is, and so the last sessions stay open.
""" + once_text("transformations/finished_sessions.py", "sessions")

_SESSIONS: Final = '''\
"""Sessions: the events of a user with less than 10 minutes between one and the next."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()


@dp.table(comment="Every finished session.")
def sessions() -> DataFrame:
    events = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$name-events")
        .option("startingOffsets", "earliest")
        # A batch of older records has at most this size, however many there are.
        .option("maxBytesPerTrigger", "64m")
        .option("valueFormat", "json")
        .option("valueSchema", "user STRING, action STRING, at TIMESTAMP")
        # The lag of this group is that of the flow: penstock group describe $name
        .option("groupId", "$name")
        .load()
        .select("value.*")
    )
    return (
        events.withWatermark("at", "5 minutes")
        .groupBy(sf.session_window("at", "10 minutes").alias("session"), "user")
        .agg(
            sf.count("*").alias("events"),
            sf.max("at").alias("last_event"),
            sf.sum(sf.when(sf.col("action") == "buy", 1).otherwise(0)).alias("purchases"),
        )
        .selectExpr("user", "session.start AS started", "last_event", "events", "purchases")
    )
'''

_SINK: Final = '''\
"""Finished sessions: sends each of them to a topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()

dp.create_sink(
    "finished_sessions",
    "penstock",
    {
        "kafka.bootstrap.servers": spark.conf.get("spark.penstock.bootstrap"),
        "topic": "$name-sessions",
        "valueFormat": "json",
        # After a crash, records may be sent twice. README.md says how each is sent once.
        "delivery": "at_least_once",
    },
)


@dp.append_flow(target="finished_sessions")
def send_sessions() -> DataFrame:
    # The columns other than key become the fields of the value.
    return spark.readStream.table("sessions").select(
        sf.col("user").alias("key"), "user", "events", "purchases"
    )
'''

_TESTS: Final = '''\
"""Tests of the pipeline: penstock pipeline test"""

TOPIC = "$name-events"


def event(user, time, action="look"):
    return {"user": user, "action": action, "at": f"2026-01-01 {time}"}


def test_a_session_ends_after_ten_minutes_without_an_event(penstock_pipeline):
    penstock_pipeline.given(TOPIC, [event("ann", "10:00:00"), event("ann", "10:08:00", "buy")])
    penstock_pipeline.run()
    penstock_pipeline.table("sessions").expect([])

    # An event of another user moves the watermark to 10:25, beyond the end of the session.
    penstock_pipeline.given(TOPIC, [event("bob", "10:30:00")])
    penstock_pipeline.run()
    penstock_pipeline.table("sessions").expect(
        [
            {
                "user": "ann",
                "started": "2026-01-01 10:00",
                "last_event": "2026-01-01 10:08",
                "events": 2,
                "purchases": 1,
            }
        ]
    )
    penstock_pipeline.sent("$name-sessions").expect(
        [{"key": "ann", "value": {"user": "ann", "events": 2, "purchases": 1}}]
    )
'''

SESSIONS: Final = ProjectTemplate(
    name="sessions",
    summary="events of users, grouped into sessions, which are sent when they end",
    topics={"events": 3, "sessions": 1},
    generator=Generator(
        title="Events",
        things="events to $name-events",
        imports="from datetime import datetime, timedelta, timezone",
        before="""\
actions = ["look", "look", "look", "search", "buy"]
day_ago = datetime.now(timezone.utc) - timedelta(days=1)
# In the order of time: an event that is more than 5 minutes late would be dropped.
times = sorted(random.uniform(0, 86_400) for _ in range(given.count))
""",
        send="""\
for seconds in times:
    user = f"user-{random.randrange(20)}"
    at = (day_ago + timedelta(seconds=seconds)).isoformat()
    event = {"user": user, "action": random.choice(actions), "at": at}
    producer.send("$name-events", json.dumps(event).encode(), key=user.encode())
""",
    ),
    files={
        "transformations/sessions.py": _SESSIONS,
        "transformations/finished_sessions.py": _SINK,
        "tests/test_pipeline.py": _TESTS,
        "README.md": _README,
    },
)
