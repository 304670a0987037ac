"""The metrics of consumer groups of the new protocol."""

from __future__ import annotations

from broker.handlers.test_consumer_groups import ask, join_classic, joining, migrating, sync_classic
from broker.harness import BrokerHarness
from broker.metrics.test_metrics import Scraper
from penstock.wire.codec import encode_embedded
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerProtocolAssignment


@migrating
async def test_members_assignments_and_changes_of_protocol_are_counted(
    harness: BrokerHarness,
) -> None:
    """A classic group with a member is upgraded, and downgraded again. The counters survive the
    end of a leadership."""
    await harness.create("orders", 4)
    every = [ConsumerProtocolAssignment.TopicPartition("orders", [0, 1, 2, 3])]
    everything = encode_embedded(ConsumerProtocolAssignment(every), 1)
    await sync_classic(harness, await join_classic(harness), everything)
    scraper = await Scraper(harness.broker).come()
    assert scraper.value("penstock_consumer_groups", state="Stable") == 0
    assert scraper.value("penstock_groups", state="Stable") == 1
    assert scraper.value("penstock_group_conversions_total", direction="upgrade") == 0

    assert (await ask(harness, joining())).error_code == 0
    await scraper.come()
    assert scraper.value("penstock_consumer_groups", state="Reconciling") == 1
    assert scraper.value("penstock_consumer_group_members", protocol="classic") == 1
    assert scraper.value("penstock_consumer_group_members", protocol="consumer") == 1
    assert scraper.value("penstock_consumer_group_rebalances_total") == 1
    assert scraper.value("penstock_group_conversions_total", direction="upgrade") == 1
    assert scraper.value("penstock_group_conversions_total", direction="downgrade") == 0

    assert scraper.value("penstock_consumer_group_regexes_outgrown_total") == 0
    harness.services.groups.require("g").shard.state.counters.regexes_outgrown += 1

    await ask(harness, ConsumerGroupHeartbeatRequest("g", "a", -1))
    for runtime in harness.services.groups.loaded():
        harness.services.groups.on_resigned(runtime.hosted)
    await scraper.come()
    assert scraper.value("penstock_consumer_groups", state="Reconciling") == 0
    assert scraper.value("penstock_group_conversions_total", direction="upgrade") == 1
    assert scraper.value("penstock_group_conversions_total", direction="downgrade") == 1
    assert scraper.value("penstock_consumer_group_regexes_outgrown_total") == 1
