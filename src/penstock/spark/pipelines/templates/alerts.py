"""The template `alerts`: measurements, averaged by minute; unusual averages are sent as alerts."""

from __future__ import annotations

from typing import Final

from penstock.spark.pipelines.templates.frame import Generator, ProjectTemplate, once_text

_README: Final = """\
# $name

Watches sensors. The measurements of the topic `$name-measurements` are averaged for each sensor and
minute. A minute whose average is above 80 or below 10 becomes an alert in `$name-alerts`.

    python generate.py            # sends 1,000 measurements of the last hour
    penstock pipeline run         # brings the tables up to date
    penstock pipeline test        # runs tests/, without a broker

| file | |
|---|---|
| `transformations/minutes.py` | a streaming table: averages by sensor and minute |
| `transformations/alerts.py` | a sink: sends minutes that are out of bounds |

A minute is finished when the watermark has passed its end. The watermark is 10 seconds behind the
latest measurement, so a measurement may be 10 seconds late. Later ones are dropped. If no new
measurements arrive, the watermark stays where it is, and so the last minute stays open.

Change the bounds in `transformations/alerts.py`, and the test with them.
""" + once_text("transformations/alerts.py", "alerts")

_MINUTES: Final = '''\
"""Averages by sensor and minute, of minutes that are finished."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()


@dp.table(comment="The average of each sensor in each finished minute.")
def minutes() -> DataFrame:
    measurements = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$name-measurements")
        .option("startingOffsets", "earliest")
        # A batch of older records has at most this size, however many there are.
        .option("maxBytesPerTrigger", "64m")
        .option("valueFormat", "json")
        .option("valueSchema", "sensor STRING, value DOUBLE, at TIMESTAMP")
        # The lag of this group is that of the flow: penstock group describe $name
        .option("groupId", "$name")
        .load()
        .select("value.*")
    )
    return (
        measurements.withWatermark("at", "10 seconds")
        .groupBy(sf.window("at", "1 minute"), "sensor")
        .agg(sf.avg("value").alias("average"), sf.count("*").alias("measurements"))
        .selectExpr("sensor", "window.start AS minute", "average", "measurements")
    )
'''

_ALERTS: Final = '''\
"""Alerts: sends each minute whose average is out of bounds."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

LOWEST, HIGHEST = 10, 80

spark = SparkSession.active()

dp.create_sink(
    "alerts",
    "penstock",
    {
        "kafka.bootstrap.servers": spark.conf.get("spark.penstock.bootstrap"),
        "topic": "$name-alerts",
        "valueFormat": "json",
        # After a crash, records may be sent twice. README.md says how each is sent once.
        "delivery": "at_least_once",
    },
)


@dp.append_flow(target="alerts")
def send_alerts() -> DataFrame:
    # The columns other than key become the fields of the value.
    return (
        spark.readStream.table("minutes")
        .where((sf.col("average") > HIGHEST) | (sf.col("average") < LOWEST))
        .select(sf.col("sensor").alias("key"), "sensor", "average", "measurements")
    )
'''

_TESTS: Final = '''\
"""Tests of the pipeline: penstock pipeline test"""

TOPIC = "$name-measurements"


def measured(sensor, time, value):
    return {"sensor": sensor, "value": value, "at": f"2026-01-01 {time}"}


def test_a_minute_out_of_bounds_is_sent_once(penstock_pipeline):
    hot = [measured("oven", "10:00:10", 95.0), measured("oven", "10:00:50", 85.0)]
    penstock_pipeline.given(TOPIC, [*hot, measured("hall", "10:00:30", 20.0)])
    penstock_pipeline.run()
    penstock_pipeline.sent("$name-alerts").expect([])

    # A later measurement finishes the minute.
    penstock_pipeline.given(TOPIC, [measured("hall", "10:01:30", 21.0)])
    penstock_pipeline.run()
    penstock_pipeline.table("minutes").select("sensor", "minute", "average").expect(
        [
            {"sensor": "oven", "minute": "2026-01-01 10:00", "average": 90.0},
            {"sensor": "hall", "minute": "2026-01-01 10:00", "average": 20.0},
        ]
    )
    alert = {"key": "oven", "value": {"sensor": "oven", "average": 90.0, "measurements": 2}}
    penstock_pipeline.sent("$name-alerts").expect([alert])

    # A measurement that is too late changes nothing.
    penstock_pipeline.given(TOPIC, [measured("oven", "10:00:20", 99.0)])
    penstock_pipeline.run()
    penstock_pipeline.sent("$name-alerts").expect([alert])
'''

ALERTS: Final = ProjectTemplate(
    name="alerts",
    summary="anomaly alerts: averages by minute; those out of bounds are sent to a topic",
    topics={"measurements": 3, "alerts": 1},
    generator=Generator(
        title="Measurements",
        things="measurements to $name-measurements",
        imports="from datetime import datetime, timedelta, timezone",
        before="""\
hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
# In the order of time: a measurement that is more than 10 seconds late would be dropped.
times = sorted(random.uniform(0, 3_600) for _ in range(given.count))
""",
        send="""\
for seconds in times:
    sensor = f"sensor-{random.randrange(5)}"
    at = (hour_ago + timedelta(seconds=seconds)).isoformat()
    # One sensor is too hot in some minutes.
    hot = sensor == "sensor-0" and int(seconds // 60) % 10 == 0
    value = random.gauss(95 if hot else 40, 5)
    measurement = {"sensor": sensor, "value": value, "at": at}
    producer.send("$name-measurements", json.dumps(measurement).encode(), key=sensor.encode())
""",
    ),
    files={
        "transformations/minutes.py": _MINUTES,
        "transformations/alerts.py": _ALERTS,
        "tests/test_pipeline.py": _TESTS,
        "README.md": _README,
    },
)
