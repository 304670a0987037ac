"""Creates an example project: it reads page views from a topic, counts them, and writes to a topic.

The project is small and has one of each element of a pipeline, in both languages for definitions.
It runs unchanged on the broker that `penstock up` starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Final

from penstock.spark.pipelines.errors import PipelineError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

_SPEC: Final = Template("""\
# A pipeline on Spark: https://spark.apache.org/docs/latest/declarative-pipelines-programming-guide.html
#
#   penstock pipeline run         read all new records, bring the tables up to date, stop
#   penstock pipeline dry-run     check the definitions without running them
#
# Tables are stored in spark-warehouse; metastore_db lists them for the next run. Spark's own tool
# does the same with: spark-pipelines run --conf spark.sql.catalogImplementation=hive
name: $name
# The progress of each flow. If you delete it, the next run reads everything again (as does
# run --full-refresh).
storage: $storage
libraries:
  - glob:
      include: transformations/**
configuration:
  # The addresses of the brokers; --bootstrap and PENSTOCK_BOOTSTRAP override it.
  spark.penstock.bootstrap: "$bootstrap"
  # Topics that a run creates if they do not exist: name:partitions.
  spark.penstock.topics: "$views:3, $counts:1"
  spark.sql.shuffle.partitions: "4"
""")

_VIEWS: Final = Template('''\
"""Page views: reads a topic of JSON into a table that grows with it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Every page view, typed.")
def page_views() -> DataFrame:
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$views")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "user STRING, page STRING, seconds DOUBLE")
        # The lag of this group is that of the flow: penstock group describe $name
        .option("groupId", "$name")
        .load()
        .selectExpr("value.*", "timestamp AS viewed_at")
    )
''')

_COUNTS: Final = """\
-- How often and for how long each page is viewed: computed from the whole table in every run.
CREATE MATERIALIZED VIEW page_counts AS
SELECT page, count(*) AS views, count(DISTINCT user) AS users, round(sum(seconds), 1) AS seconds
FROM page_views
GROUP BY page
"""

_LONG: Final = Template('''\
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
        "topic": "$counts",
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
''')

_GENERATE: Final = Template('''\
"""Page views to try the pipeline with: python generate.py [--count N] [--bootstrap HOST:PORT]"""

import argparse
import json
import os
import random
import sys

from penstock import ClientError, Producer

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=1_000)
parser.add_argument("--bootstrap", default=os.environ.get("PENSTOCK_BOOTSTRAP", "$bootstrap"))
given = parser.parse_args()

pages = ["/", "/", "/", "/pricing", "/docs", "/docs/spark", "/blog"]
try:
    with Producer(given.bootstrap) as producer:
        for _ in range(given.count):
            user = f"user-{random.randrange(50)}"
            view = {"user": user, "page": random.choice(pages), "seconds": random.uniform(0, 30)}
            producer.send("$views", json.dumps(view).encode(), key=user.encode())
except ClientError as error:
    sys.exit(f"generate.py: {error}")
print(f"sent {given.count} page views to $views")
''')

_IGNORE: Final = """\
.penstock/
pipeline-storage/
spark-warehouse/
metastore_db/
derby.log
__pycache__/
"""


def make_project(parent: Path, name: str, bootstrap: str) -> list[Path]:
    """Creates a project in a new folder of that name. Returns the files, the spec first."""
    if not _NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} cannot be the name of a pipeline: use a letter, then letters, digits, - and "
            "_, at most 64 characters"
        )
    root = (parent / name).resolve()
    if root.exists() and any(root.iterdir() if root.is_dir() else [root]):
        raise PipelineError(f"{root} already exists: choose another name, or remove it")
    words = {
        "name": name,
        "storage": f"file://{root / 'pipeline-storage'}",
        "bootstrap": bootstrap,
        "views": f"{name}-page-views",
        "counts": f"{name}-long-views",
    }
    files = {
        "spark-pipeline.yml": _SPEC.substitute(words),
        "transformations/page_views.py": _VIEWS.substitute(words),
        "transformations/page_counts.sql": _COUNTS,
        "transformations/long_views.py": _LONG.substitute(words),
        "generate.py": _GENERATE.substitute(words),
        ".gitignore": _IGNORE,
    }
    written = []
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        written.append(target)
    return written
