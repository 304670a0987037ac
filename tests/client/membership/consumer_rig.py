"""A member of the new protocol, with a coordinator whose answers and clock are set by the test."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.membership.consumer_machine import ConsumerMembership
from penstock.client.membership.phases import Phase
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import Ask, News, Step, Wait
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
)

ME = "me"
INTERVAL_S = 5.0


def topic_id(topic: str, life: int = 1) -> bytes:
    return f"{topic}-{life}".encode().ljust(16, b".")


def owned_in(request: ConsumerGroupHeartbeatRequest) -> dict[bytes, list[int]] | None:
    if request.topic_partitions is None:
        return None
    return {each.topic_id: each.partitions for each in request.topic_partitions}


class ConsumerRig:
    def __init__(self, topics: str = "t", regex: str | None = None, **options: object) -> None:
        settings = MembershipOptions("g", group_protocol="consumer", **options)  # type: ignore[arg-type]
        self.machine = ConsumerMembership(settings, lambda: 0.5, ME)
        self.now = 100.0
        self.machine.subscribe(frozenset(topics), self.now, regex)

    def is_in(self, phase: Phase) -> bool:
        return self.machine.phase is phase

    def step(self) -> Step:
        return self.machine.step(self.now)

    def asks(self) -> ConsumerGroupHeartbeatRequest:
        """Returns the heartbeat that the machine wants to send now."""
        step = self.step()
        assert isinstance(step, Ask), step
        assert isinstance(step.request, ConsumerGroupHeartbeatRequest), step
        return step.request

    def waits(self) -> float | None:
        """Returns how many seconds the machine waits before its next step."""
        step = self.step()
        assert isinstance(step, Wait), step
        return None if step.until is None else round(step.until - self.now, 3)

    def beats(
        self,
        epoch: int = 1,
        assigned: dict[bytes, list[int]] | None = None,
        code: ErrorCode = ErrorCode.NONE,
    ) -> ConsumerGroupHeartbeatRequest:
        """Expects a heartbeat and answers it. With `assigned`, there is another assignment."""
        request = self.asks()
        answer = ConsumerGroupHeartbeatResponse(
            error_code=code, member_id=ME, member_epoch=epoch, heartbeat_interval_ms=5_000
        )
        if assigned is not None:
            answer.assignment = ConsumerGroupHeartbeatResponse.Assignment(
                [
                    ConsumerGroupHeartbeatResponse.TopicPartitions(key, indexes)
                    for key, indexes in assigned.items()
                ]
            )
        self.machine.on_answer(answer, self.now)
        return request

    def is_asked_for_names(self) -> list[bytes]:
        step = self.step()
        assert isinstance(step, Ask), step
        assert isinstance(step.request, MetadataRequest), step
        return [each.topic_id for each in step.request.topics or ()]

    def names(self, known: Iterable[tuple[bytes, str]]) -> None:
        """Expects a request for names and answers it. Other topics are not known."""
        wanted, found = self.is_asked_for_names(), dict(known)
        topics = [
            MetadataResponse.Topic(
                error_code=0 if key in found else ErrorCode.UNKNOWN_TOPIC_ID,
                name=found.get(key),
                topic_id=key,
            )
            for key in wanted
        ]
        self.machine.on_answer(MetadataResponse(topics=topics), self.now)

    def polls(self) -> list[News]:
        """Polls, and acknowledges all news."""
        heard: list[News] = []
        while (news := self.machine.poll(self.now)) is not None:
            heard.append(news)
            self.machine.told(news, self.now)
            assert len(heard) < 10, heard
        return heard

    def settle(self, *partitions: int, epoch: int = 1) -> None:
        """Takes the machine from its first poll to a stable member that has acknowledged."""
        self.polls()
        self.beats(epoch, {topic_id("t"): list(partitions)} if partitions else {})
        if partitions:
            self.names([(topic_id("t"), "t")])
        self.polls()
        if partitions:
            self.beats(epoch)

    def rests(self) -> None:
        """Advances the clock to the next heartbeat."""
        self.now += INTERVAL_S

    def beats_later(self, epoch: int) -> None:
        self.rests()
        self.beats(epoch)
