"""Transactions of a producer: read-committed consumers see all records of one, or none.

This is the protocol of transaction.version 2 (KIP-890). A partition joins the transaction with the
first batch that it accepts, and the end of a transaction returns the epoch for the next one. A late
duplicate of a batch or of an end is therefore recognized by its old epoch and has no effect.
Brokers report whether they support it; with older clusters `transactions_v1` is used.

There are three kinds of failure:

    Fenced               another producer has taken over the transactional id: this producer can
                         no longer be used
    TransactionAborted   none of the transaction's records will be read; the work can be tried
                         again in another transaction
    DeadlineExceeded     the end was not confirmed in time, and it is unknown whether it was
                         committed; this producer can no longer be used, and a new one with the
                         same transactional id starts once the outcome is decided

A producer that is cancelled while it ends a transaction can no longer be used either, because the
outcome is unknown. If a record fails to be delivered, its transaction can only be aborted. Closing
a producer inside a transaction aborts the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import (
    BrokerError,
    ClientError,
    Closed,
    Fenced,
    TransactionAborted,
    check,
)
from penstock.client.membership.steps import NOBODY
from penstock.client.membership.steps import Identity as Membership
from penstock.client.model import OffsetAndMetadata, OpenTransaction
from penstock.client.producing.sequences import Identity
from penstock.client.producing.transactions_v1 import (
    END_VERSION_MAX,
    OFFSET_COMMIT_VERSION_MAX,
    TransactionsV1,
)
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    from penstock.client.options import ProducerOptions

T = TypeVar("T")
FEATURE: Final = "transaction.version"
LEVEL: Final = 2
_NAMES_ITSELF_SINCE: Final = 3
"""The first version of InitProducerId in which a producer can give its current id and epoch."""
_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_ABORTED: Final = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


_REPLACED: Final = (*_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class GroupOf(Protocol):
    """What committing offsets in a transaction needs from a consumer."""

    @property
    def membership(self) -> tuple[str, Membership]:
        """The group's name, and the consumer's membership of it."""


Join = Callable[[list[TopicPartition]], Awaitable[None]]
"""Adds partitions to the transaction. It handles failures itself."""


class Host(Protocol):
    """What transactions need from their producer."""

    def open_transaction(self) -> None:
        """Allows records to be sent."""

    async def close_transaction(self) -> tuple[bool, ClientError | None]:
        """Stops accepting records and waits until none is in flight.

        Returns whether any record was sent, and the first failure.
        """

    def go_on(self, identity: Identity) -> None:
        """Uses this producer id and epoch for the next batches."""

    def join_by_request(self, join: Join) -> None:
        """From now on calls `join` to add a partition to a transaction before sending batches to
        it."""

    def joined(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Marks these partitions as part of the transaction."""

    def fail_transaction(self, error: ClientError) -> None:
        """Fails all records that are not acknowledged yet."""

    def give_up(self, error: ClientError) -> None: ...


