"""Who may use a share group, and how much: rights, quotas, sessions, bytes."""

from __future__ import annotations

import asyncio

import pytest

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.harness import BrokerHarness, with_harness_of
from broker.shares.share_client import GROUP, ON, Member, only, queue, ranges, share_groups, values
from penstock.broker.handlers import share_fetch
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

guarded = with_harness_of(kafka={**ON, **AUTHORIZER})
READ = AclOperation.READ


def asked(topic_id: bytes, epoch: int = 0) -> ShareFetchRequest:
    topic = ShareFetchRequest.Topic(topic_id, [ShareFetchRequest.Partition(0)])
    return ShareFetchRequest(
        GROUP, "guest", epoch, 60_000, 1, 1 << 20, max_records=10, topics=[topic]
    )


@guarded
async def test_a_member_needs_read_on_the_group_and_the_topic(harness: BrokerHarness) -> None:
    guest = Client(harness, "User:guest")
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    refused = await guest.ask(asked(topic_id), 2, ShareFetchResponse)
    assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    acks = ShareAcknowledgeRequest(GROUP, "guest", 1)
    answer = await guest.ask(acks, 2, ShareAcknowledgeResponse)
    assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    await create(harness, [entry("User:guest", ResourceType.GROUP, GROUP, READ)])
    got = only(await guest.ask(asked(topic_id), 2, ShareFetchResponse))
    assert got.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await create(harness, [entry("User:guest", ResourceType.TOPIC, "orders", READ)])
    assert values(only(await guest.ask(asked(topic_id, 1), 2, ShareFetchResponse))) == [b"a"]


@share_groups
async def test_a_member_over_its_quota_acquires_nothing(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    entity = [AlterClientQuotasRequest.Entity("client-id", "member")]
    limit = AlterClientQuotasRequest.Op("consumer_byte_rate", 100.0)
    request = AlterClientQuotasRequest([AlterClientQuotasRequest.Entry(entity, [limit])])
    await harness.ask(request, 1, AlterClientQuotasResponse)
    await harness.until(lambda: harness.services.quotas.current is not None)
    for _ in range(2):
        await harness.produce("orders", [bytes(5000)])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    response = await anna.ask_fetch()
    assert ranges(only(response)) == [(0, 0, 1)]
    assert response.throttle_time_ms > 0
    response = await ben.ask_fetch()
    assert response.throttle_time_ms > 0
    assert ranges(only(response)) == []
    (led,) = harness.broker.shares
    assert led.partition(GROUP).occupancy().acquired == 1


@with_harness_of(kafka={**ON, "group.share.max.share.sessions": "1"})
async def test_the_number_of_sessions_is_limited(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await anna.fetch()
    request = ben.fetch_request()
    request.max_wait_ms = 1
    response = await ben.ask_fetch(request)
    assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert harness.broker.shares.sessions.refused == 1
    anna.disconnect()
    assert ranges(await ben.fetch()) == [(0, 0, 2)]


@with_harness_of(kafka={**ON, "group.share.max.share.sessions": "1"})
async def test_a_session_that_is_refused_does_not_wait_for_days(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await anna.fetch()
    request = ben.fetch_request()
    request.max_wait_ms = 2**31 - 1
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(share_fetch, "HELD_BACK_MS_MAX", 1)
        response = await ben.ask_fetch(request)
    assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


@share_groups
async def test_a_failed_load_is_forgotten_with_the_last_session(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    (anna, ben) = Member(harness, topic_id), Member(harness, topic_id, "ben", group_id="unknown")
    waiting = asyncio.ensure_future(anna.ask_fetch())
    failed = only(await ben.ask_fetch())
    assert failed.error_code
    (led,) = harness.broker.shares
    assert led.load_error("unknown") is not None
    ben.disconnect()
    assert led.load_error("unknown") is None
    await harness.produce("orders", [b"a"])
    await waiting


@share_groups
async def test_a_load_that_fails_after_the_last_session_is_forgotten(
    harness: BrokerHarness,
) -> None:
    _, topic_id = await queue(harness)
    (anna, ben) = Member(harness, topic_id), Member(harness, topic_id, "ben", group_id="unknown")
    waiting = asyncio.ensure_future(anna.ask_fetch())
    asked = asyncio.ensure_future(ben.ask_fetch())
    await harness.until(lambda: len(harness.broker.shares.sessions) == 2)
    ben.disconnect()
    await asked
    (led,) = harness.broker.shares
    await harness.until(lambda: not led._loading)
    assert led.load_error("unknown") is None
    await harness.produce("orders", [b"a"])
    await waiting


@share_groups
async def test_bytes_are_limited_but_one_batch_is_always_returned(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    for _ in range(3):
        await harness.produce("orders", [bytes(3000)])
    anna = Member(harness, topic_id)
    assert ranges(await anna.fetch(max_bytes=1)) == [(0, 0, 1)]
    assert ranges(await anna.fetch(max_bytes=7000)) == [(1, 2, 1)]


@share_groups
async def test_a_fetch_waits_for_enough_bytes(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    anna = Member(harness, topic_id)
    waiting = asyncio.ensure_future(anna.fetch(min_bytes=4000))
    await harness.until(lambda: harness.broker.shares.parked == 1)
    await harness.produce("orders", [b"small"])
    for _ in range(3):
        await harness.produce("orders", [bytes(2000)])
    assert ranges(await waiting)[0][0] == 0
    assert len((await anna.fetch(max_wait_ms=1, min_bytes=1 << 20)).acquired_records) <= 1


@share_groups
async def test_a_forgotten_partition_is_not_fetched(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness, partitions=2)
    anna = Member(harness, topic_id, partitions=(0, 1))
    waiting = asyncio.ensure_future(anna.ask_fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    await harness.produce("orders", [b"a"])
    response = await waiting
    assert [len(each.partitions) for each in response.responses] == [2], "a new session has all"
    await harness.produce("orders", [b"b"], 0)
    await harness.produce("orders", [b"c"], 1)
    request = anna.fetch_request()
    request.forgotten_topics_data = [ShareFetchRequest.ForgottenTopic(topic_id, [0])]
    assert values(only(await anna.ask_fetch(request))) == [b"c"]
