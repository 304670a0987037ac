"""Multi-commit: many transactions committed in one batch, all or none, also after any crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.txns.config import TransactionConfig
from penstock.txns.effects import EndedTogether, MemberEnded
from penstock.txns.formats import transaction_record
from penstock.txns.transaction import EPOCH_LAST_USABLE, Producer, State
from penstock.wire.errors import ErrorCode

from .world import NONE, OFFSETS, World

NAMES = ("driver", "task-0", "task-1")


def opened(world: World, names: tuple[str, ...] = NAMES) -> dict[str, Producer]:
    """Opens transactions with one partition each. The driver's partition is that of its offset
    commit."""
    members = {name: world.started(name, timeout_ms=10_000) for name in names}
    for name, producer in members.items():
        if name == "driver":
            assert world.add_offsets(name, producer) is NONE
        else:
            assert world.add(name, producer, f"{name}") is NONE
    return members


def states(world: World) -> set[State]:
    return {world.transaction(name).state for name in NAMES}


def test_the_decisions_are_one_batch() -> None:
    """One append contains them all, the response has each member's next epoch, and all get
    markers."""
    world = World()
    members = opened(world)
    world.holds_markers = True
    before = len(world.batches)
    answer = world.end_together(members, offsets=OFFSETS)
    (batch,) = world.batches[before:]
    assert len(batch) == 3
    assert states(world) == {State.PREPARE_COMMIT}
    assert answer == EndedTogether(
        NONE,
        tuple(MemberEnded(name, NONE, *replace_epoch(each)) for name, each in members.items()),
    )
    assert {sent.transactional_id for sent in world.sent} == set(NAMES)
    for _ in NAMES:
        world.mark_one()
    assert states(world) == {State.COMPLETE_COMMIT}
    world.shard.verify()


def replace_epoch(producer: Producer) -> Producer:
    return producer._replace(epoch=producer.epoch + 1)


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_coordinator_crash_leaves_all_or_none_committed(is_durable: bool) -> None:
    """Before the batch is in the log nothing is decided. After it everything is, and is carried
    out."""
    world = World()
    members = opened(world)
    world.holds_log = True
    token = world.send_end_together(members)
    if is_durable:
        world.settle_one()
    world.holds_log = False
    world.fail_over()
    assert (token in world.replies) == is_durable
    assert states(world) == {State.COMPLETE_COMMIT if is_durable else State.ONGOING}
    again = world.end_together(members)
    assert again.code is NONE
    assert states(world) == {State.COMPLETE_COMMIT}


def test_a_repeated_multi_commit_gets_the_same_response() -> None:
    """The first response was lost: before the markers, after them, or from the previous
    coordinator."""
    world = World()
    members = opened(world)
    world.holds_markers = True
    first = world.end_together(members)
    assert world.end_together(members) == first
    world.holds_markers = False
    world.fail_over()
    written = len(world.log)
    assert world.end_together(members) == first
    assert len(world.log) == written


@pytest.mark.parametrize("how", ["taken over", "timed out", "unknown", "empty", "ended alone"])
def test_one_member_that_cannot_commit_refuses_all(how: str) -> None:
    """Nothing is changed, and the response names the member."""
    world = World()
    members = opened(world)
    if how == "taken over":
        world.started("task-0")
        code = ErrorCode.PRODUCER_FENCED
    elif how == "timed out":
        members = opened(world, ("task-0",))
        world.advance(5000)
        members |= opened(world, ("driver", "task-1"))
        world.advance(5000)
        code = ErrorCode.TRANSACTION_ABORTABLE
    elif how == "unknown":
        members["nobody"] = Producer(1, 0)
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif how == "empty":
        members["nobody"] = world.started("nobody")
        code = ErrorCode.INVALID_TXN_STATE
    else:
        world.end("task-0", members["task-0"], commit=True)
        code = ErrorCode.INVALID_TXN_STATE
    answer = world.end_together(members)
    assert answer.code is code
    if how != "ended alone":
        assert [each.code for each in answer.members].count(code) == 1
    assert world.transaction("task-1").state is State.ONGOING
    assert world.transaction("driver").state is State.ONGOING


def test_a_required_offset_commit_must_be_included() -> None:
    """A commit that should contain one and does not is refused."""
    world = World()
    members = opened(world)
    without = {name: members[name] for name in ("task-0", "task-1")}
    assert world.end_together(without, offsets=OFFSETS).code is ErrorCode.INVALID_TXN_STATE
    assert states(world) == {State.ONGOING}
    assert world.end_together(members, offsets=OFFSETS).code is NONE


def test_all_wait_while_one_member_is_being_changed() -> None:
    """An addition that is being written must not be lost. When the request is repeated, all
    commit."""
    world = World()
    members = opened(world)
    world.holds_log = True
    world.send_add("task-1", members["task-1"], ["more-0"])
    assert world.end_together(members).code is ErrorCode.CONCURRENT_TRANSACTIONS
    world.settle_one()
    world.holds_log = False
    assert world.end_together(members).code is NONE


def test_a_batch_that_would_be_too_large_is_refused() -> None:
    """Two batches would not be atomic."""
    world = World()
    members = opened(world)
    world.batch_bytes_max = 200
    assert world.end_together(members).code is ErrorCode.MESSAGE_TOO_LARGE
    assert states(world) == {State.ONGOING}
    world.shard.verify()


def test_a_refused_append_leaves_all_transactions_open() -> None:
    """And no member stays busy."""
    world = World()
    members = opened(world)
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.end_together(members).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.fails_log = None
    world.shard.verify()
    assert world.end_together(members).code is NONE


def test_malformed_requests_are_refused() -> None:
    """No members, a member without a name, or a cluster without transaction.version 2."""
    world = World()
    assert world.end_together({}).code is ErrorCode.INVALID_REQUEST
    assert world.end_together({"": Producer(1, 1)}).code is ErrorCode.INVALID_REQUEST
    older = World(TransactionConfig(transaction_version=1))
    assert older.end_together({"a": Producer(1, 1)}).code is ErrorCode.UNSUPPORTED_VERSION


def test_members_at_their_last_epoch_get_new_producer_ids_first() -> None:
    """One request allocates the ids for all members that need one. All members wait meanwhile."""
    world = World()
    opened(world, ("task-0", "task-1"))
    for name in ("task-0", "task-1"):
        raised = replace(world.transaction(name), producer_epoch=EPOCH_LAST_USABLE)
        world.log.append(transaction_record(raised))
    world.fail_over()
    members = {name: world.transaction(name).granted for name in ("task-0", "task-1")}
    members |= opened(world, ("driver",))
    world.holds_ids = True
    token = world.send_end_together(members)
    assert [asked.count for asked in world.allocating] == [2]
    assert world.end_together(members).code is ErrorCode.CONCURRENT_TRANSACTIONS
    world.holds_ids = False
    world.allocate_one()
    answer = world.replies[token]
    assert isinstance(answer, EndedTogether)
    given = {each.transactional_id: each.producer_id for each in answer.members}
    assert given["task-0"] != given["task-1"]
    assert [each.producer_epoch for each in answer.members[:2]] == [0, 0]
    assert states(world) == {State.COMPLETE_COMMIT}


def test_an_abort_ends_all_open_transactions() -> None:
    """A member that was replaced or is unknown has nothing open. It is no reason to leave the
    others open."""
    world = World()
    members = opened(world)
    world.started("task-0")
    members["nobody"] = Producer(1, 0)
    answer = world.end_together(members, commit=False)
    assert answer.code is NONE
    assert [each.code for each in answer.members] == [
        NONE,
        ErrorCode.PRODUCER_FENCED,
        NONE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ]
    assert world.transaction("task-1").state is State.COMPLETE_ABORT
    assert world.transaction("driver").state is State.COMPLETE_ABORT
    assert world.end_together(members, commit=False).code is NONE


def test_a_committed_transaction_is_not_aborted() -> None:
    """The abort of an earlier attempt comes late."""
    world = World()
    members = opened(world)
    world.end_together(members)
    assert world.end_together(members, commit=False).code is ErrorCode.INVALID_TXN_STATE
    assert states(world) == {State.COMPLETE_COMMIT}
