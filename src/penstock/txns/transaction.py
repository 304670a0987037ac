"""The state of a transactional id, and its state transitions.

    Empty ----------> Ongoing ---------> PrepareCommit --> CompleteCommit
                         |                                       |
                         +-------------> PrepareAbort ---> CompleteAbort

From both Complete states the id returns to Ongoing when a partition is added, or to Empty when a
producer initializes it. The decision is made by Prepare: once that record is committed the
transaction will end that way, whichever broker coordinates it. Complete means that every partition
has its marker.

A producer is a producer id and an epoch. The epoch is raised, which fences the producer that has
it,

- when another producer takes over the transactional id;
- when the coordinator aborts a transaction, because another producer takes over or because it timed
  out: the marker already has the new epoch, so partitions fence the old one too;
- from transaction.version 2 on, at the end of every transaction (KIP-890): a late request from one
  transaction cannot affect the next.

`last_producer_epoch` is the previous epoch, as long as its producer may still return: to repeat a
request whose answer was lost, or to continue after the coordinator aborted its transaction. When
another producer takes over, it is cleared, and the previous producer is fenced for good.

A producer may use epochs up to 32766: 32767 is reserved for the coordinator to fence it with. After
that the transactional id gets a new producer id and starts again at epoch 0. With
transaction.version 2 that can happen at the end of a transaction: `next_producer_id` is already
assigned while the markers, which use the old id, are still being written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.coordination.invariants import InvariantViolated
from penstock.topic_partition import TopicPartition
from penstock.txns.config import EPOCH_PER_TRANSACTION

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
EPOCH_MAX: Final = 32767
EPOCH_LAST_USABLE: Final = EPOCH_MAX - 1


class State(IntEnum):
    """The numbers are those in the log. Kafka has two more states, which it never writes."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The name in the form of Kafka's tools: `PrepareCommit`."""
        return self.name.title().replace("_", "")

    @property
    def is_preparing(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    @property
    def is_committed(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


STATES_BY_TITLE: Final = {state.title: state for state in State}

_RESTING: Final = frozenset((State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT))
FROM: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: _RESTING,
    State.ONGOING: _RESTING | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset((State.ONGOING,)),
    # Also without an open transaction: a producer that knows of no partition may abort to be sure.
    State.PREPARE_ABORT: _RESTING | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset((State.PREPARE_COMMIT,)),
    State.COMPLETE_ABORT: frozenset((State.PREPARE_ABORT,)),
}
"""The states from which each state may be reached."""


class Producer(NamedTuple):
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    update_ms: int
    start_ms: int = NO_TIMESTAMP
    partitions: frozenset[TopicPartition] = frozenset()
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    """The transaction.version under which the current state was reached."""

    @property
    def granted(self) -> Producer:
        """The producer that may continue: the id and epoch in the last answer to it."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def last(self) -> Producer | None:
        """What `granted` was before its epoch was raised, if that producer may return."""
        if self.last_producer_epoch == NO_EPOCH:
            return None
        rotated = self.producer_epoch == 0 and self.previous_producer_id != NO_PRODUCER_ID
        return Producer(
            self.previous_producer_id if rotated else self.producer_id, self.last_producer_epoch
        )

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left that a producer could use."""
        return self.producer_epoch >= EPOCH_LAST_USABLE

    @property
    def bumps_epoch(self) -> bool:
        """Whether the end of this transaction raised the epoch."""
        return self.client_version >= EPOCH_PER_TRANSACTION

    # Transitions

    def initialized(
        self, *, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transaction:
        return self._to(
            State.EMPTY,
            now_ms,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            start_ms=NO_TIMESTAMP,
            partitions=frozenset(),
            client_version=0,
        )

    def rotated(
        self, *, producer_id: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """Returns it with a new producer id, because the old one has no epochs left."""
        fresh = self.initialized(
            epoch=0, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms
        )
        return replace(fresh, producer_id=producer_id, previous_producer_id=self.producer_id)

    def joined_by(self, added: Iterable[TopicPartition], now_ms: int) -> Transaction:
        is_open = self.state is State.ONGOING
        return self._to(
            State.ONGOING,
            now_ms,
            start_ms=self.start_ms if is_open else now_ms,
            partitions=self.partitions.union(added) if is_open else frozenset(added),
            client_version=0,
        )

    def prepared(
        self, *, committed: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> Transaction:
        """Returns it decided by its producer."""
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_version >= EPOCH_PER_TRANSACTION:
            epoch, last_epoch = self.producer_epoch + 1, self.producer_epoch
        is_open = self.state is State.ONGOING
        return self._to(
            State.PREPARE_COMMIT if committed else State.PREPARE_ABORT,
            now_ms,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if is_open else now_ms,
            partitions=self.partitions if is_open else frozenset(),
            client_version=client_version,
        )

    def fenced(self, *, may_return: bool, now_ms: int) -> Transaction:
        """Returns it aborted by the coordinator, with its producer fenced."""
        return self._to(
            State.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if may_return else NO_EPOCH,
            client_version=EPOCH_PER_TRANSACTION,
        )

    def completed(self, now_ms: int) -> Transaction:
        """Returns it with every marker written."""
        state = (
            State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
        )
        done = self._to(state, now_ms, partitions=frozenset())
        if self.next_producer_id == NO_PRODUCER_ID:
            return done
        return replace(
            done,
            producer_id=self.next_producer_id,
            producer_epoch=0,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def _to(self, state: State, now_ms: int, **changes: object) -> Transaction:
        if self.state not in FROM[state]:
            raise InvariantViolated(
                f"transactional id {self.transactional_id} cannot go from {self.state.title} to "
                f"{state.title}"
            )
        # If the wall clock was set back, the id must not look unused for longer than it was.
        return replace(
            self,
            state=state,
            update_ms=max(now_ms, self.update_ms),
            # mypy cannot match keywords from a mapping with parameters of several types.
            **changes,  # type: ignore[arg-type]
        )

    def verify(self) -> None:
        """Checks the invariants of one transaction; for tests and simulations."""
        if not 0 <= self.producer_epoch <= EPOCH_MAX:
            raise InvariantViolated(f"{self} has an epoch out of range")
        if self.state in (State.EMPTY, State.ONGOING) and self.producer_epoch == EPOCH_MAX:
            raise InvariantViolated(
                f"{self} gave its producer the epoch that is reserved for fencing"
            )
        if self.partitions and self.state in _RESTING:
            raise InvariantViolated(f"{self} has partitions but no transaction")
        if self.state is State.ONGOING and not self.partitions:
            raise InvariantViolated(f"{self} is ongoing but has no partition")
        if self.last_producer_epoch >= self.producer_epoch > 0:
            raise InvariantViolated(f"{self} lowered its epoch")
        if self.next_producer_id != NO_PRODUCER_ID and not self.state.is_preparing:
            raise InvariantViolated(f"{self} still has to give its producer the next id")
