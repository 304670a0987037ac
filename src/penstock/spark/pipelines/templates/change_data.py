"""The template `change-data`: changes of rows become a table with one row per key."""

from __future__ import annotations

from typing import Final

from penstock.spark.pipelines.templates.frame import Generator, ProjectTemplate

_README: Final = """\
# $name

Change data capture: the topic `$name-customer-changes` has one record for each change of a
customer in some database. The table `customers` has one row for each customer who exists, as of
the last change.

    python generate.py            # sends 1,000 changes of 100 customers
    penstock pipeline run         # brings the tables up to date
    penstock pipeline test        # runs tests/, without a broker

A change looks like this. `op` is `upsert` or `delete`; `version` grows with every change of a
customer.

    {"op": "upsert", "id": 7, "name": "Ann", "city": "Oslo", "version": 3}

| file | |
|---|---|
| `transformations/customer_changes.py` | a streaming table: the history of changes |
| `transformations/customers.sql` | a materialized view: the last change of each id |

## Why a materialized view

The tables of this project are Parquet files, which Spark can append to or replace, but not update
in place. Spark's `create_auto_cdc_flow` merges changes into a table, and needs a table format
with MERGE, such as Delta Lake or Iceberg, that Spark does not ship. So `customers` is computed
from all changes in every run. This has three consequences:

- Changes may arrive late, twice or out of order: the version decides, and the result is the same.
- A run takes longer as the history grows. For some million changes that is seconds. For more,
  keep the tables in a format with MERGE, and replace the view by `dp.create_auto_cdc_flow`.
- While a run computes the view, readers see it empty or incomplete.
"""

_CHANGES: Final = '''\
"""Changes of customers: reads a topic of JSON into a table that keeps the whole history."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Every change of a customer.")
def customer_changes() -> DataFrame:
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$name-customer-changes")
        .option("startingOffsets", "earliest")
        # A batch of older records has at most this size, however many there are.
        .option("maxBytesPerTrigger", "64m")
        .option("valueFormat", "json")
        .option("valueSchema", "op STRING, id BIGINT, name STRING, city STRING, version BIGINT")
        # The lag of this group is that of the flow: penstock group describe $name
        .option("groupId", "$name")
        .load()
        .selectExpr("value.*", "timestamp AS changed_at")
    )
'''

_CUSTOMERS: Final = """\
-- One row for each customer who exists: the change with the highest version decides.
CREATE MATERIALIZED VIEW customers AS
SELECT id, last.name, last.city, last.version, last.changed_at
FROM (
  SELECT id, max_by(struct(op, name, city, version, changed_at), version) AS last
  FROM customer_changes
  GROUP BY id
)
WHERE last.op <> 'delete'
"""

_TESTS: Final = '''\
"""Tests of the pipeline: penstock pipeline test"""

TOPIC = "$name-customer-changes"


def upsert(id, name, city, version):
    return {"op": "upsert", "id": id, "name": name, "city": city, "version": version}


def test_the_last_change_of_each_customer_counts(penstock_pipeline):
    penstock_pipeline.given(TOPIC, [upsert(1, "Ann", "Oslo", 1), upsert(2, "Bob", "Bergen", 1)])
    penstock_pipeline.run()
    customers = penstock_pipeline.table("customers").select("id", "name", "city")
    customers.expect(
        [{"id": 1, "name": "Ann", "city": "Oslo"}, {"id": 2, "name": "Bob", "city": "Bergen"}]
    )

    # An update, a deletion, and a change that arrives late and twice.
    deletion = {"op": "delete", "id": 2, "version": 2}
    late = upsert(1, "Ann", "Rome", 2)
    penstock_pipeline.given(TOPIC, [upsert(1, "Ann", "Paris", 3), deletion, late, late])
    penstock_pipeline.run()
    customers = penstock_pipeline.table("customers").select("id", "name", "city")
    customers.expect([{"id": 1, "name": "Ann", "city": "Paris"}])

    # The history keeps them all.
    assert len(penstock_pipeline.table("customer_changes")) == 6
'''

CHANGE_DATA: Final = ProjectTemplate(
    name="change-data",
    summary="change data capture: changes of rows become a table with one row per key",
    topics={"customer-changes": 3},
    generator=Generator(
        title="Changes of customers",
        things="changes to $name-customer-changes",
        imports="import time",
        before="""\
cities = ["Oslo", "Bergen", "Paris", "Rome", "Lima"]
names = ["Ann", "Bob", "Cleo", "Dan", "Eve"]
# Later runs of this program must have higher versions.
version = int(time.time() * 1_000_000)
""",
        send="""\
for number in range(given.count):
    customer = random.randrange(100)
    change = {"op": "upsert", "id": customer, "version": version + number}
    if random.random() < 0.1:
        change["op"] = "delete"
    else:
        change |= {"name": names[customer % 5], "city": random.choice(cities)}
    # All changes of a customer have one key, so they stay in order in one partition.
    value, key = json.dumps(change).encode(), str(customer).encode()
    producer.send("$name-customer-changes", value, key=key)
""",
    ),
    files={
        "transformations/customer_changes.py": _CHANGES,
        "transformations/customers.sql": _CUSTOMERS,
        "tests/test_pipeline.py": _TESTS,
        "README.md": _README,
    },
)
