"""Asks the share coordinators of the cluster: the port `shares.state_port.ShareState`.

The coordinator of a share partition is found in the image of the cluster. If it is this broker, its
shard is called directly. Otherwise the request goes over a link, where those of many share
partitions share a request. Errors that say that nothing was stored are retried with a growing
pause, for at most `PATIENCE_S`: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS and
COORDINATOR_NOT_AVAILABLE. Requests that are safe to repeat are also retried when it is unknown
whether they were carried out. Writes and replacements are not.

**When a write fails.** With one of the three codes above, it is not stored and never will be. After
any other error the leader must drop its image and everything that it decided since, and call `read`
again: it was fenced, or the outcome is unknown (REQUEST_TIMED_OUT, or the caller was canceled).
Until it has read the state, all its writes for this share partition fail with FENCED_STATE_EPOCH.
What it reads contains the write or not. If it does not, the write has no effect even if it reaches
the coordinator later, because the read makes it void (`shares.state_requests`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.coordinators.share_keys import share_key
from penstock.broker.coordinators.share_state_messages import answer_of, operation_of
from penstock.broker.coordinators.share_states import ShareCoordinator
from penstock.broker.error_codes import code_of
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.peers.connection import Peer
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.peers.link import PeerLink, code_from
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.ports import Env
from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import CallOrder, SharePartitionId, StateSummary
from penstock.shares.state_requests import (
    Delete,
    Initialize,
    Read,
    Replace,
    StateAnswer,
    StateRequest,
    Summarize,
    Write,
)
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages import ShareStateRequest, ShareStateResponse

PATIENCE_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 10.0
"""Longer than the coordinator takes to answer that an append is late."""
_VERSION: Final = 0
_PAUSE_MIN_S: Final = 0.01
_PAUSE_MAX_S: Final = 0.5
_NOT_STORED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
_log = logging.getLogger(__name__)


class TooFewBrokers(KafkaError):
    """The coordinators' topic cannot be created yet. The message says why."""


class _Reading(NamedTuple):
    """What a leader's writes name: the epoch that it has read the state with, and where."""

    leader_epoch: int
    read_offset: int


