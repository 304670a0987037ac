"""Delay topics with transactions, with queues as their targets, and what the metrics say."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from broker.delay.delay_client import LATER, ORDERS, Sent, copies, delay_topic, delayed, send
from broker.handlers.test_transactions import HarnessCluster
from broker.harness import BrokerHarness, with_harness
from broker.transactional_producer import TransactionalProducer
from penstock import Admin, Producer, Queue
from penstock.testing import Broker
from test_docs import BROKER_IN_THE_TEXT, sections

QUEUES = Path(__file__).resolve().parents[3] / "docs" / "QUEUES.md"
SHARES = {"num.partitions": "1"}


@with_harness
async def test_only_committed_records_are_copied(harness: BrokerHarness) -> None:
    """Those of an open transaction wait, and so do all after them. Aborted ones are left out."""
    await delay_topic(harness)
    producer = TransactionalProducer(HarnessCluster(harness), "tx")
    assert await producer.init() == 0
    assert await producer.write(LATER, 0, b"aborted") == 0
    await send(harness, Sent(b"a"))
    assert await producer.end(commit=False) == 0
    await harness.until(lambda: copies(harness) == [b"a"])
    assert await producer.write(LATER, 0, b"b") == 0
    await send(harness, Sent(b"c"))
    await harness.until(lambda: harness.hosted(LATER).high_watermark >= 5)
    assert copies(harness) == [b"a"]
    assert await producer.end(commit=True) == 0
    await harness.until(lambda: len(copies(harness)) == 3)
    assert copies(harness) == [b"a", b"b", b"c"]
    await harness.until(lambda: delayed(harness).waiting == 0)


def test_the_target_may_be_a_queue() -> None:
    with Broker(SHARES) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(ORDERS)
            admin.create_topic(LATER, configs={"penstock.delay.target": ORDERS})
        with Producer(broker.bootstrap) as producer:
            for number in range(3):
                producer.send(LATER, b"%d" % number)
        with Queue(broker.bootstrap, ORDERS) as queue:
            values = []
            for job in queue:
                values.append(job.value)
                job.done()
                if len(values) == 3:
                    break
    assert values == [b"0", b"1", b"2"]


def test_the_example_of_the_docs_runs() -> None:
    blocks = [
        block
        for found in sections(QUEUES.read_text("utf-8")).values()
        for block in found
        if "penstock.delay.target" in block.code
    ]
    (block,) = blocks
    printed = io.StringIO()
    with Broker({"num.partitions": "1"}) as broker, contextlib.redirect_stdout(printed):
        source = block.code.replace(BROKER_IN_THE_TEXT, broker.bootstrap)
        exec(compile(source, "docs/QUEUES.md", "exec", dont_inherit=True), {})
    assert printed.getvalue().splitlines() == block.prints
