"""Transactional producers of a workload: the library's, and one that uses the older protocol.

Each has a transactional id, and sometimes takes over another's, which fences that producer. Some
wait longer than their transaction timeout. Some read, with `read_committed`, while their
transactions are open.

Sometimes the EndTxn or a marker of an earlier transaction is sent once more, as if it arrived on a
connection that was given up. Sometimes a transaction is begun with a transactional id that is never
used again.

The older protocol is that before transaction.version 2: partitions are added by request, and the
epoch stays the same from one transaction to the next. A late request may then end a later
transaction than it was meant for. So this client does what such clients had to do: whenever a reply
is missing, it initializes its producer id again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from penstock.aio import Consumer, Producer
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, TransactionAborted, check
from penstock.sim.actors.readers import BytesConsumer, consumer_keywords, reads_of
from penstock.sim.actors.sends import Answered, Note, batch_of, call, produce, with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.actors.transaction_work import Work
from penstock.sim.history import ACKS_ALL, FAIL, OK
from penstock.topic_partition import TopicPartition
from penstock.txns.config import EPOCH_PER_TRANSACTION
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

BytesProducer = Producer[bytes | None, bytes | None]

TIMEOUTS_MS: Final = (1_500, 5_000, 15_000)
_COMMIT_SHARE: Final = 0.65
_SCRATCH_SHARE: Final = 0.15
_AGAIN_SHARE: Final = 0.1
_ABANDON_SHARE: Final = 0.3
_ABANDONED_TIMEOUT_MS: Final = 15_000
_OLD_ADD: Final = 3
_OLD_PRODUCE: Final = 11
_OLD_END: Final = 4


async def run_transactor(actor: Actor, kind: str, number: int) -> None:
    """Runs one producer until the load is over. A transaction that is open then runs into
    its timeout."""
    if kind == "old":
        await _OldWay(actor, number).run()
    else:
        await _Transactor(actor, number, reads=kind == "reading").run()


def transactional_id(actor: Actor, number: int) -> str:
    """Returns mostly its own id, sometimes that of its neighbor, which is fenced by that."""
    if actor.draws.random() < 0.15:
        number = (number + 1) % len(actor.shared.scenario.transactors)
    return f"tx-{number}"


class WantsAbort(Exception):
    """Raised within a transaction to abort it."""


def was_aborted(wanted: WantsAbort) -> bool:
    """Whether the coordinator has decided the abort. If it failed, the library has added a note,
    and sending the marker "once more" would forge a decision that nobody made."""
    return not getattr(wanted, "__notes__", ())


class _Transactor:
    """Uses the library's producer."""

    def __init__(self, actor: Actor, number: int, *, reads: bool) -> None:
        self._actor = actor
        self._number = number
        self._reads = reads
        self._consumer: BytesConsumer | None = None
        self._last: EndTxnRequest | None = None
        """The request that ended the previous transaction."""
        self._last_partition_names: list[str] = []
        """The topic partitions that the previous transaction wrote to."""

    async def run(self) -> None:
        actor, shared = self._actor, self._actor.shared
        while not shared.over.is_set():
            timeout_ms = actor.draws.choice(TIMEOUTS_MS)
            name = transactional_id(actor, self._number)
            if actor.draws.random() < _ABANDON_SHARE:
                await _OldWay(actor, self._number).abandon()
            producer: BytesProducer = Producer(
                shared.bootstrap,
                env=actor.env,
                transactional_id=name,
                **_keywords(actor, timeout_ms),
            )
            try:
                await self._start(producer)
            except ClientError:
                await shared.rest(0.5)
                continue
            try:
                await self._transact_on(producer, name, timeout_ms / 1000)
            finally:
                with suppress(ClientError):
                    await producer.close(timeout_s=5.0)
                if self._consumer is not None:
                    with suppress(ClientError):
                        await self._consumer.close(timeout_s=5.0)
            # A producer that was fenced lets the other one work for a while.
            await shared.rest(2 * actor.draws.random())

    async def _start(self, producer: BytesProducer) -> None:
        actor, shared = self._actor, self._actor.shared
        await producer.start()
        # The library does not expose it: only a checker needs it.
        transactions = producer._core.transactions
        assert transactions is not None
        shared.fence(transactions._identity.producer_id, transactions._identity.epoch)
        shared.count("transactors_started")
        self._consumer = None
        if self._reads:
            consumer: BytesConsumer = Consumer(
                shared.bootstrap,
                env=actor.env,
                isolation_level="read_committed",
                **consumer_keywords(actor),
            )
            await consumer.start()
            consumer.assign(
                [
                    TopicPartition.parse(partition_name)
                    for partition_name in shared.scenario.partition_names
                ]
            )
            self._consumer = consumer

    async def _transact_on(self, producer: BytesProducer, name: str, timeout_s: float) -> None:
        """Runs transactions until the load is over or the producer cannot continue, sometimes it
        stops earlier."""
        actor, shared = self._actor, self._actor.shared
        while not shared.over.is_set() and actor.draws.random() > 0.03:
            await shared.rest(2 * actor.pause_s())
            work = Work(actor, name)
            try:
                async with producer.transaction():
                    ending = _ending_of(producer, name)
                    await self._fill(producer, work, timeout_s)
                    self._decide(work)
            except WantsAbort as wanted:
                work.end(FAIL, "the abort was intended")
                if was_aborted(wanted):
                    self._last, self._last_partition_names = ending, work.partition_names
            except TransactionAborted as error:
                work.end(FAIL, str(error))
            except ClientError as error:
                work.end_in_doubt(str(error))
                return
            else:
                work.end(OK)
                ending.committed = True
                self._last, self._last_partition_names = ending, work.partition_names

    async def _end_again(self) -> None:
        """Sends the end of the previous transaction once more. It must not end this one."""
        actor, request = self._actor, self._last
        if request is None:
            return
        shared = actor.shared
        with suppress(ClientError):
            async with actor.cluster() as cluster:
                connection = await cluster.transaction_coordinator(request.transactional_id)
                await connection.call(request, EndTxnResponse)
                shared.count("ends_sent_again")

    async def _mark_again(self) -> None:
        """Sends a marker of the previous transaction once more, like a delayed request of a
        coordinator. It must not end this transaction."""
        actor, ended = self._actor, self._last
        if ended is None or not self._last_partition_names:
            return
        at = TopicPartition.parse(actor.draws.choice(self._last_partition_names))
        marker = WriteTxnMarkersRequest.Marker(
            ended.producer_id,
            ended.producer_epoch + 1,
            ended.committed,
            [WriteTxnMarkersRequest.Topic(at.topic, [at.partition])],
            transaction_version=EPOCH_PER_TRANSACTION,
        )
        shared = actor.shared
        with suppress(ClientError):
            async with actor.cluster() as cluster:
                connection = await cluster.connection(await cluster.leader(at))
                await connection.call(WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse)
                shared.count("markers_sent_again")

    def _decide(self, work: Work) -> None:
        if self._actor.draws.random() > _COMMIT_SHARE:
            raise WantsAbort
        work.asks_for_commit()

    async def _fill(self, producer: BytesProducer, work: Work, timeout_s: float) -> None:
        actor, shared = self._actor, self._actor.shared
        draws = actor.draws
        for _ in range(draws.choice((1, 2, 3, 5))):
            note = work.note(draws.choice(shared.scenario.written))
            at = TopicPartition.parse(note.partition_name)
            try:
                await producer.send(
                    at.topic, note.value.encode(), partition=at.partition, on_delivery=note.settle
                )
            except ClientError as error:
                note.add(FAIL, error=str(error))
                raise
            if shared.scratch and draws.random() < _SCRATCH_SHARE:
                with suppress(ClientError):
                    await producer.send(draws.choice(shared.scratch), b"scratch", partition=0)
            if self._consumer is not None and draws.random() < 0.5:
                with suppress(ClientError):
                    work.has_read(reads_of(await self._consumer.poll(timeout_ms=100)))
            await shared.rest(actor.pause_s() / 4)
            if draws.random() < _AGAIN_SHARE:
                await draws.choice((self._end_again, self._mark_again))()
        if draws.random() < 0.04:
            shared.count("transactions_too_long")
            await shared.rest(1.2 * timeout_s)


