"""The template `features`: purchases become a table of features for each customer."""

from __future__ import annotations

from typing import Final

from penstock.spark.pipelines.templates.frame import Generator, ProjectTemplate

_README: Final = """\
# $name

A feature table for a model: the purchases of the topic `$name-purchases` become one row for each
customer in `customer_features`.

    python generate.py            # sends 1,000 purchases of the last 60 days
    penstock pipeline run         # brings the tables up to date
    penstock pipeline test        # runs tests/, without a broker

| file | |
|---|---|
| `transformations/purchases.py` | a streaming table: every purchase, appended |
| `transformations/customer_features.sql` | a materialized view: computed again in every run |

The windows of 7 and 30 days end at the last purchase of all customers, not at the time of the run.
So the same records give the same features, in a test and when a model is trained again.
"""

_PURCHASES: Final = '''\
"""Purchases: reads a topic of JSON into a table that grows with it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Every purchase.")
def purchases() -> DataFrame:
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$name-purchases")
        .option("startingOffsets", "earliest")
        # A batch of older records has at most this size, however many there are.
        .option("maxBytesPerTrigger", "64m")
        .option("valueFormat", "json")
        .option("valueSchema", "customer STRING, amount DOUBLE, at TIMESTAMP")
        # The lag of this group is that of the flow: penstock group describe $name
        .option("groupId", "$name")
        .load()
        .select("value.*")
    )
'''

_FEATURES: Final = """\
-- One row for each customer. The windows end at the last purchase of all customers.
CREATE MATERIALIZED VIEW customer_features AS
SELECT
  customer,
  count_if(at > now - INTERVAL 7 DAYS) AS purchases_7d,
  count_if(at > now - INTERVAL 30 DAYS) AS purchases_30d,
  round(coalesce(sum(amount) FILTER (WHERE at > now - INTERVAL 30 DAYS), 0), 2) AS amount_30d,
  round(avg(amount), 2) AS average_amount,
  date_diff(any_value(now), max(at)) AS days_since_last
FROM purchases CROSS JOIN (SELECT max(at) AS now FROM purchases)
GROUP BY customer
"""

_TESTS: Final = '''\
"""Tests of the pipeline: penstock pipeline test"""

TOPIC = "$name-purchases"


def bought(customer, day, amount):
    return {"customer": customer, "amount": amount, "at": f"{day} 12:00:00"}


def test_features_are_as_of_the_last_purchase(penstock_pipeline):
    penstock_pipeline.given(
        TOPIC,
        [
            bought("ann", "2026-01-01", 10.0),
            bought("ann", "2026-02-20", 20.0),
            bought("bob", "2026-03-01", 5.0),
        ],
    )
    penstock_pipeline.run()
    ann = {
        "customer": "ann",
        "purchases_7d": 0,
        "purchases_30d": 1,
        "amount_30d": 20.0,
        "average_amount": 15.0,
        "days_since_last": 9,
    }
    bob = {
        "customer": "bob",
        "purchases_7d": 1,
        "purchases_30d": 1,
        "amount_30d": 5.0,
        "average_amount": 5.0,
        "days_since_last": 0,
    }
    penstock_pipeline.table("customer_features").expect([ann, bob])
'''

FEATURES: Final = ProjectTemplate(
    name="features",
    summary="a feature table: purchases become one row of features for each customer",
    topics={"purchases": 3},
    generator=Generator(
        title="Purchases",
        things="purchases to $name-purchases",
        imports="from datetime import datetime, timedelta, timezone",
        before="now = datetime.now(timezone.utc)",
        send="""\
for _ in range(given.count):
    customer = f"customer-{random.randrange(100)}"
    at = (now - timedelta(days=random.uniform(0, 60))).isoformat()
    purchase = {"customer": customer, "amount": round(random.uniform(1, 200), 2), "at": at}
    producer.send("$name-purchases", json.dumps(purchase).encode(), key=customer.encode())
""",
    ),
    files={
        "transformations/purchases.py": _PURCHASES,
        "transformations/customer_features.sql": _FEATURES,
        "tests/test_pipeline.py": _TESTS,
        "README.md": _README,
    },
)
