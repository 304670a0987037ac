"""How a member of a consumer group reads the partitions that it is assigned.

It begins at the committed offset, reads on, and commits. When a partition is revoked, it mostly
commits, and stops reading some time later. In topics that nobody writes to it only counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.groups.consumer.records import TopicIdPartition
from penstock.sim.actors.consumer_board import CommitClaim
from penstock.sim.actors.guest import records_from
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import OK, Poll
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_FETCH_VERSION_MAX: Final = 12
_BYTES_MAX: Final = 1 << 20
_OTHER_COORDINATOR: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_REFUSED_COMMITS: Final = (
    *_OTHER_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    # These are for members that speak the classic protocol.
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
)
"""What a commit may be refused with."""


class MemberReading:
    def __init__(self, actor: Actor, cluster: Cluster, group: str) -> None:
        self._actor = actor
        self._board = actor.shared.consumers
        self._cluster = cluster
        self._draws = actor.draws
        self._group = group
        self.member_id = ""
        self.epoch = 0
        self.told: frozenset[TopicIdPartition] | None = None
        """What the heartbeat lists that is under way. A partition that it lacks is not begun."""
        self._target: frozenset[TopicIdPartition] = frozenset()
        self._names: dict[bytes, str] = {}
        self.counts: dict[str, int] = {}
        """By topic: how many partitions it has."""
        self._positions: dict[TopicIdPartition, int] = {}
        """Of the partitions that it reads."""
        self._ends_ms: dict[TopicIdPartition, float] = {}
        """When it stops reading partitions that are revoked."""
        self._commits = 0

    # The assignment

    def on_assigned(self, target: frozenset[TopicIdPartition]) -> None:
        shared = self._actor.shared
        self._target = target
        for partition in self._positions:
            if partition in target:
                self._ends_ms.pop(partition, None)
            elif partition not in self._ends_ms:
                pauses = (0.0, 0.0) if shared.over.is_set() else (0.0, 0.0, 0.5, 2.0, 8.0)
                self._ends_ms[partition] = shared.now_ms() + 1000 * self._draws.choice(pauses)

    def lose_all(self) -> None:
        """Stops reading at once, because another member may read by now."""
        self._target = frozenset()
        for partition in [*self._positions]:
            self._stop(partition)

    async def give_up_all(self) -> None:
        """Commits, and stops reading."""
        self._target = frozenset()
        await self._commit(dict(self._positions))
        self.lose_all()

    def _stop(self, partition: TopicIdPartition) -> None:
        self._positions.pop(partition, None)
        self._ends_ms.pop(partition, None)
        self._board.release(self._actor.name, partition)

    # Work

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05 + 0.3 * self._draws.random())
            try:
                await self._stop_revoked()
                await self._begin_assigned()
                await self._read_one()
                if self._draws.random() < 0.5:
                    await self._commit(dict(self._positions))
            except ClientError:
                self._cluster._coordinators.pop(self._group, None)

    async def _stop_revoked(self) -> None:
        now_ms = self._actor.shared.now_ms()
        due = [partition for partition, at in self._ends_ms.items() if at <= now_ms]
        if not due:
            return
        if self._draws.random() < 0.8:
            await self._commit({each: self._positions[each] for each in due})
        for partition in due:
            if partition in self._ends_ms:
                self._actor.shared.count("partitions_given_up")
                self._stop(partition)

    async def _begin_assigned(self) -> None:
        new = [each for each in sorted(self._target) if each not in self._positions]
        if not new:
            return
        if any(each.topic_id not in self._names for each in new):
            await self.learn_names()
        new = [each for each in new if each.topic_id in self._names]
        identity = self.member_id, self.epoch
        offsets = await self._committed(new)
        for partition, offset in offsets.items():
            if (
                partition in self._target
                and partition not in self._positions
                and (self.told is None or partition in self.told)
                and identity == (self.member_id, self.epoch)
            ):
                self._positions[partition] = max(offset, 0)
                self._board.hold(self._actor.name, partition)
                self._actor.shared.count("partitions_taken")

    async def learn_names(self) -> None:
        answer = await self._cluster._refresh(MetadataRequest(topics=None))
        for topic in answer.topics:
            if topic.name is not None and not topic.error_code:
                self._names[topic.topic_id] = topic.name
                self.counts[topic.name] = len(topic.partitions)

    def named(self, partition: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._names[partition.topic_id], partition.partition)

    def identified(self, partition: TopicPartition) -> TopicIdPartition:
        """Returns a partition of a topic whose name it has learned, and that is never deleted."""
        topic_id = next(each for each, name in self._names.items() if name == partition.topic)
        return TopicIdPartition(topic_id, partition.partition)

    async def _read_one(self) -> None:
        """Reads from one partition."""
        if not self._positions:
            return
        partition = self._draws.choice(sorted(self._positions))
        at = TopicPartition(self._names[partition.topic_id], partition.partition)
        position = self._positions[partition]
        if str(at) not in self._actor.shared.scenario.partition_names:
            self._positions[partition] = position + self._draws.choice((0, 1, 3))
            return
        begun_ms = self._actor.shared.now_ms()
        connection = await self._cluster.connection(await self._cluster.leader(at))
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=_BYTES_MAX,
            topics=[
                FetchRequest.Topic(
                    topic=at.topic,
                    partitions=[
                        FetchRequest.Partition(
                            partition=at.partition,
                            fetch_offset=position,
                            partition_max_bytes=_BYTES_MAX,
                        )
                    ],
                )
            ],
        )
        answer = await connection.call(request, FetchResponse, version_max=_FETCH_VERSION_MAX)
        part = answer.responses[0].partitions[0] if answer.responses else None
        if answer.error_code or part is None or part.error_code:
            self._cluster.forget(at.topic)
            return
        found = records_from(part, position)
        if found and self._positions.get(partition) == position:
            self._positions[partition] = found[-1][0] + 1
            self._note(str(at), found, begun_ms)

    def _note(
        self, partition_name: str, found: tuple[tuple[int, str], ...], begun_ms: float
    ) -> None:
        shared = self._actor.shared
        shared.count("records_read", len(found))
        shared.history.add(
            Poll(
                process=self._actor.name,
                status=OK,
                begun_ms=begun_ms,
                ended_ms=shared.now_ms(),
                reads={partition_name: found},
                moved=(partition_name,),
            )
        )

    # Offsets

    async def _committed(self, partitions: list[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        """Returns the committed offsets, -1 for none. Leaves out those that it does not learn."""
        judge = self._board.judge
        assert judge is not None
        by_name: dict[str, dict[int, TopicIdPartition]] = {}
        for each in partitions:
            by_name.setdefault(self._names[each.topic_id], {})[each.partition] = each
        least = {
            (name, index): judge.acked(self._group, f"{name}-{index}")
            for name, indexes in by_name.items()
            for index in indexes
        }
        topics = [
            OffsetFetchRequest.GroupTopic(name, partition_indexes=[*indexes])
            for name, indexes in by_name.items()
        ]
        group = OffsetFetchRequest.Group(self._group, self.member_id, self.epoch, topics)
        connection = await self._cluster.coordinator(self._group)
        answer = await connection.call(
            OffsetFetchRequest(groups=[group], require_stable=True), OffsetFetchResponse
        )
        found: dict[TopicIdPartition, int] = {}
        if answer.groups[0].error_code in _OTHER_COORDINATOR:
            self._cluster._coordinators.pop(self._group, None)
        if answer.groups[0].error_code:
            return found
        for topic in answer.groups[0].topics:
            for part in topic.partitions:
                if not part.error_code:
                    name, index = topic.name, part.partition_index
                    metadata = part.metadata or ""
                    about = f"{name}-{index}"
                    judge.on_fetched(self._group, about, metadata, least[name, index])
                    found[by_name[name][index]] = part.committed_offset
        return found

    async def _commit(self, positions: Mapping[TopicIdPartition, int]) -> None:
        offsets = {
            TopicPartition(self._names[each.topic_id], each.partition): offset
            for each, offset in positions.items()
        }
        if offsets:
            await self._send_commit(self.member_id, self.epoch, offsets)

    async def commit_as(self, member_id: str, epoch: int) -> None:
        """Commits under an id and an epoch that the member had."""
        at = TopicPartition.parse(self._draws.choice(self._actor.shared.scenario.partition_names))
        await self._send_commit(member_id, epoch, {at: 0})

    async def _send_commit(
        self, member_id: str, epoch: int, offsets: Mapping[TopicPartition, int]
    ) -> None:
        claims: dict[tuple[str, int], str] = {}
        topics: dict[str, OffsetCommitRequest.Topic] = {}
        for at, offset in offsets.items():
            self._commits += 1
            metadata = f"{self._actor.name}#{self._commits}"
            claims[at.topic, at.partition] = metadata
            self._board.claims[metadata] = CommitClaim(self._group, member_id, epoch, str(at))
            topic = topics.setdefault(at.topic, OffsetCommitRequest.Topic(name=at.topic))
            topic.partitions.append(
                OffsetCommitRequest.Partition(at.partition, offset, committed_metadata=metadata)
            )
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[*topics.values()],
        )
        try:
            connection = await self._cluster.coordinator(self._group)
            answer = await connection.call(request, OffsetCommitResponse)
        except ClientError:
            self._cluster._coordinators.pop(self._group, None)
            return
        for found in answer.topics:
            for part in found.partitions:
                metadata = claims[found.name, part.partition_index]
                self._on_commit(ErrorCode(part.error_code), member_id, metadata)

    def _on_commit(self, code: ErrorCode, member_id: str, metadata: str) -> None:
        judge = self._board.judge
        assert judge is not None
        self._actor.shared.count(f"consumer_commits_{code.name.lower()}")
        if code is ErrorCode.NONE:
            judge.on_acked(self._board.claims[metadata], metadata)
        elif code not in _REFUSED_COMMITS:
            judge.on_refused(self._group, member_id, f"{code.name} to a commit")
        elif code in _OTHER_COORDINATOR:
            self._cluster._coordinators.pop(self._group, None)
