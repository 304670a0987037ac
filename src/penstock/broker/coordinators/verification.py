"""Verifies transactions with their coordinator before partitions accept the first batch (KIP-890).

With transaction.version 2, clients do not add partitions to a transaction themselves: the
verification adds them. Older clients add partitions first, and the verification only asks whether
they did. The coordinator is this broker or another one. Questions to another broker go over a link,
where those of many producers share a request.

Batches of one producer for one partition wait for one answer, and continue in the order they came.

A new transaction often starts while the producer's previous one is still being ended. With
transaction.version 2 the verification waits a little for that (`ENDING_PATIENCE_S`). This broker's
own coordinator holds the question until the previous transaction has ended. Another broker answers
CONCURRENT_TRANSACTIONS, so as not to delay other questions in the same request, and is soon asked
again. The marker that ends the previous transaction invalidates a guard that was taken before it.
In that case the verification takes a new guard and asks the coordinator once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.peers.connection import Peer
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.peers.link import PeerLink, code_from
from penstock.coordination.effects import Now, Token
from penstock.partition.decisions import Begin
from penstock.partition.guards import NO_GUARD
from penstock.ports import Env
from penstock.topic_partition import TopicPartition
from penstock.txns.effects import Answer, Effect
from penstock.txns.formats import TOPIC
from penstock.txns.shard import TransactionShard
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

ANSWER_TIMEOUT_S: Final = 10.0
ENDING_PATIENCE_S: Final = 2.0
"""How long to wait for the end of the producer's previous transaction."""
_RETRY_MIN_S: Final = 0.001
_RETRY_MAX_S: Final = 0.02
_VERSION: Final = 5

Codes = Mapping[TopicPartition, ErrorCode]
_Transaction = AddPartitionsToTxnRequest.Transaction


class VerificationKey(NamedTuple):
    """A producer and its transaction. With `adds` the verification adds the partitions to it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


class VerificationResult(NamedTuple):
    """The coordinator's answer, and the guard that was held while it was asked."""

    code: ErrorCode
    guard: int = NO_GUARD


class _Round(NamedTuple):
    """A question to the coordinator, with the partitions that have no answer yet."""

    key: VerificationKey
    left: dict[TopicPartition, Begin]
    deadline_s: float
    pause_s: float


class _Item(NamedTuple):
    transaction: _Transaction
    answer: asyncio.Future[Codes]


class TransactionVerification:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        transactions: TransactionCoordinator,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        connector: PeerConnector,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._transactions = transactions
        self._spawn = spawn
        self._connector = connector
        self._links: dict[int, PeerLink[_Item]] = {}
        self._asked: dict[
            tuple[VerificationKey, TopicPartition], asyncio.Future[VerificationResult]
        ] = {}

    def ask(
        self, key: VerificationKey, partitions: Sequence[tuple[TopicPartition, Begin]]
    ) -> list[asyncio.Future[VerificationResult]]:
        """Returns the coordinator's answer for each partition: NONE, or why a batch must be
        refused."""
        loop = asyncio.get_running_loop()
        fresh: dict[TopicPartition, Begin] = {}
        answers = []
        for where, begin in partitions:
            if (key, where) not in self._asked:
                self._asked[key, where] = loop.create_future()
                fresh[where] = begin
            answers.append(self._asked[key, where])
        if fresh:
            deadline_s = self._env.clock.monotonic() + ENDING_PATIENCE_S
            self._put(_Round(key, fresh, deadline_s, _RETRY_MIN_S))
        return answers

    def _put(self, asking: _Round) -> None:
        """Asks the coordinator. Creates no task, which would cost more than most answers."""
        guards = {where: begin() or NO_GUARD for where, begin in asking.left.items()}
        codes = self._ask_once(asking.key, list(asking.left))
        if codes.done():
            self._on_codes(asking, guards, codes)
        else:
            codes.add_done_callback(partial(self._on_codes, asking, guards))

    def _on_codes(
        self,
        asking: _Round,
        guards: Mapping[TopicPartition, int],
        said: asyncio.Future[Codes] | asyncio.Future[Answer],
    ) -> None:
        key, left = asking.key, asking.left
        codes = _codes(said.result())
        is_late = not key.adds or self._env.clock.monotonic() >= asking.deadline_s
        is_ending = False
        for where, begin in list(left.items()):
            code = codes.get(where, ErrorCode.UNKNOWN_SERVER_ERROR)
            is_void = code == ErrorCode.NONE and (begin() or NO_GUARD) != guards[where]
            if not is_late and (is_void or code == ErrorCode.CONCURRENT_TRANSACTIONS):
                is_ending = is_ending or not is_void
            else:
                del left[where]
                self._settle(key, where, VerificationResult(code, guards[where]))
        if is_ending:
            self._spawn(self._put_later(asking))
        elif left:
            self._put(asking)

    async def _put_later(self, asking: _Round) -> None:
        try:
            await self._env.clock.sleep(asking.pause_s)
        except asyncio.CancelledError:
            for where in asking.left:
                self._settle(asking.key, where, VerificationResult(ErrorCode.NOT_COORDINATOR))
            raise
        self._put(asking._replace(pause_s=min(asking.pause_s * 2, _RETRY_MAX_S)))

    def _settle(
        self, key: VerificationKey, where: TopicPartition, result: VerificationResult
    ) -> None:
        answer = self._asked.pop((key, where))
        if not answer.done():
            # A coordinator's PRODUCER_FENCED is INVALID_PRODUCER_EPOCH in the answer of a
            # partition.
            fenced = result.code == ErrorCode.PRODUCER_FENCED
            answer.set_result(
                VerificationResult(ErrorCode.INVALID_PRODUCER_EPOCH) if fenced else result
            )

    def _ask_once(
        self, key: VerificationKey, partitions: Sequence[TopicPartition]
    ) -> asyncio.Future[Codes] | asyncio.Future[Answer]:
        transaction = _Transaction(
            key.transactional_id,
            key.producer_id,
            key.producer_epoch,
            not key.adds,
            _topics(partitions),
        )
        answer: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        try:
            index = self._transactions.index_of(key.transactional_id)
            leader = self._cluster.image.topics[TOPIC].partitions[index].leader
            if leader == self._broker_id:
                return self._ask_here(transaction)
        except EXPECTED_ERRORS as error:
            answer.set_result(dict.fromkeys(partitions, code_of(error)))
            return answer
        if leader < 0:
            answer.set_result(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._link(leader).put(_Item(transaction, answer))
        return answer

    def _ask_here(self, transaction: _Transaction) -> asyncio.Future[Answer]:
        def step(shard: TransactionShard, token: Token, now: Now) -> list[Effect]:
            return shard.add_partitions(transaction, _VERSION, token, now, may_wait=True)

        return self._transactions.ask(transaction.transactional_id, step)

    def _link(self, broker_id: int) -> PeerLink[_Item]:
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = PeerLink(
                self._env,
                self._cluster,
                broker_id,
                _exchange,
                _lose,
                self._spawn,
                client_id="transactions",
                connector=self._connector,
            )
        return link


async def _exchange(peer: Peer, items: list[_Item]) -> None:
    request = AddPartitionsToTxnRequest([item.transaction for item in items])
    response = await peer.ask(request, _VERSION, AddPartitionsToTxnResponse, ANSWER_TIMEOUT_S)
    whole = code_from(response.error_code)
    if whole == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        peer.tell_refused()
        # The producer can do nothing about it, and may go on when the operator has.
        whole = ErrorCode.COORDINATOR_NOT_AVAILABLE
    results = response.results_by_transaction
    for number, item in enumerate(items):
        codes: Codes = {}
        if whole == ErrorCode.NONE and number < len(results):
            result = results[number]
            if result.transactional_id == item.transaction.transactional_id:
                codes = _codes(result)
        elif whole != ErrorCode.NONE:
            codes = dict.fromkeys(_asked_of(item.transaction), whole)
        if not item.answer.done():
            item.answer.set_result(codes)


def _lose(items: list[_Item]) -> None:
    for item in items:
        if not item.answer.done():
            codes = dict.fromkeys(_asked_of(item.transaction), ErrorCode.NETWORK_EXCEPTION)
            item.answer.set_result(codes)


def _topics(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnRequest.Topic]:
    return [
        AddPartitionsToTxnRequest.Topic(topic, [where.partition for where in those])
        for topic, those in groupby(sorted(partitions), key=lambda where: where.topic)
    ]


def _asked_of(transaction: _Transaction) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, partition)
        for topic in transaction.topics
        for partition in topic.partitions
    ]


def _codes(answer: Codes | Answer) -> Codes:
    """Returns the error codes of an answer. Answers of other brokers are codes already."""
    if isinstance(answer, Mapping):
        return answer
    if not isinstance(answer, AddPartitionsToTxnResponse.Transaction):
        raise TypeError(f"{type(answer).__name__} has no result for each partition")
    return {
        TopicPartition(topic.name, result.partition_index): code_from(result.partition_error_code)
        for topic in answer.topic_results
        for result in topic.results_by_partition
    }
