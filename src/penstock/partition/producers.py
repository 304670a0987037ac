"""The state that one partition keeps for its idempotent and transactional producers.

A producer numbers its records per partition: an epoch, then sequences that start at 0, have no gaps
and wrap from 2**31 - 1 to 0. Remembering the last five batches of each producer is enough to
recognize any retry, because a client has at most five requests in flight.

`check` decides before a batch is appended. `update` and `on_control` are called for every batch
that is in the log, after live appends, replication and recovery alike, and never refuse one. So the
state is a function of the log, and a follower that becomes leader already has it.

The decisions of `check`:

    producer unknown here            any sequence is accepted. The state may have expired or been
                                     deleted with its segments, and refusing would wedge a healthy
                                     producer: Kafka stopped answering UNKNOWN_PRODUCER_ID for this.
    next sequence of the epoch       accepted
    exact copy of a remembered one   `Duplicate`, with the offset of the first copy
    older than all remembered ones   DuplicateSequence, if every one of its sequences is known to
                                     be in the log; clients take that as success without an offset
    any other sequence               OutOfOrderSequence
    older epoch                      InvalidProducerEpoch: a zombie, fenced by its successor
    newer epoch                      must begin with sequence 0, else OutOfOrderSequence

Kafka itself answers OutOfOrderSequence for every batch older than the remembered ones. Answering
"duplicate" instead is only correct if nothing was skipped. Suppose the partition had forgotten a
producer and then accepted its later batch first: the earlier one would be confirmed and never
written. Hence `span`, the number of sequences seen without a gap; it restarts when a snapshot is
loaded or compaction left a gap.

A transaction begins with the producer's first transactional batch and ends with a control batch,
the marker. Reads of committed data stop at the first unstable offset: the first offset of a
transaction that is open, or whose marker is not committed yet. A snapshot does not contain
transactions that have ended, so after a restart an uncommitted marker holds back no reader. That is
harmless: a marker carries a decision that is already committed, and if the marker is lost the same
one is written again.

Appends on behalf of clients pass a `Verification` for a transactional batch (`guards`
explains why). Then `check` also refuses these with InvalidTransactionState:

    no open transaction of this epoch, and no valid guard    the transaction would never be ended
    an open transaction of an older epoch                    its marker is still to come

and these with OutOfOrderSequence:

    an earlier batch is still being verified                 that one must come first
    an unknown producer whose first sequence is not 0        a batch before it is missing; only
                                                             under transaction.version 2, which
                                                             numbers each transaction from 0

A producer that has appended nothing for `producer.id.expiration.ms` is forgotten. The time counts
from the append, not from the timestamps of its records: a producer that loads old records today is
active today. So the caller passes the time of the append with each batch. Where that is not known,
as in a replay of the log, an upper bound is good enough (`storage.producer_snapshots`).

Invariants: at most five batches per producer, all of its current epoch; a producer is in `_ongoing`
under its transaction's first offset exactly while the transaction is open; `_ongoing` iterates in
offset order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.partition.guards import Guards, Verification
from penstock.partition.producer_errors import (
    CoordinatorFenced,
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from penstock.partition.producer_state import NO_OFFSET, Duplicate, ProducerEntry, ProducerState
from penstock.records.batch import CONTROL, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader
from penstock.records.record import ControlType


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended in this partition.

    `last_offset` is the marker's; `last_stable_offset` goes into the transaction index.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


def _is_open(producer: ProducerState, header: BatchHeader) -> bool:
    """Returns whether the batch continues a transaction that is open in this partition."""
    return producer.transaction_first_offset >= 0 and producer.epoch == header.producer_epoch


class ProducerStates:
    """All producers of one partition. Batches without a producer id must not be passed in."""

    __slots__ = ("_completed", "_guards", "_ongoing", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerState] = {}
        self._guards = Guards()
        self._ongoing: dict[int, int] = {}
        # Transactions that ended, as (first offset, marker offset). Their markers may still be
        # above the high watermark.
        self._completed: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._producers)

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def begin_verification(self, header: BatchHeader, now_ms: int) -> int | None:
        """Returns a guard to hold while a batch is verified; None if it needs no verification."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and (
            header.producer_epoch < producer.epoch or _is_open(producer, header)
        ):
            return None
        return self._guards.begin(
            header.producer_id, header.producer_epoch, header.base_sequence, now_ms
        )

    def check(
        self,
        header: BatchHeader,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
    ) -> Duplicate | None:
        """Returns None if the batch may be appended, or `Duplicate`; else raises `ProducerRefused`.

        Batches that the broker itself writes for a producer (offsets committed in a transaction)
        have no sequences: with `from_client` false only the epoch and the transaction are checked.
        Without `verification` the transaction is not checked: that is for batches that were
        verified where they were first appended.
        """
        seen = self._check_order(header, from_client, verification)
        if seen is None and verification is not None and header.attributes & TRANSACTIONAL:
            self._check_transaction(header, from_client, verification)
        return seen

    def _check_transaction(
        self, header: BatchHeader, from_client: bool, verification: Verification
    ) -> None:
        """Refuses a batch that does not belong to an open or newly verified transaction."""
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if producer is not None and _is_open(producer, header):
            return
        if producer is not None and producer.transaction_first_offset >= 0:
            raise InvalidTransactionState(
                f"producer {producer_id} began a transaction with epoch {header.producer_epoch}, "
                f"but its transaction of epoch {producer.epoch} is still open since offset "
                f"{producer.transaction_first_offset}: end that one first"
            )
        if not self._guards.holds(producer_id, verification.guard):
            raise InvalidTransactionState(
                f"producer {producer_id} has no open transaction in this partition, and its "
                "coordinator has not verified one, or the transaction ended during the "
                "verification: begin a new one"
            )
        lowest = self._guards.lowest_sequence(producer_id, header.producer_epoch)
        if from_client and lowest is not None and header.base_sequence > lowest:
            raise OutOfOrderSequence(
                f"producer {producer_id} sent sequence {header.base_sequence} before sequence "
                f"{lowest}, which is still being verified: send that one first"
            )

    def _check_order(
        self, header: BatchHeader, from_client: bool, verification: Verification | None
    ) -> Duplicate | None:
        """Checks the epoch and the sequence."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            strict = verification is not None and verification.numbers_from_zero
            if strict and from_client and header.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} is unknown in this partition, so its "
                    f"transaction must begin with sequence 0, not {header.base_sequence}"
                )
            return None
        epoch = header.producer_epoch
        base_sequence = header.base_sequence
        if epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} wrote with epoch {epoch}, but a newer instance "
                f"already uses epoch {producer.epoch}: stop this instance"
            )
        if epoch > producer.epoch:
            if from_client and base_sequence != 0:
                raise OutOfOrderSequence(
                    f"epoch {epoch} of producer {header.producer_id} is new in this partition, "
                    f"so it must begin with sequence 0, not {base_sequence}"
                )
        elif from_client and base_sequence != producer.next_sequence:
            return self._retry(producer, header)
        if producer.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL:
            raise InvalidTransactionState(
                f"producer {header.producer_id} has a transaction open since offset "
                f"{producer.transaction_first_offset} and sent a batch outside of it: end the "
                "transaction first"
            )
        return None

    def _retry(self, producer: ProducerState, header: BatchHeader) -> Duplicate:
        """Finds the first copy of a batch that is not the next in sequence, or refuses the
        batch."""
        base_sequence, last_sequence = header.base_sequence, header.last_sequence
        found = producer.find(base_sequence, last_sequence)
        if found is not None:
            return found
        if producer.is_known_and_older(base_sequence, last_sequence):
            raise DuplicateSequence(
                f"sequences {base_sequence} to {last_sequence} of producer {header.producer_id} "
                "were already appended, too long ago for the broker to know their offsets"
            )
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {base_sequence}, but "
            f"{producer.next_sequence} was expected: a batch before this one is missing"
        )

    def missing_before(self, header: BatchHeader, since_offset: int) -> int | None:
        """Returns the next sequence of a producer that wrote nothing from `since_offset` on, or
        None."""
        producer = self._producers.get(header.producer_id)
        if (
            producer is None
            or header.producer_epoch < producer.epoch
            or producer.last_batch()[2] >= since_offset
        ):
            return None
        return producer.next_sequence if header.producer_epoch == producer.epoch else 0

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, strict: bool
    ) -> None:
        """Raises `ProducerRefused` if a coordinator may not end this producer's transaction here.

        Since KIP-890 the coordinator raises the epoch with each marker. With `strict`, a marker
        that does not is late, and would end the producer's next transaction. It is accepted only
        where it does no harm: no transaction is open, and it repeats the marker that ended the last
        one.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        late = epoch < producer.epoch or (
            strict and epoch == producer.epoch and producer.transaction_first_offset >= 0
        )
        if late:
            raise InvalidProducerEpoch(
                f"the marker for producer {producer_id} has epoch {epoch}, but epoch "
                f"{producer.epoch} was already seen: the marker belongs to an earlier transaction"
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"coordinator epoch {coordinator_epoch} is older than "
                f"{producer.coordinator_epoch}: another broker now coordinates producer "
                f"{producer_id}"
            )

    def update(self, header: BatchHeader, appended_ms: int = NO_TIMESTAMP) -> None:
        """Records that a batch of this producer was appended to the log at `appended_ms`.

        Markers go to `on_control`, unless compaction emptied the batch: then its transaction is
        gone and only the epoch still counts.
        """
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = ProducerState(header.producer_epoch)
        elif header.producer_epoch != producer.epoch:
            producer.enter_epoch(header.producer_epoch)
        producer.appended_ms = max(producer.appended_ms, appended_ms)
        if header.attributes & CONTROL:
            producer.last_timestamp = header.max_timestamp
            return
        producer.remember(
            header.base_sequence,
            header.last_sequence,
            header.last_offset_delta,
            header.base_offset + header.last_offset_delta,
            header.max_timestamp,
        )
        if header.attributes & TRANSACTIONAL:
            self._guards.end(producer_id)
            if producer.transaction_first_offset < 0:
                producer.transaction_first_offset = header.base_offset
                self._ongoing[header.base_offset] = producer_id

    def on_control(
        self,
        header: BatchHeader,
        marker: ControlType,
        coordinator_epoch: int,
        appended_ms: int = NO_TIMESTAMP,
    ) -> CompletedTransaction | None:
        """Records a marker in the log. Returns None if it ended no transaction here."""
        producer_id = header.producer_id
        self._guards.end(producer_id)
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = ProducerState(header.producer_epoch)
        producer.enter_epoch(header.producer_epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.appended_ms = max(producer.appended_ms, appended_ms)
        first_offset = producer.transaction_first_offset
        if first_offset < 0:
            return None
        producer.transaction_first_offset = NO_OFFSET
        del self._ongoing[first_offset]
        self._completed.append((first_offset, header.base_offset))
        return CompletedTransaction(
            producer_id,
            first_offset,
            header.base_offset,
            marker == ControlType.ABORT,
            next(iter(self._ongoing), header.next_offset),
        )

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Returns the offset where reads of committed data must stop, or None if there is none."""
        if self._completed:
            # The high watermark never falls, so markers below it need not be checked again.
            self._completed = [ended for ended in self._completed if ended[1] >= high_watermark]
            if self._completed:
                first_ended = min(self._completed)[0]
                return min(next(iter(self._ongoing), first_ended), first_ended)
        return next(iter(self._ongoing), None)

    def last_stable_offset(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """Returns where reads of committed data end: everything below is decided and committed."""
        unstable = self.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        return min(max(unstable, log_start_offset), high_watermark)

    def open_since(self) -> list[int]:
        """Returns the timestamp of the last batch of each producer with an open transaction."""
        return [self._producers[each].last_timestamp for each in self._ongoing.values()]

    def last_data_offsets(self) -> dict[int, int]:
        """Returns the offset of each producer's last sequence; compaction must keep these batches.

        It is a copy, because the cleaner runs concurrently with appends.
        """
        return {
            producer_id: producer.last_batch()[2]
            for producer_id, producer in self._producers.items()
            if producer.history
        }

    def marker_epochs(self) -> dict[int, int]:
        """Returns the epochs that are known only from a marker; compaction must keep one
        of each."""
        return {
            producer_id: producer.epoch
            for producer_id, producer in self._producers.items()
            if not producer.history
        }

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forgets producers that appended nothing for `expiration_ms`, and returns their ids.

        A producer with an open transaction does not expire.
        """
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_first_offset < 0
            and now_ms - producer.appended_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        self._guards.expire(now_ms, expiration_ms)
        return expired

    def clear(self) -> None:
        """Forgets everything. To truncate a log: clear, load the newest snapshot at or below the
        new end, and replay the batches between the two."""
        self._producers.clear()
        self._guards.clear()
        self._ongoing.clear()
        self._completed.clear()

    def append_times(self) -> dict[int, int]:
        """Returns when each producer last appended, for `note_append_times`."""
        return {each: producer.appended_ms for each, producer in self._producers.items()}

    def note_append_times(self, appended_ms: Mapping[int, int], default_ms: int) -> None:
        """Sets upper bounds for the last appends; `default_ms` is for producers not in the map."""
        for producer_id, producer in self._producers.items():
            producer.appended_ms = appended_ms.get(producer_id, default_ms)

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Loads the entries of a snapshot; the entries of one producer are its batches in order."""
        for entry in entries:
            producer = self._producers.get(entry.producer_id)
            if producer is None:
                producer = self._producers[entry.producer_id] = ProducerState(entry.epoch)
            producer.load(entry)
        self._ongoing = {
            first_offset: producer_id
            for first_offset, producer_id in sorted(
                (producer.transaction_first_offset, producer_id)
                for producer_id, producer in self._producers.items()
            )
            if first_offset >= 0
        }

    def entries(self, batches_per_producer: int = 1) -> list[ProducerEntry]:
        """Returns the state for a snapshot.

        Kafka stores only a producer's last batch. With more than one per producer, earlier batches
        come first, so that a reader that keeps only the last entry sees the same.
        """
        return [
            entry
            for producer_id, producer in self._producers.items()
            for entry in producer.entries(producer_id, batches_per_producer)
        ]
