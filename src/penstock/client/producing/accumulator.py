"""Holds all records from `send` until they are acknowledged. Pure: `now` is an argument.

Every partition has a lane (`lanes`). A lane is ready when it has a full batch, or a batch whose
linger time is over, or when linger is suspended: during a flush, a close, or while the buffer is
full. An open batch keeps filling until it is actually taken, so batches grow by themselves while
the brokers are slow.

Memory: each batch is charged for its bytes and its overhead, from its first record until nothing
refers to it any more: it was acknowledged or refused, or, if it timed out in flight, its request
was answered or given up. No record is accepted while the charges are at `buffer_memory`.

Time: a batch that is not acknowledged within `delivery_timeout_s` of its first record fails, in
whatever state it is. Batches are created in the order of their deadlines, so checking the oldest is
enough.

Methods return what the caller must act on: the shell settles outcomes outside its lock.

Transactions: a partition joins a transaction with the first batch it gets, and that takes a round
trip to the coordinator. So when a transaction's first batch reaches `JOINING_BYTES`, everything
gathered so far is sent at once. Partitions then join while more records are gathered, and not when
the end of the transaction waits for them. With `joins_by_request` (clusters before
transaction.version 2) a lane sends nothing before its partition is marked as `joined`; partitions
that wait for that are in `outside`.

Invariants (`verify`): `buffered_bytes` is the sum of all charges; every batch that is not settled
is in exactly one place of its lane; a lane that could send is ready, resting or lingering.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.client.errors import ClientError, DeliveryTimedOut
from penstock.client.model import Headers
from penstock.client.producing.accumulator_config import AccumulatorConfig
from penstock.client.producing.batches import BATCH_OVERHEAD, Batch, grown
from penstock.client.producing.lanes import Lane
from penstock.client.producing.sequences import WINDOW_MAX, Identity
from penstock.records.batch import HEADER_SIZE
from penstock.records.kernels import append_record
from penstock.topic_partition import TopicPartition

BATCH_BYTES_MIN: Final = 1024
"""The smallest limit on batches, even if a broker seems to accept only smaller ones."""
JOINING_BYTES: Final = 4096


class Accumulator:
    """All lanes of a producer, their memory, deadlines and readiness. See the module's
    docstring."""

    def __init__(self, config: AccumulatorConfig) -> None:
        self.config = config
        self.buffered_bytes = 0
        self.identity: Identity | None = None
        """The producer id and epoch. Without them an idempotent producer sends nothing."""
        self.has_news = False
        """Whether there may be something to send, or an earlier time at which to check again."""
        self.has_filled = False
        """Whether a batch became full: a good time to let the sender run."""
        self._lanes: dict[TopicPartition, Lane] = {}
        self._ready: dict[Lane, None] = {}
        self._lingering: dict[Lane, float] = {}
        """Lanes whose open batch still lingers, and the time when it is due; the earliest first."""
        self._resting: list[tuple[float, TopicPartition, Lane]] = []
        self._incomplete: dict[Batch, None] = {}
        self._limits: dict[str, int] = {}
        self._bytes_max = config.buffer_memory
        self._in_hurry = False
        self._is_joining = False
        """Whether a transaction is open of which only small batches were sent yet."""
        self.joins_by_request = False
        self.outside: dict[TopicPartition, None] = {}
        self._wants_identity = config.idempotent
        self._next_number = 0

    def lane(self, topic_partition: TopicPartition) -> Lane:
        lane = self._lanes.get(topic_partition)
        if lane is None:
            limit = min(self.config.batch_size, self.batch_limit(topic_partition.topic))
            lane = self._lanes[topic_partition] = Lane(topic_partition, limit)
            lane.has_joined = not self.joins_by_request
        return lane

    def batch_limit(self, topic: str) -> int:
        """Returns the limit on the topic's batches, as far as it is known."""
        return self._limits.get(topic, self.config.max_request_size)

    # -- appending ------------------------------------------------------------------------------

    def append_open(
        self,
        lane: Lane,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        bytes_max: int,
    ) -> Batch | None:
        """Adds a record to the open batch. Returns None if the record needs a new batch.

        `bytes_max` is the maximum size of the record. Hot path: called once per record.
        """
        batch = lane.open
        if batch is None:
            return None
        packed = batch.packed
        if (
            len(packed) + bytes_max > lane.open_bytes_max
            or self.buffered_bytes + bytes_max + (bytes_max >> 3) > self._bytes_max
        ):
            return None
        # `Batch.append` and `grown` are inlined, because most of a record's time is spent on calls.
        count = batch.count
        if timestamp > batch.max_timestamp:  # noqa: PLR1730 - max() takes four times as long
            batch.max_timestamp = timestamp
        batch.count = count + 1
        size: int = append_record(
            packed, count, timestamp - batch.base_timestamp, key, value, headers
        )
        charge = size + (size >> 3) + 1
        batch.charge += charge
        lane.queued_bytes += charge
        self.buffered_bytes += charge
        return batch

    def append_new(
        self,
        lane: Lane,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        bytes_max: int,
        now: float,
    ) -> Batch | None:
        """Adds a record to a new batch. Returns None if the buffer is full."""
        self.config.check_size(lane.topic_partition, bytes_max)
        if not self.has_room(bytes_max):
            return None
        if lane.open is not None:
            self._close_open(lane)
            self.has_filled = True
            if self._is_joining:
                self._send_first()
        batch = self._new_batch(lane, now)
        size = batch.append(timestamp, key, value, headers)
        self._charge(lane, batch, BATCH_OVERHEAD + grown(HEADER_SIZE + size))
        lane.open = batch
        limit = lane.batch_bytes_max
        lane.open_bytes_max = min(limit, JOINING_BYTES) if self._is_joining else limit
        if self._in_hurry or self.config.linger_s <= 0:
            batch.due = True
            self._set_ready(lane)
        else:
            self.has_news = self.has_news or not self._lingering
            self._lingering[lane] = now + self.config.linger_s
        return batch

    def append_sealed(
        self, lane: Lane, data: bytearray | memoryview, count: int, now: float
    ) -> Batch:
        """Queues a complete batch behind those of the lane. The caller has made sure that there is
        memory."""
        self._close_open(lane)
        batch = self._new_batch(lane, now)
        batch.fill(data, count)
        self._charge(lane, batch, BATCH_OVERHEAD + len(data))
        lane.waiting.append(batch)
        self._set_ready(lane)
        self.has_filled = True
        return batch

    def has_room(self, bytes_max: int) -> bool:
        needed = BATCH_OVERHEAD + grown(HEADER_SIZE + bytes_max)
        return self.buffered_bytes + needed <= self.config.buffer_memory

    def _close_open(self, lane: Lane) -> None:
        if lane.open is not None:
            lane.close_open()
            self._lingering.pop(lane, None)
            self._set_ready(lane)

    def _new_batch(self, lane: Lane, now: float) -> Batch:
        self._next_number += 1
        deadline = now + self.config.delivery_timeout_s
        batch = Batch(lane.topic_partition, self._next_number, now, deadline)
        batch.is_transactional = self.config.transactional
        if not self._incomplete:
            self.has_news = True  # There was no deadline to watch before.
        self._incomplete[batch] = None
        return batch

    def _charge(self, lane: Lane, batch: Batch, charge: int) -> None:
        batch.charge += charge
        lane.queued_bytes += charge
        self.buffered_bytes += charge

    def _free(self, lane: Lane, batch: Batch) -> None:
        self._charge(lane, batch, -batch.charge)

    # -- readiness ------------------------------------------------------------------------------

    def _set_ready(self, lane: Lane) -> None:
        if lane not in self._ready:
            self._ready[lane] = None
        self.has_news = True

    def hurry(self) -> None:
        """Makes all open batches ready at once."""
        for lane in self._lingering:
            self._set_due(lane)
        self._lingering.clear()

    def _send_first(self) -> None:
        self._is_joining = False
        for lane in self._lingering:
            lane.open_bytes_max = lane.batch_bytes_max
        self.hurry()

    def _set_due(self, lane: Lane) -> None:
        if lane.open is not None:
            lane.open.due = True
            self._set_ready(lane)

    def set_hurry(self, on: bool) -> None:
        """Turns linger off while `on`."""
        self._in_hurry = on
        if on:
            self.hurry()

    def ready(self, now: float) -> list[Lane]:
        """Returns the lanes that have something to send, those that have waited longest first."""
        while self._lingering:
            lane, due_at = next(iter(self._lingering.items()))
            if due_at > now:
                break
            del self._lingering[lane]
            self._set_due(lane)
        while self._resting and self._resting[0][0] <= now:
            _, _, lane = heapq.heappop(self._resting)
            if lane.has_due:
                self._set_ready(lane)
        self.has_news = False
        return list(self._ready)

    def next_at(self) -> float | None:
        """Returns when to check again if nothing happens until then."""
        times = []
        if self._lingering:
            times.append(next(iter(self._lingering.values())))
        if self._resting:
            times.append(self._resting[0][0])
        if self._incomplete:
            times.append(next(iter(self._incomplete)).deadline)
        return min(times, default=None)

    def drain(self, lanes: Iterable[Lane], leader: int, now: float) -> list[Batch]:
        """Takes one batch of each lane that may send, as many as fit into one request, and numbers
        them."""
        config = self.config
        if config.idempotent and self.identity is None:
            return []
        taken: list[Batch] = []
        room = config.max_request_size
        for lane in lanes:
            if not lane.has_joined and lane.has_due:
                self.outside[lane.topic_partition] = None
                continue
            if not lane.may_send(leader, now, numbered=config.idempotent):
                self._set_aside(lane, now)
                continue
            size = lane.next_size()
            if taken and size > room:
                break
            room -= size
            batch = lane.take(leader, self.identity)
            taken.append(batch)
            # If it has more to send, it goes to the end of the line.
            self._ready.pop(lane, None)
            if lane.has_due:
                self._ready[lane] = None
        return taken

    def _set_aside(self, lane: Lane, now: float) -> None:
        """Removes a lane that cannot send from the line, unless it only waits for an answer."""
        if now < lane.resting_until:
            heapq.heappush(self._resting, (lane.resting_until, lane.topic_partition, lane))
            self._ready.pop(lane, None)
        elif not lane.has_due:
            self._ready.pop(lane, None)

    # -- answers --------------------------------------------------------------------------------

    def on_done(self, batch: Batch) -> None:
        """The batch is in the log or, with acks=0, was sent."""
        lane = self._lanes[batch.topic_partition]
        lane.on_done(batch)
        self._forget(lane, batch)
        self._end_round(lane, 0.0)

    def on_refused(self, batch: Batch) -> None:
        lane = self._lanes[batch.topic_partition]
        lane.on_refused(batch)
        self._forget(lane, batch)
        self._end_round(lane, 0.0)

    def on_retry(
        self, batch: Batch, error: ClientError, retry_at: float, *, renumber: bool = False
    ) -> bool:
        """Queues the batch to be sent again, not before `retry_at`. Returns False if it has no
        attempts left."""
        lane = self._lanes[batch.topic_partition]
        lane.last_error = error
        if batch.abandoned or batch.attempts >= self.config.attempts_max:
            lane.on_refused(batch)
            self._forget(lane, batch)
            self._end_round(lane, retry_at)
            return False
        lane.on_returned(batch, renumber=renumber)
        self._end_round(lane, retry_at)
        return True

    def on_too_large(self, batch: Batch) -> tuple[Batch, ...]:
        """Splits the batch. The caller transfers its outcome to the parts."""
        lane = self._lanes[batch.topic_partition]
        limit = max(batch.size // 2, BATCH_BYTES_MIN)
        self._limits[batch.topic_partition.topic] = min(
            limit, self.batch_limit(batch.topic_partition.topic)
        )
        for other in self._lanes.values():
            if other.topic_partition.topic == batch.topic_partition.topic:
                other.limit_batches(limit)
        if batch.abandoned:
            lane.on_refused(batch)
            self._forget(lane, batch)
            self._end_round(lane, 0.0)
            return ()
        parts = batch.halves()
        self._free(lane, batch)
        del self._incomplete[batch]
        # The parts keep the old deadline, and the oldest batch must stay first.
        self._incomplete = dict.fromkeys(
            sorted((*self._incomplete, *parts), key=lambda item: item.deadline)
        )
        for part in parts:
            charge, part.charge = part.charge, 0
            self._charge(lane, part, charge)
        lane.on_split(batch, parts)
        self._end_round(lane, 0.0)
        return parts

    def _forget(self, lane: Lane, batch: Batch) -> None:
        self._incomplete.pop(batch, None)
        self._free(lane, batch)

    def _end_round(self, lane: Lane, retry_at: float) -> None:
        lane.resting_until = max(lane.resting_until, retry_at)
        if lane.settle_round():
            lane.failures += 1
        if not lane.try_renumber(self.identity):
            self._wants_identity = True
        if lane.has_due:
            self._set_ready(lane)

    def identify(self, identity: Identity) -> None:
        """Sets the (new) producer id and epoch. Lanes that waited for them continue."""
        self.identity = identity
        self._wants_identity = False
        for lane in self._lanes.values():
            lane.try_renumber(identity)
            if lane.has_due:
                self._set_ready(lane)

    def adopt(self, identity: Identity) -> None:
        """Numbers the next batches from 0, with the id and epoch from the transaction coordinator.
        Nothing is in flight."""
        for lane in self._lanes.values():
            lane.numbering.adopt(identity)
        self.identify(identity)

    # -- transactions ---------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begins a transaction. Nothing is in flight."""
        self._is_joining = True
        self.outside.clear()
        for lane in self._lanes.values():
            lane.has_joined = not self.joins_by_request

    def take_outside(self) -> list[TopicPartition]:
        """Returns the partitions that must join the transaction before anything is sent to them."""
        outside, self.outside = self.outside, {}
        return list(outside)

    def joined(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            lane = self._lanes[topic_partition]
            lane.has_joined = True
            if lane.has_due:
                self._set_ready(lane)

    @property
    def wants_identity(self) -> bool:
        """Whether a (new) producer id has to be requested."""
        return self._wants_identity

    # -- timeouts and failures ------------------------------------------------------------------

    def expire(self, now: float) -> list[tuple[Batch, DeliveryTimedOut]]:
        """Removes and returns batches that have timed out. Those in flight stay until their request
        ends."""
        expired = []
        while self._incomplete and (batch := next(iter(self._incomplete))).deadline <= now:
            lane = self._lanes[batch.topic_partition]
            self._give_up(lane, batch)
            expired.append((batch, self._timed_out(lane, batch)))
        return expired

    def _timed_out(self, lane: Lane, batch: Batch) -> DeliveryTimedOut:
        error = lane.last_error
        why = f": {error}" if error is not None else ": the brokers did not accept it in time"
        limit_ms = self.config.delivery_timeout_s * 1000
        return DeliveryTimedOut(
            f"{batch.topic_partition}: not acknowledged within "
            f"delivery_timeout_ms={limit_ms:.0f}{why}",
            error,
        )

    def fail_all(self) -> list[Batch]:
        """Gives up and returns every batch that is not settled. None of them is sent (again)."""
        batches = list(self._incomplete)
        for batch in batches:
            self._give_up(self._lanes[batch.topic_partition], batch)
        return batches

    def _give_up(self, lane: Lane, batch: Batch) -> None:
        if batch in lane.in_flight:
            # The request still refers to its bytes; they are freed when it ends.
            batch.abandoned = True
            del self._incomplete[batch]
            return
        if lane.open is batch:
            self._lingering.pop(lane, None)
        lane.discard(batch)
        self._forget(lane, batch)
        if not lane.has_due:
            self._ready.pop(lane, None)

    # -- queries --------------------------------------------------------------------------------

    def incomplete(self) -> Iterator[Batch]:
        return iter(self._incomplete)

    @property
    def has_in_flight(self) -> bool:
        """Whether any request is in flight, even if its batches were given up."""
        return any(lane.in_flight for lane in self._lanes.values())

    @property
    def batches_made(self) -> int:
        """The number of batches made since the start."""
        return self._next_number

    @property
    def is_empty(self) -> bool:
        return not self._incomplete

    @property
    def buffered_records(self) -> int:
        return sum(batch.count for batch in self._incomplete)

    def verify(self) -> None:
        """Checks the invariants, and raises an error if one is violated."""
        held: list[Batch] = []
        for lane in self._lanes.values():
            batches = [*lane.in_flight, *lane.returned, *lane.waiting]
            batches += [lane.open] if lane.open is not None else []
            assert lane.queued_bytes == sum(batch.charge for batch in batches), lane.topic_partition
            assert len(lane.in_flight) <= WINDOW_MAX, lane.topic_partition
            held += batches
            known = lane in self._ready or any(entry[2] is lane for entry in self._resting)
            assert known or lane.in_flight or not lane.has_due, (
                f"{lane.topic_partition} is forgotten"
            )
        assert len(set(held)) == len(held), "a batch is in two places"
        alive = {batch for batch in held if not batch.abandoned}
        assert alive == set(self._incomplete), "a batch is lost"
        assert self.buffered_bytes == sum(batch.charge for batch in held)
