"""Metrics of TLS handshakes."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness
from broker.metrics.test_metrics import Scraper
from penstock.broker.listeners.certificates import ListenerCertificates
from penstock.net.tls_gate import HandshakeCounters


@with_harness
async def test_handshakes_are_counted_by_listener(harness: BrokerHarness) -> None:
    """So it can be seen that a limit refuses or delays connections."""
    broker, scraper = harness.broker, Scraper(harness.broker)
    await scraper.come()
    assert list(scraper.labels("penstock_tls_handshakes_total")) == []
    certificates = ListenerCertificates(broker._env, {}, "CLIENTS")
    certificates.handshakes["CLIENTS"] = HandshakeCounters(1, 2, 3, 4, 5, 6, 7, broken=8)
    broker.listeners.certificates = certificates
    await scraper.come()
    for number, state in enumerate(("pending", "waiting"), 1):
        labels = {"listener": "CLIENTS", "state": state}
        assert scraper.value("penstock_tls_handshakes_open", **labels) == number
    results = ("completed", "failed", "timed_out", "evicted", "refused")
    for number, result in enumerate(results, 3):
        labels = {"listener": "CLIENTS", "result": result}
        assert scraper.value("penstock_tls_handshakes_total", **labels) == number
    broken = scraper.value("penstock_tls_connections_broken_total", listener="CLIENTS")
    assert broken == 8
