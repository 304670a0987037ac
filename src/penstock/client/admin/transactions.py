"""Admin operations on transactions: list, describe, terminate, and find and abort hanging ones.

Two places know a transaction. Its coordinator knows which partitions it has written to, and ends it
there. The partitions' leaders know that it is open, and do not let read-committed consumers past
its first record. A transaction hangs when a partition has it open and no coordinator knows that.
Then nothing will end it, and an operator must.

Detecting this takes three steps, in this order: read the state of the partitions, of the
coordinators, and of the partitions again. A coordinator knows of a partition before the partition
has any record of the transaction, and until the partition has its marker. So a transaction that is
open in the first step and unknown to the coordinators in the second has either ended in between,
and is not open in the third, or it hangs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.client.admin.inspection import describe_producers
from penstock.client.cluster import Cluster
from penstock.client.errors import ApiNotServed, BrokerError, OptionError, TopicNotFound, check
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_DURATION_SINCE: Final = 1
_PATTERN_SINCE: Final = 2
_RUNNING: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""The states in which a coordinator still has to write markers to partitions."""

_COORDINATOR_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_ABORT_REFUSED: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "the producer has a newer epoch now, so this transaction has ended: look for hanging "
        "transactions again"
    ),
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: (
        "a newer coordinator has written to this partition since: look for hanging transactions "
        "again"
    ),
}


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in the result of `list_transactions`."""

    transactional_id: str
    producer_id: int
    state: str
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort."""
    coordinator: int
    """The broker that answered for it."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """What the coordinator knows about a transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    """-1 if no transaction is open."""
    partitions: tuple[TopicPartition, ...]
    """The partitions that the transaction has written to and that have no marker yet."""
    coordinator: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that a partition has open and no coordinator knows."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    """Read-committed consumers cannot read past this offset."""
    last_time_ms: int
    """When the producer last wrote to the partition."""
    transactional_id: str | None
    """The producer's transactional id; None if no coordinator knows the producer."""


@dataclass(frozen=True, slots=True)
class HangingSearch:
    found: tuple[HangingTransaction, ...]
    not_seen: tuple[TopicPartition, ...]
    """Partitions without a leader: it is unknown whether a transaction hangs there."""


# -- coordinators --------------------------------------------------------------------------------


async def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    running_longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """Returns the transactional ids of all coordinators that match every filter, sorted by name."""
    await cluster.metadata([])
    request = ListTransactionsRequest(
        list(states),
        list(producer_ids),
        -1 if running_longer_than_ms is None else running_longer_than_ms,
        pattern,
    )
    found: list[TransactionListing] = []
    for broker in sorted(cluster.brokers):
        answer = await _list_at(cluster, broker, request)
        if answer.unknown_state_filters:
            raise OptionError(
                f"{', '.join(answer.unknown_state_filters)}: unknown transaction state; "
                f"the states are Empty, {', '.join(_RUNNING)}, CompleteCommit and CompleteAbort"
            )
        found += [
            TransactionListing(
                each.transactional_id, each.producer_id, each.transaction_state, broker
            )
            for each in answer.transaction_states
        ]
    return sorted(found, key=lambda listing: listing.transactional_id)


