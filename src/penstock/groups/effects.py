"""What goes into a group shard beside wire requests, and what comes out of it.

A shard answers each call with a list of effects, to be carried out in order. It never waits: a
request that must wait is known by its token, and some later list holds the `Reply` to it, exactly
one. What must be durable first goes out as `Append`; the runtime reports its fate by its id.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.wire.messages.base import Response

Token = Hashable
"""Stands for a request that wants an answer; whoever runs the shard knows what it means."""


class Now(NamedTuple):
    """Two clocks, because each lies where the other is used.

    Sessions and timers run on ticks, which never jump. Retention runs on the wall clock, which
    means the same after a restart and on another broker.
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
    """Members that have not synced by now are gone."""
    SESSION = "session"
    """A member has not been heard of."""
    PENDING = "pending"
    """A member id was handed out and nobody has come back with it."""
    EXPIRY = "expiry"
    """Time to look for offsets and groups that have outlived their retention."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class LogRecord(NamedTuple):
    key: bytes
    value: bytes | None


class TransactionalProducer(NamedTuple):
    """In whose transaction records are appended; the guard is `partition.verification`'s."""

    producer_id: int
    producer_epoch: int
    guard: int


@dataclass(frozen=True, slots=True)
class Reply:
    token: Token
    response: Response


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records as one batch, and say later whether it was committed."""

    append_id: int
    records: tuple[LogRecord, ...]
    timestamp_ms: int
    producer: TransactionalProducer | None = None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call back at `at_ms`, in ticks, instead of when this key was to be called back before."""

    key: TimerKey
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: TimerKey


Effect = Reply | Append | SetTimer | CancelTimer
