"""Share fetches after retention or DeleteRecords has moved the log start."""

from __future__ import annotations

from broker.harness import BrokerHarness
from broker.shares.share_client import Member, queue, ranges, share_groups
from penstock.shares.states import AckType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

ACCEPT = int(AckType.ACCEPT)


async def delete_records(harness: BrokerHarness, below: int) -> None:
    asked = DeleteRecordsRequest.Partition(0, below)
    request = DeleteRecordsRequest([DeleteRecordsRequest.Topic("orders", [asked])], 10_000)
    await harness.ask(request, 2, DeleteRecordsResponse)


@share_groups
async def test_a_fetch_for_many_bytes_follows_the_log_start(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    for each in (b"b", b"c", b"d"):
        await harness.produce("orders", [each])
    await delete_records(harness, 3)
    assert ranges(await anna.fetch(min_bytes=10, max_wait_ms=100)) == [(3, 3, 1)]
