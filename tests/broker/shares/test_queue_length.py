"""Limits of the length of queues: producers are refused, or the oldest records are given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from broker.handlers.test_read_committed import Writers
from broker.harness import BrokerHarness
from broker.shares.share_client import (
    GROUP,
    Member,
    ranges,
    settings,
    share_groups,
    with_state,
)
from broker.shares.test_dead_letters import ALLOWED, LETTERS, TOPIC, letters, offsets, texts
from broker.shares.test_unknown_outcomes import lose_next_answer
from penstock.broker.shares import length_limits
from penstock.broker.shares.acquired_reads import DROP_MARKS_MAX
from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.shares.formats import Entry, record_of
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import CallOrder, SharePartitionId
from penstock.shares.states import AckType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse
from shares.fake_state import FakeShareState

ACCEPT = int(AckType.ACCEPT)


async def limited(
    harness: BrokerHarness,
    limit: int,
    policy: str = "refuse",
    more: Mapping[str, str] | None = None,
) -> tuple[FakeShareState, bytes]:
    configs = {
        "penstock.queue.length.max": str(limit),
        "penstock.queue.length.policy": policy,
        **(more or {}),
    }
    topic_id = await harness.create("orders", configs=configs)
    state = with_state(harness)
    state.begin(SharePartitionId(GROUP, topic_id, 0), 0)
    return state, topic_id


async def try_produce(harness: BrokerHarness, **batch: int) -> tuple[ErrorCode, str]:
    data = build_batch([Record(0, 1, None, b"x")], **batch)  # type: ignore[arg-type]
    part = ProduceRequest.Partition(0, data)
    topics = [ProduceRequest.Topic("orders", partition_data=[part])]
    response = await harness.ask(ProduceRequest(None, -1, 10_000, topics), 9, ProduceResponse)
    answer = response.responses[0].partition_responses[0]
    return ErrorCode(answer.error_code), answer.error_message or ""


@share_groups
async def test_producers_are_refused_while_the_queue_is_too_long(harness: BrokerHarness) -> None:
    _, topic_id = await limited(harness, 3)
    await harness.produce("orders", [b"a", b"b"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert (await try_produce(harness))[0] is ErrorCode.NONE
    code, message = await try_produce(harness)
    assert code is ErrorCode.POLICY_VIOLATION
    assert "penstock.queue.length.max is 3" in message
    assert harness.broker.shares.counters.lengths.refused == 1
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    assert (await try_produce(harness))[0] is ErrorCode.NONE


@share_groups
async def test_the_retry_of_a_batch_that_is_in_the_queue_is_not_refused(
    harness: BrokerHarness,
) -> None:
    _, topic_id = await limited(harness, 1)
    batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert (await try_produce(harness, **batch))[0] is ErrorCode.NONE
    await Member(harness, topic_id).fetch()
    assert (await try_produce(harness, **batch))[0] is ErrorCode.NONE
    assert (await try_produce(harness))[0] is ErrorCode.POLICY_VIOLATION


@share_groups
async def test_a_queue_without_members_stays_limited_until_its_group_is_deleted(
    harness: BrokerHarness,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length_limits, "LOOK_UP_S", 0.01)
        state, topic_id = await limited(harness, 1)
        await harness.produce("orders", [b"a"])
        anna = Member(harness, topic_id)
        await anna.fetch()
        anna.disconnect()
        asked = len(state.calls)
        await harness.until(lambda: "summary" in [name for name, _ in state.calls[asked:]])
        assert (await try_produce(harness))[0] is ErrorCode.POLICY_VIOLATION
        await state.delete(SharePartitionId(GROUP, topic_id, 0), CallOrder())
        await harness.until(lambda: harness.hosted("orders").append_guard is None)
        assert (await try_produce(harness))[0] is ErrorCode.NONE


@share_groups
async def test_the_start_offset_of_a_deleted_group_is_not_counted(harness: BrokerHarness) -> None:
    """Another group is behind it, and has no members either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length_limits, "LOOK_UP_S", 0.01)
        state, topic_id = await limited(harness, 2)
        state.begin(SharePartitionId("other", topic_id, 0), 0)
        await harness.produce("orders", [b"a", b"b"])
        for group_id, kind in ((GROUP, AckType.RELEASE), ("other", AckType.ACCEPT)):
            member = Member(harness, topic_id, group_id=group_id)
            await member.fetch()
            assert await member.acknowledge((0, 1, int(kind))) is ErrorCode.NONE
            member.disconnect()
        assert (await try_produce(harness))[0] is ErrorCode.POLICY_VIOLATION
        await state.delete(SharePartitionId(GROUP, topic_id, 0), CallOrder())
        (led,) = harness.broker.shares
        await harness.until(lambda: led.groups == ["other"])
        assert (await try_produce(harness))[0] is ErrorCode.NONE


