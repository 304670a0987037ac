"""Tests the plans for resetting a group's offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from penstock.client.admin import group_reset
from penstock.client.admin.arguments import When
from penstock.client.admin.group_reset import Kind, Move, Target
from penstock.client.admin.groups import GroupInfo
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import PartitionInfo, TopicInfo
from penstock.client.errors import BrokerError, OptionError, TopicNotFound
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition

ORDERS = TopicPartition("orders", 0)
GONE = TopicPartition("gone", 0)


class Cluster:
    """A fake cluster with a topic from offset 10 to 20, and a group with offsets in
    it and in a deleted topic."""

    state = "Empty"

    async def describe_group(self, group: str) -> GroupInfo:
        return GroupInfo(group, self.state, "consumer", "range", (), 0)

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return {ORDERS: OffsetAndMetadata(15), GONE: OffsetAndMetadata(3)}

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]:
        parts = tuple(PartitionInfo(index, 0, 1, (0,), (0,), ()) for index in range(2))
        known = TopicInfo("orders", "id", False, parts)
        return {name: known if name == "orders" else TopicNotFound(name) for name in names}

    async def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]:
        ends = {"earliest": 10, "latest": 20, 1_000: 12}
        return {
            topic_partition: FoundOffset(ends[when], -1, -1) if when in ends else None
            for topic_partition, when in times.items()
            if isinstance(when, str | int)
        }


def plan(goal: Target, topics: Mapping[str, Sequence[int] | None] | None = None) -> list[Move]:
    return asyncio.run(group_reset.plan(Cluster(), "g", topics or {}, goal))


@pytest.mark.parametrize(
    ("goal", "offset"),
    [
        (Target(Kind.EARLIEST), 10),
        (Target(Kind.LATEST), 20),
        (Target(Kind.OFFSET, 17), 17),
        (Target(Kind.OFFSET, 99), 20),
        (Target(Kind.SHIFT, -2), 13),
        (Target(Kind.SHIFT, -100), 10),
        (Target(Kind.TIME, 1_000), 12),
        (Target(Kind.TIME, 2_000), 20),
    ],
)
def test_targets_are_clamped_to_the_log(goal: Target, offset: int) -> None:
    """Deleted topics are left out."""
    assert plan(goal) == [Move(ORDERS, 15, offset, 20)]


def test_topics_may_be_chosen() -> None:
    """This includes partitions without a committed offset, which cannot be shifted."""
    both = plan(Target(Kind.EARLIEST), {"orders": None})
    assert [(move.topic_partition.partition, move.committed, move.lag) for move in both] == [
        (0, 15, 10),
        (1, None, 10),
    ]
    with pytest.raises(OptionError, match="no committed offset"):
        plan(Target(Kind.SHIFT, 1), {"orders": [1]})
    with pytest.raises(TopicNotFound):
        plan(Target(Kind.LATEST), {"orders": [2]})
    with pytest.raises(TopicNotFound):
        plan(Target(Kind.LATEST), {"gone": None})


def test_a_group_with_members_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members would overwrite the new offsets."""
    monkeypatch.setattr(Cluster, "state", "Stable")
    with pytest.raises(BrokerError, match="stop its consumers first"):
        plan(Target(Kind.LATEST))
