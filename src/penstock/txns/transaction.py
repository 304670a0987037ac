"""What is known of a transactional id, and which states follow which.

    Empty ----------> Ongoing ---------> PrepareCommit --> CompleteCommit
                         |                                       |
                         +-------------> PrepareAbort ---> CompleteAbort

From either end the id goes back to Ongoing with its next partition, or to Empty when a producer
asks for an id. The moment of decision is Prepare: once that record is committed the transaction
will end that way, whoever coordinates it; Complete says that every partition has its marker.

A producer is a producer id and an epoch. The epoch is raised, and its holder so fenced,

- when a producer takes over the transactional id;
- when the coordinator aborts a transaction, for a producer that takes over or because it took too
  long: the marker already carries the new epoch, so partitions fence the old one too;
- from transaction.version 2 on, with every end (KIP-890): what arrives late, having been sent
  within one transaction, cannot touch the next.

`last_producer_epoch` is the epoch that was raised, as long as its holder may still come back: to
repeat a request whose answer was lost, or to go on after its transaction was aborted for it. A
producer that takes over clears it, and the one before is fenced for good.

A producer may use epochs up to 32766: 32767 is left for the coordinator to fence it with. Then the
transactional id gets a new producer id and begins again at epoch 0. With transaction.version 2
that can happen at the end of a transaction: `next_producer_id` is promised while markers, which
are for the old id, are still on their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.txns.config import EPOCH_PER_TRANSACTION
from penstock.txns.effects import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
EPOCH_MAX: Final = 32767
EPOCH_LAST_USABLE: Final = EPOCH_MAX - 1


class InvariantViolated(AssertionError):
    """The coordinator contradicts itself: stop the shard and read its log afresh."""


class State(IntEnum):
    """The numbers are those of the log. Kafka knows two more, which it never writes."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """As Kafka's tools print it: `PrepareCommit`."""
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
    # Without partitions too: a producer that added none, as far as it knows, may want to be sure.
    State.PREPARE_ABORT: _RESTING | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset((State.PREPARE_COMMIT,)),
    State.COMPLETE_ABORT: frozenset((State.PREPARE_ABORT,)),
}
"""The states that each may follow."""


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
    """The transaction.version by which the present state was reached."""

    @property
    def granted(self) -> Producer:
        """Who may go on: what the last answer promised its producer."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def last(self) -> Producer | None:
        """Who `granted` was before its epoch was raised, if it may come back."""
        if self.last_producer_epoch == NO_EPOCH:
            return None
        rotated = self.producer_epoch == 0 and self.previous_producer_id != NO_PRODUCER_ID
        return Producer(
            self.previous_producer_id if rotated else self.producer_id, self.last_producer_epoch
        )

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left to raise to, for a producer's use."""
        return self.producer_epoch >= EPOCH_LAST_USABLE

    @property
    def bumps_epoch(self) -> bool:
        """Whether the end of this transaction raised the epoch."""
        return self.client_version >= EPOCH_PER_TRANSACTION

    # What may become of it

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
        """Under a new producer id, as the old one has no epochs left."""
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
        """Decided, by its producer."""
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
        """Aborted by the coordinator, its producer fenced."""
        return self._to(
            State.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if may_return else NO_EPOCH,
            client_version=EPOCH_PER_TRANSACTION,
        )

    def completed(self, now_ms: int) -> Transaction:
        """Every partition has its marker."""
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
                f"{self.transactional_id} cannot go from {self.state.title} to {state.title}"
            )
        # A wall clock that was set back must not make an id look unused for longer than it is.
        return replace(
            self,
            state=state,
            update_ms=max(now_ms, self.update_ms),
            **changes,  # type: ignore[arg-type]
        )

    def verify(self) -> None:
        """The invariants of one; for tests and simulations."""
        if not 0 <= self.producer_epoch <= EPOCH_MAX:
            raise InvariantViolated(f"{self} has an epoch out of range")
        if self.state in (State.EMPTY, State.ONGOING) and self.producer_epoch == EPOCH_MAX:
            raise InvariantViolated(f"{self} gave a producer the epoch that fences it")
        if self.partitions and self.state in _RESTING:
            raise InvariantViolated(f"{self} has partitions and no transaction")
        if self.state is State.ONGOING and not self.partitions:
            raise InvariantViolated(f"{self} is open without a partition")
        if self.last_producer_epoch >= self.producer_epoch > 0:
            raise InvariantViolated(f"{self} lowered its epoch")
        if self.next_producer_id != NO_PRODUCER_ID and not self.state.is_preparing:
            raise InvariantViolated(f"{self} owes its producer another id")
