"""Fetch sessions with topic ids do not continue in a new topic of the same name."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchRequest,
    FetchResponse,
)


@with_harness
async def test_a_session_with_topic_ids_does_not_read_a_recreated_topic(
    harness: BrokerHarness,
) -> None:
    """The topic is deleted and created again. The old id gets Kafka's error codes and no
    records.
    """
    old_id = await harness.create("orders")
    await harness.produce("orders", [b"old"])

    async def fetch(session_id: int, epoch: int) -> FetchResponse:
        partition = FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [] if epoch else [FetchRequest.Topic(topic_id=old_id, partitions=[partition])]
        request = FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
        )
        return await harness.ask(request, 13, FetchResponse)

    begun = await fetch(0, 0)
    assert begun.responses[0].partitions[0].error_code == ErrorCode.NONE
    gone = DeleteTopicsRequest([DeleteTopicsRequest.Topic("orders")])
    await harness.ask(gone, 6, DeleteTopicsResponse)
    for epoch, code in (
        (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, ErrorCode.INCONSISTENT_TOPIC_ID),
    ):
        answer = (await fetch(begun.session_id, epoch)).responses[0]
        assert answer.topic_id == old_id
        assert answer.partitions[0].error_code == code
        assert not answer.partitions[0].records
        if epoch == 1:
            assert await harness.create("orders") != old_id
            await harness.produce("orders", [b"new"])
