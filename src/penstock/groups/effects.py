"""The effects of a group shard, its timers, and what it is told about a request."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Never, TypeAlias

from penstock.coordination import effects
from penstock.wire.messages.base import Response


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


Effect: TypeAlias = effects.Effect[Response, TimerKey, Never]
