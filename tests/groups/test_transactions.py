"""Offsets committed in transactions: pending, in effect after a commit, dropped after an abort."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordination.effects import Append, LogRecord
from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.groups.formats import OffsetValue, offset_record
from penstock.groups.image import ShardImage
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from .world import World

INFO = RequestInfo("client", "/here", 8)


def commit_in(
    world: World,
    producer_id: int,
    offset: int,
    *,
    generation: int = -1,
    member: str = "",
    metadata: str = "",
    token: str = "",
) -> int | None:
    """Returns the error code that a producer gets, or None while it waits."""
    asked = TxnOffsetCommitRequest.Partition(0, offset, -1, metadata)
    request = TxnOffsetCommitRequest(
        f"tx{producer_id}",
        "g",
        producer_id,
        0,
        generation,
        member,
        None,
        [TxnOffsetCommitRequest.Topic("t", [asked])],
    )
    token = token or f"{producer_id}/{offset}/{len(world.replies)}"
    world.carry_out(world.shard.txn_offset_commit(request, 1, token, world.now))
    reply = world.replies.get(token)
    if reply is None:
        return None
    assert isinstance(reply, TxnOffsetCommitResponse)
    return reply.topics[0].partitions[0].error_code


def commit_plainly(world: World, offset: int) -> None:
    asked = OffsetCommitRequest.Partition(0, offset)
    request = OffsetCommitRequest(
        "g", -1, topics=[OffsetCommitRequest.Topic("t", partitions=[asked])]
    )
    token = f"plain/{offset}/{len(world.replies)}"
    world.carry_out(world.shard.offset_commit(request, INFO, token, world.now))


def fetch(world: World, *, stable: bool = False, all_topics: bool = False) -> tuple[int, int]:
    topics = None if all_topics else [OffsetFetchRequest.GroupTopic("t", partition_indexes=[0])]
    answer = world.shard.fetch_offsets(
        OffsetFetchRequest.Group("g", topics=topics), require_stable=stable
    )
    if not answer.topics:
        return -1, 0
    part = answer.topics[0].partitions[0]
    return part.committed_offset, part.error_code


UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


def test_an_offset_is_pending_until_its_transaction_ends() -> None:
    """It is pending as soon as its append is in flight. The batch carries the producer's id and
    epoch."""
    world = World()
    commit_plainly(world, 1)
    world.holds_log = True
    assert commit_in(world, 7, 5, token="first") is None
    assert fetch(world, stable=True) == UNSTABLE
    (append,) = world.waiting
    assert isinstance(append, Append)
    assert append.producer == (7, 0, 1)
    world.holds_log = False
    world.settle()
    for all_topics in (False, True):
        assert fetch(world, all_topics=all_topics) == (1, 0)
        assert fetch(world, stable=True, all_topics=all_topics) == UNSTABLE
    world.carry_out(world.shard.on_marker(7, committed=True))
    assert fetch(world, stable=True) == (5, 0)
    world.carry_out(world.shard.on_marker(7, committed=False))
    assert fetch(world, stable=True) == (5, 0)


def test_an_aborted_offset_never_takes_effect() -> None:
    """A group without other offsets is as before."""
    world = World()
    assert commit_in(world, 7, 5) == 0
    world.carry_out(world.shard.on_marker(7, committed=False))
    assert fetch(world, stable=True) == (-1, 0)


def test_an_offset_that_the_log_refused_is_not_pending() -> None:
    """The producer gets a retriable error."""
    world = World()
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert commit_in(world, 7, 5) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fetch(world, stable=True) == (-1, 0)


def test_a_zombie_member_is_refused() -> None:
    """By its generation and member id, if it names them. The limit of metadata applies too."""
    world = World(GroupConfig(offset_metadata_max=3))
    assert commit_in(world, 7, 5, generation=1, member="m") == ErrorCode.ILLEGAL_GENERATION
    assert commit_in(world, 7, 5) == 0
    assert commit_in(world, 7, 5, generation=1, member="m") == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_in(world, 7, 5, metadata="four") == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_a_group_with_pending_offsets_does_not_expire_but_can_be_deleted() -> None:
    """The marker does not create a deleted group again from its pending offsets."""
    world = World(GroupConfig(offsets_retention_ms=1_000))
    assert commit_in(world, 7, 5) == 0
    world.advance(10 * world.config.offsets_retention_check_interval_ms)
    assert fetch(world, stable=True) == UNSTABLE
    world.carry_out(
        world.shard.delete_groups(DeleteGroupsRequest(["g"]), INFO, "delete", world.now)
    )
    deleted = world.replies["delete"]
    assert isinstance(deleted, DeleteGroupsResponse)
    assert deleted.results[0].error_code == 0
    world.carry_out(world.shard.on_marker(7, committed=True))
    assert fetch(world, stable=True) == (-1, 0)


@pytest.mark.parametrize(
    ("steps", "offset"),
    [
        ("p1=5 plain=9 p1+", 9),
        ("plain=9 p1=5 p1+", 5),
        ("p1=5 p2=6 p2+ p1+", 6),
        ("p1=5 p2=6 p1+ p2+", 6),
        ("p1=5 p2=6 p2- p1+", 5),
        ("p1=5 p2=6 p1=7 p2+ p1+", 7),
        ("p1=5 gone p1+", -1),
        ("p1=5 gone p1=8 p1+", 8),
    ],
)
def test_offsets_take_effect_in_the_order_of_the_log(steps: str, offset: int) -> None:
    """Not in the order in which the transactions ended: an offset committed later is newer."""
    image = ShardImage()
    for step in steps.split():
        _play(image, step)
    found = image.offsets_of("g").get(TopicPartition("t", 0))
    assert (-1 if found is None else found.offset) == offset
    assert not image.pending_of("g")


def _play(image: ShardImage, step: str) -> None:
    if step == "gone":
        image.replay(*_record(None))
    elif "=" in step:
        who, offset = step.split("=")
        image.replay(*_record(int(offset)), -1 if who == "plain" else int(who[1:]))
    else:
        image.end_transaction(int(step[1:-1]), committed=step[-1] == "+")


def _record(offset: int | None) -> LogRecord:
    return offset_record("g", "t", 0, None if offset is None else OffsetValue(offset))


STEPS = st.sampled_from(
    ["gone", "plain=0", "p1+", "p1-", "p2+", "p2-", "p3+", "p1=0", "p2=0", "p3=0"]
)


@given(st.lists(STEPS, max_size=25))
@settings(deadline=None, max_examples=200)
def test_the_image_is_what_a_reader_of_committed_records_sees(steps: list[str]) -> None:
    """The newest committed record of the partition, by position in the log. A tombstone removes
    everything before it."""
    image = ShardImage()
    # Position in the log, and the producer; "" once it is committed.
    log: list[tuple[int, str]] = []
    for number, step in enumerate(steps, start=1):
        numbered = step.replace("=0", f"={number}")
        _play(image, numbered)
        if step == "gone":
            log.clear()
        elif "=" in step:
            who = step.split("=")[0]
            log.append((number, "" if who == "plain" else who))
        else:
            mine, commits = step[:-1], step[-1] == "+"
            log = [
                (at, "" if whose == mine else whose)
                for at, whose in log
                if whose != mine or commits
            ]
    visible = [at for at, whose in log if whose == ""]
    found = image.offsets_of("g").get(TopicPartition("t", 0))
    assert (None if found is None else found.offset) == max(visible, default=None)
    assert bool(image.pending_of("g")) == any(whose for _, whose in log)
