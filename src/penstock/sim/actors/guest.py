"""The guest: a user whose rights change. It writes, reads and sends heartbeats all the time.

Each attempt is one request, so that it has one start, one end and one result. The guest keeps its
connections and its fetch sessions while its rights change. It asks any broker, not only those that
should serve it: a broker that was cut off and does not know of a revocation must refuse it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.records.batch import validate
from penstock.records.record import read_records
from penstock.sim.access_plan import GROUP, GUEST_GROUP, GUEST_TOPIC, READ, WRITE
from penstock.sim.actors.sends import Note, batch_of, with_cluster
from penstock.sim.actors.shared_state import REQUEST_TIMEOUT_MS, Actor
from penstock.sim.history import ACKS_ALL, FAIL, INFO, OK, Attempt, Poll
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ProduceRequest,
    ProduceResponse,
)

_AT: Final = TopicPartition(GUEST_TOPIC, 0)
_FETCH_VERSION_MAX: Final = 12
"""The last version that uses topic names, not topic ids."""
_BYTES_MAX: Final = 1 << 20
_ANY_BROKER_SHARE: Final = 0.3
_REFUSED: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True, slots=True)
class Result:
    status: str
    values: tuple[str, ...] = ()
    error: str = ""


def _result(code: int, values: tuple[str, ...] = ()) -> Result:
    if code == ErrorCode.NONE:
        return Result(OK, values)
    return Result(FAIL if code in _REFUSED else INFO, (), ErrorCode(code).name)


Try = Callable[[Cluster, int], Awaitable[Result]]
"""Sends one request to the broker with this id. Raises `ClientError`."""


async def run_guest_writer(actor: Actor) -> None:
    await _run(actor, WRITE, Writer(actor).run)


async def run_guest_reader(actor: Actor) -> None:
    await _run(actor, READ, Reader(actor).run)


async def run_guest_member(actor: Actor) -> None:
    await _run(actor, GROUP, beat)


async def _run(actor: Actor, right: str, work: Try) -> None:
    shared = actor.shared
    cluster = await with_cluster(actor)
    if cluster is None:
        return
    try:
        while not shared.over.is_set():
            await shared.rest_until_revoked(actor.pause_s())
            await attempt(actor, cluster, right, work)
    finally:
        cluster.close()


async def attempt(actor: Actor, cluster: Cluster, right: str, work: Try) -> str:
    """Uses a right once. Returns the status."""
    shared = actor.shared
    try:
        broker = await _choose(actor, cluster, right)
    except ClientError:
        cluster.forget(GUEST_TOPIC)
        await shared.rest(0.2)
        return INFO
    return await attempt_at(actor, cluster, right, work, broker)


async def attempt_at(actor: Actor, cluster: Cluster, right: str, work: Try, broker: int) -> str:
    """Uses a right once at this broker. Returns the status."""
    shared = actor.shared
    begun_ms = shared.now_ms()
    result = Result(INFO)
    try:
        result = await work(cluster, broker)
    except ClientError as error:
        result = Result(INFO, (), str(error))
    if result.status == INFO:
        cluster.forget(GUEST_TOPIC)
        cluster._coordinators.pop(GUEST_GROUP, None)
    shared.count(f"guest_{right}_{result.status}")
    shared.history.add(
        Attempt(
            process=actor.name,
            status=result.status,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=result.error,
            right=right,
            broker=broker,
            values=result.values,
        )
    )
    return result.status


async def _choose(actor: Actor, cluster: Cluster, right: str) -> int:
    """Returns the broker to ask. All replicas serve readers."""
    if right == READ or actor.draws.random() < _ANY_BROKER_SHARE:
        return actor.draws.choice(sorted(cluster.brokers))
    if right == GROUP:
        await cluster.coordinator(GUEST_GROUP)
        return cluster.coordinator_of(GUEST_GROUP)
    return await cluster.leader(_AT)


class Writer:
    """Writes one record with each request."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def run(self, cluster: Cluster, broker: int) -> Result:
        actor = self._actor
        connection = await cluster.connection(broker)
        number, value = actor.next_value()
        note = Note(actor, str(_AT), value, number, ACKS_ALL, True, actor.shared.now_ms())
        data = [ProduceRequest.Partition(0, bytearray(batch_of(actor, [value])))]
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=REQUEST_TIMEOUT_MS * 2 // 3,
            topic_data=[ProduceRequest.Topic(GUEST_TOPIC, partition_data=data)],
        )
        try:
            response = await connection.call(request, ProduceResponse)
        except ClientError as error:
            note.add(INFO, error=str(error))
            return Result(INFO, (value,), str(error))
        answer = response.responses[0].partition_responses[0]
        result = _result(answer.error_code)
        note.add(result.status, answer.base_offset if result.status == OK else -1, result.error)
        return Result(result.status, (value,), result.error)


