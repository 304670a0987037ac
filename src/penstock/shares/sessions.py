"""The share sessions of a broker: which partitions each member fetches, and its epoch. Pure.

    handle(event)       returns effects; the shell carries them out in order

ShareFetch and ShareAcknowledge count one epoch up together. A ShareFetch with epoch 0 begins a new
session, and replaces one that the member has. Epoch -1 is final: the acknowledgements of the
request count, then everything that the member holds is released, and the session ends. Any other
epoch must be the next one of a session, 1, 2, 3 and so on; after the largest number comes 1 again.

A ShareFetch changes the session: the partitions that it lists are added, also those that only carry
acknowledgements, and those that it forgets are removed. All partitions of the session are fetched,
in an order that rotates with the epoch, so that no partition is always the last.

A session ends with the connection that began it. If the member has begun another one since, nothing
happens: that one belongs to another connection.

When a session ends, the member's records are released in every partition where it, or the session
that it replaced, has acquired any. (Kafka leaves those of forgotten partitions locked until they
time out.)

A session has a limited number of partitions. They need not exist, so nothing else would limit it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.wire.errors import ErrorCode

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
PARTITIONS_MAX: Final = 10_000
"""How many partitions a session may have."""
_EPOCH_MAX: Final = 2**31 - 1

Connection = Hashable
"""Identifies a connection; only the shell knows its meaning."""


class SharedPartition(NamedTuple):
    topic_id: bytes
    partition: int


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """A ShareFetch request. `listed` and `forgotten` are its partitions."""

    key: SessionKey
    epoch: int
    connection: Connection
    listed: tuple[SharedPartition, ...] = ()
    forgotten: tuple[SharedPartition, ...] = ()
    has_acknowledgements: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledgements:
    """A ShareAcknowledge request."""

    key: SessionKey
    epoch: int


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    connection: Connection


Event = Fetch | Acknowledgements | ConnectionClosed


@dataclass(frozen=True, slots=True)
class Proceed:
    """The request is valid: its acknowledgements count, then these partitions are fetched."""

    partitions: tuple[SharedPartition, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request gets this error. A client that is held back gets it after its max_wait_ms."""

    error: ErrorCode
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseRecords:
    """Release what the member holds in these partitions, those that this broker leads."""

    key: SessionKey
    partitions: tuple[SharedPartition, ...]
    with_backoff: bool


@dataclass(frozen=True, slots=True)
class GroupIdle:
    """The group has no session here any more: its share partitions need not stay in memory."""

    group_id: str


Effect = Proceed | Refuse | ReleaseRecords | GroupIdle


@dataclass(slots=True)
class _Session:
    connection: Connection
    epoch: int
    """The epoch of the next request."""
    partitions: dict[SharedPartition, None] = field(default_factory=dict)
    """In the order in which they were added."""
    acquired: dict[SharedPartition, None] = field(default_factory=dict)
    """Partitions in which the member may hold records, also of those that it has forgotten."""


