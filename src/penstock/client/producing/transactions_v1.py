"""Transactions on clusters before transaction.version 2, where partitions are added explicitly.

AddPartitionsToTxn adds a partition before the first batch is sent to it, and AddOffsetsToTxn adds a
group before its offsets are committed. The end of a transaction returns no new epoch: sequence
numbers continue from one transaction to the next. Only after a failure does the producer request
another epoch (InitProducerId with the current id and epoch, KIP-360). That also shows whether the
producer was replaced, because then the request is refused. Kafka also refuses it when a transaction
was aborted because of its timeout; Penstock's brokers accept it.

The coordinator answers CONCURRENT_TRANSACTIONS until the markers of the previous transaction are
written. That takes milliseconds, so the request is repeated soon.

Request versions are limited, because later versions of the same requests mean transaction.version
2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from typing import Final, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import check
from penstock.client.producing.sequences import Identity
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

PRODUCE_VERSION_MAX: Final = 11
END_VERSION_MAX: Final = 4
OFFSET_COMMIT_VERSION_MAX: Final = 4
_ADD_VERSION_MAX: Final = 3
_SOON_S: Final = 0.02

R = TypeVar("R")


class TransactionsV1:
    def __init__(self, cluster: Cluster, transactional_id: str, deadline_s: float) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._deadline_s = deadline_s

    async def add_partitions(
        self, identity: Identity, topic_partitions: Iterable[TopicPartition]
    ) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.Topic(
                    name, [topic_partition.partition for topic_partition in those]
                )
                for name, those in groupby(
                    sorted(topic_partitions), key=lambda topic_partition: topic_partition.topic
                )
            ],
        )

        async def attempt(fresh: bool) -> None:
            connection = await self._cluster.transaction_coordinator(
                self._transactional_id, fresh=fresh
            )

            def ask() -> Awaitable[AddPartitionsToTxnResponse]:
                return connection.call(
                    request, AddPartitionsToTxnResponse, version_max=_ADD_VERSION_MAX
                )

            answer = await self._soon_again(ask, lambda answer: max(_codes(answer).values()))
            # OPERATION_NOT_ATTEMPTED does not say why the request failed, so other codes come
            # first.
            codes = sorted(_codes(answer).items(), key=lambda item: item[1] == _NOT_ATTEMPTED)
            for topic_partition, code in codes:
                check(
                    code,
                    subject=f"{topic_partition} in the transaction of {self._transactional_id}",
                )

        what = f"AddPartitionsToTxn for {self._transactional_id}"
        await self._cluster.retry(what, attempt, deadline_s=self._deadline_s)

    async def add_offsets(self, identity: Identity, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            self._transactional_id, identity.producer_id, identity.epoch, group
        )

        async def attempt(fresh: bool) -> None:
            connection = await self._cluster.transaction_coordinator(
                self._transactional_id, fresh=fresh
            )

            def ask() -> Awaitable[AddOffsetsToTxnResponse]:
                return connection.call(request, AddOffsetsToTxnResponse)

            answer = await self._soon_again(ask, lambda answer: answer.error_code)
            check(answer.error_code, subject=f"transactional id {self._transactional_id}")

        what = f"AddOffsetsToTxn for {self._transactional_id}"
        await self._cluster.retry(what, attempt, deadline_s=self._deadline_s)

    async def _soon_again(self, ask: Callable[[], Awaitable[R]], code_of: Callable[[R], int]) -> R:
        """Repeats the request until the previous transaction is over. At the deadline, returns the
        last answer."""
        clock = self._cluster.clock
        end = clock.monotonic() + self._deadline_s
        while True:
            answer = await ask()
            ended = code_of(answer) != ErrorCode.CONCURRENT_TRANSACTIONS
            if ended or clock.monotonic() + _SOON_S >= end:
                return answer
            await clock.sleep(_SOON_S)


_NOT_ATTEMPTED: Final = ErrorCode.OPERATION_NOT_ATTEMPTED


def _codes(answer: AddPartitionsToTxnResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, result.partition_index): result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }
