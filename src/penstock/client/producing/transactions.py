"""Transactions of a producer: what is sent between begin and end is read together, or never.

The way of transaction.version 2 (KIP-890), which brokers say that they have: a partition joins a
transaction with the first batch it takes, and the end of each hands out the epoch for the next. So
a late copy of anything, a batch or an end, is known by its epoch and does no harm. With clusters
that do not have it transactions go the older way (`older_way`).

What may go wrong is one of three:

    Fenced               another producer has taken over the transactional id: this one is finished
    TransactionAborted   nothing of the transaction will be read; the same may be tried in another
    DeadlineExceeded     the end was not confirmed in time, and whether it was a commit is not
                         known; this producer is finished, and one that is started under the same
                         transactional id gets to work when it is decided

A producer that was cancelled while it ended a transaction is finished too, for the same reason. A
record whose delivery has failed makes its transaction one that can only be aborted. A producer that
is closed inside of a transaction aborts it.
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
from penstock.client.model import OffsetAndMetadata, OpenTransaction, TopicPartition
from penstock.client.producing.older_way import (
    END_VERSION_MAX,
    OFFSET_COMMIT_VERSION_MAX,
    OlderWay,
)
from penstock.client.producing.sequences import Identity
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
"""The version of InitProducerId in which a producer can say who it was."""
_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_ABORTED: Final = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


_REPLACED: Final = (*_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class GroupOf(Protocol):
    """A consumer, as far as committing for it goes."""

    @property
    def membership(self) -> tuple[str, Membership]:
        """Its group, and how it signs there."""


Join = Callable[[list[TopicPartition]], Awaitable[None]]
"""Has partitions join the transaction; failures it sees to itself."""


class Host(Protocol):
    """The producer, as far as its transactions go."""

    def open_transaction(self) -> None:
        """Records may be sent from now on."""

    async def close_transaction(self) -> tuple[bool, ClientError | None]:
        """No record may be sent, and none is on its way. Whether any was, and what failed first."""

    def go_on(self, identity: Identity) -> None:
        """What is sent next is numbered under this."""

    def join_by_request(self, join: Join) -> None:
        """From now on partitions join a transaction by this, before anything is sent to them."""

    def joined(self, places: Iterable[TopicPartition]) -> None:
        """These take part now."""

    def fail_transaction(self, error: ClientError) -> None:
        """What was sent and is not acknowledged will not be."""

    def give_up(self, error: ClientError) -> None: ...


class Transactions:
    """Those of one transactional id, one after the other."""

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
        self._older: OlderWay | None = None

    async def init(self) -> None:
        """Take the transactional id over: whoever had it is fenced, what it had open aborted."""
        features, answer = await self._init(None)
        if features.get(FEATURE, 0) < LEVEL:
            self._older = OlderWay(self._cluster, self.transactional_id, self._deadline_s)
            self._host.join_by_request(self._join)
        self._go_on(answer.producer_id, answer.producer_epoch)

    async def _init(
        self, expected: Identity | None
    ) -> tuple[Mapping[str, int], InitProducerIdResponse]:
        """As the producer that is expected there, or as a new one."""

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
            raise RuntimeError("a transaction is open: a producer has one at a time")
        self._is_open = True
        self._has_offsets = False
        self._host.open_transaction()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupOf | str
    ) -> None:
        if not self._is_open:
            raise RuntimeError("there is no transaction to commit offsets in: begin one")
        if not offsets:
            return
        name, member = (group, NOBODY) if isinstance(group, str) else group.membership
        if member is not NOBODY and member.generation < 0:
            # It would sign as nobody does, and Kafka checks no such commit in a transaction.
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"this consumer is not in group {name} at the moment: others may have its "
                "partitions; abort, poll and read again",
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
        """Leave the transaction for somebody else to end, with all its records acknowledged; None
        when there is nothing in it. This producer is finished then."""
        if not self._is_open:
            raise RuntimeError("there is no transaction to hand over: begin one")
        has_records, failure = await self._finish()
        if failure is not None:
            await self._take_back()
            raise _undelivered(failure)
        self._host.give_up(
            Closed("the transaction was handed over, and with it what this producer may send")
        )
        if not has_records and not self._has_offsets:
            return None
        return OpenTransaction(self.transactional_id, *self._identity)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def is_older(self) -> bool:
        """Whether the cluster has them the older way only."""
        return self._older is not None

    async def commit(self) -> None:
        """Returns when it is decided; `TransactionAborted` when it cannot be, and was aborted."""
        if not self._is_open:
            raise Closed("the producer was closed inside of the transaction, which aborted it")
        await self._uninterrupted(self._commit())

    async def abort(self) -> None:
        if self._is_open:
            await self._uninterrupted(self._abort())

    async def _uninterrupted(self, ending: Awaitable[None]) -> None:
        """Who was cancelled here may have left the transaction open: what this producer sent next
        would become part of it, and undo an abort."""
        try:
            await ending
        except asyncio.CancelledError:
            self._host.give_up(
                ClientError(
                    f"the end of a transaction of {self.transactional_id} was interrupted, and how "
                    "it ended is not known: start another producer with this transactional id"
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
        """Abort what can only be aborted. The older way that needs another epoch, as batches may be
        missing between those that were numbered."""
        epoch = self._identity.epoch
        await self._end(committed=False)
        if self._older is not None and self._identity.epoch == epoch:
            await self._come_back()

    async def _come_back(self) -> None:
        """Take another epoch, the older way; whoever was replaced is refused."""
        try:
            _, answer = await self._init(self._identity)
        except ClientError as error:
            refused = isinstance(error, BrokerError) and error.code in _REPLACED
            gone = Fenced(f"{error}; another producer has this transactional id now")
            self._host.give_up(gone if refused else error)
            if refused:
                raise gone from error
            raise
        self._go_on(answer.producer_id, answer.producer_epoch)

    async def _join(self, places: list[TopicPartition]) -> None:
        assert self._older is not None
        try:
            await self._told(self._older.add_partitions(self._identity, places))
        except ClientError as error:
            self._host.fail_transaction(error)
        else:
            self._host.joined(places)

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
        """What a coordinator refuses, in the words of a transaction."""
        try:
            return await asked
        except BrokerError as error:
            if error.code in _FENCED and self._older is None:
                fenced = Fenced(f"{error}; another producer has this transactional id now")
                self._host.give_up(fenced)
                raise fenced from error
            if error.code in _ABORTED or error.code in _FENCED:
                # The older way, whether it is fenced shows when it asks for another epoch.
                raise TransactionAborted(f"the transaction can only be aborted: {error}") from error
            raise


class Transaction:
    """`async with producer.transaction():` commits at the end of the block; an error in the block
    aborts, and goes on."""

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
        """Commit positions of a consumer's group with the transaction: the next offsets to read.

        `group` is the consumer that read the records, so that one that has lost its partitions is
        refused; or a group's name, for a group that nobody is a member of.
        """
        await self._begun().send_offsets(offsets, group)

    async def hand_over(self) -> OpenTransaction | None:
        """Leave it open, to be ended by somebody else, together with those of other producers
        (`penstock.client.together`). The last thing in the block: the producer is finished then.

        None when nothing was sent, and so nothing is open."""
        transactions = self._begun()
        self._is_handed_over = True
        return await transactions.hand_over()

    def _begun(self) -> Transactions:
        if self._transactions is None:
            raise RuntimeError("the transaction has not begun: use `async with`")
        return self._transactions


def _undelivered(failure: ClientError) -> TransactionAborted:
    aborted = TransactionAborted(
        f"the transaction was aborted, because a record was not delivered: {failure}"
    )
    aborted.__cause__ = failure
    return aborted


def _topics(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> list[TxnOffsetCommitRequest.Topic]:
    topics = []
    for name, those in groupby(sorted(offsets), key=lambda place: place.topic):
        partitions = []
        for place in those:
            given = offsets[place]
            position = OffsetAndMetadata(given) if isinstance(given, int) else given
            partitions.append(
                TxnOffsetCommitRequest.Partition(
                    place.partition, position.offset, position.leader_epoch, position.metadata
                )
            )
        topics.append(TxnOffsetCommitRequest.Topic(name, partitions))
    return topics
