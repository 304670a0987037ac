"""The client of share coordinators: retries, outcomes that are unknown, requests of many states."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.coordinators.share_state_client import ShareStateClient
from penstock.broker.peers.connection import PeerLost
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import CallOrder, SharePartitionId
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ShareStateRequest, ShareStateResponse

TOPIC_ID = bytes(range(16))
JOBS = [SharePartitionId("jobs", TOPIC_ID, index) for index in range(3)]
DELTA = Delta(1, 3, 5, 2, ())
Result = ShareStateResponse.Result
Answer = Result | ErrorCode | PeerLost
READ = Result(0, 77, ShareStateResponse.State(1, 0, 5, 2, []))


class Coordinator:
    """Another broker. It answers each operation with the next of `answers`, or as a coordinator
    that has just stored everything."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[list[ShareStateRequest.Operation]] = []
        self.refusals = 0
        self.is_open = True

    async def connect(self, *args: object, **more: object) -> Coordinator:
        if self.refusals:
            self.refusals -= 1
            raise PeerLost("refused")
        return self

    async def ask(
        self, request: ShareStateRequest, version: int, response: object, timeout_s: float
    ) -> ShareStateResponse:
        self.requests.append(request.operations)
        results = []
        for operation in request.operations:
            default = READ if operation.kind == 0 else Result(0)
            answer: Answer = self.answers.pop(0) if self.answers else default
            if isinstance(answer, PeerLost):
                raise answer
            results.append(Result(answer) if isinstance(answer, ErrorCode) else answer)
        return ShareStateResponse(results=results)

    def close(self) -> None:
        pass

    def tell_refused(self) -> None:
        raise AssertionError("no request is refused here")


