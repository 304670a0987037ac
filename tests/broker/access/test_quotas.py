"""Client quotas in force: requests are measured, throttled and exempt."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from typing import TypeVar

import pytest

from broker.harness import NOW_MS, BrokerHarness, HarnessPeer, with_harness, with_harness_of
from penstock.broker.access.quotas import ConnectionMeter
from penstock.broker.dispatch import BrokerSession, Dispatcher
from penstock.broker.identity import Identity
from penstock.metadata.quotas import alter_quotas
from penstock.net.outbox import in_memory
from penstock.net.timed_work import timed
from penstock.ports import Slicing
from penstock.records.record import Record, build_batch
from penstock.security.quotas import QuotaAlteration
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)
USER = "bob"
TINY = 1.0
"""Any request is over a limit of one byte per second."""
AMPLE = 1e9


class Client:
    """One connection of a user, to the first broker."""

    def __init__(self, harness: BrokerHarness, user: str = USER, client_id: str = "app") -> None:
        self.peer = HarnessPeer()
        self.client_id = client_id
        identity = Identity(f"User:{user}", self.peer.host)
        self.session = BrokerSession(harness.services, Dispatcher(), self.peer, identity)

    async def ask(self, request: Request, version: int, response: type[R]) -> R:
        data = await self.exchange(request, version)
        assert data is not None
        return decode_response(response, memoryview(data), version)[1]

    async def exchange(self, request: Request, version: int) -> bytes | None:
        frame = b"".join(encode_request(request, version, 1, self.client_id))[4:]
        answer = self.session.on_frame(memoryview(bytearray(frame)))
        parts = await answer if isinstance(answer, asyncio.Future) else answer
        return None if parts is None else b"".join(in_memory(parts))[4:]


async def limit(
    harness: BrokerHarness, key: str, rate: float | None, user: str | None = USER
) -> None:
    entry = QuotaAlteration((("user", user),), ((key, rate),))
    results = await harness.services.controller.decide(lambda image: alter_quotas(image, [entry]))
    assert results[0].code == ErrorCode.NONE, results[0].message


def is_measuring(harness: BrokerHarness) -> bool:
    return harness.services.quotas.current is not None


def produce(topic: str = "t", acks: int = -1, value: bytes = b"v" * 100) -> ProduceRequest:
    batch = build_batch([Record(0, NOW_MS, None, value)])
    data = ProduceRequest.Partition(0, batch)
    return ProduceRequest(None, acks, 10_000, [ProduceRequest.Topic(topic, partition_data=[data])])


def fetch(topic: str = "t", offset: int = 0, wait_ms: int = 0) -> FetchRequest:
    asked = FetchRequest.Partition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchRequest.Topic(topic, partitions=[asked])],
    )


async def produced(client: Client, version: int = 9) -> tuple[int, int]:
    """Returns the offset of the batch, and the throttle time."""
    response = await client.ask(produce(), version, ProduceResponse)
    answer = response.responses[0].partition_responses[0]
    assert answer.error_code == 0, answer.error_message
    return answer.base_offset, response.throttle_time_ms


@with_harness
async def test_a_producer_over_its_quota_is_answered_and_then_muted(harness: BrokerHarness) -> None:
    """The first request takes the regular path, the next ones the fast path."""
    await harness.create("t")
    await limit(harness, "producer_byte_rate", TINY)
    client = Client(harness)
    for offset in range(3):
        base_offset, throttle_ms = await produced(client)
        assert base_offset == offset, "the data of a throttled request is kept"
        assert throttle_ms > 0
        assert client.peer.mutes[offset] == throttle_ms / 1000
    assert harness.services.quotas.throttled["producer_byte_rate"].count == 3
    assert await produced(Client(harness, "eve")) == (3, 0)


@with_harness
async def test_a_throttled_answer_differs_only_in_the_throttle_time(harness: BrokerHarness) -> None:
    await harness.create("t")
    free, slow = Client(harness, "eve"), Client(harness)
    for version in (9, 12):
        await limit(harness, "producer_byte_rate", None)
        await produced(slow, version)
        await produced(free, version)
        await limit(harness, "producer_byte_rate", TINY)
        expected = await free.ask(produce(), version, ProduceResponse)
        response = await slow.ask(produce(), version, ProduceResponse)
        assert response.throttle_time_ms > 0
        answer = response.responses[0].partition_responses[0]
        (other,) = expected.responses[0].partition_responses
        assert answer.base_offset == other.base_offset + 1
        answer.base_offset = other.base_offset
        response.throttle_time_ms = 0
        assert response == expected


@with_harness
async def test_without_acks_the_connection_is_only_muted(harness: BrokerHarness) -> None:
    await harness.create("t")
    await limit(harness, "producer_byte_rate", TINY)
    client = Client(harness)
    assert await client.exchange(produce(acks=0), 9) is None
    (seconds,) = client.peer.mutes
    assert seconds > 0
    assert harness.hosted("t").log.end_offset == 1


@with_harness
async def test_below_its_quota_and_without_quotas_nobody_is_throttled(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    client = Client(harness)
    assert not is_measuring(harness)
    assert await produced(client) == (0, 0)
    await limit(harness, "producer_byte_rate", AMPLE)
    assert is_measuring(harness)
    assert [await produced(client) for _ in range(3)] == [(1, 0), (2, 0), (3, 0)]
    await limit(harness, "producer_byte_rate", None)
    assert not is_measuring(harness)
    assert await produced(client) == (4, 0)
    assert client.peer.mutes == []


@with_harness
async def test_all_client_ids_of_a_user_share_its_quota(harness: BrokerHarness) -> None:
    await harness.create("t")
    await limit(harness, "producer_byte_rate", 300.0)
    assert (await produced(Client(harness, client_id="a")))[1] == 0
    assert (await produced(Client(harness, client_id="b" * 20_000)))[1] > 0


async def fetched(client: Client, request: FetchRequest | None = None) -> tuple[int, int]:
    """Returns how many bytes of records were fetched, and the throttle time."""
    response = await client.ask(request or fetch(), 11, FetchResponse)
    assert response.error_code == 0
    sizes = [len(each.records or b"") for topic in response.responses for each in topic.partitions]
    return sum(sizes), response.throttle_time_ms


@with_harness
async def test_a_consumer_over_its_quota_gets_an_empty_answer(harness: BrokerHarness) -> None:
    await harness.create("t")
    await harness.produce("t", [b"v" * 100])
    await limit(harness, "consumer_byte_rate", TINY)
    client = Client(harness)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    size, throttle_ms = await fetched(client)
    assert size > 100 and throttle_ms > 0, "a consumer must get past a batch above its quota"
    empty, throttled_ms = await fetched(client)
    passed_ms = 1000 * (loop.time() - began_s)
    assert empty == 0 and throttled_ms >= throttle_ms - 1000 - passed_ms
    assert client.peer.mutes == [throttle_ms / 1000, throttled_ms / 1000]
    assert harness.services.quotas.throttled["consumer_byte_rate"].count == 2


@with_harness
async def test_a_waiting_fetch_is_throttled_when_data_arrives(harness: BrokerHarness) -> None:
    await harness.create("t")
    await limit(harness, "consumer_byte_rate", TINY)
    client = Client(harness)
    waiting = asyncio.create_task(fetched(client, fetch(wait_ms=60_000)))
    await asyncio.sleep(0)
    assert not waiting.done() and client.peer.mutes == []
    await harness.produce("t", [b"v" * 100])
    size, throttle_ms = await waiting
    assert size > 100
    assert client.peer.mutes == [throttle_ms / 1000]


@with_harness
async def test_one_fetch_returns_no_more_than_the_quota_of_one_second(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    for _ in range(20):
        await harness.produce("t", [b"v" * 100])
    await limit(harness, "consumer_byte_rate", 1000.0)
    size, throttle_ms = await fetched(Client(harness))
    assert 0 < size <= 1000
    assert throttle_ms == 0


@with_harness_of(slicing=Slicing(elements=0))
async def test_a_large_fetch_is_throttled_too(harness: BrokerHarness) -> None:
    await harness.create("t")
    await harness.produce("t", [b"v" * 100])
    await limit(harness, "consumer_byte_rate", TINY)
    client = Client(harness)
    assert (await fetched(client))[0] > 100
    assert (await fetched(client))[0] == 0
    assert len(client.peer.mutes) == 2


@with_harness
async def test_a_throttled_fetch_opens_no_session_and_keeps_an_open_one(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    await harness.produce("t", [b"v" * 100])
    await limit(harness, "consumer_byte_rate", TINY)
    client, sessions = Client(harness), harness.services.fetch_sessions
    opening = fetch()
    opening.session_epoch = 0
    first = await client.ask(opening, 11, FetchResponse)
    assert first.session_id > 0 and len(sessions) == 1
    going_on = FetchRequest(
        max_wait_ms=0, max_bytes=1 << 20, session_id=first.session_id, session_epoch=1
    )
    second = await client.ask(going_on, 11, FetchResponse)
    assert (second.error_code, second.session_id) == (0, first.session_id)
    assert second.responses == [] and second.throttle_time_ms > 0
    third = await client.ask(opening, 11, FetchResponse)
    assert (third.session_id, third.responses) == (0, [])
    assert len(sessions) == 1


@with_harness
async def test_changes_of_topics_over_the_quota_are_refused(harness: BrokerHarness) -> None:
    """The bucket holds 11 partitions, and may go below zero once."""
    await harness.create("old")
    await limit(harness, "controller_mutation_rate", TINY)
    client = Client(harness)

    async def create(name: str, partitions: int, version: int) -> tuple[int, int]:
        asked = CreateTopicsRequest.Topic(name, partitions, 1)
        response = await client.ask(CreateTopicsRequest([asked]), version, CreateTopicsResponse)
        return response.topics[0].error_code, response.throttle_time_ms

    assert await create("a", 40, 7) == (0, 0)
    code, throttle_ms = await create("b", 1, 7)
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 0 < throttle_ms <= 30_000
    assert client.peer.mutes == [throttle_ms / 1000]
    code, throttle_ms = await create("c", 1, 5)
    assert code == 0 and throttle_ms > 0, "older clients do not know the error"
    more = CreatePartitionsRequest([CreatePartitionsRequest.Topic("old", 2, None)])
    grown = await client.ask(more, 3, CreatePartitionsResponse)
    assert grown.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    gone = DeleteTopicsRequest(topic_names=["old"])
    deleted = await client.ask(gone, 5, DeleteTopicsResponse)
    assert deleted.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert deleted.throttle_time_ms > 0
    assert (await client.ask(more, 2, CreatePartitionsResponse)).results[0].error_code == 0
    assert (await client.ask(gone, 4, DeleteTopicsResponse)).responses[0].error_code == 0
    names = {*harness.services.image.topics}
    assert {"a", "c"} <= names and not {"b", "old"} & names


@with_harness_of(kafka={"num.partitions": "40"})
async def test_topics_that_are_created_on_demand_count_as_well(harness: BrokerHarness) -> None:
    await limit(harness, "controller_mutation_rate", TINY)
    client, topics = Client(harness), harness.services.image.topics
    for name in ("first", "second"):
        wanted = MetadataRequest([MetadataRequest.Topic(name=name)], True)
        response = await client.ask(wanted, 12, MetadataResponse)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.throttle_time_ms > 0
    await harness.until(lambda: "first" in topics and not harness.services.creating)
    assert "second" not in topics


@with_harness
async def test_a_refused_change_costs_nothing(harness: BrokerHarness) -> None:
    await harness.create("old")
    await limit(harness, "controller_mutation_rate", TINY)
    client = Client(harness)
    asked = CreateTopicsRequest.Topic("old", 1000, 1)
    for _ in range(3):
        response = await client.ask(CreateTopicsRequest([asked]), 7, CreateTopicsResponse)
        assert response.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert response.throttle_time_ms == 0


@with_harness
async def test_request_time_is_limited(harness: BrokerHarness) -> None:
    """For handlers that answer at once, and for those that run as a task."""
    await limit(harness, "request_percentage", 1e-6)
    client = Client(harness)
    response = await client.ask(MetadataRequest([]), 12, MetadataResponse)
    assert 0 < response.throttle_time_ms <= 1000
    asked = CreateTopicsRequest([CreateTopicsRequest.Topic("t", 1, 1)])
    created = await client.ask(asked, 7, CreateTopicsResponse)
    assert created.topics[0].error_code == 0
    assert 0 < created.throttle_time_ms <= 1000
    assert len(client.peer.mutes) == 2
    other = await Client(harness, "eve").ask(MetadataRequest([]), 12, MetadataResponse)
    assert other.throttle_time_ms == 0


@with_harness
async def test_the_time_of_a_task_counts_without_its_waits(harness: BrokerHarness) -> None:
    await limit(harness, "request_percentage", 100.0)
    ticks, quotas = count(), harness.services.quotas
    quotas._monotonic = lambda: float(next(ticks))  # A step takes a second.
    frame = memoryview(b"".join(encode_request(MetadataRequest([]), 12, 1, "app"))[4:])
    meter = ConnectionMeter(quotas, HarnessPeer(), USER).begin(frame, 3, 12)
    assert meter is not None
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        await asyncio.sleep(0)
        raise KeyError("passed on")

    asyncio.get_running_loop().call_soon(gate.set)
    with pytest.raises(KeyError):
        await timed(work(), quotas.now_s, [meter.spend])
    assert meter.seconds == 3, "one step before each wait, and one after"
    gate.clear()
    waiting = asyncio.ensure_future(timed(work(), quotas.now_s, [meter.spend]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


@with_harness_of(brokers=2)
async def test_followers_are_exempt(harness: BrokerHarness) -> None:
    await harness.create("t")
    await limit(harness, "consumer_byte_rate", TINY)
    await limit(harness, "request_percentage", 1e-6)
    await harness.until(lambda: harness.services.quotas.has_request_time)
    epoch = harness.services.image.brokers[1].broker_epoch
    request = fetch(wait_ms=0)
    request.replica_state = FetchRequest.ReplicaState(1, epoch)
    request.topics[0].topic, topic_id = "", harness.services.image.topics["t"].topic_id
    request.topics[0].topic_id = topic_id
    client = Client(harness)
    for _ in range(3):
        response = await client.ask(request, 17, FetchResponse)
        assert response.throttle_time_ms == 0
    assert client.peer.is_replica and client.peer.mutes == []


@with_harness
async def test_many_quotas_are_arranged_on_a_thread(harness: BrokerHarness) -> None:
    await harness.create("t")
    entries = [
        QuotaAlteration((("user", f"u{number}"),), (("producer_byte_rate", TINY),))
        for number in range(700)
    ]
    for start in range(0, len(entries), 100):
        some = entries[start : start + 100]
        await harness.services.controller.decide(partial(alter_quotas, entries=some))
    client = Client(harness, "u699")

    async def throttled() -> bool:
        return (await produced(client))[1] > 0

    while not await throttled():  # noqa: ASYNC110 - applied within a second
        await asyncio.sleep(0.01)
