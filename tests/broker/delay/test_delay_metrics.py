"""The metrics of delay topics."""

from __future__ import annotations

from dataclasses import dataclass

from broker.delay.delay_client import LATER, Sent, delay_topic, delayed, send
from broker.harness import BrokerHarness, with_harness
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.delay.topic_figures import DelayedTopic, delayed_topics
from penstock.broker.metrics import families
from penstock.broker.metrics.gather import Gatherer

DAY_MS = 24 * 3_600_000


@dataclass
class Hosted:
    topic: str


@dataclass
class Delayed:
    hosted: Hosted
    waiting: int
    late_ms: int

    def overdue_ms(self) -> int:
        return self.late_ms


def test_topics_that_are_furthest_behind_are_named() -> None:
    given = [("a", 1, 0), ("b", 2, 3_000), ("a", 4, 1_000), ("c", 8, 0), ("d", 16, 500)]
    found = delayed_topics([Delayed(Hosted(name), *rest) for name, *rest in given], topics_max=2)
    assert found == [
        DelayedTopic("b", 2, 3.0),
        DelayedTopic("a", 5, 1.0),
        DelayedTopic("(other)", 24, 0.5),
    ]
    assert delayed_topics([]) == []


@with_harness
async def test_scheduled_and_copied_records_are_counted(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    far = harness.services.wall_ms() + DAY_MS
    await send(harness, Sent(b"a"), Sent(b"b", far), Sent(b"c", far))
    counters = harness.services.delays.counters
    await harness.until(lambda: counters.copied == 1 and delayed(harness).waiting == 2)
    await Gatherer(harness.services).gather(slices_of(harness.services.env))
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in families._delays(harness.services)
        for sample in metric.samples
    }
    assert values["penstock_delay_scheduled_records", LATER] == 2
    assert values["penstock_delay_overdue_seconds", LATER] == 0
    assert values["penstock_delay_copied_records_total",] == 1
    assert values["penstock_delay_missing_records_total",] == 0
    assert values["penstock_delay_failures_total",] == 0
    assert values["penstock_delay_scanned_records_total",] == 3
