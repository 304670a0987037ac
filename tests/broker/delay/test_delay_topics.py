"""Delay topics on one broker: what is copied and when, and what happens if the target is broken."""

from __future__ import annotations

from typing import Any

import pytest

from broker.delay.delay_client import (
    LATER,
    ORDERS,
    Sent,
    alter,
    copies,
    delay_topic,
    delayed,
    records_in,
    send,
)
from broker.harness import BrokerHarness, with_harness
from penstock.delays.copying import Copying
from penstock.metadata.delay_configs import DELAY_GROUP, DELAY_TARGET
from penstock.records.batch import Codec
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

DAY_MS = 24 * 3_600_000


def now_ms(harness: BrokerHarness) -> int:
    return harness.services.wall_ms()


async def delete(harness: BrokerHarness, topic: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(topic)])
    answer = await harness.ask(request, 6, DeleteTopicsResponse)
    assert answer.responses[0].error_code == 0
    await harness.until(lambda: harness.broker.replicas.get(topic, 0) is None)


@with_harness
async def test_records_are_copied_in_order_of_their_due_times(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    now = now_ms(harness)
    sent = [Sent(b"c", now + 300), Sent(b"b", now + 200), Sent(b"z", now + DAY_MS), Sent(b"a")]
    assert await send(harness, *sent) is ErrorCode.NONE
    await harness.until(lambda: len(copies(harness)) == 3)
    assert copies(harness) == [b"a", b"b", b"c"]
    assert now_ms(harness) >= now + 300
    counters = harness.services.delays.counters
    await harness.until(lambda: counters.copied == 3 and delayed(harness).waiting == 1)
    assert counters.failures == 0
    assert delayed(harness).overdue_ms() == 0


@with_harness
async def test_a_copy_has_the_key_the_headers_and_the_timestamp(harness: BrokerHarness) -> None:
    """The timestamp of the record is in a header; that of the copy is when it was copied."""
    await delay_topic(harness)
    now = now_ms(harness)
    headers = (("origin", b"web"), ("empty", None))
    await send(harness, Sent(b"a", now - 5, headers), codec=Codec.GZIP)
    await harness.until(lambda: bool(copies(harness)))
    (copy,) = records_in(harness.hosted(ORDERS))
    assert (copy.key, copy.value) == (b"k", b"a")
    assert copy.headers == (*headers, ("penstock-timestamp", b"1000"))
    assert now <= copy.timestamp <= now_ms(harness)


@with_harness
async def test_a_late_record_comes_next(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    now = now_ms(harness)
    await send(harness, Sent(b"a", now - 1))
    await harness.until(lambda: copies(harness) == [b"a"])
    await send(harness, Sent(b"b", now - 100), Sent(b"c", 7), Sent(b"d"))
    await harness.until(lambda: len(copies(harness)) == 4)
    assert copies(harness) == [b"a", b"b", b"c", b"d"]


@with_harness
async def test_each_partition_has_one_target_partition(harness: BrokerHarness) -> None:
    await delay_topic(harness, partitions=3, targets=2)
    for index in range(3):
        await send(harness, Sent(b"%d" % index), index=index)
    await harness.until(lambda: len(copies(harness)) == 2 and len(copies(harness, index=1)) == 1)
    assert sorted(copies(harness)) == [b"0", b"2"]
    assert copies(harness, index=1) == [b"1"]


@with_harness
async def test_a_due_time_beyond_retention_is_refused(harness: BrokerHarness) -> None:
    """Retention would delete the record before it is copied."""
    await delay_topic(harness)
    far = Sent(b"a", now_ms(harness) + 8 * DAY_MS)
    assert await send(harness, far) is ErrorCode.INVALID_TIMESTAMP
    assert await send(harness, Sent(b"a", None, (("penstock-deliver-at", b"soon"),))) is (
        ErrorCode.INVALID_TIMESTAMP
    )
    assert await send(harness, far, topic=ORDERS) is ErrorCode.NONE


@with_harness
async def test_many_records_are_copied_once_each(harness: BrokerHarness) -> None:
    """More than fit into one plan, and more than the window holds."""
    await delay_topic(harness)
    now = now_ms(harness)
    count = 6_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Copying.__init__.__kwdefaults__ or {}, "window_records", 500)
        await begin_leadership_again(harness)
        for first in range(0, count, 1_000):
            numbers = range(first, first + 1_000)
            sent = [Sent(b"%d" % each, now - 1 - (each * 7_919) % count) for each in numbers]
            assert await send(harness, *sent) is ErrorCode.NONE
        await harness.until(lambda: len(copies(harness)) >= count)
    assert sorted(map(int, copies(harness))) == [*range(count)]


# Restarts of the leadership


async def begin_leadership_again(harness: BrokerHarness) -> None:
    hosted = harness.hosted(LATER)
    before = hosted.leadership, hosted.follower
    hosted.resign()
    harness.broker.replicas.role_changes.tell(hosted, *before)
    harness.broker._take_up()
    await harness.until(lambda: hosted.leadership is not None)


@with_harness
async def test_a_later_leadership_goes_on(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    await send(harness, Sent(b"a"))
    await harness.until(lambda: copies(harness) == [b"a"])
    await send(harness, Sent(b"c", now_ms(harness) + 300))
    await begin_leadership_again(harness)
    await send(harness, Sent(b"b"))
    await harness.until(lambda: len(copies(harness)) == 3)
    # On a slow machine the third record comes when the second was due already.
    assert copies(harness) in ([b"a", b"b", b"c"], [b"a", b"c", b"b"])


@with_harness
async def test_a_plan_whose_answer_was_lost_is_repeated_without_effect(
    harness: BrokerHarness,
) -> None:
    """The batches were written, but the leader did not get the answer before it was replaced."""
    await delay_topic(harness)
    sender = harness.services.delays.sender
    append = sender.append
    attempts = 0

    async def lose_answer(*args: object) -> list[ErrorCode]:
        nonlocal attempts
        attempts += 1
        codes = await append(*args)  # type: ignore[arg-type]
        if attempts <= 2:
            await begin_leadership_again(harness)
            raise TimeoutError
        return codes

    sender.append = lose_answer  # type: ignore[method-assign, assignment]
    await send(harness, Sent(b"a"), Sent(b"b"))
    await harness.until(lambda: attempts >= 3)
    await send(harness, Sent(b"c"))
    await harness.until(lambda: b"c" in copies(harness))
    assert copies(harness) == [b"a", b"b", b"c"]


@with_harness
async def test_a_store_whose_outcome_is_unknown_is_looked_up(harness: BrokerHarness) -> None:
    """The leader goes on with what was stored, and does not read the log again."""
    await delay_topic(harness)
    await send(harness, Sent(b"z", now_ms(harness) + DAY_MS), Sent(b"a"))
    await harness.until(lambda: copies(harness) == [b"a"])
    state = harness.services.share_state
    write = state.write
    calls = 0

    async def unsure(*args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        await write(*args)  # type: ignore[arg-type]
        if calls == 2:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    state.write = unsure  # type: ignore[method-assign, assignment]
    for value in (b"b", b"c", b"d"):
        await send(harness, Sent(value))
        await harness.until(lambda value=value: value in copies(harness))  # type: ignore[misc]
    assert copies(harness) == [b"a", b"b", b"c", b"d"]
    assert calls > 2
    assert harness.services.delays.counters.scanned == 5


# The target


@with_harness
async def test_a_target_that_is_created_again_gets_the_next_records(
    harness: BrokerHarness,
) -> None:
    await delay_topic(harness)
    await send(harness, Sent(b"a"))
    await harness.until(lambda: copies(harness) == [b"a"])
    await delete(harness, ORDERS)
    await send(harness, Sent(b"b"))
    await harness.until(lambda: harness.services.delays.counters.failures > 0)
    assert delayed(harness).waiting == 1
    await harness.create(ORDERS, 1)
    await harness.until(lambda: copies(harness) == [b"b"])


@with_harness
async def test_without_a_plan_a_deleted_target_is_not_looked_for(harness: BrokerHarness) -> None:
    """Looking for it costs a read of the metadata store."""
    await delay_topic(harness)
    await send(harness, Sent(b"a"))
    await harness.until(lambda: copies(harness) == [b"a"])
    later = harness.services.wall_ms() + 3_600_000
    await send(harness, Sent(b"b", later))
    await harness.until(lambda: delayed(harness).waiting == 1)
    calls = 0
    cluster = delayed(harness)._around.cluster
    catch_up = cluster.catch_up

    async def counted() -> None:
        nonlocal calls
        calls += 1
        await catch_up()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "catch_up", counted)
        await delete(harness, ORDERS)
        calls = 0
        await send(harness, Sent(b"c", later))
        await harness.until(lambda: delayed(harness).waiting == 2)
        assert calls == 0


@with_harness
async def test_a_plan_is_not_sent_to_a_new_topic_of_the_same_name(harness: BrokerHarness) -> None:
    """The target is deleted and created again just before its batches are sent. The leader gets no
    answer, and plans for the new topic."""
    await delay_topic(harness)
    sender = harness.services.delays.sender
    append = sender.append
    calls = 0

    async def append_late(*args: Any) -> list[ErrorCode]:
        nonlocal calls
        calls += 1
        if calls == 1:
            await delete(harness, ORDERS)
            await harness.create(ORDERS, 1)
            with pytest.raises(KafkaError, match="does not know a topic with this id"):
                await append(*args)
            assert copies(harness) == []
            raise TimeoutError
        return await append(*args)

    # The sender of this broker is replaced.
    sender.append = append_late  # type: ignore[method-assign, assignment]
    await send(harness, Sent(b"a"), Sent(b"b"))
    await harness.until(lambda: calls >= 2 and len(copies(harness)) >= 2)
    await send(harness, Sent(b"c"))
    await harness.until(lambda: b"c" in copies(harness))
    assert copies(harness) == [b"a", b"b", b"c"]


@with_harness
async def test_a_target_with_more_partitions_is_used_from_then_on(harness: BrokerHarness) -> None:
    await delay_topic(harness, partitions=2, targets=1)
    await send(harness, Sent(b"a"), index=1)
    await harness.until(lambda: copies(harness) == [b"a"])
    topic = CreatePartitionsRequest.Topic(ORDERS, 2, None)
    answer = await harness.ask(CreatePartitionsRequest([topic], 9_000), 3, CreatePartitionsResponse)
    assert answer.results[0].error_code == 0
    await send(harness, Sent(b"b"), index=1)
    await harness.until(lambda: copies(harness, index=1) == [b"b"])
    assert copies(harness) == [b"a"]


@with_harness
async def test_a_target_that_refuses_records_is_tried_again(harness: BrokerHarness) -> None:
    """Nothing is lost, and other partitions go on."""
    await delay_topic(harness, partitions=2, targets=2)
    await alter(harness, ORDERS, {"max.message.bytes": "500"})
    await send(harness, Sent(bytes(2_000)))
    await send(harness, Sent(b"b"), index=1)
    await harness.until(lambda: copies(harness, index=1) == [b"b"])
    await harness.until(lambda: harness.services.delays.counters.failures > 1)
    await harness.until(lambda: delayed(harness).overdue_ms() > 0)
    await alter(harness, ORDERS, {"max.message.bytes": "100000"})
    await harness.until(lambda: copies(harness) == [bytes(2_000)])
    await harness.until(lambda: delayed(harness).overdue_ms() == 0)


@with_harness
async def test_records_that_were_refused_go_to_another_target(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    await harness.create("wide", 1)
    await alter(harness, ORDERS, {"max.message.bytes": "500"})
    await send(harness, Sent(bytes(2_000)))
    await harness.until(lambda: harness.services.delays.counters.failures > 0)
    assert await alter(harness, LATER, {DELAY_TARGET: "wide"}) == (ErrorCode.NONE, None)
    await harness.until(lambda: copies(harness, "wide") == [bytes(2_000)])
    assert copies(harness) == []


@with_harness
async def test_a_topic_without_the_setting_is_not_copied(harness: BrokerHarness) -> None:
    """When it gets the setting again, the copying goes on where it was."""
    await delay_topic(harness)
    await send(harness, Sent(b"a"))
    await harness.until(lambda: copies(harness) == [b"a"])
    await alter(harness, LATER, {DELAY_TARGET: ""})
    await harness.until(lambda: not [*harness.services.delays])
    await send(harness, Sent(b"b"))
    await alter(harness, LATER, {DELAY_TARGET: ORDERS})
    await harness.until(lambda: len(copies(harness)) == 2)
    assert copies(harness) == [b"a", b"b"]


@with_harness
async def test_a_bug_ends_neither_the_broker_nor_the_copying(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    failed = False
    plan = Copying.plan

    def fail_once(self: Copying, *args: object) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("a planted bug")
        plan(self, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Copying, "plan", fail_once)
        await send(harness, Sent(b"a"))
        await harness.until(lambda: copies(harness) == [b"a"])
    assert failed


# What clients cannot do


@with_harness
async def test_clients_cannot_use_the_group_of_delay_topics(harness: BrokerHarness) -> None:
    """They could read the topic's state, or reset it."""
    await delay_topic(harness)
    fetch = ShareFetchRequest(DELAY_GROUP, "anna", 0, 0, 1, 1 << 20)
    fetched = await harness.ask(fetch, 1, ShareFetchResponse)
    assert fetched.error_code == ErrorCode.INVALID_GROUP_ID
    assert "choose another name" in (fetched.error_message or "")
    beat = ShareGroupHeartbeatRequest(DELAY_GROUP, "anna", 0, None, [LATER])
    answer = await harness.ask(beat, 1, ShareGroupHeartbeatResponse)
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID
    altered = await harness.ask(
        AlterShareGroupOffsetsRequest(DELAY_GROUP, []), 0, AlterShareGroupOffsetsResponse
    )
    assert altered.error_code == ErrorCode.INVALID_GROUP_ID
    deleted = await harness.ask(
        DeleteShareGroupOffsetsRequest(DELAY_GROUP, []), 0, DeleteShareGroupOffsetsResponse
    )
    assert deleted.error_code == ErrorCode.INVALID_GROUP_ID


BAD_TARGETS = [
    (LATER, "its own target"),
    ("nowhere", "create it first"),
    ("__consumer_offsets", "internal"),
    ("a b", "not a valid topic name"),
    ("second", "delay topic itself"),
]


@with_harness
async def test_a_setting_that_cannot_work_is_refused(harness: BrokerHarness) -> None:
    await delay_topic(harness)
    await harness.create("second", 1, configs={DELAY_TARGET: ORDERS})
    for target, words in BAD_TARGETS:
        code, message = await alter(harness, LATER, {DELAY_TARGET: target})
        assert (code, words in (message or "")) == (ErrorCode.INVALID_CONFIG, True), message
    await harness.create("end", 1)
    code, message = await alter(harness, ORDERS, {DELAY_TARGET: "end"})
    assert code is ErrorCode.INVALID_CONFIG
    assert "is the target of the delay topic" in (message or "")
    code, message = await alter(harness, LATER, {"cleanup.policy": "compact"})
    assert code is ErrorCode.INVALID_CONFIG
    assert "cannot be compacted" in (message or "")
