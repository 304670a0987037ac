"""The metrics of share groups."""

from __future__ import annotations

import asyncio

from broker.harness import BrokerHarness
from broker.shares.share_client import GROUP, Member, queue, share_groups
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.metrics.gather import Gatherer
from penstock.broker.shares.occupancy import GroupOccupancy, OccupancyTable
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType
from penstock.wire.errors import ErrorCode


@share_groups
async def test_the_backlog_of_a_group_is_gathered(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness, partitions=2)
    await harness.produce("orders", [b"a", b"b"], 0)
    await harness.produce("orders", [b"c"], 1)
    anna = Member(harness, topic_id, partitions=(0, 1))
    counters = harness.broker.shares.counters
    while counters.delivered < 3:
        await anna.ask_fetch()
    assert await anna.acknowledge((0, 0, int(AckType.ACCEPT))) is ErrorCode.NONE
    gathered = await Gatherer(harness.services).gather(slices_of(harness.services.env))
    (found,) = gathered.shares
    assert found[:3] == (GROUP, 2, 2)
    assert found.oldest_ms > 0
    assert (counters.delivered, counters.redelivered) == (3, 0)
    assert await anna.acknowledge((0, 5, int(AckType.ACCEPT))) is ErrorCode.INVALID_RECORD_STATE
    assert counters.acknowledgements_failed == 1


@share_groups
async def test_groups_beyond_the_limit_are_summed_up(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a", b"b"])
    for group in ("b", "c"):
        state.begin(SharePartitionId(group, topic_id, 0), 1)
    members = [Member(harness, topic_id, group_id=group) for group in (GROUP, "b", "c")]
    await asyncio.gather(*(each.fetch() for each in members))
    table = OccupancyTable()
    for led in harness.broker.shares:
        table.add(led)
    largest = table.largest(1, "(other)")
    assert [each[:3] for each in largest] == [(GROUP, 2, 2), ("(other)", 2, 2)]
    assert OccupancyTable().largest(1, "(other)") == list[GroupOccupancy]()
