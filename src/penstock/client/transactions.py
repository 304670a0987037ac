"""Transactions from outside: whose they are, which of them nobody will ever end, and ending those.

A transaction is known in two places. Its coordinator knows which partitions it has written to, and
ends it there; the partitions' leaders know that it is open, and let no reader of committed records
past its first one. A transaction hangs when a partition has it open and no coordinator knows that:
then nobody will end it, and an operator must.

Whether one hangs takes three looks, in this order: at the partitions, at the coordinators, at the
partitions again. A coordinator knows of a partition before the partition has anything of the
transaction, and until the partition has its end. So what is open at the first look and unknown to
the coordinators at the second has either ended in between, and is not open at the third, or hangs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ApiNotServed, BrokerError, OptionError, TopicNotFound, check
from penstock.client.inspection import describe_producers
from penstock.client.model import TopicPartition
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
"""The states in which a coordinator has partitions to tell how the transaction ends."""

_COORDINATOR_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_ABORT_REFUSED: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "the producer has moved on to a newer epoch, so this transaction is over: look again"
    ),
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: (
        "a newer coordinator has written to this partition since: look again"
    ),
}


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort."""
    coordinator: int
    """The broker that answered for it."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    """-1 when nothing is open."""
    partitions: tuple[TopicPartition, ...]
    """What the transaction has written to and has still to be told its end."""
    coordinator: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A partition has it open, and no coordinator knows that."""

    place: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    """Readers of committed records get no further than this."""
    last_time_ms: int
    """When the producer last wrote to the partition."""
    transactional_id: str | None
    """Whose it was; None when no coordinator knows the producer at all."""


@dataclass(frozen=True, slots=True)
class HangingSearch:
    found: tuple[HangingTransaction, ...]
    not_seen: tuple[TopicPartition, ...]
    """Partitions that nobody leads at the moment: whether anything hangs there is not known."""


# -- coordinators --------------------------------------------------------------------------------


async def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    running_longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """The transactional ids of all coordinators that pass every filter, by name."""
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
                f"{', '.join(answer.unknown_state_filters)}: no such state of a transaction; "
                f"they are Empty, {', '.join(_RUNNING)}, CompleteCommit and CompleteAbort"
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
        # An older broker would leave the filter out and answer with everything.
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
    """What the coordinator of each knows, or why it does not."""
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
    """Have the coordinator abort what is open, and fence the producer that has the id.

    Returns when every partition has been told. An id that does not exist is not made."""
    known = await _describe(cluster, transactional_id)
    if isinstance(known, BrokerError):
        raise known
    request = InitProducerIdRequest(transactional_id, max(1, known.timeout_ms))

    async def attempt(fresh: bool) -> None:
        connection = await cluster.transaction_coordinator(transactional_id, fresh=fresh)
        answer = await connection.call(request, InitProducerIdResponse)
        check(answer.error_code, subject=f"transactional id {transactional_id}")

    await cluster.retry(f"the end of {transactional_id}'s transaction", attempt)


# -- partitions ----------------------------------------------------------------------------------


async def find_hanging(cluster: Cluster, topics: Sequence[str] | None = None) -> HangingSearch:
    """Look through these topics, or through all, the cluster's own included."""
    led, not_seen = await _partitions(cluster, topics)
    suspects = await _open_at(cluster, led)
    if suspects:
        suspects = await _unknown(cluster, suspects)
    if suspects:
        still_open = {
            (each.place, each.producer_id, each.start_offset)
            for each in await _open_at(cluster, sorted({each.place for each in suspects}))
        }
        suspects = [
            each
            for each in suspects
            if (each.place, each.producer_id, each.start_offset) in still_open
        ]
    return HangingSearch(tuple(suspects), not_seen)


async def _partitions(
    cluster: Cluster, topics: Sequence[str] | None
) -> tuple[list[TopicPartition], tuple[TopicPartition, ...]]:
    """Those that somebody leads, and the others."""
    answer = await cluster.metadata(topics)
    led: list[TopicPartition] = []
    others: list[TopicPartition] = []
    for topic in answer.topics:
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicNotFound(name)
        check(topic.error_code, subject=f"topic {name}")
        for partition in topic.partitions:
            place = TopicPartition(name, partition.partition_index)
            (led if partition.leader_id in cluster.brokers else others).append(place)
    return sorted(led), tuple(sorted(others))


async def _open_at(cluster: Cluster, places: Sequence[TopicPartition]) -> list[HangingTransaction]:
    """Every transaction that is open on these partitions: hanging ones, as far as is known yet."""
    found = await describe_producers(cluster, places)
    return [
        HangingTransaction(
            place,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.transaction_start_offset,
            producer.last_timestamp,
            None,
        )
        for place, producers in found.items()
        for producer in producers
        if producer.transaction_start_offset >= 0
    ]


async def _unknown(
    cluster: Cluster, suspects: Sequence[HangingTransaction]
) -> list[HangingTransaction]:
    """Those that no coordinator has on its list, with the id that the producer had."""
    ids = sorted({each.producer_id for each in suspects})
    names: dict[int, str] = {}
    running: set[tuple[TopicPartition, int]] = set()
    for listing in await list_transactions(cluster, producer_ids=ids):
        names[listing.producer_id] = listing.transactional_id
        known = await _describe(cluster, listing.transactional_id)
        if isinstance(known, TransactionInfo):
            if known.state in _RUNNING:
                running |= {(place, listing.producer_id) for place in known.partitions}
        elif known.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            # One that was forgotten a moment ago was at rest; what else is wrong leaves doubt.
            raise known
    return [
        replace(each, transactional_id=names.get(each.producer_id))
        for each in suspects
        if (each.place, each.producer_id) not in running
    ]


async def abort_transaction(
    cluster: Cluster,
    place: TopicPartition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
) -> None:
    """Write the marker that ends a hanging transaction, as its coordinator would have.

    Sent once: should the answer be lost, look whether it is still open before you send another."""
    marker = WriteTxnMarkersRequest.Marker(
        producer_id,
        producer_epoch,
        transaction_result=False,
        topics=[WriteTxnMarkersRequest.Topic(place.topic, [place.partition])],
        # A partition that never saw a marker of this producer says -1, which no coordinator is.
        coordinator_epoch=max(0, coordinator_epoch),
    )

    async def attempt(fresh: bool) -> None:
        leader = await cluster.leader(place, fresh=fresh)
        connection = await cluster.connection(leader)
        answer = await connection.call(WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse)
        code = answer.markers[0].topics[0].partitions[0].error_code
        check(code, _ABORT_REFUSED.get(code), subject=str(place))

    await cluster.retry(f"the abort at {place}", attempt, idempotent=False)
