"""The part of a producer that does not handle records: lifecycle, topics, flushing, transactions.

`producer.Producer` adds the handling of records. The code here runs once per topic, flush,
transaction or producer.

With a transactional id, records may only be sent inside transactions. To keep this check off the
path of each record, the known topics are moved away (`_resting`) while no transaction is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Self

from penstock.client.cluster import Cluster
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import (
    ClientError,
    Closed,
    DeadlineExceeded,
    OptionError,
    RequestTimedOut,
)
from penstock.client.metrics import ProducerMeter, ProducerMetrics
from penstock.client.model import TopicPartition
from penstock.client.options import ProducerOptions
from penstock.client.producing.accumulator import Accumulator, AccumulatorConfig
from penstock.client.producing.deliveries import all_over
from penstock.client.producing.room import Room
from penstock.client.producing.sending import Sender
from penstock.client.producing.sequences import Identity
from penstock.client.producing.topics import Topic, Topics
from penstock.client.producing.transactions import Join, Transaction, Transactions
from penstock.client.producing.transactions_v1 import PRODUCE_VERSION_MAX

ERROR_CLOSE_S: Final = 5.0
"""When the body of `async with` fails, records that were already sent get this long to be
delivered."""
_IN_FLIGHT_PAUSE_S: Final = 0.005
_log = logging.getLogger(__name__)


class ProducerCore:
    """The base class of `Producer`, with everything that does not happen per record."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        options: ProducerOptions,
        env: ClientEnv | None,
        lock: AbstractContextManager[Any] | None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.options = options
        self.env = env or default_environment()
        self._lock: AbstractContextManager[Any] = lock or nullcontext()
        self._from_threads = lock is not None
        self._meter = ProducerMeter()
        self._accumulator = Accumulator(
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
        self._room = Room(self.env.clock, options.max_block_ms / 1000, options.buffer_memory)
        self._cluster: Cluster | None = None
        self._topics: Topics | None = None
        self._sender: Sender | None = None
        self._known: dict[str, Topic] = {}
        """The topics that records may be sent to. It is empty while sending is not allowed, so that
        `send` needs no separate check."""
        self._transactions: Transactions | None = None
        self._resting: dict[str, Topic] | None = {} if options.transactional_id else None
        """Holds the known topics while no transaction is open. None during a transaction, and
        always None without a transactional id."""
        self._learning: dict[str, asyncio.Lock] = {}
        self._error: ClientError | None = None
        self._closing = False

    # -- starting and closing -------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the cluster. The producer belongs to the running event loop from now on."""
        if self._cluster is not None:
            raise RuntimeError("the producer has already been started: make a new one")
        env = self.env
        self._cluster = Cluster(self.options.cluster_config(), env.network, env.clock, env.random)
        try:
            await self._cluster.__aenter__()
        except BaseException:
            self._cluster = None
            raise
        self._topics = Topics(self._cluster, self._accumulator, self.options.batch_size)
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            self._topics,
            self.options,
            self._meter,
            self._lock,
            from_threads=self._from_threads,
            on_freed=self._room.on_freed,
            on_fatal=self._fail,
        )
        self._sender.wake()
        if self.options.transactional_id is not None:
            self._transactions = Transactions(self._cluster, self.options, _Host(self))
            try:
                await self._transactions.init()
            except BaseException:
                await self.close(0)
                raise

    async def close(self, timeout_s: float | None = None) -> None:
        """Delivers the buffered records and disconnects. No more records are accepted.

        Records that are not delivered within `timeout_s` fail with `Closed`. Without a timeout,
        each record gets its full `delivery_timeout_ms`. An open transaction is aborted, except with
        a timeout of 0: then the coordinator aborts it when its transaction timeout is over.
        """
        if self._closing:
            return
        self._closing = True
        self._known = {}
        if self._sender is None or self._cluster is None:
            return
        try:
            with self._lock:
                self._accumulator.set_hurry(True)
            if timeout_s is None or timeout_s > 0:
                await self._abort_open(timeout_s)
                await self.flush(timeout_s)
        except DeadlineExceeded:
            pass
        finally:
            self._fail(Closed("the producer was closed before the record was acknowledged"))
            await self._sender.close()
            self._cluster.close()
            # Let the callbacks of the requests that were cut off run.
            await asyncio.sleep(0)

    async def _abort_open(self, timeout_s: float | None) -> None:
        if self._transactions is None or not self._transactions.is_open:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._transactions.abort()
        except (ClientError, TimeoutError) as error:
            _log.warning(
                "cannot abort the open transaction of %s (%s): the coordinator aborts it after "
                "transaction_timeout_ms",
                self.options.transactional_id,
                error,
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(None if error is None else ERROR_CLOSE_S)

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
        self._known = {}
        self._fail_batches(error)

    def _fail_batches(self, error: ClientError) -> None:
        with self._lock:
            batches = self._accumulator.fail_all()
        for batch in batches:
            self._meter.failed_records += batch.count
            batch.ticket.fail(error)
        self._room.on_freed()

    def _usable(self) -> Sender:
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
        """Starts a transaction: read-committed consumers see all of its records or none.

            async with producer.transaction() as transaction:
                await producer.send("orders", b"42")
                await transaction.send_offsets({place: 43}, consumer)

        Leaving the block commits the transaction, and returns when the commit is decided. An error
        in the block aborts it. Requires `transactional_id`.
        """
        if self.options.transactional_id is None:
            raise OptionError("transactions need a transactional_id: give the producer one")
        return Transaction(self._transacting)

    def _transacting(self) -> Transactions:
        if self._error is not None and not isinstance(self._error, Closed):
            raise self._error
        if self._transactions is None or self._closing:
            raise Closed("the producer is not started, or closed: use `async with`")
        return self._transactions

    def _open_transaction(self) -> None:
        assert self._resting is not None and self._sender is not None
        with self._lock:
            self._accumulator.begin_transaction()
        self._known, self._resting = self._resting, None
        self._sender.take_failure()

    async def _close_transaction(self) -> ClientError | None:
        assert self._sender is not None
        self._resting, self._known = self._known, {}
        await self.flush()
        # The batches of these requests have timed out, but what they carry may still be written to
        # this transaction.
        while self._accumulator.has_in_flight:
            await self.env.clock.sleep(_IN_FLIGHT_PAUSE_S)
        failure = self._sender.take_failure()
        return self._error or failure

    def _go_on(self, identity: Identity) -> None:
        with self._lock:
            self._accumulator.adopt(identity)

    def _join_by_request(self, join: Join) -> None:
        assert self._sender is not None
        with self._lock:
            self._accumulator.joins_by_request = True
        self._sender.join_by_request(join, PRODUCE_VERSION_MAX)

    def _joined(self, places: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._accumulator.joined(places)

    def _fail_transaction(self, error: ClientError) -> None:
        assert self._sender is not None
        self._sender.note_failure(error)
        self._fail_batches(error)

    # -- topics ---------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> int:
        """Returns the topic's number of partitions.

        Makes the topic known to `send_nowait`, and creates it if auto-creation is on.
        """
        known = self._known.get(topic) or await self._learn(topic)
        return known.view.count

    async def _learn(self, name: str, *, afresh: bool = False) -> Topic:
        self._usable()
        assert self._cluster is not None and self._topics is not None
        async with self._learning.setdefault(name, asyncio.Lock()):
            known = self._known.get(name)
            if known is not None and not afresh:
                return known
            create = self.options.allow_auto_create_topics
            partitions = await self._cluster.partitions(name, auto_create=create)
            self._usable()
            self._meter.distribution.expect(name, partitions)
            with self._lock:
                known = self._known[name] = self._topics.open(name)
            return known

    # -- flush ----------------------------------------------------------------------------------

    async def flush(self, timeout_s: float | None = None) -> None:
        """Sends all buffered records without linger. Waits until each is delivered or has failed.

        Raises `DeadlineExceeded` after `timeout_s`; delivery of the records continues nevertheless.
        Failed records are reported by their deliveries, not here.
        """
        sender = self._sender
        if sender is None:
            return
        with self._lock:
            self._accumulator.hurry()
            tickets = [batch.ticket for batch in self._accumulator.incomplete()]
        sender.wake()
        try:
            async with asyncio.timeout(timeout_s):
                await all_over(tickets)
                if self.options.acks == 0:
                    await sender.vouch()
        except TimeoutError:
            left = sum(not ticket.is_over for ticket in tickets)
            last = sender.last_error or RequestTimedOut(f"{left} batches are not acknowledged yet")
            raise DeadlineExceeded("flush", timeout_s or 0.0, last) from None

    def add_room_listener(self, listener: Callable[[], None]) -> None:
        """Registers a function that is called on the event loop whenever buffer memory is freed."""
        self._room.add_listener(listener)

    # -- metrics --------------------------------------------------------------------------------

    def metrics(self) -> ProducerMetrics:
        """Returns a snapshot of this producer's metrics."""
        with self._lock:
            accumulator = self._accumulator
            return self._meter.snapshot(accumulator.buffered_bytes, accumulator.buffered_records)


class _Host:
    """The interface of a producer for its `Transactions`."""

    def __init__(self, producer: ProducerCore) -> None:
        self._producer = producer
        self._batches_before = 0

    def open_transaction(self) -> None:
        self._batches_before = self._producer._accumulator.batches_made
        self._producer._open_transaction()

    async def close_transaction(self) -> tuple[bool, ClientError | None]:
        failure = await self._producer._close_transaction()
        return self._producer._accumulator.batches_made > self._batches_before, failure

    def join_by_request(self, join: Join) -> None:
        self._producer._join_by_request(join)

    def joined(self, places: Iterable[TopicPartition]) -> None:
        self._producer._joined(places)

    def fail_transaction(self, error: ClientError) -> None:
        self._producer._fail_transaction(error)

    def go_on(self, identity: Identity) -> None:
        self._producer._go_on(identity)

    def give_up(self, error: ClientError) -> None:
        self._producer._fail(error)
