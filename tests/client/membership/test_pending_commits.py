"""Commits that nobody waits for reach the coordinator before a member gives up partitions.

The coordinator is a fake: it answers slowly, and refuses commits of members that have left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, cast

import pytest

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.membership.autocommit import Offsets
from penstock.client.membership.listener import Listener
from penstock.client.membership.member import GroupMember
from penstock.client.membership.settings import MembershipOptions
from penstock.client.model import OffsetAndMetadata
from penstock.runtime import SystemClock, SystemRandom
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)

TOPIC_ID = bytes(15) + b"\1"
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinator:
    """Also the cluster: every connection leads here. It notes who asked what, in order."""

    address = "fake"

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.random = SystemRandom()
        self.assigned = [0, 1]
        self.owned = [0, 1]
        """What the member says that it owns."""
        self.has_left = False
        self.left_on: str | None = None
        self.joins = asyncio.Event()
        self.answers_joins = asyncio.Event()
        self.answers_joins.set()

    async def coordinator(self, group: str, *, purpose: str = "", fresh: bool = False) -> Any:
        return Connection(self, purpose)

    async def retry(
        self, what: str, attempt: Callable[[bool], Awaitable[Any]], deadline_s: float | None = None
    ) -> Any:
        return await attempt(False)

    def on_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        if request.topic_partitions:
            self.owned = list(request.topic_partitions[0].partitions)
        answer = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=max(1, request.member_epoch),
            heartbeat_interval_ms=10,
        )
        parts = ConsumerGroupHeartbeatResponse.TopicPartitions(TOPIC_ID, self.assigned)
        answer.assignment = ConsumerGroupHeartbeatResponse.Assignment([parts])
        return answer

    def on_commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        (topic,) = request.topics
        (part,) = topic.partitions
        gone = self.has_left or part.partition_index not in self.owned
        code = ErrorCode.UNKNOWN_MEMBER_ID if gone else ErrorCode.NONE
        done = OffsetCommitResponse.Partition(part.partition_index, code)
        return OffsetCommitResponse(topics=[OffsetCommitResponse.Topic("t", partitions=[done])])


class Connection:
    def __init__(self, coordinator: Coordinator, purpose: str) -> None:
        self.address = coordinator.address
        self._coordinator = coordinator
        self._purpose = purpose

    def version_of(self, _: object) -> int:
        return 9

    async def call(self, request: Any, _: object, *, timeout_s: float | None = None) -> Any:
        coordinator = self._coordinator
        if isinstance(request, MetadataRequest):
            return MetadataResponse(topics=[MetadataResponse.Topic(0, "t", TOPIC_ID)])
        if isinstance(request, OffsetCommitRequest):
            await asyncio.sleep(0.02)
            return coordinator.on_commit(request)
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        if request.member_epoch < 0:
            coordinator.has_left, coordinator.left_on = True, self._purpose
        if request.member_epoch == 0:
            coordinator.joins.set()
            await coordinator.answers_joins.wait()
        return coordinator.on_heartbeat(request)


class Reader:
    """The host of the member. It reads nothing."""

    def consumed(self) -> Offsets:
        return {}

    def add(self, topic_partitions: Collection[TopicPartition]) -> None:
        pass

    def drop(self, topic_partitions: Collection[TopicPartition]) -> None:
        pass

    def wake(self) -> None:
        pass

    def committed(self, offsets: Offsets) -> None:
        pass


class Committer:
    """A member that commits without waiting, and the outcomes by offset."""

    def __init__(self, coordinator: Coordinator, *, auto: bool) -> None:
        options = MembershipOptions("g", group_protocol="consumer", enable_auto_commit=auto)
        self.member = GroupMember(cast(Cluster, coordinator), options, Reader())
        self.outcomes: dict[int, ClientError | None] = {}

    def commit(self, where: TopicPartition, *offsets: int) -> None:
        def note(done: Offsets, error: ClientError | None) -> None:
            self.outcomes[done[where].offset] = error

        for offset in offsets:
            self.member.commit_nowait({where: OffsetAndMetadata(offset)}, note)

    async def polls_until(self, holds: Callable[[], object]) -> None:
        while not holds():
            await self.member.poll()
            await asyncio.sleep(0.001)


def run(test: Callable[[Coordinator], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(patient(30.0)):
            await test(Coordinator())

    asyncio.run(limited())


@pytest.mark.parametrize("auto", [False, True])
def test_a_member_that_closes_waits_for_its_commits(auto: bool) -> None:
    """Also for one that the listener has begun."""

    async def test(coordinator: Coordinator) -> None:
        reader = Committer(coordinator, auto=auto)
        listener = Listener(None, lambda _: reader.commit(HERE, 3), None)
        reader.member.subscribe(["t"], listener)
        await reader.polls_until(lambda: reader.member.assignment)
        reader.commit(HERE, 1, 2)
        await reader.member.close(patient(20.0))
        assert reader.outcomes == {1: None, 2: None, 3: None}
        assert coordinator.left_on == "", "not on the connection of the commits"

    run(test)


@pytest.mark.parametrize("auto", [False, True])
def test_partitions_are_given_up_after_the_commits_of_their_offsets(auto: bool) -> None:
    async def test(coordinator: Coordinator) -> None:
        reader = Committer(coordinator, auto=auto)
        listener = Listener(None, lambda _: reader.commit(THERE, 3), None)
        reader.member.subscribe(["t"], listener)
        await reader.polls_until(lambda: len(reader.member.assignment) == 2)
        coordinator.assigned = [0]
        reader.commit(THERE, 1, 2)
        await reader.polls_until(lambda: coordinator.owned == [0])
        assert reader.outcomes == {1: None, 2: None, 3: None}
        await reader.member.close(patient(20.0))

    run(test)


def test_a_leave_does_not_overtake_a_join() -> None:
    """Otherwise the member would be in the group until its session ends."""

    async def test(coordinator: Coordinator) -> None:
        coordinator.answers_joins.clear()
        reader = Committer(coordinator, auto=False)
        reader.member.subscribe(["t"])
        await reader.member.poll()
        await coordinator.joins.wait()
        await reader.member.close(patient(20.0))
        assert coordinator.left_on == "group"

    run(test)
