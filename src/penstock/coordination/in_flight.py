"""Appends in flight: from the `Append` effect until the shell has reported its outcome.

Each append has an `Outcome`: an object that says what to do once the outcome is known. Records are
applied to the image only here, once they are committed, and before the requests that wait for them
are answered.

An append that takes long is late: the requests that wait for it are answered with a retriable
error, and its outcome is still reported. An append whose shard is unloaded first is abandoned: it
may or may not be committed, and its outcome is not reported any more.

Outcomes are reported in the order of the appends. A report out of order is a bug in the shell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.coordination.batches import split
from penstock.coordination.effects import Append, EffectList, LogRecord, Now, TransactionalProducer
from penstock.coordination.invariants import InvariantViolated
from penstock.wire.errors import ErrorCode

State = TypeVar("State")
State_contra = TypeVar("State_contra", contravariant=True)


class Outcome(Protocol[State_contra]):
    """What happens once the result of an append is known. `shard` is the state of its shard."""

    def committed(self, shard: State_contra, now: Now) -> None: ...

    def failed(self, shard: State_contra, error: ErrorCode, now: Now) -> None: ...

    def abandoned(self, shard: State_contra, code: ErrorCode) -> None:
        """Answers the waiting requests: the append is late, or the shard is unloaded before its
        outcome is known."""


class _InFlight(NamedTuple, Generic[State]):
    append: Append
    outcome: Outcome[State]


class AppendsInFlight(Generic[State]):
    def __init__(
        self,
        shard: State,
        effects: EffectList[Any, Any, Any],
        replay: Callable[[Append], None],
        batch_bytes_max: Callable[[], int],
    ) -> None:
        """`replay` applies the records of an append to the image, once they are committed.

        `batch_bytes_max` returns the current size limit of a batch in the partition: its topic's
        max.message.bytes.
        """
        self._shard = shard
        self._effects = effects
        self._replay = replay
        self._batch_bytes_max = batch_bytes_max
        self._in_flight: dict[int, _InFlight[State]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._in_flight)

    def start(
        self,
        records: Sequence[LogRecord],
        outcome: Outcome[State],
        now: Now,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Appends the records as one batch."""
        append = Append(self._next_id, tuple(records), now.wall_ms, producer)
        self._next_id += 1
        self._in_flight[append.append_id] = _InFlight(append, outcome)
        self._effects.add(append)

    def start_batches(
        self,
        records: Sequence[LogRecord],
        outcome: Outcome[State],
        now: Now,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Appends records that need not be atomic, in as few batches as possible."""
        batches = list(split(records, self._batch_bytes_max()))
        if len(batches) > 1:
            outcome = SharedOutcome(outcome, len(batches))
        for batch in batches:
            self.start(batch, outcome, now, producer)

    # Reports

    def on_committed(self, append_id: int, now: Now) -> None:
        append, outcome = self._finish(append_id)
        self._replay(append)
        outcome.committed(self._shard, now)
        self._forget_early_answers()

    def on_failed(self, append_id: int, error: ErrorCode, now: Now) -> None:
        _, outcome = self._finish(append_id)
        outcome.failed(self._shard, error, now)
        self._forget_early_answers()

    def on_late(self, append_id: int) -> None:
        """Answers the requests that wait for a slow append; its outcome is still to be reported."""
        late = self._in_flight.get(append_id)
        if late is not None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._effects.answer_early(lambda: late.outcome.abandoned(self._shard, code))

    def abandon(self, code: ErrorCode) -> None:
        """Answers all waiting requests: no outcome is reported any more."""
        abandoned, self._in_flight = self._in_flight, {}
        for _, outcome in abandoned.values():
            outcome.abandoned(self._shard, code)
        self._forget_early_answers()

    def _finish(self, append_id: int) -> _InFlight[State]:
        oldest = next(iter(self._in_flight), None)
        if oldest is None:
            raise InvariantViolated(f"append {append_id} was reported, but none is in flight")
        if append_id != oldest:
            raise InvariantViolated(
                f"append {append_id} was reported before append {oldest}: report appends in order"
            )
        return self._in_flight.pop(append_id)

    def _forget_early_answers(self) -> None:
        if not self._in_flight:
            self._effects.forget_early_answers()


@dataclass(slots=True)
class SharedOutcome(Generic[State]):
    """One outcome for several appends, decided by the last report; one failure fails all."""

    outcome: Outcome[State]
    left: int
    error: ErrorCode | None = None
    is_abandoned: bool = False

    def committed(self, shard: State, now: Now) -> None:
        self._one_less(shard, now)

    def failed(self, shard: State, error: ErrorCode, now: Now) -> None:
        self.error = self.error or error
        self._one_less(shard, now)

    def abandoned(self, shard: State, code: ErrorCode) -> None:
        if not self.is_abandoned:
            self.is_abandoned = True
            self.outcome.abandoned(shard, code)

    def _one_less(self, shard: State, now: Now) -> None:
        self.left -= 1
        if self.left:
            return
        if self.error is None:
            self.outcome.committed(shard, now)
        else:
            self.outcome.failed(shard, self.error, now)
