"""A cluster in memory whose leaders deliver records to a share consumer, refuse, hang and die."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from penstock.client.errors import ConnectFailed, ConnectionLost
from penstock.client.leaders import Leader
from penstock.records.record import Record, build_batch
from penstock.runtime import SystemClock, SystemRandom
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    MetadataResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

TOPIC = "jobs"
TOPIC_ID = bytes(15) + b"\1"
LOCK_MS = 600_000
"""No test waits for the end of a lock."""


@dataclass
class FakeLeader:
    """One broker. It delivers each offset of `to_deliver` once."""

    broker_id: int
    to_deliver: list[int] = field(default_factory=list)
    delivers_first: bool = False
    """Acknowledgements are to be repeated until everything is delivered."""
    accepted: list[int] = field(default_factory=list)
    is_dead: bool = False
    hangs: bool = False
    """It does not answer acknowledgements."""
    hangs_at_fetch: bool = False
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an acknowledgement has arrived."""
    fetch_hangs: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a fetch has arrived that it does not answer."""
    died: asyncio.Event = field(default_factory=asyncio.Event)

    def die(self) -> None:
        self.is_dead = True
        self.died.set()

    def version_of(self, _: object) -> int:
        return 2

    async def call(self, request: Any, _: object, *, timeout_s: float | None = None) -> Any:
        if self.is_dead:
            raise ConnectionLost("the connection was closed")
        if isinstance(request, ShareFetchRequest):
            carries = any(
                part.acknowledgement_batches
                for topic in request.topics
                for part in topic.partitions
            )
            if self.hangs and carries:
                self.asked.set()
            if self.hangs_at_fetch:
                self.fetch_hangs.set()
            await self._hang(self.hangs_at_fetch or (self.hangs and carries))
            return await self._fetch(request)
        assert isinstance(request, ShareAcknowledgeRequest)
        return await self._acknowledge(request)

    async def _fetch(self, request: ShareFetchRequest) -> ShareFetchResponse:
        acks = self._settle(request)
        if not self.to_deliver or not request.max_records:
            await asyncio.sleep(min(request.max_wait_ms, 20) / 1000)
            return _fetched(acks)
        offsets, self.to_deliver = self.to_deliver, []
        part = acks.setdefault(0, ShareFetchResponse.PartitionData(0))
        part.records = bytes(
            build_batch([Record(each, 1, None, b"%d" % each) for each in range(max(offsets) + 1)])
        )
        part.acquired_records = [
            ShareFetchResponse.AcquiredRecords(each, each, 1) for each in offsets
        ]
        return _fetched(acks)

    async def _acknowledge(self, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
        self.asked.set()
        await self._hang(self.hangs)
        parts = [
            ShareAcknowledgeResponse.PartitionData(index, part.acknowledge_error_code)
            for index, part in self._settle(request).items()
        ]
        answer = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=LOCK_MS)
        answer.responses = [ShareAcknowledgeResponse.TopicResponse(TOPIC_ID, parts)]
        return answer

    async def _hang(self, hangs: bool) -> None:
        if hangs:
            await self.died.wait()
            raise ConnectionLost("the connection was closed")

    def _settle(
        self, request: ShareFetchRequest | ShareAcknowledgeRequest
    ) -> dict[int, ShareFetchResponse.PartitionData]:
        found: dict[int, ShareFetchResponse.PartitionData] = {}
        for topic in request.topics:
            for part in topic.partitions:
                if not part.acknowledgement_batches:
                    continue
                code = ErrorCode.NONE
                if self.delivers_first and self.to_deliver:
                    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                answer = ShareFetchResponse.PartitionData(part.partition_index)
                answer.acknowledge_error_code = code
                found[part.partition_index] = answer
                if code == ErrorCode.NONE:
                    self.accepted += [each.first_offset for each in part.acknowledgement_batches]
        return found


def _fetched(parts: dict[int, ShareFetchResponse.PartitionData]) -> ShareFetchResponse:
    answer = ShareFetchResponse(acquisition_lock_timeout_ms=LOCK_MS)
    answer.responses = [ShareFetchResponse.TopicResponse(TOPIC_ID, list(parts.values()))]
    return answer


class FakeCoordinator:
    """Assigns partition 0 to every member."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    async def call(self, request: ShareGroupHeartbeatRequest, _: object) -> Any:
        self.epochs.append(request.member_epoch)
        parts = ShareGroupHeartbeatResponse.TopicPartitions(TOPIC_ID, [0])
        return ShareGroupHeartbeatResponse(
            member_epoch=1,
            heartbeat_interval_ms=5_000,
            assignment=ShareGroupHeartbeatResponse.Assignment([parts]),
        )


class FakeCluster:
    """What a share consumer needs of `Cluster`. Broker `leader` leads partition 0."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.random = SystemRandom()
        self.config = SimpleNamespace(retry_backoff_s=0.005, retry_backoff_max_s=0.02)
        self.nodes = {1: FakeLeader(1), 2: FakeLeader(2)}
        self.group = FakeCoordinator()
        self.executor: Any = None
        self.leader = self._known = 1
        self._epoch = 1
        self.avoided: frozenset[int] = frozenset()
        """The brokers that were not to be asked for metadata."""
        self.refused = 0
        """Attempts to connect to a broker that is dead."""

    def move_to(self, broker_id: int) -> None:
        """Another broker leads from now on. The client learns it with its next refresh."""
        self.leader = broker_id

    async def refresh(self, _: object, *, avoid: frozenset[int] = frozenset()) -> None:
        self.avoided |= avoid
        await asyncio.sleep(0)
        if self._known != self.leader:
            self._known = self.leader
            self._epoch += 1

    def known_topic(self, _: str) -> MetadataResponse.Topic:
        part = MetadataResponse.Partition(0, 0, self._known, self._epoch)
        return MetadataResponse.Topic(0, TOPIC, TOPIC_ID, partitions=[part])

    def known_leader(self, _: TopicPartition) -> Leader:
        return Leader(self._known, self._epoch)

    async def coordinator(self, group: str, *, purpose: str = "", fresh: bool = False) -> Any:
        return self.group

    async def connection(self, broker_id: int, purpose: str = "") -> Any:
        if self.nodes[broker_id].is_dead:
            self.refused += 1
            raise ConnectFailed(f"broker {broker_id}", "it is not in the cluster at the moment")
        return self.nodes[broker_id]