def _ending_of(producer: BytesProducer, name: str) -> EndTxnRequest:
    """Returns the request that aborts the transaction that the producer has just begun."""
    transactions = producer._core.transactions
    assert transactions is not None
    identity = transactions._identity
    return EndTxnRequest(name, identity.producer_id, identity.epoch, False)


def _keywords(actor: Actor, timeout_ms: int) -> dict[str, Any]:
    return {
        **actor.keywords,
        "transaction_timeout_ms": timeout_ms,
        "linger_ms": actor.draws.choice((0, 5, 50)),
        "batch_size": actor.draws.choice((100, 1_000, 16_384)),
        "delivery_timeout_ms": actor.draws.choice((5_000, 15_000)),
        "max_block_ms": 8_000,
        "allow_auto_create_topics": False,
    }


# -- the older protocol


class _Trouble(Exception):
    """Something went wrong: initialize the producer id again, with another epoch."""


class _OldWay:
    def __init__(self, actor: Actor, number: int) -> None:
        self._actor = actor
        self._number = number
        self._name = ""
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[str, int] = {}

    async def run(self) -> None:
        actor, shared = self._actor, self._actor.shared
        cluster = await with_cluster(actor)
        if cluster is None:
            return
        try:
            while not shared.over.is_set():
                try:
                    await self._begin(cluster)
                    while not shared.over.is_set() and actor.draws.random() > 0.03:
                        await shared.rest(2 * actor.pause_s())
                        await self._transact(cluster)
                except (_Trouble, ClientError):
                    await shared.rest(actor.draws.random())
        finally:
            cluster.close()

    async def abandon(self) -> None:
        """Begins a transaction with its own id and never ends it. Its coordinator, whichever broker
        that is by then, must abort it when it times out."""
        actor, shared = self._actor, self._actor.shared
        shared.count("transactions_abandoned")
        cluster = await with_cluster(actor)
        if cluster is None:
            return
        work: Work | None = None
        try:
            name = f"once-{actor.name}-{shared.counters['transactions_abandoned']}"
            await self._begin(cluster, name, _ABANDONED_TIMEOUT_MS)
            partition_name = actor.draws.choice(shared.scenario.written)
            work = Work(actor, name)
            if actor.draws.random() < 0.5:
                # Otherwise the partition asks the coordinator, which knows no such transaction.
                await self._add(cluster, [partition_name])
            await self._send(cluster, work.note(partition_name))
        except (_Trouble, ClientError):
            pass
        finally:
            cluster.close()
        if work is not None:
            work.end(FAIL, "it was abandoned")

    async def _begin(self, cluster: Cluster, name: str = "", timeout_ms: int = 0) -> None:
        self._name = name or transactional_id(self._actor, self._number)
        timeout_ms = timeout_ms or self._actor.draws.choice(TIMEOUTS_MS)
        request = InitProducerIdRequest(self._name, timeout_ms)

        async def attempt(fresh: bool) -> InitProducerIdResponse:
            connection = await cluster.transaction_coordinator(self._name, fresh=fresh)
            answer = await connection.call(request, InitProducerIdResponse)
            check(answer.error_code)
            return answer

        answer = await cluster.retry("InitProducerId", attempt)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self._actor.shared.fence(self._producer_id, self._epoch)
        self._actor.shared.count("transactors_started")

    async def _transact(self, cluster: Cluster) -> None:
        actor, shared = self._actor, self._actor.shared
        written = shared.scenario.written
        partition_names = actor.draws.sample(
            written, min(len(written), actor.draws.choice((1, 2, 3)))
        )
        commits = actor.draws.random() < _COMMIT_SHARE
        work = Work(actor, self._name)
        try:
            await self._add(cluster, partition_names)
            for partition_name in partition_names:
                await self._send(cluster, work.note(partition_name))
                await shared.rest(actor.pause_s() / 4)
            if commits:
                work.asks_for_commit()
            await self._end(cluster, commits)
        except (_Trouble, ClientError) as error:
            work.end_in_doubt(str(error))
            raise
        work.end(OK if commits else FAIL, "" if commits else "the abort was intended")

    async def _add(self, cluster: Cluster, partition_names: list[str]) -> None:
        topics: dict[str, list[int]] = {}
        for partition_name in partition_names:
            at = TopicPartition.parse(partition_name)
            topics.setdefault(at.topic, []).append(at.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.Topic(topic, partitions)
                for topic, partitions in topics.items()
            ],
        )
        for _ in range(20):
            connection = await cluster.transaction_coordinator(self._name)
            answer = await call(connection, request, AddPartitionsToTxnResponse, _OLD_ADD)
            codes = {
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            if codes == {ErrorCode.NONE}:
                return
            if codes != {ErrorCode.CONCURRENT_TRANSACTIONS}:
                raise _Trouble(f"partitions were refused: {codes}")
            await self._actor.shared.rest(0.1)
        raise _Trouble("the previous transaction does not end")

    async def _send(self, cluster: Cluster, note: Note) -> None:
        """Sends a record once, with the next sequence number. A missing reply counts as a loss."""
        sequence = self._sequences.get(note.partition_name, 0)
        batch = batch_of(
            self._actor,
            [note.value],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            transactional=True,
        )
        try:
            offset = await produce(
                cluster,
                note.partition_name,
                batch,
                ACKS_ALL,
                lambda: None,
                transactional_id=self._name,
                version=_OLD_PRODUCE,
            )
        except Answered as error:
            raise _Trouble(str(error)) from error
        self._sequences[note.partition_name] = sequence + 1
        note.add(OK, offset)

    async def _end(self, cluster: Cluster, commits: bool) -> None:
        request = EndTxnRequest(self._name, self._producer_id, self._epoch, commits)
        connection = await cluster.transaction_coordinator(self._name)
        answer = await call(connection, request, EndTxnResponse, _OLD_END)
        if answer.error_code:
            raise _Trouble(f"the end was refused: {ErrorCode(answer.error_code).name}")
