"""Records what the clients of a simulated cluster did and saw. The checkers use nothing else.

An operation is one entry, added when it has ended: with its start, its end and its status. `ok`
means that it was answered, `fail` that it was refused and has had no effect, `info` anything else:
a broken connection, a timeout. An operation with status `info` may have taken effect, or may still
take effect.

Values are strings, each sent once, so that a value in a log identifies the process that wrote it.
A `partition_name` is `topic-partition`, such as `orders-0`. Times are virtual milliseconds of one
clock for all processes: an operation that ended before another began came before it.

A history is written as JSON lines, one entry per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"
ACKS_ALL: Final = -1

READERS: Final = "readers"
COPIERS: Final = "copiers"
SINK: Final = "sink"
"""The groups that commit offsets: plain readers, copiers, and sinks, which commit batch numbers."""
SINK_IDS: Final = "sink#"
SINK_MEMBERS: Final = 4
"""The prefix of a sink's transactional ids, and how many of them always end together."""
COPIES: Final = "copies"
"""The topic that copies are written to, each to the partition with the same number as
its source."""
TABLE: Final = "table"
"""The compacted topic."""
SOURCE_MARK: Final = "<"
"""A copy's value ends with this mark and the position it was read from: `c0.7<orders-1@23`."""

Reads = Mapping[str, tuple[tuple[int, str], ...]]
"""By topic partition: the offsets and values that were read, in the order in which they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    kind: ClassVar[str] = ""

    process: str
    status: str
    begun_ms: float
    ended_ms: float
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Entry):
    kind: ClassVar[str] = "send"

    partition_name: str
    value: str
    number: int
    """The number of this send among all sends of this process."""
    acks: int
    offset: int = -1
    """The offset in the broker's response, or -1 without one."""
    once: bool = True
    """The record must not be there twice: the producer is idempotent, or sent it only once."""
    ordered: bool = True
    """What this process sent to the partition before, and was acknowledged, must come before it."""
    txn: str = ""
    """The transaction it belongs to. Empty outside of transactions."""
    synced_end: int | None = None
    """Up to where the partition was on disk when acks=1 was answered. None if that is
    not promised."""

    @property
    def is_promised(self) -> bool:
        """Acknowledged with acks=all: it must never be lost, even if its transaction is aborted."""
        return self.status == OK and self.acks == ACKS_ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Entry):
    kind: ClassVar[str] = "poll"

    reads: Reads = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    """Topic partitions whose position was set since the last poll: assigned again,
    sought, reset."""
    committed: bool = False
    """Read with `read_committed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Entry):
    """Everything that a topic partition has in the end, read by one consumer from start to end."""

    kind: ClassVar[str] = "drain"

    partition_name: str
    start_offset: int
    end_offset: int
    records: tuple[tuple[int, str], ...] = ()
    committed: bool = False
    """Read with `read_committed`: aborted records are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn(Entry):
    """A transaction: `ok` if it was committed, `fail` if it was aborted, `info` if that is unknown.

    Its writes are the sends that name it. Transactions that were ended together are one entry.
    """

    kind: ClassVar[str] = "txn"

    name: str
    transactional_id: str
    ending_ms: float = -1.0
    """When its commit was first requested, or -1 if never."""
    reads: Reads = field(default_factory=dict)
    """What it read, with `read_committed`, from its beginning to its end."""
    batch: int = -1
    """For a sink: the number of its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Entry):
    """Records before an offset were deleted on request."""

    kind: ClassVar[str] = "deleted"

    partition_name: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(Entry):
    """The end offset of a topic partition, as a broker reported it to a client."""

    kind: ClassVar[str] = "latest"

    partition_name: str
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined(Entry):
    """A read that was sent after a write on the same connection. Both were answered."""

    kind: ClassVar[str] = "pipelined"

    partition_name: str
    request: str
    written_end: int
    """The offset after the last record of the write, by its response."""
    seen_end: int
    """The end offset of the partition, by the response to the read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed(Entry):
    """A batch was sent whose records cannot be decoded."""

    kind: ClassVar[str] = "malformed"

    partition_name: str
    batch: str
    """What is wrong with it."""
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Entry):
    """A member of a group commits offsets."""

    kind: ClassVar[str] = "commit"

    group: str
    generation: int
    offsets: Mapping[str, int]
    late: bool = False
    """It took so long that the client may have sent it twice. An attempt that was given up may
    still arrive and be accepted, because commits have no sequence numbers by which a broker could
    recognize it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Entry):
    """The committed offsets of a group, as they were returned. -1 for none."""

    kind: ClassVar[str] = "committed"

    group: str
    offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stable(Entry):
    """An offset of a group was returned as stable while a transaction was open that changed it, and
    that was committed later."""

    kind: ClassVar[str] = "stable"

    group: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Entry):
    """A member received its generation."""

    kind: ClassVar[str] = "joined"

    group: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RightChange(Entry):
    """A right of the guest was given or taken: `ok` if that was acknowledged."""

    kind: ClassVar[str] = "right_change"

    right: str
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Entry):
    """The guest used one of its rights: `ok` if a broker accepted that, `fail` if a broker said
    that the right is missing."""

    kind: ClassVar[str] = "attempt"

    right: str
    broker: int = -1
    values: tuple[str, ...] = ()
    """What it wrote, or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordChange(Entry):
    """The password of the visitor was set or deleted: `ok` if that was acknowledged."""

    kind: ClassVar[str] = "password_change"

    broker: int
    is_set: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAttempt(Entry):
    """The visitor logged in: `ok` if the broker accepted it, `fail` if it refused the password."""

    kind: ClassVar[str] = "login"

    broker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered(Entry):
    """A request of a client that may have a quota: `ok` if it was answered, `fail` if it was
    refused because of the quota."""

    kind: ClassVar[str] = "metered"

    client_id: str
    broker: int
    connection: int
    """The number of the connection among those of the process."""
    key: str
    """The quota that may limit it."""
    amount: float = 0.0
    """What it used of the quota, at least."""
    throttle_ms: int = 0
    version: tuple[int, int] | None = None
    """Which quotas the broker had. None if that changed during the request."""
    limit: float | None = None
    """The limit by these quotas. None is no limit."""
    refused_topic: str = ""
    """The topic that was refused because of the quota."""

    @property
    def was_answered(self) -> bool:
        return self.status != INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Entry):
    """Whether something works when it must: during an episode, or after all faults are over.
    `ended_ms` says since when."""

    kind: ClassVar[str] = "probe"

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRun(Entry):
    """A driver of a deployed pipeline, from its start to its end. The process is its worker's."""

    kind: ClassVar[str] = "driver"

    pipeline: str
    lease_ms: float
    """When the lease ended, as the worker told its driver last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewal(Entry):
    """A worker has renewed its lease."""

    kind: ClassVar[str] = "lease"

    lease_ms: float
    """When the lease ends."""
    removal_ms: float
    """When the group's coordinator will remove the worker if it hears nothing more from it. 0 if
    the group has no such member."""


KINDS: Final[Mapping[str, type[Entry]]] = {
    kind.kind: kind
    for kind in (
        *(Send, Poll, Drain, Txn, Deleted, Latest),
        *(Pipelined, Malformed, Commit, Committed, Stable, Joined, Probe),
        *(RightChange, Attempt, PasswordChange, LoginAttempt, Metered, DriverRun),
        LeaseRenewal,
    )
}


class History:
    """The entries, in the order in which the operations ended. A deletion of records is added when
    it begins, too."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = list(entries)

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def lines(self) -> Iterable[str]:
        for entry in self.entries:
            yield json.dumps({"kind": entry.kind, **asdict(entry)}, separators=(",", ":"))


def read_history(lines: Iterable[str]) -> History:
    """Reads a history from its JSON lines."""
    return History(_entry(json.loads(line)) for line in lines if line.strip())


def _entry(fields: dict[str, Any]) -> Entry:
    kind = KINDS[fields.pop("kind")]
    if "reads" in fields:
        fields["reads"] = {
            partition_name: _pairs(found) for partition_name, found in fields["reads"].items()
        }
    if "records" in fields:
        fields["records"] = _pairs(fields["records"])
    for name in ("moved", "values", "version"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    return kind(**fields)


def _pairs(found: Iterable[Iterable[Any]]) -> tuple[tuple[int, str], ...]:
    return tuple((int(offset), str(value)) for offset, value in found)
