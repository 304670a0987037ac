"""How a member of a share group gets records and acknowledges them, without the library's consumer.

It has a share session with each leader, and sends one request at a time. What it gets it accepts,
releases or rejects after a while, sometimes too late. It extends the locks of some records, and
forgets others, which must come back when their locks end. Sometimes it asks a former leader, as a
client with old metadata does, or sends a request with a session epoch that cannot be right. After
the load it accepts everything at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.client.sharing.acknowledgements import Acknowledgement, AckType, Group
from penstock.client.sharing.acquired import Range, find_acquired
from penstock.client.sharing.membership import ShareMembership, SharePart
from penstock.client.sharing.requests import (
    FetchLimits,
    Member,
    share_acknowledge,
    share_fetch,
)
from penstock.client.sharing.session import FINAL, ShareSession
from penstock.sim.actors.share_board import ShareJudge
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import FAIL, INFO, OK, Poll, ShareAck, ShareExchange, ShareRange
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareAcknowledgeResponse, ShareFetchResponse
from penstock.wire.messages.base import Request

_PURPOSE: Final = "share"
_BYTES_MAX: Final = 1 << 20
_DECISIONS: Final = (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW, None)
_WEIGHTS: Final = (50, 20, 8, 10, 12)
"""What a member does with a record, and how often. None: it forgets the record."""
_DELAYS: Final = (0.0, 0.0, 0.2, 0.5, 0.9, 1.3)
"""How long it takes for that, as a share of the lock."""
_FORMER_SHARE: Final = 0.1
"""How often a member asks a former leader, if there is one."""
_FORMER_S: Final = 10.0
_WRONG_BY: Final = 3
"""No request can be under way that makes an epoch right which is wrong by so much."""
_SESSION_LOST: Final = (
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)
_RETRIED_ACKS: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
Answer = TypeVar("Answer", ShareFetchResponse, ShareAcknowledgeResponse)


@dataclass(slots=True)
class _Session:
    """A share session with one leader."""

    machine: ShareSession = field(default_factory=ShareSession)
    connection: Connection | None = None
    name: str = ""


@dataclass(slots=True)
class _Held:
    """A record that the member has, and what it is going to say about it."""

    part: SharePart
    offset: int
    broker: int
    count: int
    kind: AckType
    due_ms: float


class MemberSharing:
    def __init__(self, actor: Actor, cluster: Cluster, group: str) -> None:
        self._actor = actor
        self._shared = actor.shared
        self._board = actor.shared.shares
        self._cluster = cluster
        self._draws = actor.draws
        self._group = group
        plan = actor.shared.scenario.shares
        assert plan is not None
        self._lock_ms = plan.lock_s * 1000
        self._membership: ShareMembership | None = None
        self._topics = [topic.name for topic in actor.shared.scenario.topics]
        self._names: dict[bytes, str] = {}
        self._is_stale = True
        """Whether the leaders must be asked for again."""
        self._sessions: dict[int, _Session] = {}
        self._session_count = 0
        self._known_leaders: dict[SharePart, int] = {}
        self._former: dict[SharePart, tuple[int, float]] = {}
        """By partition: the leader before the one that is known, and until when to ask it."""
        self._held: dict[tuple[SharePart, int], _Held] = {}
        self._turns = asyncio.Lock()

    async def start_as(self, membership: ShareMembership) -> None:
        """Goes on as this member. What it had before comes back when the locks end."""
        async with self._turns:
            self._membership = membership
            self._sessions.clear()
            self._held.clear()

    async def run(self) -> None:
        while True:
            # In the end there may be nothing to do until far due times.
            is_idle = self._shared.over.is_set() and not self._held
            await asyncio.sleep((0.6 if is_idle else 0.02) + 0.15 * self._draws.random())
            try:
                async with self._turns:
                    await self._take_turn()
            except ClientError:
                self._is_stale = True

    async def end_sessions(self) -> None:
        """Ends all sessions as a member does that leaves. Their records are released."""
        async with self._turns:
            for broker, session in self._sessions.items():
                if session.machine.is_open:
                    await self._end_session(broker, session)

    # Turns

    async def _take_turn(self) -> None:
        if self._is_stale:
            await self._learn_leaders()
        leaders, due = self._leaders(), self._due()
        brokers = sorted({*leaders, *due})
        former = self._former_leaders()
        if former and self._draws.random() < _FORMER_SHARE:
            part, broker = self._draws.choice(former)
            self._shared.count("share_fetches_to_former_leaders")
            await self._ask(broker, frozenset({part}), due.get(broker, []))
        elif brokers:
            broker = self._draws.choice(brokers)
            await self._ask(broker, leaders.get(broker, frozenset()), due.get(broker, []))

    async def _learn_leaders(self) -> None:
        await self._cluster.refresh(self._topics)
        self._is_stale = False
        for name in self._topics:
            known = self._cluster.known_topic(name)
            if known is not None and not known.error_code:
                self._names[known.topic_id] = name

    def _leaders(self) -> dict[int, frozenset[SharePart]]:
        """Returns the assigned partitions by their leaders."""
        assert self._membership is not None
        found: dict[int, set[SharePart]] = {}
        for part in sorted(self._membership.assignment):
            name = self._names.get(part.topic_id)
            at = None if name is None else TopicPartition(name, part.partition)
            leader = None if at is None else self._cluster.known_leader(at)
            if leader is None:
                self._is_stale = True
            else:
                self._note_leader(part, leader.broker_id)
                found.setdefault(leader.broker_id, set()).add(part)
        return {broker: frozenset(parts) for broker, parts in found.items()}

    def _note_leader(self, part: SharePart, broker: int) -> None:
        known = self._known_leaders.setdefault(part, broker)
        if known != broker:
            self._known_leaders[part] = broker
            self._former[part] = known, self._shared.now_s() + _FORMER_S

    def _former_leaders(self) -> list[tuple[SharePart, int]]:
        """Returns the brokers that led partitions until a short time ago. They may not know that
        others have replaced them, and a client with old metadata still asks them."""
        now_s = self._shared.now_s()
        return [
            (part, broker) for part, (broker, until_s) in self._former.items() if now_s < until_s
        ]

    def _due(self) -> dict[int, list[_Held]]:
        now_ms = self._shared.now_ms()
        found: dict[int, list[_Held]] = {}
        for held in self._held.values():
            if held.due_ms <= now_ms or self._shared.over.is_set():
                found.setdefault(held.broker, []).append(held)
        return found

    async def _ask(self, broker: int, parts: frozenset[SharePart], due: list[_Held]) -> None:
        """Sends one request to a leader."""
        connection = await self._cluster.connection(broker, _PURPOSE)
        session = self._sessions.setdefault(broker, _Session())
        if connection is not session.connection:
            session.connection = connection
            session.machine.lost()
        if not session.machine.is_open:
            self._session_count += 1
            session.name = f"{self._actor.name}#{self._session_count}"
            await self._fetch(broker, session, parts, [])
            return
        renewals = [held for held in due if held.kind is AckType.RENEW]
        others = [held for held in due if held.kind is not AckType.RENEW]
        carried = [held for held in others if held.part in parts]
        chance = self._draws.random()
        if chance < 0.03:
            await self._send_wrong_epoch(broker, session)
        elif chance < 0.04 and not self._shared.over.is_set():
            await self._end_session(broker, session)
        elif renewals:
            await self._acknowledge(broker, session, renewals, renews=True)
        elif others and (chance < 0.5 or not carried):
            await self._acknowledge(broker, session, others)
        elif parts or session.machine.parts:
            await self._fetch(broker, session, parts, carried)

    # Requests

    @property
    def _member(self) -> Member:
        assert self._membership is not None
        return Member(self._group, self._membership.member_id)

    @property
    def _judge(self) -> ShareJudge:
        assert self._board.judge is not None
        return self._board.judge

    async def _fetch(
        self, broker: int, session: _Session, parts: frozenset[SharePart], due: list[_Held]
    ) -> None:
        draws = self._draws
        said = session.machine.fetch(parts)
        wait_ms = draws.choice((0, 100, 400))
        limits = FetchLimits(draws.choice((1, 3, 8, 20)), _BYTES_MAX, 1, wait_ms)
        mode = draws.choice((0, 1))
        request = share_fetch(self._member, said, limits, _groups(due), mode)
        views = {
            part: self._judge.view(self._group, self._name(part), broker) for part in sorted(parts)
        }
        begun_ms = self._shared.now_ms()
        answer = await self._call(broker, session, request, ShareFetchResponse, due)
        if answer is None:
            return
        codes: dict[SharePart, int] = {}
        ranges: list[tuple[SharePart, ShareRange]] = []
        for topic in answer.responses:
            for each in topic.partitions:
                part = SharePart(topic.topic_id, each.partition_index)
                codes[part] = each.acknowledge_error_code
                if each.error_code:
                    self._is_stale = True
                    self._shared.count(f"share_fetch_{ErrorCode(each.error_code).name.lower()}")
                ranges += [(part, found) for found in self._decode(part, each, begun_ms)]
        exchange = self._note(broker, session, begun_ms, due, codes, [each for _, each in ranges])
        self._settle(exchange, due, codes)
        for part, found in ranges:
            self._judge.on_delivered(exchange, found, views.get(part))
            self._hold(part, broker, found)

    async def _acknowledge(
        self, broker: int, session: _Session, due: list[_Held], *, renews: bool = False
    ) -> None:
        epoch = session.machine.acknowledge()
        request = share_acknowledge(self._member, epoch, _groups(due), renews=renews)
        begun_ms = self._shared.now_ms()
        answer = await self._call(broker, session, request, ShareAcknowledgeResponse, due)
        if answer is None:
            return
        codes = {
            SharePart(topic.topic_id, each.partition_index): each.error_code
            for topic in answer.responses
            for each in topic.partitions
        }
        exchange = self._note(broker, session, begun_ms, due, codes, [])
        self._settle(exchange, due, codes)

    async def _call(
        self,
        broker: int,
        session: _Session,
        request: Request,
        response_class: type[Answer],
        due: list[_Held],
    ) -> Answer | None:
        """Returns the answer. None if the request was refused as a whole."""
        assert session.connection is not None
        begun_ms = self._shared.now_ms()
        for ack in self._acks(due, {}):
            self._board.note_sent(self._group, ack)
        try:
            answer = await session.connection.call(request, response_class)
        except ClientError as error:
            session.machine.lost()
            self._note(broker, session, begun_ms, due, {}, [], status=INFO, error=str(error))
            self._put_off(due)
            raise
        if not answer.error_code:
            return answer
        code = ErrorCode(answer.error_code)
        session.machine.lost()
        self._shared.count(f"share_requests_{code.name.lower()}")
        codes = dict.fromkeys((held.part for held in due), answer.error_code)
        self._note(broker, session, begun_ms, due, codes, [], status=FAIL, error=code.name)
        self._put_off(due)
        if code not in _SESSION_LOST and not code.retriable:
            self._judge.fail("E41", f"{self._actor.name} was answered with {code.name}")
        return None

    async def _end_session(self, broker: int, session: _Session) -> None:
        session.machine.lost()
        for key in [key for key, held in self._held.items() if held.broker == broker]:
            del self._held[key]
        assert session.connection is not None
        request = share_acknowledge(self._member, FINAL, [])
        await session.connection.call(request, ShareAcknowledgeResponse)
        self._shared.count("share_sessions_ended")

    async def _send_wrong_epoch(self, broker: int, session: _Session) -> None:
        """Sends a request with an epoch that is not the next one. The leader must refuse it."""
        assert session.connection is not None
        epoch = session.machine.epoch + _WRONG_BY
        request = share_acknowledge(self._member, epoch, [])
        answer = await session.connection.call(request, ShareAcknowledgeResponse)
        self._shared.count("share_requests_of_wrong_epochs")
        if not answer.error_code:
            text = f"broker {broker} accepted session epoch {epoch} of {self._actor.name}"
            self._judge.fail("E40", f"{text}, which should be {session.machine.epoch}")

    # Records

    def _name(self, part: SharePart) -> str:
        return f"{self._names[part.topic_id]}-{part.partition}"

    def _decode(
        self, part: SharePart, answer: ShareFetchResponse.PartitionData, begun_ms: float
    ) -> list[ShareRange]:
        ranges = [
            Range(each.first_offset, each.last_offset, each.delivery_count)
            for each in answer.acquired_records
        ]
        if not ranges:
            return []
        records = answer.records
        data = b"".join(records) if isinstance(records, list) else records or b""
        found, name = find_acquired(memoryview(data), ranges, check_crcs=True), self._name(part)
        if found.gaps or found.damaged:
            text = f"{self._actor.name} got {ranges} without all of their records"
            self._judge.fail("E41", text, name)
        for each in ranges:
            values = tuple(
                (row.row[0], bytes(row.row[3] or b"").decode())
                for row in found.rows
                if each.first <= row.row[0] <= each.last
            )
            self._shared.history.add(
                Poll(
                    process=self._actor.name,
                    status=OK,
                    begun_ms=begun_ms,
                    ended_ms=self._shared.now_ms(),
                    reads={name: values},
                    moved=(name,),
                )
            )
        return [(name, each.first, each.last, each.deliveries) for each in ranges]

    def _hold(self, part: SharePart, broker: int, found: ShareRange) -> None:
        _, first, last, count = found
        self._shared.count("share_records_delivered", last - first + 1)
        for offset in range(first, last + 1):
            kind: AckType | None = AckType.ACCEPT
            due_ms = self._shared.now_ms()
            if not self._shared.over.is_set():
                kind = self._draws.choices(_DECISIONS, _WEIGHTS)[0]
                due_ms += self._lock_ms * self._draws.choice(_DELAYS)
            self._held.pop((part, offset), None)
            if kind is None:
                self._shared.count("share_records_forgotten")
            else:
                self._held[part, offset] = _Held(part, offset, broker, count, kind, due_ms)

    def _acks(self, due: list[_Held], codes: dict[SharePart, int]) -> list[ShareAck]:
        return [
            (
                self._name(held.part),
                held.offset,
                held.offset,
                int(held.kind),
                ErrorCode(codes[held.part]).name if held.part in codes else "",
            )
            for held in due
        ]

    def _settle(
        self, exchange: ShareExchange, due: list[_Held], codes: dict[SharePart, int]
    ) -> None:
        """Handles the answers to acknowledgements."""
        for held, ack in zip(due, exchange.acks, strict=True):
            code = ErrorCode(codes.get(held.part, ErrorCode.UNKNOWN_SERVER_ERROR))
            self._shared.count(f"share_acks_{held.kind.name.lower()}_{code.name.lower()}")
            if code is ErrorCode.NONE:
                self._judge.on_acknowledged(exchange, ack, held.count)
            elif code in _RETRIED_ACKS:
                self._put_off([held])
                continue
            if held.kind is AckType.RENEW and code is ErrorCode.NONE:
                held.kind = AckType.ACCEPT
                held.due_ms = self._shared.now_ms() + self._lock_ms * self._draws.choice(_DELAYS)
            else:
                self._held.pop((held.part, held.offset), None)

    def _put_off(self, due: list[_Held]) -> None:
        """It is unknown whether these took effect. Some are sent again, the others forgotten."""
        for held in due:
            if self._draws.random() < 0.5:
                held.due_ms = self._shared.now_ms() + 300
            else:
                self._held.pop((held.part, held.offset), None)

    def _note(
        self,
        broker: int,
        session: _Session,
        begun_ms: float,
        due: list[_Held],
        codes: dict[SharePart, int],
        delivered: list[ShareRange],
        *,
        status: str = OK,
        error: str = "",
    ) -> ShareExchange:
        exchange = ShareExchange(
            process=self._actor.name,
            status=status,
            begun_ms=begun_ms,
            ended_ms=self._shared.now_ms(),
            error=error,
            group=self._group,
            member_id=self._member.member_id,
            broker=broker,
            lock_ms=self._lock_ms,
            session=session.name,
            delivered=tuple(delivered),
            acks=tuple(self._acks(due, codes)),
        )
        self._shared.history.add(exchange)
        return exchange


def _groups(due: list[_Held]) -> list[Group]:
    groups: dict[SharePart, Group] = {}
    for held in sorted(due, key=lambda each: (each.part, each.offset)):
        ack = Acknowledgement(
            held.part, held.offset, held.offset, held.kind, 0.0, lambda error: None
        )
        groups.setdefault(held.part, []).append(ack)
    return [*groups.values()]
