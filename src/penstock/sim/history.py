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
from typing import ClassVar, Final

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


CREATED: Final = "create"
RENEWED: Final = "renew"
EXPIRED: Final = "expire"
"""What a change of a delegation token does."""
REMOVED_MS: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChange(Entry):
    """A delegation token was created, renewed or expired: `ok` if that was acknowledged, `fail` if
    it has no effect."""

    kind: ClassVar[str] = "token_change"

    token_id: str
    action: str
    expires_ms: int
    """When the token ends now, by the clocks of brokers; `REMOVED_MS` for a removal."""
    max_ms: int = 0
    """Of a new token: up to when it can be renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogin(Entry):
    """A program logged in with a delegation token: `ok` if the broker accepted it, `fail` if it
    refused the token."""

    kind: ClassVar[str] = "token_login"

    token_id: str
    broker: int
    wall_ms: int
    """The lowest time that the clock of the broker has shown meanwhile."""
    wall_until_ms: int
    """The highest one."""
    any_wall_until_ms: int = 0
    """The highest time that the clock of any broker has shown until the end."""
    served: tuple[str, ...] = ()
    """The groups that the broker let it use."""


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


ShareRange = tuple[str, int, int, int]
"""A topic partition, the first and the last offset, and how often they were delivered."""
ShareAck = tuple[str, int, int, int, str]
"""A topic partition, the first and the last offset, what the member said about them, and the name
of the error code in the answer. Empty without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareExchange(Entry):
    """A request of a member of a share group to the leader of partitions: `ok` if it was answered,
    `fail` if it was refused as a whole, `info` if there was no answer."""

    kind: ClassVar[str] = "share"

    group: str
    member_id: str
    broker: int
    lock_ms: float
    """How long the records that it brought are locked."""
    session: str = ""
    """Which share session of the process it belongs to. Empty if that is unknown."""
    delivered: tuple[ShareRange, ...] = ()
    acks: tuple[ShareAck, ...] = ()
    """What it acknowledged. This may have taken effect unless the answer has an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLoad(Entry):
    """A leader has read the state of a share partition. Locks from before are gone."""

    kind: ClassVar[str] = "share_load"

    group: str
    partition_name: str
    leader_epoch: int


LetterRow = tuple[int, str, str, int, int, str]
"""A dead letter: its offset, the group that has given up the record, the topic partition and the
offset of the record, how often it was delivered, and why it was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersRead(Entry):
    """What a reader of a dead-letter topic got from one partition."""

    kind: ClassVar[str] = "letters"

    partition_name: str
    letters: tuple[LetterRow, ...] = ()
    is_all: bool = False
    """Read from the start to the end, after all faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(Entry):
    """A share group has given up a record for good, by the log of the share coordinator. The record
    must have a dead letter."""

    kind: ClassVar[str] = "given_up"

    group: str
    partition_name: str
    offset: int
    deliveries: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedSend(Entry):
    """A record that was sent to a delay topic."""

    kind: ClassVar[str] = "delayed"

    partition_name: str
    value: str
    due_ms: int
    """0 if it does not say when it is due."""
    is_promised: bool
    """If it was acknowledged, it must be copied. A transaction may be aborted."""
    wall_max_ms: int
    """The latest time that the clock of any broker had shown when it was acknowledged."""


CopyRow = tuple[int, str, int, int, int]
"""A record of a delay topic or of its target: the offset, the value, the time in the header
`penstock-deliver-at`, the timestamp, and the time in the header `penstock-timestamp`. 0 stands for
a missing header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesRead(Entry):
    """What a reader of committed records got from a delay topic, or from its target."""

    kind: ClassVar[str] = "copies"

    partition_name: str
    rows: tuple[CopyRow, ...] = ()
    is_source: bool = False
    is_all: bool = False
    """Read from the start to the end, after all faults."""
    wall_max_ms: int
    """The latest time that the clock of any broker had shown when it was read."""


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
