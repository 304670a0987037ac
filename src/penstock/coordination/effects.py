"""The effects of a shard, and the list that collects them during a call.

A shard answers each call with a list of effects, to be carried out in order. It never waits: a
request that must wait is identified by its token, and exactly one later effect is the `Reply` to
it. Records that must be durable first are an `Append`; the shell reports its outcome by its id.

The types are generic over the answers and the timer keys of a coordinator, and over the effects
that only this coordinator has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)
Own = TypeVar("Own")
"""The effects that only one coordinator has; `Never` if it has none."""

Token = Hashable
"""Identifies a request that expects an answer; only the shell knows its meaning."""


class Now(NamedTuple):
    """Two clocks, because each is wrong for the other's use.

    Timers use ticks, which never jump. What is stored in the log is wall time, which means the same
    after a restart and on another broker.
    """

    ticks_ms: int
    wall_ms: int


class LogRecord(NamedTuple):
    key: bytes
    value: bytes | None


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction records are appended, and its guard
    (`partition.guards`)."""

    producer_id: int
    producer_epoch: int
    guard: int


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer]):
    token: Token
    answer: Answer


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records as one batch, and report later whether it was committed."""

    append_id: int
    records: tuple[LogRecord, ...]
    timestamp_ms: int
    producer: TransactionalProducer | None = None


@dataclass(frozen=True, slots=True)
class SetTimer(Generic[Key]):
    """Call back at `at_ms`, in ticks; replaces the timer that was set for this key."""

    key: Key
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer(Generic[Key]):
    key: Key


Effect: TypeAlias = Reply[Answer] | Append | SetTimer[Key] | CancelTimer[Key] | Own


class EffectList(Generic[Answer, Key, Own]):
    """The effects of the current call."""

    def __init__(self) -> None:
        self._effects: list[Effect[Answer, Key, Own]] = []
        self._answered_early: set[Token] = set()

    def take(self) -> list[Effect[Answer, Key, Own]]:
        effects, self._effects = self._effects, []
        return effects

    def add(self, effect: Append | Own) -> None:
        self._effects.append(effect)

    def reply(self, token: Token, answer: Answer) -> None:
        if token not in self._answered_early:
            self._effects.append(Reply(token, answer))

    def set_timer(self, key: Key, at_ms: int) -> None:
        self._effects.append(SetTimer(key, at_ms))

    def cancel_timer(self, key: Key) -> None:
        self._effects.append(CancelTimer(key))

    def answer_early(self, answer: Callable[[], None]) -> None:
        """Calls `answer`; later replies to the tokens that it replies to are dropped."""
        before = len(self._effects)
        answer()
        replies = [each for each in self._effects[before:] if isinstance(each, Reply)]
        self._answered_early.update(reply.token for reply in replies)

    def forget_early_answers(self) -> None:
        """Called once no answer can follow for the tokens that were answered early."""
        self._answered_early.clear()
