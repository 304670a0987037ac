"""The template `enrichment`: orders from one topic, joined with products from another."""

from __future__ import annotations

from typing import Final

from penstock.spark.pipelines.templates.frame import Generator, ProjectTemplate, once_text

_README: Final = """\
# $name

Joins a stream of orders with reference data. Each order of the topic `$name-orders` gets the name
and price of its product, from the topic `$name-products`, and is sent to `$name-priced-orders`.

    python generate.py            # sends 20 products and 1,000 orders
    penstock pipeline run         # brings the tables up to date
    penstock pipeline test        # runs tests/, without a broker

| file | |
|---|---|
| `transformations/products.py` | a materialized view: the last record of each product |
| `transformations/priced_orders.py` | a streaming table: each new order, joined once |
| `transformations/send_priced_orders.py` | a sink: sends the joined orders |

An order is joined with the product as it is in the run that reads the order. A price that changes
later does not change it. An order of an unknown product is kept, without a name and a total.
""" + once_text("transformations/send_priced_orders.py", "priced-orders")

_PRODUCTS: Final = '''\
"""Products: reads the whole topic in every run, and keeps the last record of each key."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()


@dp.materialized_view(comment="One row for each product.")
def products() -> DataFrame:
    records = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$name-products")
        .option("keyFormat", "string")
        .option("valueFormat", "json")
        .option("valueSchema", "name STRING, price DOUBLE")
        .load()
    )
    # All records of a key are in one partition, so the highest offset is the last one.
    return (
        records.groupBy(sf.col("key").alias("product"))
        .agg(sf.max_by("value", "offset").alias("last"))
        .where("last IS NOT NULL")
        .select("product", "last.*")
    )
'''

_ORDERS: Final = '''\
"""Priced orders: each new order with the name and the price of its product."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Every order, with its product.")
def priced_orders() -> DataFrame:
    orders = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "$name-orders")
        .option("startingOffsets", "earliest")
        # A batch of older records has at most this size, however many there are.
        .option("maxBytesPerTrigger", "64m")
        .option("valueFormat", "json")
        .option("valueSchema", "id BIGINT, product STRING, quantity INT")
        # The lag of this group is that of the flow: penstock group describe $name
        .option("groupId", "$name")
        .load()
        .select("value.*")
    )
    return orders.join(spark.read.table("products"), "product", "left").selectExpr(
        "id", "product", "name", "quantity", "round(quantity * price, 2) AS total"
    )
'''

_SINK: Final = '''\
"""Sends the priced orders to a topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()

dp.create_sink(
    "priced_orders_topic",
    "penstock",
    {
        "kafka.bootstrap.servers": spark.conf.get("spark.penstock.bootstrap"),
        "topic": "$name-priced-orders",
        "valueFormat": "json",
        # After a crash, records may be sent twice. README.md says how each is sent once.
        "delivery": "at_least_once",
    },
)


@dp.append_flow(target="priced_orders_topic")
def send_priced_orders() -> DataFrame:
    # The columns other than key become the fields of the value.
    return (
        spark.readStream.table("priced_orders")
        .where("total IS NOT NULL")
        .withColumn("key", sf.col("product"))
    )
'''

_TESTS: Final = '''\
"""Tests of the pipeline: penstock pipeline test"""

from penstock.testing.pipelines import record

PRODUCTS, ORDERS = "$name-products", "$name-orders"


def test_an_order_gets_the_price_at_its_time(penstock_pipeline):
    penstock_pipeline.given(PRODUCTS, [record({"name": "Tea", "price": 2.5}, key="p1")])
    penstock_pipeline.given(
        ORDERS,
        [
            {"id": 1, "product": "p1", "quantity": 2},
            {"id": 2, "product": "p9", "quantity": 1},
        ],
    )
    penstock_pipeline.run()
    tea = {"id": 1, "product": "p1", "name": "Tea", "quantity": 2, "total": 5.0}
    unknown = {"id": 2, "product": "p9", "name": None, "quantity": 1, "total": None}
    penstock_pipeline.table("priced_orders").expect([tea, unknown])

    # A new price counts for new orders.
    penstock_pipeline.given(PRODUCTS, [record({"name": "Tea", "price": 3.0}, key="p1")])
    penstock_pipeline.given(ORDERS, [{"id": 3, "product": "p1", "quantity": 1}])
    penstock_pipeline.run()
    dearer = {"id": 3, "product": "p1", "name": "Tea", "quantity": 1, "total": 3.0}
    penstock_pipeline.table("priced_orders").expect([tea, unknown, dearer])
    penstock_pipeline.sent("$name-priced-orders").expect(
        [{"key": "p1", "value": tea}, {"key": "p1", "value": dearer}]
    )
'''

ENRICHMENT: Final = ProjectTemplate(
    name="enrichment",
    summary="orders from one topic, joined with products from another",
    topics={"products": 1, "orders": 3, "priced-orders": 3},
    generator=Generator(
        title="Products and orders",
        things="orders to $name-orders",
        send="""\
for number in range(20):
    product = {"name": f"Product {number}", "price": round(random.uniform(1, 50), 2)}
    value = json.dumps(product).encode()
    producer.send("$name-products", value, key=f"p{number}".encode())
for number in range(given.count):
    product = f"p{random.randrange(20)}"
    order = {"id": number, "product": product, "quantity": random.randint(1, 5)}
    producer.send("$name-orders", json.dumps(order).encode(), key=product.encode())
""",
    ),
    files={
        "transformations/products.py": _PRODUCTS,
        "transformations/priced_orders.py": _ORDERS,
        "transformations/send_priced_orders.py": _SINK,
        "tests/test_pipeline.py": _TESTS,
        "README.md": _README,
    },
)