@dataclass(slots=True)
class _Session:
    """A fetch session at one broker."""

    connection: Connection
    session_id: int
    epoch: int
    offset: int


class Reader:
    """Reads with fetch sessions, one at each broker. Some fetches wait for new records, or for more
    than there will ever be."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._offset = 0
        self._sessions: dict[int, _Session] = {}

    async def run(self, cluster: Cluster, broker: int) -> Result:
        connection = await cluster.connection(broker)
        session = self._sessions.pop(broker, None)
        if session is not None and session.connection is not connection:
            session = None
        actor, offset = self._actor, self._offset
        begun_ms = actor.shared.now_ms()
        answer = await connection.call(
            self._request(session), FetchResponse, version_max=_FETCH_VERSION_MAX
        )
        part = answer.responses[0].partitions[0] if answer.responses else None
        code = answer.error_code or (0 if part is None else part.error_code)
        if code:
            return _result(code)
        epoch = 1 if session is None else session.epoch + 1
        if answer.session_id:
            self._sessions[broker] = _Session(connection, answer.session_id, epoch, offset)
        found = () if part is None else records_from(part, offset)
        if found:
            self._note(found, begun_ms)
            self._offset = found[-1][0] + 1
        elif actor.draws.random() < 0.3:
            self._offset = max(0, self._offset - actor.draws.randint(1, 10))
        return Result(OK, tuple(value for _, value in found))

    def _request(self, session: _Session | None) -> FetchRequest:
        topics = []
        if session is None or session.offset != self._offset:
            part = FetchRequest.Partition(
                partition=0, fetch_offset=self._offset, partition_max_bytes=_BYTES_MAX
            )
            topics = [FetchRequest.Topic(topic=GUEST_TOPIC, partitions=[part])]
        return FetchRequest(
            max_wait_ms=self._actor.draws.choice((0, 100, 2_000)),
            min_bytes=self._actor.draws.choice((1, 1, _BYTES_MAX)),
            max_bytes=_BYTES_MAX,
            session_id=0 if session is None else session.session_id,
            session_epoch=0 if session is None else session.epoch,
            topics=topics,
        )

    def _note(self, found: tuple[tuple[int, str], ...], begun_ms: float) -> None:
        shared = self._actor.shared
        shared.history.add(
            Poll(
                process=self._actor.name,
                status=OK,
                begun_ms=begun_ms,
                ended_ms=shared.now_ms(),
                reads={str(_AT): found},
                moved=(str(_AT),),
            )
        )


def records_from(part: FetchResponse.Partition, floor: int) -> tuple[tuple[int, str], ...]:
    """Returns the offsets and values from an offset on."""
    assert not isinstance(part.records, list)
    data, found, position = memoryview(part.records or b""), [], 0
    while position < len(data):
        header = validate(data, position)
        batch = data[position : position + header.size]
        position += header.size
        if not header.is_control:
            found += [
                (record.offset, bytes(record.value or b"").decode())
                for record in read_records(batch, header)
                if record.offset >= floor
            ]
    return tuple(found)


async def beat(cluster: Cluster, broker: int) -> Result:
    """Sends a heartbeat. Who has the right to the group learns that it is no member."""
    connection = await cluster.connection(broker)
    request = HeartbeatRequest(GUEST_GROUP, generation_id=0, member_id="nobody")
    code = (await connection.call(request, HeartbeatResponse)).error_code
    return Result(OK) if code == ErrorCode.UNKNOWN_MEMBER_ID else _result(code)
