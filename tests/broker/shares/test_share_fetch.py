"""ShareFetch and ShareAcknowledge at one broker, whose share coordinator is in memory."""

from __future__ import annotations

import asyncio

from broker.harness import BrokerHarness, with_harness, with_harness_of
from broker.shares.share_client import (
    GROUP,
    Member,
    only,
    queue,
    ranges,
    settings,
    share_groups,
    values,
)
from penstock.shares.image import StoredSpan
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType, RecordState
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    int(AckType.ACCEPT),
    int(AckType.RELEASE),
    int(AckType.REJECT),
    int(AckType.RENEW),
    int(AckType.GAP),
)


@with_harness_of(kafka={"group.share.enable": "false"})
async def test_a_setting_turns_share_groups_off(harness: BrokerHarness) -> None:
    assert not {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE} & harness.services.apis


@with_harness
async def test_share_groups_are_advertised(harness: BrokerHarness) -> None:
    assert {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE} <= harness.services.apis


@share_groups
async def test_records_are_acquired_and_accepted(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a", b"b", b"c"])
    anna = Member(harness, topic_id)
    response = await anna.ask_fetch()
    assert response.acquisition_lock_timeout_ms == 30_000
    got = only(response)
    assert (ranges(got), values(got)) == ([(0, 2, 1)], [b"a", b"b", b"c"])
    assert await anna.acknowledge((0, 1, ACCEPT)) is ErrorCode.NONE
    summary = await state.summary(SharePartitionId(GROUP, topic_id, 0))
    assert summary is not None
    held = harness.hosted("orders").require_leader()
    assert (summary.start_offset, summary.leader_epoch) == (2, held.epoch)


@share_groups
async def test_a_fetch_carries_acknowledgements(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    assert ranges(await anna.fetch()) == [(0, 0, 1)]
    await harness.produce("orders", [b"b"])
    got = only(await anna.ask_fetch(anna.fetch_request({0: [(0, 0, ACCEPT)]})))
    assert (values(got), got.acknowledge_error_code) == ([b"b"], 0)
    assert state.states[SharePartitionId(GROUP, topic_id, 0)].image.start_offset == 1


@share_groups
async def test_each_type_of_acknowledgement(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"%d" % each for each in range(6)])
    anna = Member(harness, topic_id)
    await anna.fetch()
    acks = (1, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT), (4, 4, GAP)
    assert await anna.acknowledge(*acks) is ErrorCode.NONE
    image = state.states[SharePartitionId(GROUP, topic_id, 0)].image
    assert image.spans == [
        StoredSpan(1, 1, RecordState.ACKNOWLEDGED, 1),
        StoredSpan(2, 2, RecordState.AVAILABLE, 1),
        StoredSpan(3, 4, RecordState.ARCHIVED, 1),
    ]
    ben = Member(harness, topic_id, "ben")
    assert ranges(await ben.fetch()) == [(2, 2, 2)]
    assert await anna.acknowledge((0, 0, RENEW), is_renew=True) is ErrorCode.NONE
    assert await anna.acknowledge((0, 0, RENEW)) is ErrorCode.INVALID_REQUEST
    assert await anna.acknowledge((2, 2, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert await anna.acknowledge((0, 0, ACCEPT), (2, 2, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert await anna.acknowledge((0, 0, 9)) is ErrorCode.INVALID_REQUEST
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE, "it is below the start"


@share_groups
async def test_a_fetch_waits_for_records(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    anna = Member(harness, topic_id)
    waiting = asyncio.ensure_future(anna.fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    await harness.produce("orders", [b"a"])
    assert values(await waiting) == [b"a"]
    waiting = asyncio.ensure_future(anna.fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    await harness.produce("orders", [b"b"])
    assert values(await waiting) == [b"b"]
    await harness.until(lambda: harness.broker.shares.parked == 0)


@share_groups
async def test_members_that_wait_get_one_record_each(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    members = [Member(harness, topic_id, f"m{each}") for each in range(5)]
    waiting = [asyncio.ensure_future(each.fetch(max_records=1)) for each in members]
    await harness.until(lambda: harness.broker.shares.parked == 5)
    for each in range(5):
        await harness.produce("orders", [b"%d" % each])
    got = [values(await each) for each in waiting]
    assert sorted(got) == [[b"%d" % each] for each in range(5)]


@share_groups
async def test_a_release_wakes_a_member_that_waits(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await anna.fetch()
    waiting = asyncio.ensure_future(ben.fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    assert await anna.acknowledge((0, 0, RELEASE)) is ErrorCode.NONE
    assert ranges(await waiting) == [(0, 0, 2)]


@share_groups
async def test_a_lock_ends(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    settings(harness, ShareSettings(record_lock_ms=50, delivery_limit=2))
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    assert ranges(await anna.fetch()) == [(0, 0, 1)]
    assert ranges(await ben.fetch()) == [(0, 0, 2)]
    image = state.states[SharePartitionId(GROUP, topic_id, 0)].image
    await harness.until(lambda: image.start_offset == 1)
    assert await ben.acknowledge((0, 0, REJECT)) is ErrorCode.NONE, "given up: below the start"


@share_groups
async def test_a_session_ends_with_its_connection(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await anna.fetch()
    anna.disconnect()
    assert ranges(await ben.fetch()) == [(0, 0, 2)]
    anna.connect()
    assert (await anna.ask_fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    anna.epoch = 0
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH


@share_groups
async def test_a_member_that_has_gone_acquires_nothing(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    waiting = asyncio.ensure_future(anna.ask_fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    anna.disconnect()
    await waiting
    await harness.produce("orders", [b"a"])
    assert ranges(await ben.fetch()) == [(0, 0, 1)]


@share_groups
async def test_the_final_epoch_releases_records(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a", b"b"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await anna.fetch()
    anna.epoch = -1
    got = only(await anna.ask_fetch(anna.fetch_request({0: [(0, 0, ACCEPT)]})))
    assert (ranges(got), got.acknowledge_error_code) == ([], 0)
    assert ranges(await ben.fetch()) == [(1, 1, 2)]
    anna.epoch = 5
    assert await anna.acknowledge((1, 1, ACCEPT)) is ErrorCode.SHARE_SESSION_NOT_FOUND


@share_groups
async def test_an_idle_group_leaves_memory(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert [led.groups for led in harness.broker.shares] == [[GROUP]]
    anna.disconnect()
    await harness.until(lambda: not list(harness.broker.shares))
    ben = Member(harness, topic_id, "ben")
    assert ranges(await ben.fetch()) == [(0, 0, 2)]
    assert state.reads == 2


@share_groups
async def test_a_wrong_epoch_is_refused(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    anna.epoch = 7
    assert (await anna.ask_fetch()).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    anna.epoch = 0
    request = anna.fetch_request({0: [(0, 0, ACCEPT)]})
    assert (await anna.ask_fetch(request)).error_code == ErrorCode.INVALID_REQUEST


@share_groups
async def test_limits_of_a_fetch(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness, partitions=2)
    for index in (0, 1):
        for first in range(3):
            await harness.produce("orders", [b"%d" % first] * 4, index)
    anna = Member(harness, topic_id, partitions=(0, 1))
    request = anna.fetch_request()
    request.max_records, request.batch_size = 6, 2
    response = await anna.ask_fetch(request)
    got = [ranges(each) for topic in response.responses for each in topic.partitions]
    assert got == [[(0, 3, 1), (4, 7, 1)], []], "whole batches, though fewer records were wanted"
    request = anna.fetch_request()
    request.max_records, request.share_acquire_mode = 6, 1
    response = await anna.ask_fetch(request)
    (topic,) = response.responses
    got = [ranges(each) for each in topic.partitions]
    assert sorted(got) == [[(0, 1, 1)], [(8, 11, 1)]] or got == [[(0, 5, 1)]]


@share_groups
async def test_requests_that_contradict_themselves_are_refused(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    anna = Member(harness, topic_id)
    request = anna.fetch_request()
    request.is_renew_ack = True
    assert (await anna.ask_fetch(request)).error_code == ErrorCode.INVALID_REQUEST
    request = anna.fetch_request()
    request.share_acquire_mode = 5
    assert (await anna.ask_fetch(request)).error_code == ErrorCode.INVALID_REQUEST
    request = anna.fetch_request()
    request.member_id = None
    assert (await anna.ask_fetch(request)).error_code == ErrorCode.INVALID_REQUEST
