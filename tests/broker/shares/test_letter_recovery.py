"""A new leader writes the dead letters that the former one has left, also if no member comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.harness import BrokerHarness
from broker.shares.share_client import GROUP, Member, queue, settings, share_groups, values
from broker.shares.test_dead_letters import (
    ALLOWED,
    LETTERS,
    REJECT,
    TOPIC,
    begin_leadership_again,
    letters,
    offsets,
    start_offset,
)
from broker.shares.test_far_due import configure, far_queue, put
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.shares import letter_recovery
from penstock.metadata.config_changes import ConfigOperation, ResourceType
from penstock.metadata.dead_letter_configs import DEAD_LETTER_TOPIC
from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import RecordState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from shares.fake_state import FakeShareState


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_recovery, "PAUSE_MIN_S", 0.01)


async def name_letters(harness: BrokerHarness) -> None:
    """Gives the group its dead-letter topic in the cluster, where a new leader looks for it."""
    config = IncrementalAlterConfigsRequest.Config(DEAD_LETTER_TOPIC, ConfigOperation.SET, TOPIC)
    resource = IncrementalAlterConfigsRequest.Resource(ResourceType.GROUP, GROUP, [config])
    request = IncrementalAlterConfigsRequest([resource])
    response = await harness.ask(request, 1, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == 0


async def leave_letters(harness: BrokerHarness) -> tuple[FakeShareState, bytes]:
    """A member rejects two records and goes away. The letters cannot be written, because there is
    no topic for them yet."""
    await name_letters(harness)
    state, topic_id = await queue(harness)
    settings(harness, LETTERS)
    await harness.produce("orders", [b"a", b"b"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert await anna.acknowledge((0, 1, REJECT)) is ErrorCode.NONE
    await harness.until(lambda: harness.broker.shares.counters.letters.failures > 0)
    anna.disconnect()
    return state, topic_id


@share_groups
async def test_letters_are_written_without_a_member(harness: BrokerHarness) -> None:
    state, topic_id = await leave_letters(harness)
    await begin_leadership_again(harness)
    await harness.create(TOPIC, configs=ALLOWED)
    await harness.until(lambda: start_offset(state, topic_id) == 2)
    assert offsets(letters(harness)) == [0, 1]
    await harness.until(lambda: not [*harness.broker.shares])


@share_groups
async def test_the_letter_of_a_promoted_record_is_written_after_the_topic_has_lost_due_times(
    harness: BrokerHarness,
) -> None:
    """It does not hold the start offset."""
    await name_letters(harness)
    state, topic_id = await far_queue(harness, LETTERS)
    await put(harness, -5)
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"after -5"]
    assert await anna.acknowledge((0, 0, REJECT)) is ErrorCode.NONE
    await harness.until(lambda: harness.broker.shares.counters.letters.failures > 0)
    anna.disconnect()
    await configure(harness, "penstock.timed.records", "false")
    assert start_offset(state, topic_id) == 1
    await begin_leadership_again(harness)
    await harness.create(TOPIC, configs=ALLOWED)
    await harness.until(lambda: offsets(letters(harness)) == [0])
    await harness.until(lambda: not [*harness.broker.shares])


@pytest.mark.parametrize("call", ["summary", "read"])
def test_it_is_tried_again_until_the_share_coordinator_answers(call: str, tmp_path: Path) -> None:
    @share_groups
    async def scenario(harness: BrokerHarness) -> None:
        state, topic_id = await leave_letters(harness)
        await harness.create(TOPIC, configs=ALLOWED)
        await harness.until(lambda: start_offset(state, topic_id) == 2)
        await harness.produce("orders", [b"c"])
        answer, failures = getattr(state, call), 0

        async def fail_at_first(*given: object) -> object:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return await answer(*given)

        setattr(state, call, fail_at_first)
        reads = state.reads
        await begin_leadership_again(harness)
        await harness.until(lambda: state.reads > reads)
        assert failures == 3

    scenario(tmp_path)


@share_groups
async def test_nothing_is_loaded_if_there_can_be_no_letters(harness: BrokerHarness) -> None:
    """Of three share partitions, the first is done, the second has not begun, and there is no state
    of the third. A start offset that is not decided stays so: a member's first fetch decides it."""
    await name_letters(harness)
    state, topic_id = await queue(harness, 3, start=1)
    state.begin(SharePartitionId(GROUP, topic_id, 1), -1)
    del state.states[SharePartitionId(GROUP, topic_id, 2)]
    for index in range(3):
        await harness.produce("orders", [b"a"], index)
    state.calls.clear()
    await begin_leadership_again(harness, 3)
    await harness.until(lambda: len(state.calls) == 3)
    assert {name for name, _ in state.calls} == {"summary"}
    await harness.until(lambda: not [*harness.broker.shares])
    assert state.reads == 0


@share_groups
async def test_a_record_above_the_high_watermark_is_not_taken_for_lost(
    harness: BrokerHarness,
) -> None:
    """A new leader learns late how much is committed. The letter waits for that."""
    state, topic_id = await leave_letters(harness)
    counters = harness.broker.shares.counters.letters
    known = HostedPartition.high_watermark
    is_known = False

    def high_watermark(hosted: HostedPartition) -> int:
        found = known.__get__(hosted)
        assert isinstance(found, int)
        return 0 if hosted.topic == "orders" and not is_known else found

    HostedPartition.high_watermark = property(high_watermark)  # type: ignore[assignment,method-assign]
    try:
        await begin_leadership_again(harness)
        await harness.create(TOPIC, configs=ALLOWED)
        failures = counters.failures
        await harness.until(lambda: counters.failures > failures + 1)
        is_known = True
        await harness.until(lambda: start_offset(state, topic_id) == 2)
    finally:
        HostedPartition.high_watermark = known  # type: ignore[method-assign]
    assert offsets(letters(harness)) == [0, 1]
    assert counters.missing == 0


@pytest.mark.parametrize("is_stored", [True, False])
def test_letters_are_written_without_a_member_after_an_unknown_outcome(
    is_stored: bool, tmp_path: Path
) -> None:
    """The write that gives the record up is stored, or the one after the letter was written."""

    @share_groups
    async def scenario(harness: BrokerHarness) -> None:
        await harness.create(TOPIC, configs=ALLOWED)
        state, topic_id = await queue(harness)
        settings(harness, LETTERS)
        await harness.produce("orders", [b"a"])
        anna = Member(harness, topic_id)
        await anna.fetch()
        write, read = state.write, state.read
        failures = 0

        async def lose_answer(where: SharePartitionId, epoch: int, delta: Delta) -> None:
            if is_stored:
                await write(where, epoch, delta)
            elif not any(each.state is RecordState.ARCHIVED for each in delta.spans):
                return await write(where, epoch, delta)
            vars(state).pop("write")
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

        async def fail_at_first(*given: Any) -> ShareImage:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return await read(*given)

        for name, call in (("write", lose_answer), ("read", fail_at_first)):
            setattr(state, name, call)
        error = await anna.acknowledge((0, 0, REJECT))
        assert (error is ErrorCode.NONE) is not is_stored
        anna.disconnect()
        await harness.until(lambda: start_offset(state, topic_id) == 1)
        assert offsets(letters(harness)) == [0]
        assert failures == 3
        await harness.until(lambda: not [*harness.broker.shares])

    scenario(tmp_path)