class Clock:
    """Time passes only while the client pauses."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Setting:
    def __init__(self) -> None:
        self.other = Coordinator()
        self.clock = Clock()
        self.created = 0
        self.reason: str | None = None
        partition = SimpleNamespace(leader=2)
        self.topics: dict[str, Any] = {SHARE_STATE_TOPIC: SimpleNamespace(partitions=[partition])}
        self.image = SimpleNamespace(
            topics=self.topics, brokers={2: "broker 2"}, topic_by_id=lambda _: None
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.client = ShareStateClient(
            cast(Any, SimpleNamespace(clock=self.clock)),
            1,
            cast(Any, SimpleNamespace(image=self.image)),
            cast(Any, SimpleNamespace(partition_for=lambda _: 0)),
            self._create,
            self._spawn,
            cast(Any, self.other),
        )

    def _create(self) -> str | None:
        self.created += 1
        return self.reason

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


def run(play: Callable[[Setting], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run_case() -> None:
            setting = Setting()
            async with asyncio.timeout(patient(60.0)):
                await play(setting)
            setting.end()

        asyncio.run(run_case())

    test.__name__, test.__doc__ = play.__name__, play.__doc__
    return test


async def refused(work: Awaitable[object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await work
    return caught.value.code


@run
async def test_writes_name_what_their_leader_has_read(setting: Setting) -> None:
    client = setting.client
    assert await refused(client.write(JOBS[0], 4, DELTA)) == ErrorCode.FENCED_STATE_EPOCH
    assert await client.read(JOBS[0], 4) == ShareImage(1, 0, 5, 2)
    await client.write(JOBS[0], 4, DELTA)
    [written] = setting.other.requests[-1]
    assert (written.leader_epoch, written.read_offset) == (4, 77)
    assert await refused(client.write(JOBS[0], 5, DELTA)) == ErrorCode.FENCED_STATE_EPOCH


@run
async def test_writes_of_many_share_partitions_share_a_request(setting: Setting) -> None:
    await asyncio.gather(*(setting.client.read(where, 4) for where in JOBS))
    await asyncio.gather(*(setting.client.write(where, 4, DELTA) for where in JOBS))
    assert len(setting.other.requests[-1]) == len(JOBS)


@run
async def test_a_write_that_was_not_stored_is_retried(setting: Setting) -> None:
    await setting.client.read(JOBS[0], 4)
    setting.other.answers = [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ]
    await setting.client.write(JOBS[0], 4, DELTA)
    assert len(setting.other.requests) == 5


@run
async def test_a_write_gives_up_after_its_deadline(setting: Setting) -> None:
    await setting.client.read(JOBS[0], 4)
    setting.other.answers = [ErrorCode.NOT_COORDINATOR] * 1_000
    assert await refused(setting.client.write(JOBS[0], 4, DELTA)) == ErrorCode.NOT_COORDINATOR
    assert setting.clock.now_s < 20
    # It was not stored, so the leader may go on without reading the state again.
    setting.other.answers.clear()
    await setting.client.write(JOBS[0], 4, DELTA)


@run
async def test_a_coordinator_that_cannot_be_reached_has_stored_nothing(setting: Setting) -> None:
    setting.other.refusals = 3
    await setting.client.read(JOBS[0], 4)
    assert len(setting.other.requests) == 1


@run
async def test_after_an_unknown_outcome_the_leader_must_read_again(setting: Setting) -> None:
    client = setting.client
    for lost in (PeerLost("no answer"), ErrorCode.REQUEST_TIMED_OUT):
        await client.read(JOBS[0], 4)
        sent = len(setting.other.requests)
        setting.other.answers = [lost]
        assert await refused(client.write(JOBS[0], 4, DELTA)) == ErrorCode.REQUEST_TIMED_OUT
        assert len(setting.other.requests) == sent + 1, "it is not repeated"
        assert await refused(client.write(JOBS[0], 4, DELTA)) == ErrorCode.FENCED_STATE_EPOCH
    assert client.unknown_writes == 2
    await client.read(JOBS[0], 4)
    await client.write(JOBS[0], 4, DELTA)


@run
async def test_a_canceled_write_is_unknown_too(setting: Setting) -> None:
    await setting.client.read(JOBS[0], 4)
    task = asyncio.ensure_future(setting.client.write(JOBS[0], 4, DELTA))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    code = await refused(setting.client.write(JOBS[0], 4, DELTA))
    assert code == ErrorCode.FENCED_STATE_EPOCH


@run
async def test_requests_that_are_safe_to_repeat_are_repeated(setting: Setting) -> None:
    client, other = setting.client, setting.other
    other.answers = [PeerLost("no answer"), ErrorCode.REQUEST_TIMED_OUT]
    await client.read(JOBS[0], 4)
    other.answers = [PeerLost("no answer")]
    await client.initialize(JOBS[0], 2, 0, CallOrder(3, 8))
    other.answers = [PeerLost("no answer")]
    await client.delete(JOBS[0], CallOrder(3, 9))
    assert [operations[0].kind for operations in other.requests] == [0, 0, 0, 3, 3, 4, 4]
    # A repeated call has the order of the first, so that it is refused if it arrives late.
    orders = [(each.leader_epoch, each.read_offset) for [each] in other.requests[3:]]
    assert orders == [(3, 8), (3, 8), (3, 9), (3, 9)]


@run
async def test_the_first_state_creates_the_topic(setting: Setting) -> None:
    client = setting.client
    topic = setting.topics.pop(SHARE_STATE_TOPIC)
    assert await client.summary(JOBS[0]) is None
    await client.delete(JOBS[0], CallOrder(3, 9))
    assert await refused(client.read(JOBS[0], 4)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert setting.created == 0
    setting.reason = "it needs 3 brokers"
    with pytest.raises(KafkaError, match="it needs 3 brokers"):
        await client.initialize(JOBS[0], 1, 0, CallOrder(3, 7))
    setting.reason = None
    begun = asyncio.ensure_future(client.initialize(JOBS[0], 1, 0, CallOrder(3, 7)))
    while setting.created < 3:  # noqa: ASYNC110 - the client asks again by itself
        await asyncio.sleep(0)
    setting.topics[SHARE_STATE_TOPIC] = topic
    await begun


@run
async def test_what_a_leader_has_read_is_forgotten_with_a_deleted_topic(setting: Setting) -> None:
    """The image does not have the topic any more."""
    client = setting.client
    for share_partition in JOBS[:2]:
        await client.read(share_partition, 4)
    client.on_resigned(cast(Any, SimpleNamespace(topic="orders", topic_id=TOPIC_ID, index=0)))
    assert await refused(client.write(JOBS[0], 4, DELTA)) == ErrorCode.FENCED_STATE_EPOCH
    await client.write(JOBS[1], 4, DELTA)
