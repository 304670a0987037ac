"""Levels of priority in the responses of a broker."""

from __future__ import annotations

import asyncio
from collections import Counter

from broker.harness import BrokerHarness
from broker.shares.share_client import GROUP, Member, share_groups, values, with_state
from penstock.shares.state_port import SharePartitionId
from penstock.wire.messages import ShareFetchResponse

RECORD_LIMIT = 1


async def leveled(harness: BrokerHarness, partitions: int, levels: int) -> bytes:
    """Creates a topic with levels of priority that the group reads from the start."""
    topic_id = await harness.create("orders", partitions, {"penstock.priority.levels": str(levels)})
    state = with_state(harness)
    for index in range(partitions):
        state.begin(SharePartitionId(GROUP, topic_id, index), 0)
    return topic_id


def given(response: ShareFetchResponse) -> list[tuple[int, int]]:
    """Returns the partitions with records, and the number of records of each, in order."""
    assert response.error_code == 0
    return [
        (each.partition_index, len(values(each)))
        for topic in response.responses
        for each in topic.partitions
        if each.acquired_records
    ]


async def loaded(harness: BrokerHarness, anna: Member, partitions: int) -> None:
    """Loads all partitions: the first fetch finds nothing."""
    request = anna.fetch_request()
    request.max_wait_ms = 0
    await anna.ask_fetch(request)
    await harness.until(
        lambda: [each.groups for each in harness.broker.shares] == [[GROUP]] * partitions
    )


async def take(anna: Member, records: int, mode: int = RECORD_LIMIT) -> list[tuple[int, int]]:
    request = anna.fetch_request()
    request.max_records, request.share_acquire_mode = records, mode
    return given(await anna.ask_fetch(request))


@share_groups
async def test_a_response_has_the_highest_level_first_and_most_of_it(
    harness: BrokerHarness,
) -> None:
    topic_id = await leveled(harness, 3, 3)
    anna = Member(harness, topic_id, partitions=(0, 1, 2))
    await loaded(harness, anna, 3)
    for index in range(3):
        await harness.produce("orders", [b"%d" % each for each in range(100)], index)
    got = await take(anna, 70)
    assert [index for index, _ in got] == [2, 1, 0]
    counts = dict(got)
    assert counts[2] > counts[1] > counts[0] > 0
    assert sum(counts.values()) == 70


@share_groups
async def test_single_records_are_taken_by_weight(harness: BrokerHarness) -> None:
    """A member that takes one record at a time gets about two of three from the higher level."""
    topic_id = await leveled(harness, 2, 2)
    for index in range(2):
        await harness.produce("orders", [b"%d" % each for each in range(50)], index)
    anna = Member(harness, topic_id, partitions=(0, 1))
    got: Counter[int] = Counter()
    for _ in range(30):
        for index, count in await take(anna, 1):
            got[index] += count
    assert got.total() == 30
    assert 8 <= got[0] <= 12


@share_groups
async def test_batches_larger_than_the_limit_starve_no_level(harness: BrokerHarness) -> None:
    topic_id = await leveled(harness, 2, 2)
    for _ in range(20):
        for index in range(2):
            await harness.produce("orders", [b"a", b"b", b"c", b"d"], index)
    anna = Member(harness, topic_id, partitions=(0, 1))
    got: Counter[int] = Counter()
    for _ in range(12):
        for index, count in await take(anna, 3, mode=0):
            got[index] += count
    assert 3 * 4 <= got[0] <= 5 * 4, got


@share_groups
async def test_a_fetch_that_waits_is_woken_by_any_level(harness: BrokerHarness) -> None:
    topic_id = await leveled(harness, 2, 2)
    anna = Member(harness, topic_id, partitions=(0, 1))
    await loaded(harness, anna, 2)
    waiting = asyncio.create_task(take(anna, 1))
    await harness.until(lambda: harness.broker.shares.parked == 1)
    await harness.produce("orders", [b"low"], 0)
    assert await waiting == [(0, 1)]


@share_groups
async def test_turns_are_forgotten_with_the_last_session(harness: BrokerHarness) -> None:
    topic_id = await leveled(harness, 2, 2)
    anna = Member(harness, topic_id, partitions=(0, 1))
    await loaded(harness, anna, 2)
    turns = harness.broker.shares.turns(GROUP, topic_id, 2)
    assert harness.broker.shares.turns(GROUP, topic_id, 2) is turns
    anna.disconnect()
    assert harness.broker.shares.turns(GROUP, topic_id, 2) is not turns