class Transactions:
    """The transactions of one transactional id, one after the other."""

    def __init__(self, cluster: Cluster, options: ProducerOptions, host: Host) -> None:
        assert options.transactional_id is not None
        self.transactional_id = options.transactional_id
        self._cluster = cluster
        self._timeout_ms = options.transaction_timeout_ms
        self._deadline_s = options.max_block_ms / 1000
        self._host = host
        self._identity = Identity(-1, -1)
        self._has_offsets = False
        self._is_open = False
        self._older: TransactionsV1 | None = None

    async def init(self) -> None:
        """Takes over the transactional id. Fences its previous producer and aborts its open
        transaction."""
        features, answer = await self._init(None)
        if features.get(FEATURE, 0) < LEVEL:
            self._older = TransactionsV1(self._cluster, self.transactional_id, self._deadline_s)
            self._host.join_by_request(self._join)
        self._go_on(answer.producer_id, answer.producer_epoch)

    async def _init(
        self, expected: Identity | None
    ) -> tuple[Mapping[str, int], InitProducerIdResponse]:
        """Sends InitProducerId, with the expected current producer id and epoch if they are
        given."""

        async def attempt(fresh: bool) -> tuple[Mapping[str, int], InitProducerIdResponse]:
            connection = await self._cluster.transaction_coordinator(
                self.transactional_id, fresh=fresh
            )
            request = InitProducerIdRequest(self.transactional_id, self._timeout_ms)
            if expected is not None and (
                connection.version_of(InitProducerIdRequest) >= _NAMES_ITSELF_SINCE
            ):
                request.producer_id, request.producer_epoch = expected
            answer = await connection.call(request, InitProducerIdResponse)
            check(answer.error_code, subject=f"transactional id {self.transactional_id}")
            return connection.features, answer

        what = f"InitProducerId for {self.transactional_id}"
        return await self._cluster.retry(what, attempt, deadline_s=self._deadline_s)

    def _go_on(self, producer_id: int, epoch: int) -> None:
        self._identity = Identity(producer_id, epoch)
        self._host.go_on(self._identity)

    # -- one transaction ------------------------------------------------------------------------

    def begin(self) -> None:
        if self._is_open:
            raise RuntimeError(
                "a transaction is already open, and a producer has only one at a time: end it first"
            )
        self._is_open = True
        self._has_offsets = False
        self._host.open_transaction()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupOf | str
    ) -> None:
        if not self._is_open:
            raise RuntimeError("no transaction is open to commit offsets in: begin one")
        if not offsets:
            return
        name, member = (group, NOBODY) if isinstance(group, str) else group.membership
        if member is not NOBODY and member.generation < 0:
            # Such a commit would carry no member id or generation, and Kafka does not check it in a
            # transaction.
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"this consumer is not a member of group {name} at the moment, and other members "
                "may own its partitions: abort the transaction and poll again",
            )
        self._has_offsets = True
        if self._older is not None:
            await self._told(self._older.add_offsets(self._identity, name))
        version_max = None if self._older is None else OFFSET_COMMIT_VERSION_MAX
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            name,
            self._identity.producer_id,
            self._identity.epoch,
            member.generation,
            member.member_id,
            member.instance_id,
            _topics(offsets),
        )

        async def attempt(fresh: bool) -> None:
            coordinator = await self._cluster.coordinator(name, fresh=fresh)
            answer = await coordinator.call(
                request, TxnOffsetCommitResponse, version_max=version_max
            )
            for topic in answer.topics:
                for part in topic.partitions:
                    check(part.error_code, subject=f"offset of {topic.name}-{part.partition_index}")

        await self._told(
            self._cluster.retry(
                f"TxnOffsetCommit for group {name}", attempt, deadline_s=self._deadline_s
            )
        )

    async def hand_over(self) -> OpenTransaction | None:
        """Leaves the transaction open for someone else to end. All its records are acknowledged.

        Returns None if the transaction is empty. The producer cannot be used afterwards.
        """
        if not self._is_open:
            raise RuntimeError("no transaction is open to hand over: begin one")
        has_records, failure = await self._finish()
        if failure is not None:
            await self._take_back()
            raise _undelivered(failure)
        self._host.give_up(
            Closed("the transaction was handed over, so this producer cannot send: make a new one")
        )
        if not has_records and not self._has_offsets:
            return None
        return OpenTransaction(self.transactional_id, *self._identity)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def is_older(self) -> bool:
        """Whether the cluster supports only transactions before transaction.version 2."""
        return self._older is not None

    async def commit(self) -> None:
        """Commits the transaction. Returns when the commit is decided. Raises `TransactionAborted`
        if it could not be committed and was aborted."""
        if not self._is_open:
            raise Closed(
                "the producer was closed inside the transaction; the transaction was aborted"
            )
        await self._uninterrupted(self._commit())

    async def abort(self) -> None:
        if self._is_open:
            await self._uninterrupted(self._abort())

    async def _uninterrupted(self, ending: Awaitable[None]) -> None:
        """Stops the producer for good if the end of a transaction is cancelled.

        The transaction may still be open then. Records that this producer sent next would become
        part of it, even after an abort.
        """
        try:
            await ending
        except asyncio.CancelledError:
            self._host.give_up(
                ClientError(
                    f"the commit or abort of a transaction of {self.transactional_id} was "
                    "cancelled, so its outcome is unknown: start another producer with this "
                    "transactional id"
                )
            )
            raise

    async def _commit(self) -> None:
        has_records, failure = await self._finish()
        if failure is not None:
            await self._take_back()
            raise _undelivered(failure)
        if not has_records and not self._has_offsets:
            return
        try:
            await self._end(committed=True)
        except TransactionAborted:
            await self._take_back()
            raise

    async def _abort(self) -> None:
        has_records, failure = await self._finish()
        if failure is not None:
            await self._take_back()
        elif has_records or self._has_offsets:
            await self._end(committed=False)

    async def _take_back(self) -> None:
        """Aborts a transaction that can only be aborted.

        Before transaction.version 2 this needs a new epoch, because some of the numbered batches
        may never have been written.
        """
        epoch = self._identity.epoch
        await self._end(committed=False)
        if self._older is not None and self._identity.epoch == epoch:
            await self._come_back()

    async def _come_back(self) -> None:
        """Requests a new epoch, before transaction.version 2. Fails if another producer has taken
        over."""
        try:
            _, answer = await self._init(self._identity)
        except ClientError as error:
            refused = isinstance(error, BrokerError) and error.code in _REPLACED
            gone = Fenced(f"{error}; another producer uses this transactional id now")
            self._host.give_up(gone if refused else error)
            if refused:
                raise gone from error
            raise
        self._go_on(answer.producer_id, answer.producer_epoch)

    async def _join(self, topic_partitions: list[TopicPartition]) -> None:
        assert self._older is not None
        try:
            await self._told(self._older.add_partitions(self._identity, topic_partitions))
        except ClientError as error:
            self._host.fail_transaction(error)
        else:
            self._host.joined(topic_partitions)

    async def _finish(self) -> tuple[bool, ClientError | None]:
        self._is_open = False
        return await self._host.close_transaction()

    async def _end(self, *, committed: bool) -> None:
        identity = self._identity
        request = EndTxnRequest(
            self.transactional_id, identity.producer_id, identity.epoch, committed
        )
        version_max = None if self._older is None else END_VERSION_MAX

        async def attempt(fresh: bool) -> EndTxnResponse:
            connection = await self._cluster.transaction_coordinator(
                self.transactional_id, fresh=fresh
            )
            answer = await connection.call(request, EndTxnResponse, version_max=version_max)
            check(answer.error_code, subject=f"transactional id {self.transactional_id}")
            return answer

        what = f"{'commit' if committed else 'abort'} of {self.transactional_id}"
        try:
            answer = await self._told(
                self._cluster.retry(what, attempt, deadline_s=self._deadline_s)
            )
        except TransactionAborted as error:
            if committed:
                raise
            if self._older is not None:
                await self._come_back()
                return
            self._host.give_up(error)
            raise
        except ClientError as error:
            self._host.give_up(error)
            raise
        if self._older is None:
            self._go_on(answer.producer_id, answer.producer_epoch)

    async def _told(self, asked: Awaitable[T]) -> T:
        """Translates the errors of a coordinator into `Fenced` and `TransactionAborted`."""
        try:
            return await asked
        except BrokerError as error:
            if error.code in _FENCED and self._older is None:
                fenced = Fenced(f"{error}; another producer uses this transactional id now")
                self._host.give_up(fenced)
                raise fenced from error
            if error.code in _ABORTED or error.code in _FENCED:
                # Before transaction.version 2, the request for a new epoch will show whether it was
                # fenced.
                raise TransactionAborted(f"the transaction can only be aborted: {error}") from error
            raise


