"""The outcome of a write of the state is unknown: the share partition is loaded again, and members
keep what they have."""

from __future__ import annotations

import asyncio

from broker.harness import BrokerHarness
from broker.shares.share_client import Member, queue, ranges, share_groups
from penstock.shares.image import Delta
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType
from penstock.wire.errors import ErrorCode, KafkaError
from shares.fake_state import FakeShareState

ACCEPT = int(AckType.ACCEPT)


def lose_next_answer(state: FakeShareState, *, is_stored: bool) -> None:
    write = state.write

    async def lost(where: SharePartitionId, epoch: int, delta: Delta) -> None:
        vars(state).pop("write")
        if is_stored:
            await write(where, epoch, delta)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    vars(state)["write"] = lost


async def two_members(harness: BrokerHarness) -> tuple[FakeShareState, Member, Member]:
    """Anna has the first record, and Ben the second."""
    state, topic_id = await queue(harness)
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    for member, offset in ((anna, 0), (ben, 1)):
        await harness.produce("orders", [b"a"])
        assert ranges(await member.fetch()) == [(offset, offset, 1)]
    return state, anna, ben


async def gets_nothing(member: Member) -> bool:
    request = member.fetch_request()
    request.max_wait_ms = 300
    return not (await member.ask_fetch(request)).responses


@share_groups
async def test_a_write_that_is_not_stored_takes_nothing_from_another_member(
    harness: BrokerHarness,
) -> None:
    state, anna, ben = await two_members(harness)
    lose_next_answer(state, is_stored=False)
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await gets_nothing(ben)
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.NONE
    (image,) = state.images.values()
    assert image.start_offset == 2


@share_groups
async def test_a_write_that_is_stored_has_its_effect(harness: BrokerHarness) -> None:
    state, anna, ben = await two_members(harness)
    lose_next_answer(state, is_stored=True)
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    assert await gets_nothing(ben)


@share_groups
async def test_an_acknowledgement_waits_until_the_state_is_read_again(
    harness: BrokerHarness,
) -> None:
    """Also one of a member that fetches nothing meanwhile."""
    state, anna, ben = await two_members(harness)
    lose_next_answer(state, is_stored=False)
    state.may_read.clear()
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    late = asyncio.ensure_future(anna.acknowledge((0, 0, ACCEPT)))
    await harness.until(lambda: state.reads == 2)
    assert not late.done()
    state.may_read.set()
    assert await late is ErrorCode.NONE


@share_groups
async def test_locks_outlast_a_state_that_cannot_be_read(harness: BrokerHarness) -> None:
    """The acknowledgement gets the error. When the state can be read, a fetch loads it."""
    state, anna, ben = await two_members(harness)
    lose_next_answer(state, is_stored=False)
    state.may_read.clear()
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    late = asyncio.ensure_future(anna.acknowledge((0, 0, ACCEPT)))
    await harness.until(lambda: state.reads == 2)
    state.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    state.may_read.set()
    assert await late is ErrorCode.COORDINATOR_NOT_AVAILABLE
    state.error = None
    assert await gets_nothing(ben)
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE


@share_groups
async def test_the_records_of_a_member_that_leaves_meanwhile_are_released(
    harness: BrokerHarness,
) -> None:
    """With their counts, after a second."""
    state, anna, ben = await two_members(harness)
    lose_next_answer(state, is_stored=False)
    state.may_read.clear()
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await harness.until(lambda: state.reads == 2)
    anna.disconnect()
    state.may_read.set()
    assert ranges(await ben.fetch()) == [(0, 0, 2)]


@share_groups
async def test_nothing_is_kept_without_members(harness: BrokerHarness) -> None:
    state, anna, ben = await two_members(harness)
    lose_next_answer(state, is_stored=False)
    state.may_read.clear()
    assert await ben.acknowledge((1, 1, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await harness.until(lambda: state.reads == 2)
    state.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    state.may_read.set()
    anna.disconnect()
    ben.disconnect()
    await harness.until(lambda: not [*harness.broker.shares])


@share_groups
async def test_a_state_that_was_reset_has_no_locks(harness: BrokerHarness) -> None:
    """Also if it is begun again with the same state epoch."""
    state, anna, ben = await two_members(harness)

    async def refuse(*given: object) -> None:
        vars(state).pop("write")
        (where,) = state.states
        state.begin(where, 0)
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)

    vars(state)["write"] = refuse
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ranges(await ben.fetch()) == [(0, 1, 1)]
