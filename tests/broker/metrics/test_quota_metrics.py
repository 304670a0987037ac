"""Metrics of quotas."""

from __future__ import annotations

from broker.access.test_quotas import Client, limit, produced
from broker.harness import BrokerHarness, with_harness
from broker.metrics.test_metrics import Scraper
from penstock.broker.metrics.scrape import Scrapes
from penstock.security.quotas import CLIENT_KEYS, IP_KEYS

LONG_NAME = 32 << 10


@with_harness
async def test_throttling_is_counted_by_quota(harness: BrokerHarness) -> None:
    await harness.create("t")
    scraper = Scraper(harness.broker)
    await scraper.come()
    assert scraper.value("penstock_quota_entities") == 0
    assert scraper.value("penstock_quota_meters") == 0
    await limit(harness, "producer_byte_rate", 1.0)
    client = Client(harness)
    throttle_ms = sum([(await produced(client))[1] for _ in range(3)])
    await scraper.come()
    assert scraper.value("penstock_throttled_total", quota="producer_byte_rate") == 3
    seconds = scraper.value("penstock_throttle_seconds_total", quota="producer_byte_rate")
    assert seconds == throttle_ms / 1000
    assert scraper.value("penstock_throttled_total", quota="consumer_byte_rate") == 0
    assert scraper.value("penstock_quota_entities") == 1
    assert scraper.value("penstock_quota_meters") == 1
    keys = {*CLIENT_KEYS, *IP_KEYS}
    assert {each["quota"] for each in scraper.labels("penstock_throttled_total")} == keys


@with_harness
async def test_a_long_client_id_is_not_a_label(harness: BrokerHarness) -> None:
    """Clients choose their ids. Neither a long one nor many of them make a scrape larger."""
    await harness.create("t")
    await limit(harness, "producer_byte_rate", 1.0, None)
    _, before = await Scrapes(harness.broker._env, harness.broker).scrape()
    for number in range(20):
        name = f"hostile-{number}-" + "x" * (LONG_NAME - 20)
        assert (await produced(Client(harness, client_id=name)))[1] > 0
        await produced(Client(harness, user=f"hostile-{number}"))
    _, after = await Scrapes(harness.broker._env, harness.broker).scrape()
    assert b"hostile" not in after
    assert len(after) < len(before) + 4096