async def _list_at(
    cluster: Cluster, broker: int, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    async def attempt(fresh: bool) -> ListTransactionsResponse:
        connection = await cluster.connection(broker)
        version = connection.version_of(ListTransactionsRequest)
        # An older broker would ignore the filter and return everything.
        if request.duration_filter >= 0 and version < _DURATION_SINCE:
            raise ApiNotServed(
                f"broker {broker} is too old to list transactions by how long they have run"
            )
        if request.transactional_id_pattern is not None and version < _PATTERN_SINCE:
            raise ApiNotServed(f"broker {broker} is too old to list transactions by a pattern")
        answer = await connection.call(request, ListTransactionsResponse)
        check(answer.error_code, subject=f"ListTransactions at broker {broker}")
        return answer

    return await cluster.retry(f"ListTransactions at broker {broker}", attempt)


async def describe_transactions(
    cluster: Cluster, transactional_ids: Sequence[str]
) -> dict[str, TransactionInfo | BrokerError]:
    """Returns what the coordinator of each id knows, or the error."""
    return {name: await _describe(cluster, name) for name in transactional_ids}


async def _describe(cluster: Cluster, name: str) -> TransactionInfo | BrokerError:
    async def attempt(fresh: bool) -> TransactionInfo | BrokerError:
        connection = await cluster.transaction_coordinator(name, fresh=fresh)
        answer = await connection.call(
            DescribeTransactionsRequest([name]), DescribeTransactionsResponse
        )
        found = answer.transaction_states[0]
        if found.error_code in _COORDINATOR_MOVED:
            check(found.error_code, subject=f"transactional id {name}")
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return BrokerError(found.error_code, f"transactional id {name} does not exist")
        if found.error_code:
            return BrokerError(found.error_code, subject=f"transactional id {name}")
        return TransactionInfo(
            name,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms,
            tuple(
                sorted(
                    TopicPartition(topic.topic, index)
                    for topic in found.topics
                    for index in topic.partitions
                )
            ),
            cluster.transaction_coordinator_of(name),
        )

    return await cluster.retry(f"DescribeTransactions for {name}", attempt)


async def terminate_transaction(cluster: Cluster, transactional_id: str) -> None:
    """Lets the coordinator abort the open transaction, and fences the producer that has the id.

    Returns when every partition has its marker. An id that does not exist is not created.
    """
    known = await _describe(cluster, transactional_id)
    if isinstance(known, BrokerError):
        raise known
    request = InitProducerIdRequest(transactional_id, max(1, known.timeout_ms))

    async def attempt(fresh: bool) -> None:
        connection = await cluster.transaction_coordinator(transactional_id, fresh=fresh)
        answer = await connection.call(request, InitProducerIdResponse)
        check(answer.error_code, subject=f"transactional id {transactional_id}")

    await cluster.retry(f"ending the transaction of {transactional_id}", attempt)


# -- partitions ----------------------------------------------------------------------------------


async def find_hanging(cluster: Cluster, topics: Sequence[str] | None = None) -> HangingSearch:
    """Searches these topics, or all topics including internal ones."""
    led, not_seen = await _partitions(cluster, topics)
    suspects = await _open_at(cluster, led)
    if suspects:
        suspects = await _unknown(cluster, suspects)
    if suspects:
        still_open = {
            (each.topic_partition, each.producer_id, each.start_offset)
            for each in await _open_at(cluster, sorted({each.topic_partition for each in suspects}))
        }
        suspects = [
            each
            for each in suspects
            if (each.topic_partition, each.producer_id, each.start_offset) in still_open
        ]
    return HangingSearch(tuple(suspects), not_seen)


async def _partitions(
    cluster: Cluster, topics: Sequence[str] | None
) -> tuple[list[TopicPartition], tuple[TopicPartition, ...]]:
    """Returns the partitions that have a leader, and the others."""
    answer = await cluster.metadata(topics)
    led: list[TopicPartition] = []
    others: list[TopicPartition] = []
    for topic in answer.topics:
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicNotFound(name)
        check(topic.error_code, subject=f"topic {name}")
        for partition in topic.partitions:
            topic_partition = TopicPartition(name, partition.partition_index)
            (led if partition.leader_id in cluster.brokers else others).append(topic_partition)
    return sorted(led), tuple(sorted(others))


async def _open_at(
    cluster: Cluster, topic_partitions: Sequence[TopicPartition]
) -> list[HangingTransaction]:
    """Returns every transaction that is open on these partitions. Each one may be hanging."""
    found = await describe_producers(cluster, topic_partitions)
    return [
        HangingTransaction(
            topic_partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.transaction_start_offset,
            producer.last_timestamp,
            None,
        )
        for topic_partition, producers in found.items()
        for producer in producers
        if producer.transaction_start_offset >= 0
    ]


async def _unknown(
    cluster: Cluster, suspects: Sequence[HangingTransaction]
) -> list[HangingTransaction]:
    """Returns those that no coordinator has, with the producer's transactional id."""
    ids = sorted({each.producer_id for each in suspects})
    names: dict[int, str] = {}
    running: set[tuple[TopicPartition, int]] = set()
    for listing in await list_transactions(cluster, producer_ids=ids):
        names[listing.producer_id] = listing.transactional_id
        known = await _describe(cluster, listing.transactional_id)
        if isinstance(known, TransactionInfo):
            if known.state in _RUNNING:
                running |= {
                    (topic_partition, listing.producer_id) for topic_partition in known.partitions
                }
        elif known.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            # An id that was removed in the meantime had no open transaction. After any other error
            # its state is unknown.
            raise known
    return [
        replace(each, transactional_id=names.get(each.producer_id))
        for each in suspects
        if (each.topic_partition, each.producer_id) not in running
    ]


async def abort_transaction(
    cluster: Cluster,
    topic_partition: TopicPartition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
) -> None:
    """Writes the marker that ends a hanging transaction, as its coordinator would have.

    It is sent only once: if the answer is lost, check whether the transaction is still open before
    sending another.
    """
    marker = WriteTxnMarkersRequest.Marker(
        producer_id,
        producer_epoch,
        transaction_result=False,
        topics=[WriteTxnMarkersRequest.Topic(topic_partition.topic, [topic_partition.partition])],
        # A partition without a marker of this producer reports -1, which no coordinator has as its
        # epoch.
        coordinator_epoch=max(0, coordinator_epoch),
    )

    async def attempt(fresh: bool) -> None:
        leader = await cluster.leader(topic_partition, fresh=fresh)
        connection = await cluster.connection(leader)
        answer = await connection.call(WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse)
        code = answer.markers[0].topics[0].partitions[0].error_code
        check(code, _ABORT_REFUSED.get(code), subject=str(topic_partition))

    await cluster.retry(f"aborting the transaction in {topic_partition}", attempt, idempotent=False)
