"""Appends dead letters to the partitions of dead-letter topics, wherever they are led.

A partition that this broker leads gets them directly, as from a producer with acks=all. The others
get a Produce request of the client `dead-letters`, which needs CLUSTER_ACTION there. Letters of
several partitions that are due together share a request, if one broker leads their targets.

The batches of one call are sent to another broker one after the other: the next one when the last
one is committed. A leader processes each batch of a request by itself, so in one request a later
batch could be appended before an earlier one, or without it. Callers rely on the order: the batches
that are written are the first ones.

The copies of delay topics are appended in the same way, by a client with a name of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.coordinators.producer_ids import ProducerIds
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.peers.connection import Peer, PeerLost
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.peers.link import PeerLink, code_from
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.dead_letter_configs import DEAD_LETTER_ENABLE
from penstock.metadata.model import INTERNAL_TOPICS, Topic
from penstock.metadata.topic_ids import new_id
from penstock.metadata.topics import TopicDefaults, TopicSpec, create_topic
from penstock.partition.record_validation import LargeBatch
from penstock.ports import Env
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ProduceRequest, ProduceResponse

LETTERS_CLIENT: Final = "dead-letters"
"""The client id under which brokers send dead letters."""
COPIES_CLIENT: Final = "delay-topics"
"""The client id under which brokers send the copies of delay topics."""
TIMEOUT_S: Final = 10.0
"""How long to wait until letters are committed."""
REQUEST_BYTES_MAX: Final = 8 << 20
"""A request is larger only if its only batch is. `socket.request.max.bytes` limits it as well."""
WRITTEN: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
"""The codes of batches that the partition has."""
_PRODUCE_VERSION: Final = 9
_ALL_REPLICAS: Final = -1
_AROUND_BATCH_BYTES: Final = 512
"""An upper limit for what a request with one batch has besides the batch."""
_NOT_ALLOWED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class _Item:
    """A batch on its way to another broker."""

    __slots__ = ("answer", "batch", "topic_id", "where")

    def __init__(
        self, where: TopicPartition, batch: bytes | bytearray, topic_id: bytes | None
    ) -> None:
        self.where = where
        self.batch = batch
        self.topic_id = topic_id
        self.answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    @property
    def request_bytes(self) -> int:
        """The size of a request for this batch alone. It may be a little less."""
        return len(self.batch) + _AROUND_BATCH_BYTES

    def settle(self, code: ErrorCode) -> None:
        if not self.answer.done():
            self.answer.set_result(code)


class LetterSender:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        controller: ControllerRuntime,
        replicas: Replicas,
        configs: Callable[[], BrokerConfigs],
        connector: PeerConnector,
        producer_ids: ProducerIds,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        client_id: str = LETTERS_CLIENT,
    ) -> None:
        self._client_id = client_id
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._controller = controller
        self._replicas = replicas
        self._configs = configs
        self._connector = connector
        self._producer_ids = producer_ids
        self._spawn = spawn
        self._links: dict[int, PeerLink[_Item]] = {}

    async def producer_id(self) -> int:
        return await self._producer_ids.next()

    async def target(self, name: str, source: TopicPartition) -> TopicPartition:
        """Returns the partition for the dead letters of a partition. Creates the topic if brokers
        may do that. Raises `KafkaError` if the topic cannot have these dead letters."""
        prefix = self._configs().text_value("errors.deadletterqueue.topic.name.prefix")
        if name in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "an internal topic cannot be a dead-letter topic: choose another topic for the "
                "group",
            )
        if not name.startswith(prefix):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"the dead-letter topic must have a name that begins with {prefix!r} "
                "(errors.deadletterqueue.topic.name.prefix): choose another topic for the group",
            )
        if name == source.topic:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "a topic cannot be its own dead-letter topic: choose another one for the group",
            )
        topic = self._cluster.image.topics.get(name) or await self._create(name)
        if not self._configs().settings(topic.configs).errors_deadletterqueue_group_enable:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"the topic does not allow dead letters: set {DEAD_LETTER_ENABLE}=true for it",
            )
        return TopicPartition(name, source.partition % len(topic.partitions))

    async def _create(self, name: str) -> Topic:
        configs = self._configs()
        if not configs.bool_value("errors.deadletterqueue.auto.create.topics.enable"):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"the topic does not exist: create it with {DEAD_LETTER_ENABLE}=true",
            )
        defaults = TopicDefaults(
            num_partitions=configs.int_value("num.partitions"),
            replication_factor=configs.int_value("default.replication.factor"),
        )
        spec = TopicSpec(name, configs=((DEAD_LETTER_ENABLE, "true"),))
        topic_id = new_id(self._env.random.bytes)
        try:
            await self._controller.decide(
                lambda image: create_topic(image, spec, topic_id=topic_id, defaults=defaults)
            )
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        topic = self._cluster.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic is being created")
        return topic

    async def append(
        self,
        where: TopicPartition,
        batches: Sequence[bytes | bytearray],
        topic_id: bytes | None = None,
    ) -> list[ErrorCode]:
        """Appends batches in order, and waits until they are committed. Stops at the first batch
        that is not in `WRITTEN`: those after it are not appended.

        Returns an error code for each batch that was tried. Raises one of `EXPECTED_ERRORS` if it
        is unknown what happened. With `topic_id`, nothing is sent to another topic of the same
        name.
        """
        partition = self._cluster.image.partition(*where)
        if partition is None or partition.leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        if partition.leader == self._broker_id:
            hosted = self._replicas.require(*where)
            if topic_id not in (None, hosted.topic_id):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            return await self._append_here(hosted, batches)
        codes: list[ErrorCode] = []
        for batch in batches:
            item = _Item(where, batch, topic_id)
            self._link(partition.leader).put(item)
            codes.append(await item.answer)
            if codes[-1] not in WRITTEN:
                break
        return codes

    # On this broker

    async def _append_here(
        self, hosted: HostedPartition, batches: Sequence[bytes | bytearray]
    ) -> list[ErrorCode]:
        codes: list[ErrorCode] = []
        end_offset = 0
        for batch in batches:
            try:
                end_offset = max(end_offset, await self._append_one(hosted, batch))
            except EXPECTED_ERRORS as error:
                codes.append(code_of(error))
                if codes[-1] not in WRITTEN:
                    break
            else:
                codes.append(ErrorCode.NONE)
        await self._committed(hosted, end_offset)
        return codes

    async def _append_one(self, hosted: HostedPartition, batch: bytes | bytearray) -> int:
        """Returns the end offset of the batch, or of its first copy."""
        now_ms = self._env.clock.wall_ms()
        # The partition writes offsets into the batch, which may be needed again.
        view = memoryview(bytearray(batch))
        try:
            return hosted.append(view, now_ms, acks_all=True).end_offset
        except LargeBatch:
            work = hosted.validation(view, now_ms, zstd_allowed=True)
        validated = await self._env.executor.run(work)
        return hosted.append(view, now_ms, acks_all=True, validated=validated).end_offset

    async def _committed(self, hosted: HostedPartition, end_offset: int) -> None:
        committed: asyncio.Future[ErrorCode | None] = asyncio.get_running_loop().create_future()

        def tell(code: ErrorCode | None) -> None:
            if not committed.done():
                committed.set_result(code)

        if not end_offset or hosted.when_committed(end_offset, tell):
            return
        async with asyncio.timeout(TIMEOUT_S):
            code = await committed
        # With the last code it is committed, in spite of too few in-sync replicas.
        if code not in (None, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise KafkaError(code)

    # On other brokers

    def _link(self, broker_id: int) -> PeerLink[_Item]:
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = PeerLink(
                self._env,
                self._cluster,
                broker_id,
                self._exchange,
                _lose,
                self._spawn,
                client_id=self._client_id,
                connector=self._connector,
            )
        return link

    async def _exchange(self, peer: Peer, items: list[_Item]) -> None:
        accepted = self._configs().int_value("socket.request.max.bytes")
        for portion in _portions(items, min(REQUEST_BYTES_MAX, accepted)):
            sent = [item for item in portion if self._may_send(item, accepted)]
            if sent:
                await _send(peer, sent)

    def _may_send(self, item: _Item, accepted: int) -> bool:
        """Settles a batch that must not be sent."""
        topic = self._cluster.image.topics.get(item.where.topic)
        if item.topic_id is not None and (topic is None or topic.topic_id != item.topic_id):
            item.settle(ErrorCode.UNKNOWN_TOPIC_ID)
        elif item.request_bytes > accepted:
            # The broker would close the connection, each time.
            item.settle(ErrorCode.MESSAGE_TOO_LARGE)
        return not item.answer.done()


async def _send(peer: Peer, items: list[_Item]) -> None:
    request = ProduceRequest(
        None, _ALL_REPLICAS, int(TIMEOUT_S * 1000), [_topic_of(item) for item in items]
    )
    response = await peer.ask(request, _PRODUCE_VERSION, ProduceResponse, 2 * TIMEOUT_S)
    answered = [each.partition_responses for each in response.responses]
    if len(answered) != len(items) or any(len(each) != 1 for each in answered):
        peer.close("its response is for other partitions than the request")
        raise PeerLost(f"the response of {peer.name} is for other partitions")
    for item, (answer,) in zip(items, answered, strict=True):
        code = code_from(answer.error_code)
        if code in _NOT_ALLOWED:
            peer.tell_refused()
        if code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            code = ErrorCode.NONE
        item.settle(code)


def _portions(items: list[_Item], bytes_max: int) -> Iterator[list[_Item]]:
    portion: list[_Item] = []
    size = 0
    for item in items:
        if portion and size + item.request_bytes > bytes_max:
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += item.request_bytes
    if portion:
        yield portion


def _topic_of(item: _Item) -> ProduceRequest.Topic:
    data = ProduceRequest.Partition(item.where.partition, item.batch)
    return ProduceRequest.Topic(item.where.topic, partition_data=[data])


def _lose(items: list[_Item]) -> None:
    for item in items:
        item.settle(ErrorCode.NETWORK_EXCEPTION)