@share_groups
async def test_the_limit_outlasts_the_unknown_outcome_of_a_write(harness: BrokerHarness) -> None:
    """The state is loaded again, although no member fetches."""
    state, topic_id = await limited(harness, 2)
    await harness.produce("orders", [b"a", b"b"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    lose_next_answer(state, is_stored=True)
    await anna.acknowledge((0, 1, int(AckType.RELEASE)))
    anna.disconnect()
    await harness.until(lambda: state.reads == 2)
    await harness.until(lambda: harness.hosted("orders").append_guard is not None)
    assert (await try_produce(harness))[0] is ErrorCode.POLICY_VIOLATION


@share_groups
async def test_the_oldest_records_are_dropped(harness: BrokerHarness) -> None:
    state, topic_id = await limited(harness, 2, "drop-oldest")
    await harness.produce("orders", [b"a", b"b", b"c", b"d", b"e"])
    got = await Member(harness, topic_id).fetch()
    assert ranges(got) == [(3, 4, 1)]
    image = state.images[SharePartitionId(GROUP, topic_id, 0)]
    await harness.until(lambda: image.start_offset == 3)
    assert harness.broker.shares.counters.lengths.dropped == 3


@share_groups
async def test_records_that_a_member_has_are_not_dropped(harness: BrokerHarness) -> None:
    _, topic_id = await limited(harness, 2, "drop-oldest")
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    assert ranges(await anna.fetch()) == [(0, 0, 1)]
    for _ in range(4):
        await harness.produce("orders", [b"x"])
    assert ranges(await Member(harness, topic_id, "ben").fetch()) == [(3, 4, 1)]
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE


@share_groups
async def test_dropped_records_become_dead_letters(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await limited(harness, 1, "drop-oldest")
    settings(harness, LETTERS)
    await harness.produce("orders", [b"a", b"b", b"c"])
    assert ranges(await Member(harness, topic_id).fetch()) == [(2, 2, 1)]
    image = state.images[SharePartitionId(GROUP, topic_id, 0)]
    await harness.until(lambda: image.start_offset == 2)
    found = letters(harness)
    assert offsets(found) == [0, 1]
    assert texts(found[0])["__dlq.errors.message"] == "The queue was too long."


@share_groups
async def test_a_held_record_does_not_block_the_others_after_a_drop(
    harness: BrokerHarness,
) -> None:
    _, topic_id = await limited(harness, 10, "drop-oldest")
    settings(harness, ShareSettings(600_000, in_flight_max=20))
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    assert ranges(await anna.fetch()) == [(0, 0, 1)]
    for _ in range(60):
        await harness.produce("orders", [b"x"])
    assert ranges(await ben.fetch()) == [(51, 60, 1)]
    assert await ben.acknowledge((51, 60, ACCEPT)) is ErrorCode.NONE
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE


@share_groups
async def test_aborted_records_do_not_become_dead_letters(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await limited(harness, 1, "drop-oldest")
    settings(harness, replace(LETTERS, read_committed=True))
    writers = Writers(harness.hosted("orders"))
    writers.write(1, b"aborted")
    writers.end(1, commit=False)
    writers.plain(b"old")
    writers.plain(b"new")
    assert ranges(await Member(harness, topic_id).fetch()) == [(3, 3, 1)]
    image = state.images[SharePartitionId(GROUP, topic_id, 0)]
    await harness.until(lambda: image.start_offset == 3)
    assert offsets(letters(harness)) == [2]
    assert harness.broker.shares.counters.lengths.dropped == 1


@share_groups
async def test_duplicates_do_not_become_dead_letters(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await limited(
        harness, 1, "drop-oldest", {"penstock.dedup.window.ms": "600000"}
    )
    settings(harness, LETTERS)
    hosted = harness.hosted("orders")
    for key in (b"same", b"same", b"same", b"other"):
        hosted.append(memoryview(build_batch([Record(0, 1, key, b"x")])), 1)
    assert ranges(await Member(harness, topic_id).fetch()) == [(3, 3, 1)]
    image = state.images[SharePartitionId(GROUP, topic_id, 0)]
    await harness.until(lambda: image.start_offset == 3)
    assert offsets(letters(harness)) == [0]


@share_groups
async def test_far_records_in_a_long_queue_make_small_deltas(harness: BrokerHarness) -> None:
    """Every second record is scheduled, and stays: each of the others is a range of its own."""
    state, topic_id = await limited(harness, 1, "drop-oldest", {"penstock.timed.records": "true"})
    now, hosted = harness.services.wall_ms(), harness.hosted("orders")
    later = (("penstock-deliver-at", b"%d" % (now + 3_600_000)),)
    records = [Record(at, now, None, b"x", later if at % 2 else ()) for at in range(8_000)]
    hosted.append_own(build_batch(records, codec=Codec.ZSTD), now)
    hosted.append_own(build_batch([Record(0, now, None, b"last")]), now)
    assert ranges(await Member(harness, topic_id).fetch()) == [(8_000, 8_000, 1)]
    where = SharePartitionId(GROUP, topic_id, 0)
    assert max(len(each.spans) for each in state.writes) <= 2 * DROP_MARKS_MAX + 1
    assert max(len(record_of(Entry(where, each)).value or b"") for each in state.writes) < 65_536
    await harness.until(lambda: state.images[where].start_offset == 8_000)
    assert harness.broker.shares.counters.lengths.dropped == 4_000


@share_groups
async def test_other_topics_have_no_guard(harness: BrokerHarness) -> None:
    topic_id = await harness.create("orders")
    with_state(harness).begin(SharePartitionId(GROUP, topic_id, 0), 0)
    await harness.produce("orders", [b"a"])
    await Member(harness, topic_id).fetch()
    assert harness.hosted("orders").append_guard is None
