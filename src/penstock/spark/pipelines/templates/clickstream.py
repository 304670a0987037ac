"""The template `clickstream`: page views from a topic, counted in a table, some sent to a topic."""

from __future__ import annotations

from typing import Final

from penstock.spark.pipelines.templates.frame import Generator, ProjectTemplate, once_text

_README: Final = """\
# $name

Reads page views from the topic `$name-page-views` into the table `page_views`, counts them for
each page in `page_counts`, and sends views of 25 seconds or more to the topic `$name-long-views`.

    python generate.py            # sends 1,000 page views
    penstock pipeline run         # brings the tables up to date
    penstock pipeline test        # runs tests/, without a broker

| file | |
|---|---|
| `transformations/page_views.py` | a streaming table: each run appends the new records |
| `transformations/page_counts.sql` | a materialized view: computed again in every run |
| `transformations/long_views.py` | a sink: each run sends what is new in `page_views` |
""" + once_text("transformations/long_views.py", "long-views")

_VIEWS: Final = '''\
"""Page views: reads a topic of JSON into a table that grows with it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Every page view, typed.")
def page_views() -> DataFrame:
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$name-page-views")
        .option("startingOffsets", "earliest")
        # A batch of older records has at most this size, however many there are.
        .option("maxBytesPerTrigger", "64m")
        .option("valueFormat", "json")
        .option("valueSchema", "user STRING, page STRING, seconds DOUBLE")
        # The lag of this group is that of the flow: penstock group describe $name
        .option("groupId", "$name")
        .load()
        .selectExpr("value.*", "timestamp AS viewed_at")
    )
'''

_COUNTS: Final = """\
-- How often and for how long each page is viewed: computed from the whole table in every run.
CREATE MATERIALIZED VIEW page_counts AS
SELECT page, count(*) AS views, count(DISTINCT user) AS users, round(sum(seconds), 1) AS seconds
FROM page_views
GROUP BY page
"""

_LONG: Final = '''\
"""Long views: sends them to a separate topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()

dp.create_sink(
    "long_views",
    "penstock",
    {
        "kafka.bootstrap.servers": spark.conf.get("spark.penstock.bootstrap"),
        "topic": "$name-long-views",
        # After a crash, records may be sent twice. README.md says how each is sent once.
        "delivery": "at_least_once",
    },
)


@dp.append_flow(target="long_views")
def send_long_views() -> DataFrame:
    fields = sf.struct("user", "page", "seconds")
    return (
        spark.readStream.table("page_views")
        .where("seconds >= 25")
        .select(sf.col("user").alias("key"), sf.to_json(fields).alias("value"))
    )
'''

_TESTS: Final = '''\
"""Tests of the pipeline: penstock pipeline test"""


def test_views_are_counted_and_long_ones_are_sent(penstock_pipeline):
    long_view = {"user": "ann", "page": "/", "seconds": 30.0}
    penstock_pipeline.given(
        "$name-page-views",
        [long_view, {"user": "bob", "page": "/", "seconds": 2.0}],
        at="2026-01-01 10:00",
    )
    penstock_pipeline.run()
    penstock_pipeline.table("page_counts").expect(
        [{"page": "/", "views": 2, "users": 2, "seconds": 32.0}]
    )
    penstock_pipeline.sent("$name-long-views").expect([{"key": "ann", "value": long_view}])

    # The next run reads what is new, and sends nothing twice.
    penstock_pipeline.given("$name-page-views", [{"user": "ann", "page": "/", "seconds": 8.0}])
    penstock_pipeline.run()
    penstock_pipeline.table("page_counts").expect(
        [{"page": "/", "views": 3, "users": 2, "seconds": 40.0}]
    )
    penstock_pipeline.sent("$name-long-views").expect([{"key": "ann", "value": long_view}])
'''

CLICKSTREAM: Final = ProjectTemplate(
    name="clickstream",
    summary="page views, counted for each page; long ones are sent to another topic",
    topics={"page-views": 3, "long-views": 1},
    generator=Generator(
        title="Page views",
        things="page views to $name-page-views",
        before='pages = ["/", "/", "/", "/pricing", "/docs", "/docs/spark", "/blog"]',
        send="""\
for _ in range(given.count):
    user = f"user-{random.randrange(50)}"
    view = {"user": user, "page": random.choice(pages), "seconds": random.uniform(0, 30)}
    producer.send("$name-page-views", json.dumps(view).encode(), key=user.encode())
""",
    ),
    files={
        "transformations/page_views.py": _VIEWS,
        "transformations/page_counts.sql": _COUNTS,
        "transformations/long_views.py": _LONG,
        "tests/test_pipeline.py": _TESTS,
        "README.md": _README,
    },
)