class Transaction:
    """A transaction as a context manager: `async with producer.transaction():`.

    Leaving the block commits. An error in the block aborts the transaction and is raised again.
    """

    def __init__(self, transactions: Callable[[], Transactions]) -> None:
        self._find = transactions
        self._transactions: Transactions | None = None
        self._is_handed_over = False

    async def __aenter__(self) -> Self:
        self._transactions = self._find()
        self._transactions.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._transactions is not None
        if self._is_handed_over:
            return
        if error is None:
            await self._transactions.commit()
            return
        try:
            await self._transactions.abort()
        except ClientError as failure:
            error.add_note(f"The transaction could not be aborted: {failure}")

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupOf | str
    ) -> None:
        """Commits offsets of a consumer group, the next offsets to read, with the transaction.

        `group` is the consumer that read the records; the commit is refused if that consumer has
        lost its partitions. It may also be the name of a group that has no members.
        """
        await self._begun().send_offsets(offsets, group)

    async def hand_over(self) -> OpenTransaction | None:
        """Leaves the transaction open, to be ended together with those of other producers.

        See `penstock.client.multi_commit`. This must be the last call in the block: the producer
        cannot be used afterwards. Returns None if nothing was sent, and so nothing is open.
        """
        transactions = self._begun()
        self._is_handed_over = True
        return await transactions.hand_over()

    def _begun(self) -> Transactions:
        if self._transactions is None:
            raise RuntimeError("the transaction has not begun: use `async with`")
        return self._transactions


def _undelivered(failure: ClientError) -> TransactionAborted:
    aborted = TransactionAborted(
        f"the transaction was aborted because a record was not delivered: {failure}"
    )
    aborted.__cause__ = failure
    return aborted


def _topics(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> list[TxnOffsetCommitRequest.Topic]:
    topics = []
    for name, those in groupby(sorted(offsets), key=lambda topic_partition: topic_partition.topic):
        partitions = []
        for topic_partition in those:
            given = offsets[topic_partition]
            position = OffsetAndMetadata(given) if isinstance(given, int) else given
            partitions.append(
                TxnOffsetCommitRequest.Partition(
                    topic_partition.partition,
                    position.offset,
                    position.leader_epoch,
                    position.metadata,
                )
            )
        topics.append(TxnOffsetCommitRequest.Topic(name, partitions))
    return topics
