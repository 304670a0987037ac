"""Metrics of delegation tokens."""

from __future__ import annotations

from broker.access.clients import Client
from broker.handlers.test_delegation_tokens import SETTINGS, created
from broker.harness import BrokerHarness, with_harness_of
from broker.metrics.test_metrics import Scraper
from penstock.security.delegation_tokens import TOKENS_MAX


@with_harness_of(kafka=SETTINGS)
async def test_tokens_are_counted(harness: BrokerHarness) -> None:
    scraper = Scraper(harness.broker)
    await scraper.come()
    assert scraper.value("penstock_delegation_tokens") == 0
    assert scraper.value("penstock_delegation_tokens_limit") == TOKENS_MAX
    await created(Client(harness, "User:alice"))
    await scraper.come()
    assert scraper.value("penstock_delegation_tokens") == 1
