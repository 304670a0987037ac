"""The effects of a group shard, its timers, and what it is told about a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from penstock.coordination import effects
from penstock.groups.consumer.records import TopicIdPartition
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
    REVOCATION = "revocation"
    """A member of a consumer group must have given up partitions by then."""
    EXPIRY = "expiry"
    """Time to look for offsets and groups whose retention has passed."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class ResolveRegexes:
    """Find the topics that match the expressions, and report them by `on_regexes_resolved`.

    Only topics that `may_describe` allows are reported. It stands for the rights of the member
    whose heartbeat asked for this.
    """

    group_id: str
    regexes: tuple[str, ...]
    may_describe: Callable[[str], bool]


class RegexOutgrown(NamedTuple):
    """Tell the operator that an expression cannot be matched any more, although it could before.

    The topics, or those that match, have become too many. Its members keep those that matched
    the last time.
    """

    group_id: str
    regex: str


class InitializeShare(NamedTuple):
    """Begin the share state of a partition; -1: its leader chooses the start offset."""

    partition: TopicIdPartition
    state_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class ShareStateCall:
    """Initialize and delete states at the share coordinator, and report the failures by
    `on_share_state_called`. Repeating it does no harm."""

    group_id: str
    call_id: int
    initialize: tuple[InitializeShare, ...] = ()
    delete: tuple[TopicIdPartition, ...] = ()


OwnEffect: TypeAlias = ResolveRegexes | RegexOutgrown | ShareStateCall
Effect: TypeAlias = effects.Effect[Response, TimerKey, OwnEffect]