class _Item:
    """A request on its way to another broker."""

    __slots__ = ("answer", "is_sent", "request")

    def __init__(self, request: StateRequest) -> None:
        self.request = request
        self.is_sent = False
        self.answer: asyncio.Future[StateAnswer] = asyncio.get_running_loop().create_future()

    def settle(self, answer: StateAnswer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class ShareStateClient:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        coordinator: ShareCoordinator,
        create_topic: Callable[[], str | None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        connector: PeerConnector,
    ) -> None:
        """`create_topic` starts the creation of the coordinators' topic, or returns the reason why
        that is not possible yet."""
        self.unknown_writes = 0
        """Writes of which it is unknown whether they were stored."""
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._coordinator = coordinator
        self._create_topic = create_topic
        self._spawn = spawn
        self._connector = connector
        self._links: dict[int, PeerLink[_Item]] = {}
        self._readings: dict[tuple[bytes, int], dict[str, _Reading]] = {}
        """By topic id and partition, then by group."""

    # The port

    async def read(self, share_partition: SharePartitionId, leader_epoch: int) -> ShareImage:
        answer = await self._ask(Read(share_partition, leader_epoch))
        if answer.image is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a share coordinator sent no state")
        readings = self._readings.setdefault(share_partition[1:], {})
        readings[share_partition.group_id] = _Reading(leader_epoch, answer.read_offset)
        return answer.image

    async def write(
        self, share_partition: SharePartitionId, leader_epoch: int, delta: Delta
    ) -> None:
        reading = self._reading(share_partition, leader_epoch)
        await self._store(Write(share_partition, *reading, delta))

    async def replace(
        self, share_partition: SharePartitionId, leader_epoch: int, image: ShareImage
    ) -> None:
        reading = self._reading(share_partition, leader_epoch)
        await self._store(Replace(share_partition, *reading, image.copy()))

    async def initialize(
        self,
        share_partition: SharePartitionId,
        state_epoch: int,
        start_offset: int,
        order: CallOrder,
    ) -> None:
        await self._ask(Initialize(share_partition, state_epoch, start_offset, order))

    async def delete(self, share_partition: SharePartitionId, order: CallOrder) -> None:
        await self._ask(Delete(share_partition, order))

    async def summary(self, share_partition: SharePartitionId) -> StateSummary | None:
        return (await self._ask(Summarize(share_partition))).summary

    # Leaders

    def on_resigned(self, hosted: HostedPartition) -> None:
        """Forgets what leaderships that have ended have read."""
        self._readings.pop((hosted.topic_id, hosted.index), None)

    def _reading(self, share_partition: SharePartitionId, leader_epoch: int) -> _Reading:
        readings = self._readings.get(share_partition[1:], {})
        reading = readings.get(share_partition.group_id)
        if reading is None or reading.leader_epoch != leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_STATE_EPOCH,
                f"the leader must read the state of {share_key(share_partition)} before it writes",
            )
        return reading

    async def _store(self, request: Write | Replace) -> None:
        is_known = False
        try:
            await self._ask(request)
            is_known = True
        except KafkaError as error:
            is_known = error.code in _NOT_STORED
            if error.code == ErrorCode.REQUEST_TIMED_OUT:
                self.unknown_writes += 1
            raise
        finally:
            if not is_known:
                self._forget(request)

    def _forget(self, request: Write | Replace) -> None:
        """The leader must read the state again, unless it has done so meanwhile."""
        where = request.share_partition
        readings = self._readings.get(where[1:], {})
        if readings.get(where.group_id) == (request.leader_epoch, request.read_offset):
            del readings[where.group_id]
            if not readings:
                del self._readings[where[1:]]

    # Requests

    async def _ask(self, request: StateRequest) -> StateAnswer:
        """Returns an answer without an error. Raises `KafkaError`."""
        clock = self._env.clock
        deadline_s = clock.monotonic() + PATIENCE_S
        pause_s = _PAUSE_MIN_S
        while True:
            try:
                async with asyncio.timeout(PATIENCE_S + ANSWER_TIMEOUT_S):
                    answer = await self._put(request)
            except TooFewBrokers:
                raise
            except KafkaError as error:
                answer = StateAnswer(error.code)
            except TimeoutError:
                answer = StateAnswer(ErrorCode.REQUEST_TIMED_OUT)
            code = answer.code
            if code == ErrorCode.NONE:
                return answer
            if not self._may_retry(request, code) or clock.monotonic() + pause_s >= deadline_s:
                name = share_key(request.share_partition)
                raise KafkaError(code, f"the share coordinator of {name}: {code.message}")
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _may_retry(self, request: StateRequest, code: ErrorCode) -> bool:
        if code in _NOT_STORED:
            return True
        if code == ErrorCode.REQUEST_TIMED_OUT:
            return not isinstance(request, Write | Replace)
        # The coordinator may not have heard of a new topic yet.
        topic_id = request.share_partition.topic_id
        return (
            code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and isinstance(request, Initialize)
            and self._cluster.image.topic_by_id(topic_id) is not None
        )

    def _put(self, request: StateRequest) -> asyncio.Future[StateAnswer]:
        """Sends a request once. Raises `KafkaError` if there is no coordinator to send it to."""
        topic = self._cluster.image.topics.get(SHARE_STATE_TOPIC)
        if topic is None:
            return self._without_topic(request)
        index = self._coordinator.partition_for(request.share_partition)
        leader = topic.partitions[index].leader
        if leader == self._broker_id:
            try:
                return self._coordinator.ask(request)
            except KafkaError:
                raise
            except Exception as error:
                # The shard has failed, and was dropped. It is loaded again.
                raise KafkaError(code_of(error)) from error
        if leader < 0:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        item = _Item(request)
        self._link(leader).put(item)
        return item.answer

    def _without_topic(self, request: StateRequest) -> asyncio.Future[StateAnswer]:
        """The topic is created with the first state. Before that nothing is stored."""
        if isinstance(request, Initialize):
            reason = self._create_topic()
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise KafkaError(code) if reason is None else TooFewBrokers(code, reason)
        if isinstance(request, Delete | Summarize):
            answer: asyncio.Future[StateAnswer] = asyncio.get_running_loop().create_future()
            answer.set_result(StateAnswer(ErrorCode.NONE))
            return answer
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _link(self, broker_id: int) -> PeerLink[_Item]:
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = PeerLink(
                self._env,
                self._cluster,
                broker_id,
                partial(_exchange, broker_id),
                _lose,
                self._spawn,
                client_id="share-state",
                connector=self._connector,
            )
        return link


async def _exchange(broker_id: int, peer: Peer, items: list[_Item]) -> None:
    # The others have timed out.
    items = [item for item in items if not item.answer.done()]
    for item in items:
        item.is_sent = True
    request = ShareStateRequest([operation_of(item.request) for item in items])
    response = await peer.ask(request, _VERSION, ShareStateResponse, ANSWER_TIMEOUT_S)
    whole = code_from(response.error_code)
    if whole == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        peer.tell_refused()
        whole = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if whole != ErrorCode.NONE:
        for item in items:
            item.settle(StateAnswer(whole))
        return
    for number, item in enumerate(items):
        answer = StateAnswer(ErrorCode.REQUEST_TIMED_OUT)
        if number < len(response.results):
            try:
                answer = answer_of(item.request, response.results[number])
            except ProtocolError as error:
                _log.error("broker %d sent a state that is damaged: %s", broker_id, error)
        item.settle(answer)


def _lose(items: list[_Item]) -> None:
    for item in items:
        is_unknown = item.is_sent
        item.settle(
            StateAnswer(
                ErrorCode.REQUEST_TIMED_OUT if is_unknown else ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        )
