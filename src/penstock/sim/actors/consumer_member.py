"""A member of a consumer group of the new protocol (KIP-848), without the library's consumer.

It follows the protocol: it sends heartbeats, reads the partitions that it is assigned from the
committed offset on, commits under its epoch, and stops reading a partition before it confirms its
revocation. It takes its time for that, sometimes more than it has. It leaves and comes back, some
members under an instance id, and changes its subscription and its assignor. Sometimes it commits
and sends heartbeats as it would have in the past, which brokers must refuse.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.groups.consumer.records import TopicIdPartition, by_topic
from penstock.sim.actors.classic_member import ClassicMember
from penstock.sim.actors.consumer_board import Answer, show_member
from penstock.sim.actors.consumer_reading import MemberReading
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import Entry
from penstock.sim.scenario import consumer_group_name
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

_JOIN: Final = 0
_LEAVE: Final = -1
_LEAVE_FOR_A_WHILE: Final = -2
_SUBSCRIPTIONS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("orders", "events"), ""),
    (("orders", "events"), ""),
    (("orders",), ""),
    (("events", "extra0"), ""),
    ((), "orders|extra.*"),
    (("events",), "extra.*"),
)
"""Names of topics, and a regular expression, or an empty one for none."""
_RETRIED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_FENCED: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
)
_NO_GROUP: Final = "a-group-without-members"
CLASSIC, NEW, EITHER = "classic", "new", "either"
_TIDES: Final = (CLASSIC, EITHER, NEW, EITHER)
_TIDE_S: Final = 4.0
STAYS, ENDS_CLASSIC, ENDS_NEW, RETIRES = "stays", "ends_classic", "ends_new", "retires"
"""What becomes of a member after the load: it keeps its protocol, changes to the classic one or to
the new one, or has the new one for a while and leaves for good. So a group ends with members of
both protocols, or is downgraded by a member that does not come back."""
_RETIRE_S: Final = 8.0
"""How long after the load a member leaves for good. Until then the others have changed."""


async def run_consumer_member(
    actor: Actor, *, group: int, instance_id: str | None, role: str = STAYS
) -> None:
    """Takes part in a group until the end of the run. Unless it `STAYS` with its protocol, it
    leaves now and then, and comes back with the other one."""
    board = actor.shared.consumers
    migrates = role != STAYS
    cluster = actor.cluster(actor.draws.choice((1_000, 3_000)))
    while True:
        try:
            await cluster.__aenter__()
            break
        except ClientError:
            await asyncio.sleep(0.5)
    name = consumer_group_name(group)
    reading = MemberReading(actor, cluster, name)
    parts = actor, cluster, name, instance_id, reading
    is_classic = migrates and _tide(actor) == CLASSIC
    if role == RETIRES:
        board.retiring[actor.name] = None
    member: _Member | ClassicMember
    member = ClassicMember(*parts) if is_classic else _Member(*parts)

    def on_killed() -> list[Entry]:
        """The process ends, and with it everything that it holds."""
        board.members.pop(actor.name, None)
        board.retiring.pop(actor.name, None)
        return []

    actor.shared.under_way[actor.name] = on_killed
    work = asyncio.ensure_future(reading.run())
    try:
        until_s: float | None = None
        while not board.done.is_set():
            if role == RETIRES and actor.shared.over.is_set():
                until_s = actor.shared.now_s() + _RETIRE_S if until_s is None else until_s
                if actor.shared.now_s() >= until_s:
                    actor.shared.count("members_that_retired")
                    break
            if migrates and _changes_sides(actor, member, role):
                await member.leave()
                actor.shared.count("members_that_changed_protocol")
                is_classic = isinstance(member, ClassicMember)
                member = _Member(*parts) if is_classic else ClassicMember(*parts)
            await member.live()
            interval_s = actor.shared.scenario.consumer_heartbeat_s
            await asyncio.sleep(interval_s * (0.5 + actor.draws.random()))
            if isinstance(member, _Member) and not actor.shared.over.is_set():
                await member.act_now_and_then()
    finally:
        work.cancel()
        await asyncio.wait([work])
        await member.leave()
        on_killed()
        cluster.close()


def _tide(actor: Actor) -> str:
    """Returns the protocol that the members of all groups prefer now. So whole groups change
    from one protocol to the other, and have members of both in between."""
    shared = actor.shared
    return _TIDES[int(shared.now_s() / _TIDE_S + shared.scenario.seed // 2) % len(_TIDES)]


def _changes_sides(actor: Actor, member: _Member | ClassicMember, role: str) -> bool:
    if actor.shared.over.is_set():
        return (role == ENDS_CLASSIC) is isinstance(member, _Member)
    tide = _tide(actor)
    if tide == EITHER:
        return actor.draws.random() < 0.03
    return (tide == CLASSIC) is isinstance(member, _Member) and actor.draws.random() < 0.5


class _Member:
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
        self._assignor = self._draws.choice((None, "uniform", "range"))
        self._names, self._regex = self._draws.choice(_SUBSCRIPTIONS)
        self._is_full = True
        """The next heartbeat tells everything, because the last one may not have arrived."""
        self._listed: frozenset[TopicIdPartition] | None = None
        """What the last answered heartbeat listed."""
        self._past: list[tuple[str, int]] = []
        """Ids and epochs that it had."""
        self.reading = reading
        reading.member_id, reading.epoch = self._new_id(), _JOIN
        self._show()

    def _new_id(self) -> str:
        return f"{self._actor.name}.{self._draws.randbytes(4).hex()}"

    def _show(self) -> None:
        """Shows on the board who this is now."""
        member_id = self.reading.member_id
        show_member(self._board, self._actor.name, self._group, member_id, self._names, self._regex)

    # Heartbeats

    async def act_now_and_then(self) -> None:
        chance = self._draws.random()
        if chance < 0.015:
            await self._leave_and_return()
        elif chance < 0.04:
            self._change_subscription()
        elif chance < 0.07:
            await self._act_as_of_old()

    async def live(self) -> None:
        """Sends one heartbeat."""
        reading, epoch = self.reading, self.reading.epoch
        held = frozenset(self._board.members[self._actor.name].held)
        tells = self._is_full or held != self._listed or self._draws.random() < 0.2
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=reading.member_id,
            member_epoch=epoch,
            instance_id=self._instance_id,
            topic_partitions=_listed(held) if tells else None,
        )
        if self._is_full:
            request.rebalance_timeout_ms = self._rebalance_ms
            request.subscribed_topic_names = sorted(self._names)
            request.subscribed_topic_regex = self._regex
            request.server_assignor = self._assignor
        is_full, self._is_full = self._is_full, False
        reading.told = held if tells else None
        answer = await self._call(request)
        reading.told = None
        code = None if answer is None else answer.error_code
        if answer is not None and code == ErrorCode.NONE:
            self._listed = held if tells else self._listed
            self._on_answer(answer, epoch)
            return
        self._is_full = self._is_full or is_full or code not in _FENCED
        if answer is None or code in _RETRIED:
            if tells:
                sent = self._actor.shared.now_ms(), held
                self._board.members[self._actor.name].unanswered.append(sent)
            self._cluster._coordinators.pop(self._group, None)
        else:
            await self._on_refused(ErrorCode(answer.error_code), epoch)

    async def _call(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Sends a request. Returns None if it has no answer: it may still arrive."""
        try:
            connection = await self._cluster.coordinator(request.group_id)
            return await connection.call(request, ConsumerGroupHeartbeatResponse)
        except ClientError:
            self._cluster._coordinators.pop(request.group_id, None)
            return None

    def _on_answer(self, answer: ConsumerGroupHeartbeatResponse, sent_epoch: int) -> None:
        reading, assigned = self.reading, None
        if answer.assignment is not None:
            assigned = frozenset(
                TopicIdPartition(topic.topic_id, index)
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            )
        assert self._board.judge is not None
        self._board.judge.on_answer(
            Answer(self._group, reading.member_id, sent_epoch, answer.member_epoch, assigned)
        )
        self._actor.shared.count("heartbeats")
        if sent_epoch == _JOIN:
            self._actor.shared.count("consumer_joins")
        if answer.member_epoch != reading.epoch:
            self._past.append((reading.member_id, reading.epoch))
        reading.epoch = answer.member_epoch
        if assigned is not None:
            reading.on_assigned(assigned)

    async def _on_refused(self, code: ErrorCode, epoch: int) -> None:
        shared = self._actor.shared
        shared.count(f"heartbeats_{code.name.lower()}")
        if code in _FENCED and epoch != _JOIN:
            self._start_again(new_id=self._draws.random() < 0.5)
        elif code is ErrorCode.UNRELEASED_INSTANCE_ID and epoch == _JOIN and self._instance_id:
            # The member before it did not say goodbye: it must time out first.
            await asyncio.sleep(0.3)
        else:
            self._refuse(code)

    def _refuse(self, code: ErrorCode) -> None:
        assert self._board.judge is not None
        self._board.judge.on_refused(self._group, self.reading.member_id, code.name)

    def _start_again(self, *, new_id: bool) -> None:
        """It has lost everything, and joins again."""
        reading = self.reading
        self._past.append((reading.member_id, reading.epoch))
        reading.lose_all()
        reading.epoch, self._is_full, self._listed = _JOIN, True, None
        if new_id or self._instance_id is not None:
            reading.member_id = self._new_id()
            self._show()

    # What it does now and then

    def _change_subscription(self) -> None:
        self._names, self._regex = self._draws.choice(_SUBSCRIPTIONS)
        self._assignor = self._draws.choice(("uniform", "range"))
        self._actor.shared.count("subscriptions_changed")
        self._is_full = True
        self._show()

    async def _leave_and_return(self) -> None:
        is_back_soon = self._instance_id is not None and self._draws.random() < 0.6
        await self._say_goodbye(_LEAVE_FOR_A_WHILE if is_back_soon else _LEAVE)
        self._actor.shared.count("members_left_for_a_while" if is_back_soon else "members_left")
        self._start_again(new_id=True)
        await self._actor.shared.rest(self._draws.choice((0.1, 1.0, 5.0)))

    async def leave(self) -> None:
        """Commits, stops reading and leaves the group for good."""
        await self._say_goodbye(_LEAVE)

    async def _say_goodbye(self, epoch: int) -> None:
        reading = self.reading
        await reading.give_up_all()
        if reading.epoch != _JOIN:
            await self._call(
                ConsumerGroupHeartbeatRequest(
                    group_id=self._group,
                    member_id=reading.member_id,
                    member_epoch=epoch,
                    instance_id=self._instance_id,
                )
            )

    async def _act_as_of_old(self) -> None:
        """Commits and sends a heartbeat under an id and an epoch that it had."""
        if not self._past:
            return
        member_id, epoch = self._draws.choice(self._past[-4:])
        self._actor.shared.count("members_of_old")
        if self._draws.random() < 0.7:
            await self.reading.commit_as(member_id, epoch)
            return
        is_known = self._draws.random() < 0.7
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group if is_known else _NO_GROUP,
            member_id=member_id,
            member_epoch=max(epoch, 1),
        )
        answer = await self._call(request)
        code = ErrorCode.NONE if answer is None else ErrorCode(answer.error_code)
        if code not in (ErrorCode.NONE, *_RETRIED, *_FENCED):
            self._refuse(code)


def _listed(
    held: frozenset[TopicIdPartition],
) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id, indexes)
        for topic_id, indexes in by_topic(held).items()
    ]
