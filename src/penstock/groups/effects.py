"""The inputs of a group shard other than wire requests, and its effects.

A shard answers each call with a list of effects, to be carried out in order. It never waits: a
request that must wait is identified by its token, and exactly one later effect is the `Reply` to
it. Records that must be durable first are an `Append`; the shell reports its outcome by its id.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.wire.messages.base import Response

Token = Hashable
"""Identifies a request that expects an answer; only the shell knows its meaning."""


class Now(NamedTuple):
    """Two clocks, because each is wrong for the other's use.

    Sessions and timers use ticks, which never jump. Retention uses the wall clock, which means the
    same after a restart and on another broker.
    """

    ticks_ms: int
    wall_ms: int


class RequestInfo(NamedTuple):
    client_id: str
    client_host: str
    version: int


class TimerKind(Enum):
    JOIN = "join"
    """The join phase of a group ends."""
    SYNC = "sync"
    """Members that have not synced by then are removed."""
    SESSION = "session"
    """A member's session may have timed out."""
    PENDING = "pending"
    """A member id was handed out, and no client has joined with it."""
    EXPIRY = "expiry"
    """Time to look for offsets and groups whose retention has passed."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class LogRecord(NamedTuple):
    key: bytes
    value: bytes | None


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction records are appended, and its `partition.verification`
    guard."""

    producer_id: int
    producer_epoch: int
    guard: int


@dataclass(frozen=True, slots=True)
class Reply:
    token: Token
    response: Response


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records as one batch, and report later whether it was committed."""

    append_id: int
    records: tuple[LogRecord, ...]
    timestamp_ms: int
    producer: TransactionalProducer | None = None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call back at `at_ms`, in ticks; replaces the timer that was set for this key."""

    key: TimerKey
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: TimerKey


Effect = Reply | Append | SetTimer | CancelTimer
