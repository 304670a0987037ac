"""A membership machine, with a coordinator whose answers and clock are set by the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.client.membership.assignors import COOPERATIVE_STICKY, RANGE, Assignor
from penstock.client.membership.machine import Membership
from penstock.client.membership.phases import Phase
from penstock.client.membership.protocol import (
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import Ask, Count, News, Step, Wait
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Request

R = TypeVar("R", bound=Request)
ME, OTHER = "me-1", "other-1"


def topic_partitions(*numbers: int, topic: str = "t") -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


class Rig:
    def __init__(
        self, assignors: Sequence[Assignor] = (RANGE,), topics: str = "t", **options: object
    ) -> None:
        given: dict[str, object] = {"heartbeat_interval_ms": 3_000, **options}
        settings = MembershipOptions("g", assignors=tuple(assignors), **given)  # type: ignore[arg-type]
        self.machine = Membership(settings, lambda: 0.5)
        self.now = 100.0
        self.machine.subscribe(frozenset(topics), self.now)

    def is_in(self, phase: Phase) -> bool:
        return self.machine.phase is phase

    def step(self) -> Step:
        return self.machine.step(self.now)

    def asks(self, kind: type[R]) -> R:
        """Returns the request that the machine wants to send now, which must be of this kind."""
        step = self.step()
        assert isinstance(step, Ask), step
        assert isinstance(step.request, kind), step
        return step.request

    def waits(self) -> float | None:
        """Returns how many seconds the machine waits before its next step."""
        step = self.step()
        assert isinstance(step, Wait), step
        return None if step.until is None else round(step.until - self.now, 3)

    def joins(
        self,
        *,
        code: ErrorCode = ErrorCode.NONE,
        generation: int = 1,
        leader: str = OTHER,
        members: Sequence[tuple[str, Subscription | bytes]] = (),
        member_id: str = ME,
        skip: bool = False,
    ) -> JoinGroupRequest:
        """Expects a JoinGroup request and answers it."""
        request = self.asks(JoinGroupRequest)
        answer = JoinGroupResponse(
            0,
            code,
            generation,
            "consumer",
            request.protocols[0].name,
            leader,
            skip,
            member_id,
            [
                JoinGroupResponse.Member(
                    name, None, wants if isinstance(wants, bytes) else encode_subscription(wants)
                )
                for name, wants in members
            ],
        )
        self.machine.on_answer(answer, self.now)
        return request

    def syncs(self, *given: TopicPartition, code: ErrorCode = ErrorCode.NONE) -> SyncGroupRequest:
        """Expects a SyncGroup request and answers it."""
        request = self.asks(SyncGroupRequest)
        answer = SyncGroupResponse(0, code, assignment=encode_assignment(given))
        self.machine.on_answer(answer, self.now)
        return request

    def beats(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Advances the clock to the next heartbeat and answers it."""
        pause = self.waits()
        assert pause is not None
        self.now += pause
        self.machine.on_answer(HeartbeatResponse(0, code), self.now)

    def counts(self, **counts: int) -> tuple[str, ...]:
        step = self.step()
        assert isinstance(step, Count), step
        self.machine.on_counts(counts, self.now)
        return step.topics

    def polls(self) -> list[News]:
        """Polls, and acknowledges all news."""
        heard: list[News] = []
        while (news := self.machine.poll(self.now)) is not None:
            heard.append(news)
            self.machine.told(news, self.now)
            assert len(heard) < 10, heard
        return heard

    def settle(self, *given: TopicPartition, generation: int = 1) -> None:
        """Takes the machine from its first poll to a stable member with this assignment."""
        self.polls()
        self.joins(generation=generation)
        self.syncs(*given)
        self.polls()


def wish(request: JoinGroupRequest, protocol: int = 0) -> Subscription:
    return decode_subscription(request.protocols[protocol].metadata)


def cooperative(**options: object) -> Rig:
    return Rig((COOPERATIVE_STICKY,), **options)  # type: ignore[arg-type]
