"""Ends transactions of several producers together (multi-commit).

The producers run on several machines, each with its own transactional id, and leave their
transactions open (`Transaction.hand_over`). The ids are chosen so that they share one coordinator
(`txns.colocated_ids.id_beside`). Then one request decides all of them in one write: all are
committed, or none. The transaction of the process that coordinates the work can include an offset
commit, as a record that the work was done.

The request is Penstock's own (EndTransactions); Kafka clusters do not have it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, check
from penstock.client.model import OffsetAndMetadata, OpenTransaction
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.java import partition_of
from penstock.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTransactionsRequest,
    EndTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

T = TypeVar("T")
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
_ONGOING: Final = "Ongoing"
_GONE: Final = (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,)


async def take_over(
    cluster: Cluster,
    transactional_id: str,
    *,
    timeout_ms: int,
    current: OpenTransaction | None = None,
) -> OpenTransaction:
    """Takes over the transactional id: fences its producer and aborts its open transaction.

    Waits while a decision on its last transaction is being carried out. With `current`, succeeds
    only if no other producer has taken over the id since.
    """
    request = InitProducerIdRequest(transactional_id, timeout_ms)
    if current is not None:
        request.producer_id = current.producer_id
        request.producer_epoch = current.producer_epoch

    async def attempt(connection: Connection) -> OpenTransaction:
        connection.version_of(EndTransactionsRequest)
        answer = await connection.call(request, InitProducerIdResponse)
        check(answer.error_code, subject=f"transactional id {transactional_id}")
        return OpenTransaction(transactional_id, answer.producer_id, answer.producer_epoch)

    return await _at_coordinator(
        cluster, transactional_id, f"InitProducerId for {transactional_id}", attempt
    )


async def open_transactions(
    cluster: Cluster, beside: str, pattern: str
) -> tuple[OpenTransaction, ...]:
    """Returns the open transactions of the ids that match `pattern`, at the coordinator of
    `beside`."""
    wanted = ListTransactionsRequest([_ONGOING], transactional_id_pattern=pattern)

    async def attempt(connection: Connection) -> tuple[OpenTransaction, ...]:
        listed = await connection.call(wanted, ListTransactionsResponse)
        check(listed.error_code, subject="ListTransactions")
        names = [each.transactional_id for each in listed.transaction_states]
        if not names:
            return ()
        found = await connection.call(
            DescribeTransactionsRequest(names), DescribeTransactionsResponse
        )
        for each in found.transaction_states:
            if each.error_code not in _GONE:
                check(each.error_code, subject=f"transactional id {each.transactional_id}")
        return tuple(
            OpenTransaction(each.transactional_id, each.producer_id, each.producer_epoch)
            for each in found.transaction_states
            if each.error_code == ErrorCode.NONE and each.transaction_state == _ONGOING
        )

    return await _at_coordinator(cluster, beside, f"open transactions of {pattern}", attempt)


async def end_together(
    cluster: Cluster,
    members: Sequence[OpenTransaction],
    *,
    committed: bool,
    group: str | None = None,
) -> None:
    """Commits all of the transactions or none, or aborts those that are open. Safe to retry.

    With `group`, one of them must have committed offsets of that group.
    """
    request = EndTransactionsRequest(
        committed=committed,
        members=[EndTransactionsRequest.Member(*member) for member in members],
    )
    if group is not None:
        request.offsets_topic = OFFSETS_TOPIC
        request.offsets_partition = partition_of(
            group, await partition_count(cluster, OFFSETS_TOPIC)
        )

    async def attempt(connection: Connection) -> None:
        answer = await connection.call(request, EndTransactionsResponse)
        if answer.error_code != ErrorCode.NONE:
            raise BrokerError(answer.error_code, subject=_in_the_way(answer, len(members)))

    what = f"the {'commit' if committed else 'abort'} of {len(members)} transactions"
    await _at_coordinator(cluster, members[0].transactional_id, what, attempt)


def _in_the_way(answer: EndTransactionsResponse, count: int) -> str:
    names = [each.transactional_id for each in answer.members if each.error_code]
    return f"{count} transactions" + (f", because of {', '.join(names[:5])}" if names else "")


async def note_offset(
    cluster: Cluster,
    transaction: OpenTransaction,
    group: str,
    topic_partition: TopicPartition,
    position: OffsetAndMetadata,
) -> None:
    """Commits an offset of a group without members, as part of the transaction."""
    request = TxnOffsetCommitRequest(
        transaction.transactional_id,
        group,
        transaction.producer_id,
        transaction.producer_epoch,
        topics=[
            TxnOffsetCommitRequest.Topic(
                topic_partition.topic,
                [
                    TxnOffsetCommitRequest.Partition(
                        topic_partition.partition,
                        position.offset,
                        position.leader_epoch,
                        position.metadata,
                    )
                ],
            )
        ],
    )

    async def attempt(fresh: bool) -> None:
        connection = await cluster.coordinator(group, fresh=fresh)
        answer = await connection.call(request, TxnOffsetCommitResponse)
        for topic in answer.topics:
            for partition in topic.partitions:
                check(partition.error_code, subject=f"offset of group {group}")

    await cluster.retry(f"TxnOffsetCommit for group {group}", attempt)


async def stable_offset(
    cluster: Cluster, group: str, topic_partition: TopicPartition
) -> OffsetAndMetadata | None:
    """Returns the group's committed offset, once no transaction is about to change it."""
    wanted = OffsetFetchRequest.Group(
        group_id=group,
        topics=[
            OffsetFetchRequest.GroupTopic(
                topic_partition.topic, partition_indexes=[topic_partition.partition]
            )
        ],
    )
    request = OffsetFetchRequest(groups=[wanted], require_stable=True)

    async def attempt(fresh: bool) -> OffsetAndMetadata | None:
        connection = await cluster.coordinator(group, fresh=fresh)
        (found,) = (await connection.call(request, OffsetFetchResponse)).groups
        check(found.error_code, subject=f"group {group}")
        for topic in found.topics:
            for each in topic.partitions:
                check(each.error_code, subject=f"offset of group {group}")
                if each.committed_offset >= 0:
                    return OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
        return None

    return await cluster.retry(f"OffsetFetch for group {group}", attempt)


async def partition_count(cluster: Cluster, topic: str) -> int:
    """Returns the number of partitions of an internal topic, which not every broker may know
    yet."""

    async def attempt(fresh: bool) -> int:
        (found,) = (await cluster.metadata([topic])).topics
        check(found.error_code, subject=f"topic {topic}")
        return len(found.partitions)

    return await cluster.retry(f"topic {topic}", attempt)


async def _at_coordinator(
    cluster: Cluster,
    transactional_id: str,
    what: str,
    ask: Callable[[Connection], Awaitable[T]],
) -> T:
    async def attempt(fresh: bool) -> T:
        return await ask(await cluster.transaction_coordinator(transactional_id, fresh=fresh))

    return await cluster.retry(what, attempt)
