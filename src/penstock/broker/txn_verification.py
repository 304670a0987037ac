"""Asking a transaction's coordinator about partitions, before they take its first batch (KIP-890).

Clients of transaction.version 2 leave it to the partitions to join the transaction: then this adds
them; for older clients, who add them first, it only asks whether they did. The coordinator is this
broker or another one, over a link where the questions of many producers share a request.

Batches of one producer for one partition wait for one answer, and go on in the order they came.
A transaction that is still being ended (CONCURRENT_TRANSACTIONS) is waited for a little: the next
one of the same producer follows on its heels. Each time a new guard is taken: the marker that ends
the one before makes void what was taken before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from penstock.broker.cluster import ClusterView
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.peer import Peer
from penstock.broker.peer_link import PeerLink, code_from
from penstock.broker.txn_appends import Begin
from penstock.broker.txn_coordinator import TransactionCoordinator
from penstock.partition.verification import NO_GUARD
from penstock.ports import Env
from penstock.txns.effects import Effect, Now, Token, TopicPartition
from penstock.txns.formats import TOPIC
from penstock.txns.shard import TransactionShard
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

ANSWER_TIMEOUT_S: Final = 10.0
ENDING_PATIENCE_S: Final = 2.0
"""How long the end of the transaction before is waited for."""
_RETRY_S: Final = 0.02
_VERSION: Final = 5

Codes = Mapping[TopicPartition, ErrorCode]
_Transaction = AddPartitionsToTxnRequest.Transaction


class Asker(NamedTuple):
    """A producer in its transaction; `adds` where the partitions are to join it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


class Word(NamedTuple):
    """What the coordinator said, and the guard that was held while it was asked."""

    code: ErrorCode
    guard: int = NO_GUARD


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
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._transactions = transactions
        self._spawn = spawn
        self._links: dict[int, PeerLink[_Item]] = {}
        self._asked: dict[tuple[Asker, TopicPartition], asyncio.Future[Word]] = {}

    def ask(
        self, asker: Asker, partitions: Sequence[tuple[TopicPartition, Begin]]
    ) -> list[asyncio.Future[Word]]:
        """The coordinator's word for each: NONE, or why a batch must not be taken."""
        loop = asyncio.get_running_loop()
        fresh: dict[TopicPartition, Begin] = {}
        answers = []
        for where, begin in partitions:
            if (asker, where) not in self._asked:
                self._asked[asker, where] = loop.create_future()
                fresh[where] = begin
            answers.append(self._asked[asker, where])
        if fresh:
            self._spawn(self._work(asker, fresh))
        return answers

    async def _work(self, asker: Asker, left: dict[TopicPartition, Begin]) -> None:
        clock = self._env.clock
        deadline_s = clock.monotonic() + ENDING_PATIENCE_S
        try:
            while left:
                guards = {where: begin() or NO_GUARD for where, begin in left.items()}
                codes = await self._ask_once(asker, list(left))
                is_late = not asker.adds or clock.monotonic() >= deadline_s
                for where in list(left):
                    code = codes.get(where, ErrorCode.UNKNOWN_SERVER_ERROR)
                    if is_late or code != ErrorCode.CONCURRENT_TRANSACTIONS:
                        del left[where]
                        self._settle(asker, where, Word(code, guards[where]))
                if left:
                    await clock.sleep(_RETRY_S)
        finally:
            for where in left:
                self._settle(asker, where, Word(ErrorCode.NOT_COORDINATOR))

    def _settle(self, asker: Asker, where: TopicPartition, word: Word) -> None:
        answer = self._asked.pop((asker, where))
        if not answer.done():
            # What fences a producer at its coordinator is, at a partition, its old epoch.
            fenced = word.code == ErrorCode.PRODUCER_FENCED
            answer.set_result(Word(ErrorCode.INVALID_PRODUCER_EPOCH) if fenced else word)

    async def _ask_once(self, asker: Asker, partitions: Sequence[TopicPartition]) -> Codes:
        transaction = _Transaction(
            asker.transactional_id,
            asker.producer_id,
            asker.producer_epoch,
            not asker.adds,
            _topics(partitions),
        )
        try:
            index = self._transactions.index_of(asker.transactional_id)
            partition = self._cluster.image.topics[TOPIC].partitions[index]
            if partition.leader == self._broker_id:
                return await self._ask_here(transaction)
        except EXPECTED as error:
            return dict.fromkeys(partitions, code_of(error))
        if partition.leader < 0:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answer: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        self._link(partition.leader).put(_Item(transaction, answer))
        return await answer

    async def _ask_here(self, transaction: _Transaction) -> Codes:
        def step(shard: TransactionShard, token: Token, now: Now) -> list[Effect]:
            return shard.add_partitions(transaction, _VERSION, token, now)

        answer = await self._transactions.ask(transaction.transactional_id, step)
        if not isinstance(answer, AddPartitionsToTxnResponse.Transaction):
            raise TypeError(f"{type(answer).__name__} does not answer for partitions")
        return _codes(answer)

    def _link(self, broker_id: int) -> PeerLink[_Item]:
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = PeerLink(
                self._env, self._cluster, broker_id, _exchange, _lose, self._spawn
            )
        return link


async def _exchange(peer: Peer, items: list[_Item]) -> None:
    request = AddPartitionsToTxnRequest([item.transaction for item in items])
    response = await peer.ask(request, _VERSION, AddPartitionsToTxnResponse, ANSWER_TIMEOUT_S)
    whole = code_from(response.error_code)
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


def _codes(answer: AddPartitionsToTxnResponse.Transaction) -> Codes:
    return {
        TopicPartition(topic.name, result.partition_index): code_from(result.partition_error_code)
        for topic in answer.topic_results
        for result in topic.results_by_partition
    }
