"""Writes audit events to the topic `__audit`, one JSON object per record.

The topic is created with the first event, once there are as many brokers as it needs. A broker
appends to a partition that it leads. If it leads none, it sends a produce request to a leader as
the client `__audit`, which needs CLUSTER_ACTION there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.peers.connection import Peer, PeerLost
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.peers.link import code_from
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.model import AUDIT_TOPIC, Topic
from penstock.metadata.topic_ids import new_id
from penstock.metadata.topics import TopicDefaults, TopicSpec, create_topic
from penstock.ports import Env
from penstock.records.record import Record, build_batch
from penstock.security.audit import AuditEvent
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ProduceRequest, ProduceResponse

BATCH_BYTES_MAX: Final = 256 << 10
"""Less than the smallest sensible max.message.bytes."""
TIMEOUT_S: Final = 10.0
"""How long to wait until a batch is committed."""
_PRODUCE_VERSION: Final = 9
_RESPONSE_BYTES_MAX: Final = 1 << 20
_ALL_REPLICAS: Final = -1


class AuditTopic:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        controller: ControllerRuntime,
        replicas: Replicas,
        configs: Callable[[], BrokerConfigs],
        connector: PeerConnector,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._controller = controller
        self._replicas = replicas
        self._configs = configs
        self._connector = connector
        self._peer: tuple[int, Peer] | None = None

    async def write(self, events: Sequence[AuditEvent]) -> None:
        """Appends events and waits until they are committed. Raises an exception if that fails."""
        topic = self._cluster.image.topics.get(AUDIT_TOPIC) or await self._create()
        for batch in _batches(events):
            index, leader = self._partition(topic)
            if leader == self._broker_id:
                await self._append(index, batch)
            else:
                await self._send(index, leader, batch)

    async def _create(self) -> Topic:
        configs, image = self._configs(), self._cluster.image
        factor = configs.int_value("audit.topic.replication.factor")
        usable = len(image.living.keys() - image.cordoned)
        if usable < factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{AUDIT_TOPIC} cannot be created yet: it needs {factor} brokers, and {usable} can "
                "host a replica now; start more brokers, or lower audit.topic.replication.factor",
            )
        retention = str(configs.int_value("audit.topic.retention.ms"))
        spec = TopicSpec(
            AUDIT_TOPIC,
            configs.int_value("audit.topic.num.partitions"),
            factor,
            configs=(("cleanup.policy", "delete"), ("retention.ms", retention)),
        )
        topic_id = new_id(self._env.random.bytes)
        defaults = TopicDefaults(num_partitions=1, replication_factor=factor)
        try:
            await self._controller.decide(
                lambda image: create_topic(image, spec, topic_id=topic_id, defaults=defaults)
            )
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        await self._replicas.settled()
        topic = self._cluster.image.topics.get(AUDIT_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def _partition(self, topic: Topic) -> tuple[int, int]:
        """Returns a partition and its leader, this broker if it leads one."""
        current = self._cluster.image.topics.get(AUDIT_TOPIC) or topic
        leaders = [(index, each.leader) for index, each in enumerate(current.partitions)]
        led = [pair for pair in leaders if pair[1] >= 0]
        if not led:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"no partition of {AUDIT_TOPIC} has a leader"
            )
        own = [pair for pair in led if pair[1] == self._broker_id]
        return (own or led)[0]

    async def _append(self, index: int, batch: bytearray) -> None:
        hosted = self._replicas.require(AUDIT_TOPIC, index)
        hosted.require_insync()
        written = hosted.append_own(batch, self._env.clock.wall_ms())
        committed: asyncio.Future[ErrorCode | None] = asyncio.get_running_loop().create_future()

        def tell(code: ErrorCode | None) -> None:
            if not committed.done():
                committed.set_result(code)

        if hosted.when_committed(written.end_offset, tell):
            return
        async with asyncio.timeout(TIMEOUT_S):
            code = await committed
        # With the second code it is committed, in spite of too few in-sync replicas.
        if code not in (None, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise KafkaError(code)

    async def _send(self, index: int, leader: int, batch: bytearray) -> None:
        peer = await self._connect(leader)
        data = ProduceRequest.Partition(index, batch)
        topics = [ProduceRequest.Topic(AUDIT_TOPIC, partition_data=[data])]
        request = ProduceRequest(None, _ALL_REPLICAS, int(TIMEOUT_S * 1000), topics)
        response = await peer.ask(request, _PRODUCE_VERSION, ProduceResponse, 2 * TIMEOUT_S)
        answers = [each for topic in response.responses for each in topic.partition_responses]
        code = code_from(answers[0].error_code) if answers else ErrorCode.UNKNOWN_SERVER_ERROR
        if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION):
            peer.tell_refused()
        if code != ErrorCode.NONE:
            raise KafkaError(code, f"broker {leader} refuses audit events: {code.name}")

    async def _connect(self, leader: int) -> Peer:
        """Returns the connection to a leader. It is kept for the next events."""
        if self._peer is not None:
            held, peer = self._peer
            if held == leader and peer.is_open:
                return peer
            peer.close()
            self._peer = None
        broker = self._cluster.image.brokers.get(leader)
        if broker is None:
            raise PeerLost(f"broker {leader} is not registered")
        peer = await self._connector.connect(
            broker,
            client_id=AUDIT_TOPIC,
            timeout_s=TIMEOUT_S,
            response_bytes_max=_RESPONSE_BYTES_MAX,
        )
        self._peer = leader, peer
        return peer

    def close(self) -> None:
        if self._peer is not None:
            self._peer[1].close()
            self._peer = None


def _batches(events: Sequence[AuditEvent]) -> Iterator[bytearray]:
    """Yields batches whose records have the times of the events."""
    records: list[Record] = []
    size = 0
    for event in events:
        value = event.to_json().encode()
        if records and size + len(value) > BATCH_BYTES_MAX:
            yield build_batch(records)
            records, size = [], 0
        records.append(Record(len(records), event.time_ms, None, value))
        size += len(value)
    if records:
        yield build_batch(records)
