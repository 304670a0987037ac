"""Far records of one batch that become due at the same time."""

from __future__ import annotations

import pytest

from broker.harness import BrokerHarness
from broker.shares.share_client import Member, share_groups, values
from broker.shares.test_far_due import HOUR_MS, RELEASE, far_queue, put, share_partition, take
from penstock.records.batch import iter_batches
from penstock.shares.promoted_parts import promoted_parts
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareFetchResponse


def acquired(found: ShareFetchResponse.PartitionData) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in found.acquired_records]


async def due_jobs(harness: BrokerHarness) -> tuple[Member, Member]:
    """Appends one batch with three records that are due, and others between them."""
    _, topic_id = await far_queue(harness)
    await put(harness, 1, HOUR_MS, 1, HOUR_MS, 1, None)
    anna = Member(harness, topic_id)
    assert await take(anna, 1) == [b"now"]
    await harness.until(lambda: len(share_partition(harness).promoted) == 3)
    return anna, Member(harness, topic_id, "ben")


@share_groups
async def test_a_batch_is_in_a_response_once(harness: BrokerHarness) -> None:
    """Also if its records are acquired one by one. A client hands out every record of a batch that
    is acquired, so it would hand out the records of a second copy, too."""
    anna, _ = await due_jobs(harness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "penstock.broker.shares.acquired_reads.promoted_parts",
            lambda *given: promoted_parts(*given)[:1],
        )
        found = await anna.fetch()
    assert acquired(found) == [(0, 0), (2, 2), (4, 4)]
    assert isinstance(found.records, bytes | memoryview)
    assert len(list(iter_batches(memoryview(found.records)))) == 1
    assert values(found) == [b"after 1"] * 3


@share_groups
async def test_a_record_near_its_delivery_limit_is_delivered_alone(harness: BrokerHarness) -> None:
    """A job that ends its worker takes no others with it, as in the window."""
    anna, ben = await due_jobs(harness)
    for _ in range(3):
        assert acquired(await ben.fetch()) == [(0, 0), (2, 2), (4, 4)]
        released = [(offset, offset, RELEASE) for offset in (0, 2, 4)]
        assert await ben.acknowledge(*released) is ErrorCode.NONE
    for offset in (0, 2, 4):
        assert acquired(await anna.fetch()) == [(offset, offset)]
