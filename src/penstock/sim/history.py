"""What the clients of a simulated cluster did and saw: the only thing the checkers go by.

An operation is one entry, made when it has ended: when it began, when it ended, and how. `ok` is an
answer, `fail` a refusal after which nothing can have happened, `info` anything else: a connection
that broke, a time that ran out. What was done under `info` may have taken effect, or may still.

Values are texts, each sent once, so that a value found in a log says who wrote it. Places are
`topic-partition`. Times are virtual milliseconds of one clock for all: whatever ended before
another began came before it.

A history is written as JSON lines, one entry in each.
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
"""The groups that commit offsets: who just reads, who copies, who counts its batches so."""
SINK_IDS: Final = "sink#"
SINK_MEMBERS: Final = 4
"""How the transactional ids of a sink begin, and how many of them are always ended together."""
COPIES: Final = "copies"
"""The topic to which copies are written, from partition to partition of the same number."""
TABLE: Final = "table"
"""The compacted topic."""
SOURCE_MARK: Final = "<"
"""A copy's value ends with this and with where it was read: `c0.7<orders-1@23`."""

Reads = Mapping[str, tuple[tuple[int, str], ...]]
"""By place: the offsets and values that came, in the order they came."""


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

    place: str
    value: str
    number: int
    """Counts what this process has sent."""
    acks: int
    offset: int = -1
    """Where the broker said it is; -1 if it did not."""
    once: bool = True
    """It must not be there twice: the producer is idempotent, or sent it a single time."""
    ordered: bool = True
    """What this process sent to a place before, and was acknowledged, must come before it."""
    txn: str = ""
    """The transaction it is part of; empty outside of any."""
    synced_end: int | None = None
    """Up to where the place was on disk when acks=1 was answered; None where that is not
    promised."""

    @property
    def is_promised(self) -> bool:
        """Acknowledged by all: it must never be lost, be it that its transaction is aborted."""
        return self.status == OK and self.acks == ACKS_ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Entry):
    kind: ClassVar[str] = "poll"

    reads: Reads = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    """Places whose position was set since the last poll: assigned anew, sought, reset."""
    committed: bool = False
    """Read by `read_committed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Entry):
    """All that a place holds in the end, read by one consumer from its start to its end."""

    kind: ClassVar[str] = "drain"

    place: str
    start_offset: int
    end_offset: int
    records: tuple[tuple[int, str], ...] = ()
    committed: bool = False
    """Read by `read_committed`: what was aborted is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn(Entry):
    """A transaction: `ok` if it was committed, `fail` if it was aborted, `info` if nobody knows.

    What it wrote are the sends that name it. Many that were ended together are one.
    """

    kind: ClassVar[str] = "txn"

    name: str
    transactional_id: str
    ending_ms: float = -1.0
    """When its commit was first asked for; -1 if that was never done."""
    reads: Reads = field(default_factory=dict)
    """What it read, by `read_committed`, from its beginning to its end."""
    batch: int = -1
    """Of a sink: which of its batches it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Entry):
    """What lies before an offset was deleted, on request."""

    kind: ClassVar[str] = "deleted"

    place: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(Entry):
    """The end of a place, as a broker told it to a client."""

    kind: ClassVar[str] = "latest"

    place: str
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined(Entry):
    """A read that was sent behind a write on the same connection; both were answered."""

    kind: ClassVar[str] = "pipelined"

    place: str
    request: str
    written_end: int
    """Behind the last record of the write, by its answer."""
    seen_end: int
    """The end of the place, by the answer to the read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed(Entry):
    """A batch was sent whose records cannot be decoded."""

    kind: ClassVar[str] = "malformed"

    place: str
    batch: str
    """What is wrong with it."""
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Entry):
    """A member of a group commits how far it has read."""

    kind: ClassVar[str] = "commit"

    group: str
    generation: int
    offsets: Mapping[str, int]
    late: bool = False
    """An attempt at it that was given up may still arrive, and be taken: commits have no numbers
    by which a broker could tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Entry):
    """What a group has committed, as it was answered; -1 for nothing."""

    kind: ClassVar[str] = "committed"

    group: str
    offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stable(Entry):
    """An offset of a group was answered as stable while a transaction was open that changed it, and
    that was committed later."""

    kind: ClassVar[str] = "stable"

    group: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Entry):
    """A member was told its generation."""

    kind: ClassVar[str] = "joined"

    group: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Entry):
    """After all faults are over: whether something works again, and `ended_ms` says since when."""

    kind: ClassVar[str] = "probe"

    what: str


KINDS: Final[Mapping[str, type[Entry]]] = {
    kind.kind: kind
    for kind in (
        *(Send, Poll, Drain, Txn, Deleted, Latest),
        *(Pipelined, Malformed, Commit, Committed, Stable, Joined, Probe),
    )
}


class History:
    """The entries in the order in which they ended."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = list(entries)

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def lines(self) -> Iterable[str]:
        for entry in self.entries:
            yield json.dumps({"kind": entry.kind, **asdict(entry)}, separators=(",", ":"))


def read_history(lines: Iterable[str]) -> History:
    """A history from its JSON lines."""
    return History(_entry(json.loads(line)) for line in lines if line.strip())


def _entry(fields: dict[str, Any]) -> Entry:
    kind = KINDS[fields.pop("kind")]
    if "reads" in fields:
        fields["reads"] = {place: _pairs(found) for place, found in fields["reads"].items()}
    if "records" in fields:
        fields["records"] = _pairs(fields["records"])
    if "moved" in fields:
        fields["moved"] = tuple(fields["moved"])
    return kind(**fields)


def _pairs(found: Iterable[Iterable[Any]]) -> tuple[tuple[int, str], ...]:
    return tuple((int(offset), str(value)) for offset, value in found)
