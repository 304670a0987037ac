"""A member of a consumer group that speaks the classic protocol.

Its group is a classic one, or one of the new protocol that has members of both. The member does
not know which: it joins, fetches its assignment and sends heartbeats, and joins again when it is
told to. It tells what it still reads when it joins, or gives up everything before. If it leads a
classic group, it leaves every partition to the member that reads it, and deals out the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.membership.protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.groups.consumer.records import TopicIdPartition
from penstock.sim.actors.consumer_board import Answer, show_member
from penstock.sim.actors.consumer_reading import MemberReading
from penstock.sim.actors.shared_state import Actor
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Request, Response

_PROTOCOL: Final = "deal"
_PURPOSE: Final = "group"
_NO_GENERATION: Final = -1
_SUBSCRIPTIONS: Final = (("orders", "events"), ("orders", "events"), ("orders",))
_OTHER_COORDINATOR: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_UNKNOWN: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
_JOIN_AGAIN: Final = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
_EXTRA_S: Final = 3.0
"""How much longer than the rebalance timeout it waits for the end of a rebalance."""

R = TypeVar("R", bound=Response)


class ClassicMember:
    def __init__(
        self,
        actor: Actor,
        cluster: Cluster,
        group: str,
        instance_id: str | None,
        reading: MemberReading,
    ) -> None:
        self._actor = actor
        self._board = actor.shared.consumers
        self._cluster = cluster
        self._draws = actor.draws
        self._group = group
        self._instance_id = instance_id
        self._rebalance_ms = self._draws.choice((1_500, 3_000, 6_000))
        self._names = self._draws.choice(_SUBSCRIPTIONS)
        self._is_joined = False
        self.reading = reading
        self._forget()

    def _show(self) -> None:
        show_member(self._board, self._actor.name, self._group, self.reading.member_id, self._names)

    def _forget(self) -> None:
        """It has lost everything, and joins as a new member."""
        self.reading.lose_all()
        self.reading.member_id, self.reading.epoch = "", _NO_GENERATION
        self._is_joined = False
        self._show()

    async def live(self) -> None:
        """Joins the group, or sends one heartbeat."""
        try:
            await (self._beat() if self._is_joined else self._join())
        except ClientError:
            self._cluster._coordinators.pop(self._group, None)

    async def leave(self) -> None:
        """Commits, stops reading and leaves the group."""
        await self.reading.give_up_all()
        if self.reading.member_id:
            leaving = LeaveGroupRequest.Member(self.reading.member_id, self._instance_id)
            request = LeaveGroupRequest(self._group, members=[leaving])
            await self._call(request, LeaveGroupResponse, frozenset())
        self._forget()

    async def _call(
        self, request: Request, response: type[R], listed: frozenset[TopicIdPartition] | None
    ) -> R | None:
        """Sends a request. Returns None if it has no answer: then it may still arrive. `listed` is
        what it says that the member reads."""
        try:
            connection = await self._cluster.coordinator(self._group, purpose=_PURPOSE)
            limit_s = self._rebalance_ms / 1000 + _EXTRA_S
            return await connection.call(request, response, timeout_s=limit_s)
        except ClientError:
            self._cluster._coordinators.pop(self._group, None)
            if listed is not None:
                sent = self._actor.shared.now_ms(), listed
                self._board.members[self._actor.name].unanswered.append(sent)
            return None

    # Joining

    async def _join(self) -> None:
        reading = self.reading
        if self._draws.random() < 0.4:
            await reading.give_up_all()
        held = frozenset(self._board.members[self._actor.name].held)
        reading.told = held
        try:
            joined = await self._call(self._join_request(held), JoinGroupResponse, held)
            if joined is not None and self._accepts(ErrorCode(joined.error_code), joined.member_id):
                await self._sync(joined, held)
        finally:
            reading.told = None

    def _join_request(self, held: Collection[TopicIdPartition]) -> JoinGroupRequest:
        owned = tuple(sorted(map(self.reading.named, held)))
        subscription = Subscription(self._names, owned, self.reading.epoch)
        return JoinGroupRequest(
            self._group,
            int(self._actor.shared.scenario.consumer_session_s * 1000),
            self._rebalance_ms,
            self.reading.member_id,
            self._instance_id,
            "consumer",
            [JoinGroupRequest.Protocol(_PROTOCOL, encode_subscription(subscription))],
        )

    def _accepts(self, code: ErrorCode, member_id: str = "") -> bool:
        """Acts on an error. Returns whether there was none."""
        if code is ErrorCode.NONE:
            return True
        self._actor.shared.count(f"classic_{code.name.lower()}")
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.reading.member_id = member_id
            self._show()
        elif code in _OTHER_COORDINATOR:
            self._cluster._coordinators.pop(self._group, None)
        elif code in _UNKNOWN:
            self._forget()
        elif code in _JOIN_AGAIN:
            self._is_joined = False
        else:
            assert self._board.judge is not None
            self._board.judge.on_refused(self._group, self.reading.member_id, code.name)
        return False

    async def _sync(self, joined: JoinGroupResponse, held: frozenset[TopicIdPartition]) -> None:
        reading = self.reading
        if joined.member_id != reading.member_id and held:
            # A static member has a new id. Its holds were those of the old one.
            reading.lose_all()
        reading.member_id, reading.epoch = joined.member_id, joined.generation_id
        self._show()
        await reading.learn_names()
        given: list[SyncGroupRequest.Assignment] = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            given = [
                SyncGroupRequest.Assignment(member_id, encode_assignment(partitions))
                for member_id, partitions in dealt(joined.members, reading.counts).items()
            ]
        request = SyncGroupRequest(
            self._group,
            joined.generation_id,
            joined.member_id,
            self._instance_id,
            "consumer",
            _PROTOCOL,
            given,
        )
        answer = await self._call(request, SyncGroupResponse, None)
        if answer is None or not self._accepts(ErrorCode(answer.error_code)):
            return
        assigned = frozenset(map(reading.identified, decode_assignment(answer.assignment)))
        if not joined.leader:
            assert self._board.judge is not None
            generation = joined.generation_id
            self._board.judge.on_answer(
                Answer(self._group, reading.member_id, 0, generation, assigned)
            )
        self._actor.shared.count("classic_joins" if joined.leader else "classic_joins_of_new_group")
        self._is_joined = True
        reading.on_assigned(assigned)

    # Staying

    async def _beat(self) -> None:
        request = HeartbeatRequest(
            self._group, self.reading.epoch, self.reading.member_id, self._instance_id
        )
        answer = await self._call(request, HeartbeatResponse, None)
        if answer is not None:
            self._accepts(ErrorCode(answer.error_code))


def dealt(
    members: Collection[JoinGroupResponse.Member], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Returns the assignment that the leader of a classic group makes."""
    subscriptions = {each.member_id: decode_subscription(each.metadata) for each in members}
    given: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
    readers: dict[TopicPartition, list[str]] = {}
    for member_id, subscription in subscriptions.items():
        for each in subscription.owned:
            readers.setdefault(each, []).append(member_id)
    for topic, count in sorted(counts.items()):
        takers = [each for each, wants in subscriptions.items() if topic in wants.topics]
        for partition in (TopicPartition(topic, index) for index in range(count)):
            held_by = readers.get(partition, [])
            if not held_by and takers:
                given[min(takers, key=lambda each: len(given[each]))].append(partition)
            elif len(held_by) == 1 and held_by[0] in takers:
                given[held_by[0]].append(partition)
    return given
