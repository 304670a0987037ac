"""The state that the modules of a shard share: its image, effects, and work in progress.

Three things can be in progress: an append, from its effect until its outcome is reported; a request
for producer ids; and markers that partitions have not written yet. For the first two, the caller
passes an object that says what to do with the result. Records are applied to the image only here,
once they are committed.

`busy` holds the transactional ids that are being changed, so that no request decides on a state
that is about to be outdated. Requests that only add partitions may overlap: each one writes the
committed partitions plus those that the requests before it add. A partition too many costs only a
marker.

`parked` holds additions to the next transaction of an id whose last one is still being ended: its
producer knows how it ended and continues, while markers are still being written. When these are
written, the additions are appended in one batch with the record that completes the transaction. If
that takes longer than usual, they are answered with a retriable error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

from penstock.coordination.effects import Append, EffectList, Now, Token
from penstock.coordination.in_flight import AppendsInFlight
from penstock.coordination.invariants import InvariantViolated
from penstock.topic_partition import TopicPartition
from penstock.txns.config import TransactionConfig
from penstock.txns.effects import (
    AllocateProducerIds,
    Answer,
    Marker,
    SendMarkers,
    TimerKey,
    TimerKind,
)
from penstock.txns.image import ShardImage
from penstock.txns.transaction import Producer, Transaction
from penstock.wire.errors import ErrorCode


class Allocation(Protocol):
    """What happens once producer ids were allocated."""

    def granted(self, shard: ShardState, producer_ids: Sequence[int], now: Now) -> None: ...

    def refused(self, shard: ShardState, error: ErrorCode, now: Now) -> None: ...

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...


class Doing(Enum):
    INITIALIZING = "initializing"
    ADDING = "adding"
    ENDING = "ending"
    COMPLETING = "completing"
    EXPIRING = "expiring"


class Busy:
    """A change in progress; `head` is the transaction with all additions, committed or not."""

    __slots__ = ("count", "doing", "head")

    def __init__(self, doing: Doing, head: Transaction | None = None) -> None:
        self.doing = doing
        self.head = head
        self.count = 1


class Addition(Protocol):
    """A request to add partitions to a transaction, with the token of the waiting client."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def producer(self) -> Producer: ...

    @property
    def partitions(self) -> Sequence[TopicPartition]: ...

    @property
    def may_wait(self) -> bool: ...

    def answer(self, code: ErrorCode) -> tuple[Token, Answer]: ...


class Marking:
    """A decided transaction and its partitions that have no marker yet: already sent, or due."""

    __slots__ = ("asked", "due", "marker", "retry_is_set")

    def __init__(self, marker: Marker, partitions: frozenset[TopicPartition]) -> None:
        self.marker = marker
        self.asked: set[TopicPartition] = set()
        self.due = set(partitions)
        self.retry_is_set = False


class ShardState:
    def __init__(
        self,
        config: TransactionConfig,
        coordinator_epoch: int,
        batch_bytes_max: Callable[[], int],
    ) -> None:
        self.config: Final = config
        self.coordinator_epoch: Final = coordinator_epoch
        self.batch_bytes_max: Final = batch_bytes_max
        self.image: Final = ShardImage()
        self.effects: Final = EffectList[Answer, TimerKey, AllocateProducerIds | SendMarkers]()
        self.appends: Final = AppendsInFlight(self, self.effects, self._replay, batch_bytes_max)
        self.busy: dict[str, Busy] = {}
        self.deadlines_ms: dict[str, int] = {}
        self.markings: dict[str, Marking] = {}
        self.allocations: dict[int, Allocation] = {}
        self.parked: dict[str, list[Addition]] = {}
        self._next_allocation_id = 0

    def _replay(self, append: Append) -> None:
        for record in append.records:
            self.image.replay(record.key, record.value)

    # Producer ids

    def allocate(self, count: int, allocation: Allocation) -> None:
        allocation_id = self._next_allocation_id
        self._next_allocation_id += 1
        self.allocations[allocation_id] = allocation
        self.effects.add(AllocateProducerIds(allocation_id, count))

    # Changes in progress

    def begin(self, transactional_id: str, doing: Doing, head: Transaction | None = None) -> None:
        if transactional_id in self.busy:
            raise InvariantViolated(
                f"two requests change transactional id {transactional_id} at the same time"
            )
        self.busy[transactional_id] = Busy(doing, head)

    def finish(self, transactional_id: str) -> None:
        busy = self.busy[transactional_id]
        busy.count -= 1
        if not busy.count:
            del self.busy[transactional_id]

    def is_adding(self, transactional_id: str) -> bool:
        """Returns whether partitions are being added, so that the id is about to be `Ongoing`."""
        busy = self.busy.get(transactional_id)
        return transactional_id in self.parked or (busy is not None and busy.doing is Doing.ADDING)

    def park(self, addition: Addition, now: Now) -> None:
        transactional_id = addition.transactional_id
        if transactional_id not in self.parked:
            key = TimerKey(TimerKind.PATIENCE, transactional_id)
            self.effects.set_timer(key, now.ticks_ms + self.config.ending_patience_ms)
        self.parked.setdefault(transactional_id, []).append(addition)

    def unpark(self, transactional_id: str) -> list[Addition]:
        parked = self.parked.pop(transactional_id, [])
        if parked:
            self.effects.cancel_timer(TimerKey(TimerKind.PATIENCE, transactional_id))
        return parked

    def send_away(self, transactional_id: str, code: ErrorCode) -> None:
        """Answers the parked additions with an error; their clients ask again."""
        for addition in self.unpark(transactional_id):
            self.effects.reply(*addition.answer(code))

    # Timers

    def set_deadline(self, transactional_id: str, at_ms: int) -> None:
        self.deadlines_ms[transactional_id] = at_ms
        self.effects.set_timer(TimerKey(TimerKind.TIMEOUT, transactional_id), at_ms)

    def clear_deadline(self, transactional_id: str) -> None:
        if self.deadlines_ms.pop(transactional_id, None) is not None:
            self.effects.cancel_timer(TimerKey(TimerKind.TIMEOUT, transactional_id))
