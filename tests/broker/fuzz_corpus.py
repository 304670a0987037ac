"""Generates requests of every API and version, and damages them.

The corpus has requests of every API that has a schema, in every version, served or not. Their
fields have random values. Most of these are then replaced by values that the broker under test
knows: topics, ids, groups, members and offsets. A request like that with a flipped bit gets deeper
into the broker than random bytes do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.broker.handled_apis import CONSUMER_GROUP_APIS, HANDLED, SHARE_GROUP_APIS
from penstock.metadata.configs import TOPIC_CONFIGS
from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.wire.api import SUPPORTED, ApiKey
from penstock.wire.codec import encode_request
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MetadataRequest,
    MetadataResponse,
)
from penstock.wire.messages.base import Request, Response, Struct
from penstock.wire.schema import message_schema
from penstock.wire.schema import notation as schemas
from wire.samples import sample, versions

R = TypeVar("R", bound=Response)

TOPICS = ("fuzz-0", "fuzz-1", "fuzz-2")
GROUPS = ("group-0", "group-1")
SESSIONS = 20
NOW_MS = 1_700_000_000_000
EDGES = (b"\xff", b"\x7f", b"\x80", b"\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff" * 10)


class Ask(Protocol):
    """Sends one request and returns the response. The broker is in this process or behind a
    socket.
    """

    def __call__(self, request: Request, version: int, response: type[R]) -> Awaitable[R]: ...


@dataclass(frozen=True)
class Known:
    """What exists on the broker, for requests to name."""

    topic_ids: tuple[bytes, ...]
    member_ids: tuple[str, ...]
    producer_id: int
    session_id: int
    """The lowest id of the fetch sessions. Their ids, and those of later sessions, are consecutive.
    """


async def get_to_know(ask: Ask) -> Known:
    """Creates topics, group members, a producer and fetch sessions on a broker."""
    wanted = [CreateTopicsRequest.Topic(name, 2, 1) for name in TOPICS]
    created = await ask(CreateTopicsRequest(wanted, 10_000), 7, CreateTopicsResponse)
    assert all(topic.error_code == 0 for topic in created.topics), created
    members = []
    for group in GROUPS:
        protocols = [JoinGroupRequest.Protocol("range", b"\0\1\0\0\0\0\0\0\0\0")]
        join = JoinGroupRequest(group, 30_000, 1_000, "", None, "consumer", protocols)
        # The first FindCoordinator request creates the internal topic for the groups.
        while not (joined := await ask(join, 4, JoinGroupResponse)).member_id:
            await ask(FindCoordinatorRequest(group), 2, FindCoordinatorResponse)
            await asyncio.sleep(0.005)
        members.append(joined.member_id)
    producer = await ask(InitProducerIdRequest(None, 1_000), 4, InitProducerIdResponse)
    metadata = await ask(MetadataRequest([*map(_named, TOPICS)]), 12, MetadataResponse)
    return Known(
        tuple(topic.topic_id for topic in metadata.topics),
        tuple(members),
        producer.producer_id,
        await _open_sessions(ask, metadata.topics[0].topic_id),
    )


async def _open_sessions(ask: Ask, topic_id: bytes) -> int:
    """Opens fetch sessions of one partition each, by topic name and by topic id. Returns the lowest
    id.
    """
    found = []
    for number in range(SESSIONS):
        part = FetchRequest.Partition(0, -1, 0, -1, -1, 4096)
        topic = FetchRequest.Topic(TOPICS[0], topic_id, partitions=[part])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=[topic])
        answer = await ask(request, 13 if number % 2 else 12, FetchResponse)
        assert answer.session_id > 0, answer
        found.append(answer.session_id)
    return min(found)


def _named(name: str) -> MetadataRequest.Topic:
    return MetadataRequest.Topic(name=name)


EVERY_API = frozenset({*HANDLED, *CONSUMER_GROUP_APIS, *SHARE_GROUP_APIS})
"""With the APIs that a setting turns on."""
SERVED_COPIES = 6
"""Requests that are served occur this many times as often as those that are refused at once."""


def corpus(known: Known, seed: int, per_version: int) -> list[bytes]:
    """Returns frames, without their length, of every API and version."""
    chance = random.Random(f"corpus {seed}")
    planter = _Planter(known, chance)
    frames = []
    for key in ApiKey:
        name = f"{key.api_name}Request"
        for version in versions(name):
            served = key in EVERY_API and SUPPORTED[key].served.cover(version)
            for number in range(per_version * (SERVED_COPIES if served else 1)):
                request = sample(name, version, seed * 1_000 + number)
                assert isinstance(request, Request)
                planter.plant(message_schema(name).root, request, version)
                client = chance.choice((None, "", "fuzz", "x" * 200))
                parts = encode_request(request, version, chance.getrandbits(31), client)
                frames.append(b"".join(parts)[4:])
    return frames


class _Planter:
    """Replaces random values with sensible ones, chosen by the names of the fields."""

    def __init__(self, known: Known, chance: random.Random) -> None:
        self._known = known
        self._chance = chance
        choice, between = chance.choice, chance.randint
        topic, group = (lambda: choice(TOPICS)), (lambda: choice(GROUPS))
        member = lambda: choice((*known.member_ids, "", "nobody"))  # noqa: E731
        small, epoch = (lambda: between(0, 2)), (lambda: choice((-1, 0, 1)))
        self._values: dict[str, Callable[[], Any]] = {
            **dict.fromkeys(("name", "topic", "topic_name", "topic_names", "resource_name"), topic),
            "subscribed_topic_names": topic,
            "subscribed_topic_regex": lambda: choice((None, "", ".*", "fuzz.*", "[", "(a|b)+")),
            "server_assignor": lambda: choice((None, "uniform", "range", "none")),
            "group_ids": group,
            "member_epoch": lambda: choice((-2, -1, 0, 0, 0, 1, 2, 5)),
            **dict.fromkeys(
                ("group_id", "key", "coordinator_keys", "groups", "groups_names"), group
            ),
            **dict.fromkeys(("member_id", "leader"), member),
            **dict.fromkeys(("index", "partition", "partition_index", "partitions"), small),
            **dict.fromkeys(("partition_indexes", "num_partitions", "generation_id"), small),
            **dict.fromkeys(("current_leader_epoch", "leader_epoch", "last_fetched_epoch"), epoch),
            **dict.fromkeys(("replica_id", "producer_epoch"), epoch),
            **dict.fromkeys(
                ("session_epoch", "share_session_epoch"), lambda: choice((-1, 0, 1, 1, 2, 3))
            ),
            **dict.fromkeys(
                ("first_offset", "last_offset", "start_offset"), lambda: between(-1, 9)
            ),
            "acknowledge_types": lambda: between(-1, 5),
            "share_acquire_mode": lambda: between(0, 2),
            **dict.fromkeys(("timeout_ms", "max_wait_ms"), lambda: choice((0, 1, 5))),
            **dict.fromkeys(("fetch_offset", "offset", "timestamp"), lambda: between(-2, 40)),
            **dict.fromkeys(
                ("max_bytes", "partition_max_bytes"), lambda: choice((1, 4096, 1 << 20))
            ),
            "topic_id": lambda: choice((*known.topic_ids, bytes(16))),
            "records": self._records,
            "acks": lambda: choice((-1, -1, 0, 1, 2)),
            "count": lambda: between(1, 3),
            "replication_factor": lambda: choice((-1, 1)),
            # Twice as many as are open now, because requests of the corpus open more.
            "session_id": lambda: choice((0, known.session_id + between(0, 2 * SESSIONS))),
            "session_timeout_ms": lambda: 30_000,
            "rebalance_timeout_ms": lambda: 100,
            "protocol_type": lambda: "consumer",
            "min_bytes": lambda: choice((0, 1)),
            "isolation_level": lambda: choice((0, 1)),
            "resource_type": lambda: choice((2, 2, 2, 4, 8)),
            "transactional_id": lambda: None,
            "producer_id": lambda: choice((known.producer_id, -1)),
            "key_type": lambda: choice((0, 0, 1)),
        }

    def plant(self, schema: schemas.Struct, part: Struct, version: int) -> None:
        for field in schema.fields:
            if not field.versions.cover(version):
                continue
            name, value = field.attribute, getattr(part, field.attribute)
            if field.struct is not None:
                items = value if isinstance(value, list) else [value]
                for item in items:
                    if item is not None:
                        self.plant(field.struct, item, version)
                continue
            draw = self._draw_for(schema, name)
            if draw is None or self._chance.random() < 0.1:
                continue
            if field.is_array:
                if value is not None:
                    setattr(part, name, [draw() for _ in value])
                continue
            planted = draw()
            if planted is not None or field.nullable.cover(version):
                setattr(part, name, planted)

    def _draw_for(self, schema: schemas.Struct, name: str) -> Callable[[], Any] | None:
        if name == "name" and "Config" in schema.name:
            return lambda: self._chance.choice(list(TOPIC_CONFIGS))
        if name == "name" and "Protocol" in schema.name:
            return lambda: "range"
        return self._values.get(name)

    def _records(self) -> bytes:
        chance = self._chance
        held = [
            Record(at, NOW_MS + at, chance.choice((None, b"key")), b"v" * chance.randint(0, 60))
            for at in range(chance.randint(1, 4))
        ]
        codec = chance.choice(tuple(Codec))
        if chance.random() < 0.5:
            return bytes(build_batch(held, codec=codec))
        return bytes(
            build_batch(
                held,
                codec=codec,
                producer_id=self._known.producer_id,
                producer_epoch=0,
                base_sequence=chance.randint(0, 3),
            )
        )


def mutate(frame: bytes, others: Sequence[bytes], chance: random.Random) -> bytearray:
    """Returns the frame with random damage. One in ten stays as it is."""
    data = bytearray(frame)
    draw = chance.random()
    if draw < 0.1:
        return data
    if draw < 0.55:
        for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
            # Mostly after the start of the header. A damaged API key or version ends the request
            # there.
            first = 8 if len(data) > 12 and chance.random() < 0.9 else 0
            data[chance.randrange(first, len(data))] ^= 1 << chance.randrange(8)
    elif draw < 0.75:
        at = chance.randrange(len(data))
        edge = chance.choice(EDGES)
        data[at : at + chance.choice((0, len(edge)))] = edge
    elif draw < 0.85:
        del data[chance.randrange(len(data)) :]
    elif draw < 0.90:
        data += chance.randbytes(chance.choice((1, 7, 300, 5_000)))
    elif draw < 0.95:
        other = chance.choice(others)
        at = chance.randrange(len(data))
        data[at:] = other[chance.randrange(len(other)) :]
    elif draw < 0.98:
        data[8:] = chance.randbytes(chance.randrange(400))
    else:
        return bytearray(chance.randbytes(chance.randrange(400)))
    return data