class ShareSessions:
    """See the module's docstring."""

    def __init__(self, sessions_max: int) -> None:
        self.sessions_max = sessions_max
        """The setting `group.share.max.share.sessions`; it may change at any time."""
        self.refused = 0
        """Sessions that were refused because there were too many, for a metric."""
        self._sessions: dict[SessionKey, _Session] = {}
        self._by_connection: dict[Connection, set[SessionKey]] = {}
        self._by_group: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def sessions_of(self, group_id: str) -> int:
        """Returns how many sessions a group has on this broker."""
        return self._by_group.get(group_id, 0)

    def has(self, key: SessionKey, connection: Connection) -> bool:
        """Whether the member has a session that this connection began."""
        session = self._sessions.get(key)
        return session is not None and session.connection == connection

    def on_acquired(self, key: SessionKey, partition: SharedPartition) -> None:
        """The member has acquired records. Call it while the member has a session."""
        self._sessions[key].acquired[partition] = None

    def handle(self, event: Event) -> list[Effect]:
        return _HANDLERS[type(event)](self, event)

    def _on_fetch(self, event: Fetch) -> list[Effect]:
        if not (event.key.group_id and event.key.member_id):
            return [Refuse(ErrorCode.INVALID_REQUEST)]
        if event.epoch == INITIAL_EPOCH:
            return self._begin(event)
        if event.epoch == FINAL_EPOCH:
            return self._end_by_request(event.key)
        found = self._sessions.get(event.key)
        if found is not None and _is_too_large(event, found.partitions):
            return [Refuse(ErrorCode.INVALID_REQUEST)]
        session = self._next(event.key, event.epoch)
        if isinstance(session, Refuse):
            return [session]
        for partition in event.forgotten:
            session.partitions.pop(partition, None)
        session.partitions |= dict.fromkeys(event.listed)
        return [Proceed(_rotated(session.partitions, event.epoch))]

    def _on_acknowledgements(self, event: Acknowledgements) -> list[Effect]:
        if not (event.key.group_id and event.key.member_id):
            return [Refuse(ErrorCode.INVALID_REQUEST)]
        if event.epoch == INITIAL_EPOCH:
            return [Refuse(ErrorCode.INVALID_SHARE_SESSION_EPOCH)]
        if event.epoch == FINAL_EPOCH:
            return self._end_by_request(event.key)
        session = self._next(event.key, event.epoch)
        return [session if isinstance(session, Refuse) else Proceed(())]

    def _on_closed(self, event: ConnectionClosed) -> list[Effect]:
        effects: list[Effect] = []
        for key in sorted(self._by_connection.get(event.connection, ())):
            effects += self._end(key, with_backoff=True)
        return effects

    def _begin(self, event: Fetch) -> list[Effect]:
        if event.has_acknowledgements or _is_too_large(event, {}):
            return [Refuse(ErrorCode.INVALID_REQUEST)]
        replaced = self._sessions.get(event.key)
        if replaced is None and len(self._sessions) >= self.sessions_max:
            self.refused += 1
            return [Refuse(ErrorCode.SHARE_SESSION_LIMIT_REACHED, is_held_back=True)]
        partitions = dict.fromkeys(event.listed)
        session = _Session(event.connection, INITIAL_EPOCH + 1, partitions)
        if replaced is not None:
            session.acquired = replaced.acquired
            self._forget_connection(event.key, replaced.connection)
        else:
            group_id = event.key.group_id
            self._by_group[group_id] = self._by_group.get(group_id, 0) + 1
        self._sessions[event.key] = session
        self._by_connection.setdefault(event.connection, set()).add(event.key)
        return [Proceed(_rotated(session.partitions, event.epoch))]

    def _next(self, key: SessionKey, epoch: int) -> _Session | Refuse:
        """Returns the session, if this is the epoch of its next request, and counts it up."""
        session = self._sessions.get(key)
        if session is None:
            return Refuse(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != session.epoch:
            return Refuse(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session

    def _end_by_request(self, key: SessionKey) -> list[Effect]:
        if key not in self._sessions:
            return [Refuse(ErrorCode.SHARE_SESSION_NOT_FOUND)]
        return [Proceed(()), *self._end(key, with_backoff=False)]

    def _end(self, key: SessionKey, *, with_backoff: bool) -> list[Effect]:
        session = self._sessions.pop(key)
        self._forget_connection(key, session.connection)
        effects: list[Effect] = [ReleaseRecords(key, tuple(session.acquired), with_backoff)]
        left = self._by_group[key.group_id] - 1
        if left:
            self._by_group[key.group_id] = left
        else:
            del self._by_group[key.group_id]
            effects.append(GroupIdle(key.group_id))
        return effects

    def _forget_connection(self, key: SessionKey, connection: Connection) -> None:
        keys = self._by_connection[connection]
        keys.discard(key)
        if not keys:
            del self._by_connection[connection]


def _is_too_large(event: Fetch, partitions: dict[SharedPartition, None]) -> bool:
    """Whether a session with these partitions would have too many after the request."""
    listed, forgotten = event.listed, event.forgotten
    if max(len(listed), len(forgotten)) > PARTITIONS_MAX:
        return True
    if len(partitions) + len(listed) <= PARTITIONS_MAX:
        return False
    return len(partitions.keys() - forgotten | set(listed)) > PARTITIONS_MAX


def _rotated(partitions: Iterable[SharedPartition], epoch: int) -> tuple[SharedPartition, ...]:
    ordered = tuple(partitions)
    first = epoch % len(ordered) if ordered else 0
    return ordered[first:] + ordered[:first]


_HANDLERS: Final[dict[type, Callable[[ShareSessions, Any], list[Effect]]]] = {
    Fetch: ShareSessions._on_fetch,
    Acknowledgements: ShareSessions._on_acknowledgements,
    ConnectionClosed: ShareSessions._on_closed,
}
