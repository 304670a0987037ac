"""The part of a producer that does not handle records: lifecycle, topics, flushing, transactions.

`producer.Producer` handles the records and delegates the rest to the core. The code here runs once
per topic, flush, transaction or producer.

With a transactional id, records may only be sent inside transactions. To keep this check off the
path of each record, the known topics are moved away (`_resting`) while no transaction is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from penstock.client.cluster import Cluster
from penstock.client.environment import ClientEnv
from penstock.client.errors import (
    ClientError,
    Closed,
    DeadlineExceeded,
    OptionError,
    RequestTimedOut,
)
from penstock.client.metrics import ProducerMeter, ProducerMetrics
from penstock.client.options import ProducerOptions
from penstock.client.producing.accumulator import Accumulator
from penstock.client.producing.accumulator_config import AccumulatorConfig
from penstock.client.producing.buffer_memory import BufferMemory
from penstock.client.producing.deliveries import all_over
from penstock.client.producing.sender import Sender
from penstock.client.producing.sequences import Identity
from penstock.client.producing.topics import Topic, Topics
from penstock.client.producing.transactions import Join, Transaction, Transactions
from penstock.client.producing.transactions_v1 import PRODUCE_VERSION_MAX
from penstock.topic_partition import TopicPartition

_IN_FLIGHT_PAUSE_S: Final = 0.005
_log = logging.getLogger(__name__)


class ProducerCore:
    """Owns the parts of a producer. Records use `accumulator`, `memory` and `known`."""

    def __init__(
        self,
        options: ProducerOptions,
        env: ClientEnv,
        lock: AbstractContextManager[Any] | None,
    ) -> None:
        self.options = options
        self.env = env
        self.lock: AbstractContextManager[Any] = lock or nullcontext()
        self._from_threads = lock is not None
        self._meter = ProducerMeter()
        self.accumulator = Accumulator(
            AccumulatorConfig(
                batch_size=options.batch_size,
                linger_s=options.linger_ms / 1000,
                buffer_memory=options.buffer_memory,
                max_request_size=options.max_request_size,
                delivery_timeout_s=options.delivery_timeout_ms / 1000,
                attempts_max=options.retries + 1,
                idempotent=options.enable_idempotence,
                transactional=options.transactional_id is not None,
            )
        )
        self.memory = BufferMemory(
            self.env.clock, options.max_block_ms / 1000, options.buffer_memory
        )
        self._cluster: Cluster | None = None
        self._topics: Topics | None = None
        self._sender: Sender | None = None
        self.known: dict[str, Topic] = {}
        """The topics that records may be sent to. It is empty while sending is not allowed, so that
        `send` needs no separate check. It stays the same object."""
        self.transactions: Transactions | None = None
        self._resting: dict[str, Topic] | None = {} if options.transactional_id else None
        """Holds the known topics while no transaction is open. None during a transaction, and
        always None without a transactional id."""
        self._learning: dict[str, asyncio.Lock] = {}
        self._error: ClientError | None = None
        self._closing = False

    # -- starting and closing -------------------------------------------------------------------

    async def start(self) -> None:
        if self._cluster is not None:
            raise RuntimeError("the producer has already been started: make a new one")
        env = self.env
        self._cluster = Cluster(
            self.options.cluster_config(), env.network, env.clock, env.random, env.executor
        )
        try:
            await self._cluster.__aenter__()
        except BaseException:
            self._cluster = None
            raise
        self._topics = Topics(self._cluster, self.accumulator, self.options.batch_size)
        self._sender = Sender(
            self._cluster,
            self.accumulator,
            self._topics,
            self.options,
            self._meter,
            self.lock,
            from_threads=self._from_threads,
            on_freed=self.memory.on_freed,
            on_fatal=self._fail,
        )
        self._sender.wake()
        if self.options.transactional_id is not None:
            self.transactions = Transactions(self._cluster, self.options, _Host(self))
            try:
                await self.transactions.init()
            except BaseException:
                await self.close(0)
                raise

    async def close(self, timeout_s: float | None = None) -> None:
        """Delivers the buffered records, within the timeout, and disconnects."""
        if self._closing:
            return
        self._closing = True
        self.known.clear()
        if self._sender is None or self._cluster is None:
            return
        try:
            with self.lock:
                self.accumulator.set_hurry(True)
            if timeout_s is None or timeout_s > 0:
                await self._abort_open(timeout_s)
                await self.flush(timeout_s)
        except DeadlineExceeded:
            pass
        finally:
            self._fail(Closed("the producer was closed before the record was acknowledged"))
            await self._sender.close()
            self._cluster.close()
            await self._cluster.closed()
            # Let the callbacks of the requests that were cut off run.
            await asyncio.sleep(0)

    async def _abort_open(self, timeout_s: float | None) -> None:
        if self.transactions is None or not self.transactions.is_open:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.transactions.abort()
        except (ClientError, TimeoutError) as error:
            _log.warning(
                "cannot abort the open transaction of %s (%s): the coordinator aborts it after "
                "transaction_timeout_ms",
                self.options.transactional_id,
                error,
            )

    @property
    def is_started(self) -> bool:
        return self._sender is not None

    @property
    def is_closed(self) -> bool:
        return self._closing

    def _fail(self, error: ClientError) -> None:
        """Stops the producer for good: every waiting record fails with this error."""
        if self._error is None:
            self._error = error
        self.known.clear()
        self._fail_batches(error)

    def _fail_batches(self, error: ClientError) -> None:
        with self.lock:
            batches = self.accumulator.fail_all()
        for batch in batches:
            self._meter.failed_records += batch.count
            batch.outcome.fail(error)
        self.memory.on_freed()

    def usable(self) -> Sender:
        """Returns the sender, or raises the reason why nothing can be sent."""
        if self._error is not None and not isinstance(self._error, Closed):
            raise self._error
        if self._closing:
            raise Closed("the producer is closed: make a new one")
        if self._sender is None:
            raise Closed("the producer is not started: use `async with`, or await start()")
        if self._resting is not None:
            raise ClientError(
                "a producer with a transactional_id sends only inside transactions: "
                "use `async with producer.transaction():`"
            )
        return self._sender

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        if self.options.transactional_id is None:
            raise OptionError("transactions need a transactional_id: give the producer one")
        return Transaction(self._transacting)

    def _transacting(self) -> Transactions:
        if self._error is not None and not isinstance(self._error, Closed):
            raise self._error
        if self.transactions is None or self._closing:
            raise Closed("the producer is not started, or closed: use `async with`")
        return self.transactions

    def _open_transaction(self) -> None:
        assert self._resting is not None and self._sender is not None
        with self.lock:
            self.accumulator.begin_transaction()
        self.known.update(self._resting)
        self._resting = None
        self._sender.take_failure()

    async def _close_transaction(self) -> ClientError | None:
        assert self._sender is not None
        self._resting = dict(self.known)
        self.known.clear()
        await self.flush()
        # The batches of these requests have timed out, but what they carry may still be written to
        # this transaction.
        while self.accumulator.has_in_flight:
            await self.env.clock.sleep(_IN_FLIGHT_PAUSE_S)
        failure = self._sender.take_failure()
        return self._error or failure

    def _go_on(self, identity: Identity) -> None:
        with self.lock:
            self.accumulator.adopt(identity)

    def _join_by_request(self, join: Join) -> None:
        assert self._sender is not None
        with self.lock:
            self.accumulator.joins_by_request = True
        self._sender.join_by_request(join, PRODUCE_VERSION_MAX)

    def _joined(self, topic_partitions: Iterable[TopicPartition]) -> None:
        with self.lock:
            self.accumulator.joined(topic_partitions)

    def _fail_transaction(self, error: ClientError) -> None:
        assert self._sender is not None
        self._sender.note_failure(error)
        self._fail_batches(error)

    # -- topics ---------------------------------------------------------------------------------

    async def learn(self, name: str, *, afresh: bool = False) -> Topic:
        """Waits for the metadata of a topic and makes it known. `afresh` asks for new metadata."""
        self.usable()
        assert self._cluster is not None and self._topics is not None
        async with self._learning.setdefault(name, asyncio.Lock()):
            known = self.known.get(name)
            if known is not None and not afresh:
                return known
            create = self.options.allow_auto_create_topics
            partitions = await self._cluster.partitions(name, auto_create=create)
            self.usable()
            self._meter.distribution.expect(name, partitions)
            with self.lock:
                known = self.known[name] = self._topics.open(name)
            return known

    # -- flush ----------------------------------------------------------------------------------

    async def flush(self, timeout_s: float | None = None) -> None:
        """Sends all buffered records without linger, and waits until each is delivered or has
        failed."""
        sender = self._sender
        if sender is None:
            return
        with self.lock:
            self.accumulator.hurry()
            outcomes = [batch.outcome for batch in self.accumulator.incomplete()]
        sender.wake()
        try:
            async with asyncio.timeout(timeout_s):
                await all_over(outcomes)
                if self.options.acks == 0:
                    await sender.vouch()
        except TimeoutError:
            left = sum(not outcome.is_over for outcome in outcomes)
            last = sender.last_error or RequestTimedOut(f"{left} batches are not acknowledged yet")
            raise DeadlineExceeded("flush", timeout_s or 0.0, last) from None

    # -- metrics --------------------------------------------------------------------------------

    def metrics(self) -> ProducerMetrics:
        with self.lock:
            accumulator = self.accumulator
            return self._meter.snapshot(accumulator.buffered_bytes, accumulator.buffered_records)


class _Host:
    """The interface of a producer for its `Transactions`."""

    def __init__(self, producer: ProducerCore) -> None:
        self._producer = producer
        self._batches_before = 0

    def open_transaction(self) -> None:
        self._batches_before = self._producer.accumulator.batches_made
        self._producer._open_transaction()

    async def close_transaction(self) -> tuple[bool, ClientError | None]:
        failure = await self._producer._close_transaction()
        return self._producer.accumulator.batches_made > self._batches_before, failure

    def join_by_request(self, join: Join) -> None:
        self._producer._join_by_request(join)

    def joined(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._producer._joined(topic_partitions)

    def fail_transaction(self, error: ClientError) -> None:
        self._producer._fail_transaction(error)

    def go_on(self, identity: Identity) -> None:
        self._producer._go_on(identity)

    def give_up(self, error: ClientError) -> None:
        self._producer._fail(error)
