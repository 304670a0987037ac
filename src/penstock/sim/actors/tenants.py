"""Tenants: clients with quotas, which change while they write, read and create topics.

Each sends one request at a time, as fast as it can: more than any limit allows. Most tenants obey
the throttle time of an answer before they send the next request. One does not: the broker must mute
it. The history has every request with what it used, its throttle time, and the limit that the
metadata of the broker had when the request began and when it ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.sim.actors.sends import Note, batch_of
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import ACKS_ALL, FAIL, INFO, OK, Metered
from penstock.sim.quota_plan import HASTY_WRITER, KEY_OF, MUTED_S_MAX, NO_STATE, QuotaState
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)

_TIMEOUT_MS: Final = int(MUTED_S_MAX * 1000) + 10_000
_PAUSE_MEAN_S: Final = 0.15
_MUTATION_PAUSE_MEAN_S: Final = 0.7
_FETCH_VERSION_MAX: Final = 12
_FETCH_BYTES_MAX: Final = 4_096
_PARTITIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Used:
    """The result of one request."""

    status: str
    throttle_ms: int
    amount: float
    """What counts for the quota: bytes or partitions."""
    error: str = ""
    refused_topic: str = ""


@dataclass(slots=True)
class Tenant:
    """Sends requests, one at a time, and notes each of them."""

    actor: Actor
    client_id: str
    connections: dict[int, tuple[Connection, int]] = field(default_factory=dict)
    """By broker: the connection, and its number among all connections of the tenant."""
    opened: int = 0

    @property
    def key(self) -> str:
        return KEY_OF[self.client_id]

    def cluster(self) -> Cluster:
        env = self.actor.env
        config = self.actor.shared.cluster_config(self.actor.user, _TIMEOUT_MS)
        connection = replace(config.connection, client_id=self.client_id)
        return Cluster(
            replace(config, connection=connection, deadline_s=_TIMEOUT_MS / 1000),
            env.network,
            env.clock,
            env.random,
            env.executor,
        )

    async def request(
        self, cluster: Cluster, broker: int, work: Callable[[Connection], Awaitable[Used]]
    ) -> Used:
        """Sends one request to this broker. Raises `ClientError` if it cannot connect."""
        connection = await cluster.connection(broker)
        number = self._number(broker, connection)
        before = self._state(broker)
        begun_ms = self.actor.shared.now_ms()
        try:
            used = await work(connection)
        except ClientError as error:
            used = Used(INFO, 0, 0, str(error))
        self._note(used, broker, number, begun_ms, before)
        return used

    def _number(self, broker: int, connection: Connection) -> int:
        known = self.connections.get(broker)
        if known is None or known[0] is not connection:
            self.opened += 1
            known = self.connections[broker] = connection, self.opened
        return known[1]

    def _state(self, broker: int) -> QuotaState:
        return self.actor.shared.quota_state(broker, self.client_id, self.key)

    def _note(
        self, used: Used, broker: int, number: int, begun_ms: float, before: QuotaState
    ) -> None:
        shared, after = self.actor.shared, self._state(broker)
        is_steady = before == after and before != NO_STATE
        shared.count(f"{self.client_id}_{'throttled' if used.throttle_ms else used.status}")
        shared.history.add(
            Metered(
                process=self.actor.name,
                status=used.status,
                begun_ms=begun_ms,
                ended_ms=shared.now_ms(),
                error=used.error,
                client_id=self.client_id,
                broker=broker,
                connection=number,
                key=self.key,
                amount=used.amount,
                throttle_ms=used.throttle_ms,
                version=before.version if is_steady else None,
                limit=before.limit if is_steady else None,
                refused_topic=used.refused_topic,
            )
        )


Step = Callable[[Tenant, Cluster], Awaitable[Used]]
"""Sends one request. Raises `ClientError`."""


async def run_tenant(actor: Actor, *, client_id: str, step: Step, pause_s: float) -> None:
    """Sends requests until the load is over."""
    tenant, shared = Tenant(actor, client_id), actor.shared
    while not shared.over.is_set():
        try:
            async with tenant.cluster() as cluster:
                while not shared.over.is_set():
                    used = await step(tenant, cluster)
                    wait_s = min(actor.draws.expovariate(1 / pause_s), 5.0)
                    if client_id != HASTY_WRITER:
                        wait_s += used.throttle_ms / 1000
                    await shared.rest(wait_s)
        except ClientError:
            await shared.rest(0.5)


async def run_tenant_writer(actor: Actor, *, client_id: str) -> None:
    await run_tenant(actor, client_id=client_id, step=_write, pause_s=_PAUSE_MEAN_S)


async def run_tenant_reader(actor: Actor, *, client_id: str) -> None:
    await run_tenant(actor, client_id=client_id, step=_read, pause_s=_PAUSE_MEAN_S)


async def run_tenant_mutator(actor: Actor, *, client_id: str) -> None:
    await run_tenant(
        actor, client_id=client_id, step=Mutator().step, pause_s=_MUTATION_PAUSE_MEAN_S
    )


async def _write(tenant: Tenant, cluster: Cluster) -> Used:
    """Writes one record, to the leader of a partition."""
    actor = tenant.actor
    partition_name = actor.draws.choice(actor.shared.scenario.written)
    at = TopicPartition.parse(partition_name)
    leader = await cluster.leader(at)
    number, value = actor.next_value()
    batch = batch_of(actor, [value])
    note = Note(actor, partition_name, value, number, ACKS_ALL, True, actor.shared.now_ms())

    async def work(connection: Connection) -> Used:
        response = await connection.call(produce_request(at, batch), ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        code = answer.error_code
        if code:
            cluster.forget(at.topic)
            note.add(INFO, error=ErrorCode(code).name)
        else:
            note.add(OK, answer.base_offset)
        return Used(OK, response.throttle_time_ms, len(batch))

    try:
        used = await tenant.request(cluster, leader, work)
    except ClientError as error:
        note.add(INFO, error=str(error))
        raise
    if used.status == INFO:
        cluster.forget(at.topic)
        note.add(INFO, error=used.error)
    return used


def produce_request(at: TopicPartition, batch: bytes) -> ProduceRequest:
    data = [ProduceRequest.Partition(at.partition, bytearray(batch))]
    return ProduceRequest(
        acks=ACKS_ALL,
        timeout_ms=2_000,
        topic_data=[ProduceRequest.Topic(at.topic, partition_data=data)],
    )


async def _read(tenant: Tenant, cluster: Cluster) -> Used:
    """Reads a few records of a partition, at any position."""
    actor = tenant.actor
    at = TopicPartition.parse(actor.draws.choice(actor.shared.scenario.partition_names))
    leader = await cluster.leader(at)
    part = FetchRequest.Partition(
        partition=at.partition,
        fetch_offset=actor.draws.randint(0, 50),
        partition_max_bytes=_FETCH_BYTES_MAX,
    )
    request = FetchRequest(
        max_wait_ms=actor.draws.choice((0, 200)),
        min_bytes=1,
        max_bytes=_FETCH_BYTES_MAX,
        topics=[FetchRequest.Topic(topic=at.topic, partitions=[part])],
    )

    async def work(connection: Connection) -> Used:
        answer = await connection.call(request, FetchResponse, version_max=_FETCH_VERSION_MAX)
        size = 0
        for found in (each for topic in answer.responses for each in topic.partitions):
            assert not isinstance(found.records, list)
            size += len(found.records or b"")
            if found.error_code:
                cluster.forget(at.topic)
        return Used(OK, answer.throttle_time_ms, size)

    return await tenant.request(cluster, leader, work)


@dataclass(slots=True)
class Mutator:
    """Creates topics at any broker, each with another name, and deletes them again."""

    created: list[str] = field(default_factory=list)

    async def step(self, tenant: Tenant, cluster: Cluster) -> Used:
        actor = tenant.actor
        broker = actor.draws.choice(sorted(cluster.brokers))
        if self.created:
            return await tenant.request(cluster, broker, self._delete)
        _, name = actor.next_value()

        async def create(connection: Connection) -> Used:
            self.created.append(name)  # It may exist, whatever the answer is.
            topic = CreateTopicsRequest.Topic(name, _PARTITIONS, 1)
            request = CreateTopicsRequest([topic], timeout_ms=2_000)
            answer = await connection.call(request, CreateTopicsResponse)
            used = _used(answer.throttle_time_ms, answer.topics[0].error_code)
            if used.status != FAIL:
                return used
            self.created.remove(name)
            return replace(used, refused_topic=name)

        return await tenant.request(cluster, broker, create)

    async def _delete(self, connection: Connection) -> Used:
        name = self.created[0]
        request = DeleteTopicsRequest(
            [DeleteTopicsRequest.Topic(name)], topic_names=[name], timeout_ms=2_000
        )
        answer = await connection.call(request, DeleteTopicsResponse)
        code = answer.responses[0].error_code
        if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self.created.remove(name)
        return _used(answer.throttle_time_ms, code)


def _used(throttle_ms: int, code: int) -> Used:
    """Returns the result of a change of topics. What was not done may not have been counted."""
    if code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return Used(FAIL, throttle_ms, 0, ErrorCode(code).name)
    return Used(OK, throttle_ms, 0 if code else _PARTITIONS, ErrorCode(code).name if code else "")
