"""Share fetches while a part of the log cannot be read: what was acquired is always returned."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.harness import BrokerHarness
from broker.shares.share_client import GROUP, Member, queue, share_groups, values
from broker.shares.test_far_due import ACCEPT, far_queue, put
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.shares.log_reads import ReadBatch, ReadLimits, read_batches
from penstock.wire.errors import ErrorCode, KafkaError

Fails = Callable[[HostedPartition, int], Exception | None]


def fail_reads(patches: pytest.MonkeyPatch, error_of: Fails) -> None:
    """Makes reads of records fail. `error_of` gets a partition and an offset."""

    def read(hosted: HostedPartition, offset: int, limits: ReadLimits) -> list[ReadBatch]:
        error = error_of(hosted, offset)
        if error is not None:
            raise error
        return read_batches(hosted, offset, limits)

    patches.setattr("penstock.broker.shares.acquired_reads.read_batches", read)


def damaged() -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "this sector cannot be read")


async def attempt(member: Member) -> list[bytes]:
    """Fetches once. Returns the values of acquired records, and accepts them."""
    request = member.fetch_request()
    request.max_wait_ms = 1
    got: list[bytes] = []
    response = await member.ask_fetch(request)
    assert response.error_code == 0, "the other partitions could be read"
    for topic in response.responses:
        for part in topic.partitions:
            if part.error_code:
                continue
            got += values(part)
            acks = [(each.first_offset, each.last_offset, ACCEPT) for each in part.acquired_records]
            if acks:
                assert await member.acknowledge(*acks, index=part.partition_index) == 0
    return got


def acquired(harness: BrokerHarness) -> int:
    """Returns how many records of all partitions are acquired."""
    return sum(
        led.partition(GROUP).occupancy().acquired
        for led in harness.broker.shares
        if GROUP in led.groups
    )


def promoted(harness: BrokerHarness) -> int:
    return sum(
        len(led.partition(GROUP).promoted) for led in harness.broker.shares if GROUP in led.groups
    )


@share_groups
async def test_promoted_records_are_returned_although_a_later_one_cannot_be_read(
    harness: BrokerHarness,
) -> None:
    with pytest.MonkeyPatch.context() as patches:
        _, topic_id = await far_queue(harness)
        await put(harness, -5)
        await put(harness, None)
        await put(harness, -4)
        fail_reads(patches, lambda _, offset: damaged() if offset == 2 else None)
        anna = Member(harness, topic_id)
        got: list[bytes] = []
        while b"after -5" not in got:
            got += await attempt(anna)
            assert acquired(harness) == 0, "a record was acquired, and not returned"


@share_groups
async def test_the_window_is_delivered_although_a_promoted_record_cannot_be_read(
    harness: BrokerHarness,
) -> None:
    with pytest.MonkeyPatch.context() as patches:
        _, topic_id = await far_queue(harness)
        await put(harness, -5)
        anna = Member(harness, topic_id)
        fail_reads(
            patches, lambda _, offset: damaged() if offset == 0 and promoted(harness) else None
        )
        while not promoted(harness):
            await attempt(anna)
        await put(harness, None)
        got: list[bytes] = []
        while b"now" not in got:
            got += await attempt(anna)
        patches.undo()
        while b"after -5" not in got:
            got += await attempt(anna)


@share_groups
async def test_the_error_of_one_partition_does_not_lose_the_records_of_another(
    harness: BrokerHarness,
) -> None:
    """Also not if nobody expected the error."""
    with pytest.MonkeyPatch.context() as patches:
        _, topic_id = await queue(harness, 2)
        anna = Member(harness, topic_id, partitions=(0, 1))
        while sum(GROUP in led.groups for led in harness.broker.shares) < 2:
            assert await attempt(anna) == []
        bad = harness.hosted("orders", 1)
        fail_reads(patches, lambda hosted, _: ValueError("a bug") if hosted is bad else None)
        await harness.produce("orders", [b"unreadable"], 1)
        for number in range(4):  # The order of the partitions changes with each request.
            await harness.produce("orders", [b"%d" % number], 0)
            while await attempt(anna) != [b"%d" % number]:
                assert acquired(harness) == 0, "a record was acquired, and not returned"
