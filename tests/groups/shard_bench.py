"""A shard that a test drives: requests in, responses and records out."""

from __future__ import annotations

from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.wire.codec import encode_embedded
from penstock.wire.messages import (
    ConsumerProtocolSubscription,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

from .world import World

FAST = GroupConfig(initial_rebalance_delay_ms=0)
SUBSCRIPTION = encode_embedded(ConsumerProtocolSubscription(["orders"]), 1)


class Bench(World):
    """A world with short methods for the requests."""

    def __init__(self, config: GroupConfig = FAST) -> None:
        super().__init__(config)
        self._tokens = 0

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 3,
        group: str = "g",
        instance: str | None = None,
        kind: str = "consumer",
        metadata: bytes = SUBSCRIPTION,
        protocols: tuple[str, ...] = ("range",),
        rebalance_ms: int = 60_000,
        client: str = "c",
    ) -> int:
        token = self.token()
        request = JoinGroupRequest(
            group,
            10_000,
            rebalance_ms,
            member_id,
            instance,
            kind,
            [JoinGroupRequest.Protocol(name, metadata) for name in protocols],
        )
        info = RequestInfo(client, "/127.0.0.1", version)
        self.carry_out(self.shard.join_group(request, info, token, self.now))
        return token

    def joined(self, token: int) -> JoinGroupResponse:
        response = self.replies[token]
        assert isinstance(response, JoinGroupResponse)
        return response

    def sync(self, request: SyncGroupRequest, version: int = 3) -> int:
        token = self.token()
        info = RequestInfo("c", "/127.0.0.1", version)
        self.carry_out(self.shard.sync_group(request, info, token, self.now))
        return token

    def synced(self, token: int) -> SyncGroupResponse:
        response = self.replies[token]
        assert isinstance(response, SyncGroupResponse)
        return response

    def run_group(self, count: int = 1, **options: str) -> list[str]:
        """Makes a stable group with `count` members. Returns their ids."""
        # `join` has options of several types; these are its texts.
        tokens = [self.join(**options) for _ in range(count)]  # type: ignore[arg-type]
        self.advance(1)
        ids = [self.joined(token).member_id for token in tokens]
        shares = [SyncGroupRequest.Assignment(name, name.encode()) for name in ids]
        group = options.get("group", "g")
        leader = self.joined(tokens[0]).leader
        for name in sorted(ids, key=lambda name: name != leader):
            self.sync(SyncGroupRequest(group, 1, name, assignments=shares))
        return ids

    def commit(
        self,
        partitions: dict[int, int],
        *,
        member_id: str = "",
        generation: int = -1,
        version: int = 8,
        note: str | None = None,
        retention_ms: int = -1,
        topic: str = "orders",
    ) -> int:
        token = self.token()
        request = OffsetCommitRequest(
            "g",
            generation,
            member_id,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequest.Topic(
                    topic,
                    partitions=[
                        OffsetCommitRequest.Partition(index, offset, committed_metadata=note)
                        for index, offset in partitions.items()
                    ],
                )
            ],
        )
        info = RequestInfo("c", "/127.0.0.1", version)
        self.carry_out(self.shard.offset_commit(request, info, token, self.now))
        return token

    def committed(self, token: int) -> list[int]:
        response = self.replies[token]
        assert isinstance(response, OffsetCommitResponse)
        return [one.error_code for topic in response.topics for one in topic.partitions]

    def leave(self, request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
        token = self.token()
        info = RequestInfo("c", "/127.0.0.1", version)
        self.carry_out(self.shard.leave_group(request, info, token, self.now))
        response = self.replies[token]
        assert isinstance(response, LeaveGroupResponse)
        return response

    def delete_offset(self, topic: str, group: str = "g") -> OffsetDeleteResponse:
        token = self.token()
        request = OffsetDeleteRequest(
            group, [OffsetDeleteRequest.Topic(topic, [OffsetDeleteRequest.Partition(0)])]
        )
        info = RequestInfo("c", "/127.0.0.1", 0)
        self.carry_out(self.shard.offset_delete(request, info, token, self.now))
        response = self.replies[token]
        assert isinstance(response, OffsetDeleteResponse)
        return response

    def offsets(self) -> dict[tuple[str, int], int]:
        asked = OffsetFetchRequest.Group("g", topics=None)
        answer = self.shard.fetch_offsets(asked, require_stable=True)
        return {
            (topic.name, one.partition_index): one.committed_offset
            for topic in answer.topics
            for one in topic.partitions
        }

    def state(self, group: str = "g") -> str:
        return self.shard.describe_groups([group], 5)[0].group_state
