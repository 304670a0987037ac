"""Thousands of tombstones are written in several appends with one outcome."""

from __future__ import annotations

import pytest

from penstock.groups.effects import RequestInfo
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

from .world import World

INFO = RequestInfo("admin", "/127.0.0.1", 2)
OFFSETS = 1_000
DAY_MS = 86_400_000


class Full(World):
    """A group "g" with a thousand offsets, and a log that accepts batches of only a few of them."""

    def __init__(self) -> None:
        super().__init__()
        self.commit(range(OFFSETS))
        self.batch_bytes_max = 5_000

    def commit(self, indexes: range) -> None:
        partitions = [OffsetCommitRequest.Partition(index, 7) for index in indexes]
        request = OffsetCommitRequest(
            "g", topics=[OffsetCommitRequest.Topic("orders", partitions=partitions)]
        )
        self.carry_out(
            self.shard.offset_commit(request, INFO, f"commit {len(self.replies)}", self.now)
        )

    def delete(self) -> None:
        request = DeleteGroupsRequest(["g"])
        self.carry_out(self.shard.delete_groups(request, INFO, "delete", self.now))

    def deleted(self) -> int | None:
        response = self.replies.get("delete")
        if response is None:
            return None
        assert isinstance(response, DeleteGroupsResponse)
        return response.results[0].error_code

    def groups(self) -> dict[str, str]:
        return {group.group_id: group.group_state for group in self.shard.list_groups()}

    def left(self) -> int:
        return len(self.shard.state.image.offsets_of("g"))


def test_a_group_is_deleted_when_the_last_part_is_committed() -> None:
    """Not before. The client gets one response, when all tombstones are in the log."""
    world = Full()
    world.holds_log = True
    world.delete()
    parts = len(world.waiting)
    assert parts > 5
    for _ in range(parts - 1):
        world.settle_one()
        assert world.deleted() is None
    world.settle_one()
    assert world.deleted() == ErrorCode.NONE
    assert (world.groups(), world.left()) == ({}, 0)
    world.restart()
    assert world.groups() == {}


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_after_a_failed_part_the_group_can_be_deleted_again(which: str) -> None:
    """What the log accepted is removed in memory too, so a restart changes nothing."""
    world = Full()
    world.holds_log = True
    world.delete()
    parts = len(world.waiting)
    bad = {"first": 0, "middle": parts // 2, "last": parts - 1}[which]
    sizes = [len(append.records) for append in world.waiting]
    for number in range(parts):
        world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS if number == bad else None
        world.settle_one()
    world.fails_log = None
    assert world.deleted() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (world.groups(), world.left()) == ({"g": "Empty"}, sizes[bad])
    before = dict(world.shard.state.image.offsets_of("g"))
    world.holds_log = False
    world.restart()
    after = world.shard.state.image.offsets_of("g")
    assert set(after) == set(before)
    del world.replies["delete"]
    world.delete()
    assert (world.deleted(), world.left()) == (ErrorCode.NONE, 0)


def test_a_shard_that_is_unloaded_answers_once() -> None:
    """However many parts are still being written."""
    world = Full()
    world.holds_log = True
    world.delete()
    assert len(world.waiting) > 5
    world.settle_one()
    world.carry_out(world.shard.unload(ErrorCode.NOT_COORDINATOR))
    assert world.deleted() == ErrorCode.NOT_COORDINATOR


def test_offsets_are_deleted_in_parts_too() -> None:
    """The client sees one deletion."""
    world = Full()
    world.holds_log = True
    partitions = [OffsetDeleteRequest.Partition(index) for index in range(OFFSETS)]
    request = OffsetDeleteRequest("g", [OffsetDeleteRequest.Topic("orders", partitions)])
    world.carry_out(world.shard.offset_delete(request, INFO, "offsets", world.now))
    assert len(world.waiting) > 5
    world.settle()
    response = world.replies["offsets"]
    assert isinstance(response, OffsetDeleteResponse)
    assert (response.error_code, len(response.topics[0].partitions)) == (0, OFFSETS)
    assert world.left() == 0


def test_offsets_of_a_deleted_topic_are_removed_in_parts() -> None:
    """A topic may have thousands of partitions."""
    world = Full()
    world.holds_log = True
    world.carry_out(world.shard.forget_topics({"orders"}, world.now))
    assert len(world.waiting) > 5
    world.settle()
    assert world.left() == 0


def test_offsets_expire_in_parts() -> None:
    """Their group expires with them."""
    world = Full()
    world.holds_log = True
    world.advance(8 * DAY_MS)
    assert len(world.waiting) > 5
    world.settle()
    assert (world.groups(), world.left()) == ({}, 0)
