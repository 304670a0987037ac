"""What the producers of a workload have in common: notes of what they send, and single requests.

A note becomes an entry of the history once the result of its record is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, RecordTooLarge
from penstock.client.model import RecordMetadata
from penstock.records.record import Record, build_batch
from penstock.sim.actors.shared_state import REQUEST_TIMEOUT_MS, Actor
from penstock.sim.history import FAIL, INFO, OK, Send
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)


@dataclass(slots=True)
class Note:
    """One record that was sent, until its result is known."""

    actor: Actor
    partition_name: str
    value: str
    number: int
    acks: int
    careful: bool
    begun_ms: float
    txn: str = ""
    on_settled: Callable[[Note], None] | None = None

    def settle(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if metadata is not None:
            self.add(OK, metadata.offset)
        else:
            self.add(FAIL if isinstance(error, RecordTooLarge) else INFO, error=str(error))

    def add(self, status: str, offset: int = -1, error: str = "") -> None:
        shared = self.actor.shared
        shared.count(f"sends_{status}")
        shared.history.add(self.entry(status, offset, error))
        if self.on_settled is not None:
            self.on_settled(self)

    def entry(self, status: str, offset: int = -1, error: str = "") -> Send:
        return Send(
            process=self.actor.name,
            status=status,
            begun_ms=self.begun_ms,
            ended_ms=self.actor.shared.now_ms(),
            error=error,
            partition_name=self.partition_name,
            value=self.value,
            number=self.number,
            acks=self.acks,
            offset=offset,
            once=self.careful,
            ordered=self.careful,
            txn=self.txn,
            synced_end=self._synced_end() if status == OK and self.acks == 1 else None,
        )

    def _synced_end(self) -> int | None:
        shared = self.actor.shared
        return (
            shared.synced_end(self.partition_name) if shared.is_alone(self.partition_name) else None
        )


class Answered(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = code


async def with_cluster(
    actor: Actor, request_timeout_ms: int = REQUEST_TIMEOUT_MS
) -> Cluster | None:
    """Connects to the cluster. Retries until the load is over."""
    shared = actor.shared
    while not shared.over.is_set():
        cluster = actor.cluster(request_timeout_ms)
        try:
            return await cluster.__aenter__()
        except ClientError:
            await shared.rest(0.5)
    return None


async def produce(
    cluster: Cluster,
    partition_name: str,
    batch: bytes,
    acks: int,
    on_sent: Callable[[], None],
    *,
    transactional_id: str | None = None,
    version: int | None = None,
) -> int:
    """Sends one request and returns the base offset, or raises an error. Calls `on_sent` when the
    request may have reached the broker."""
    at = TopicPartition.parse(partition_name)
    try:
        leader = await cluster.leader(at)
        connection = await cluster.connection(leader)
        data = [ProduceRequest.Partition(at.partition, bytearray(batch))]
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=REQUEST_TIMEOUT_MS * 2 // 3,
            topic_data=[ProduceRequest.Topic(at.topic, partition_data=data)],
        )
        on_sent()
        response = await call(connection, request, ProduceResponse, version)
    except ClientError:
        cluster.forget(at.topic)
        raise
    answer = response.responses[0].partition_responses[0]
    if answer.error_code:
        cluster.forget(at.topic)
        raise Answered(answer.error_code)
    return answer.base_offset


async def call(
    connection: Connection, request: Request, response_class: type[R], version: int | None = None
) -> R:
    """Calls with the newest version, or with an old one, which the library's clients never use."""
    if version is None:
        return await connection.call(request, response_class)
    return await connection._call(request, version, response_class, None)


def batch_of(actor: Actor, values: Sequence[str], **more: int) -> bytes:
    now_ms = actor.env.clock.wall_ms()
    records = [Record(number, now_ms, None, value.encode()) for number, value in enumerate(values)]
    # mypy cannot match keywords from a mapping with parameters of several types.
    return bytes(build_batch(records, **more))  # type: ignore[arg-type]


def notes_for(actor: Actor, partition_name: str, acks: int) -> list[Note]:
    count = actor.draws.randint(1, actor.shared.scenario.batch_max)
    numbered = [actor.next_value() for _ in range(count)]
    now_ms = actor.shared.now_ms()
    return [
        Note(actor, partition_name, value, number, acks, True, now_ms) for number, value in numbered
    ]
