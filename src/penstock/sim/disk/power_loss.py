"""Models what a simulated disk still has when the power comes back.

There are two kinds of state and two barriers. Nothing in between is promised.

**Bytes.** An inode has the bytes on the platter (`durable`), the page cache that all processes read
(`cache`), and the writes and truncations since the last fsync (`pending`), in order. At power loss
every pending operation is kept, dropped or torn. A torn write is cut at 512 B or 4 KiB boundaries
of the file, and any subset of the sectors persists; its length may persist without them, as zeros.
Surviving operations are applied in the order in which they were issued. So a disk that reordered
them shows as a later operation that survives an earlier one, which may also leave zeros in the
middle. Two small writes to one sector may be split here although a real page cache would write them
together: the model is meant to be harsher than any real file system. Bytes that no operation has
touched since the fsync are safe.

**Names.** Creations, renames and removals go to a journal. At power loss some of them survive, and
the result is always one that a journaling file system could show:

- A change survives only with all earlier changes of the same name, so a name never shows a history
  it did not have.
- A rename is one change: its file is under the old name or the new one, never under both or none,
  and a replaced target is the old file or the new one.
- A rename into another directory requires the creation of the directories on its paths, and
  removing or renaming a directory requires every earlier change. Otherwise a file could vanish
  under both its names.

Changes of unrelated names survive independently. ext4 and XFS replay a prefix of one journal, which
is one of the outcomes drawn here. Code that is correct for all outcomes does not rely on the
behavior of one file system.

A durable name does not imply durable bytes, nor the reverse: a rename may survive with an empty
file behind it, and a file whose bytes were fsynced is gone if its name was not synced.

Independent random choices alone would hardly ever produce the most common crash (everything up to
one torn write) once many operations are pending. So a pattern is drawn first, and then the choices
within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

Operation: TypeAlias = tuple[int, bytes | None]
"""A write of these bytes at a position, or (with None) a truncation to that size."""

Key: TypeAlias = tuple[int, str]
"""A directory's number and a name in it."""

NOTHING, EVERYTHING, PREFIX, COINS, MOSTLY = range(5)
KEEP_CHANCE = {NOTHING: 0.0, EVERYTHING: 1.0, COINS: 0.5, MOSTLY: 0.9}
SECTORS_BYTES = (512, 4096)


class Draws(Protocol):
    """The part of `random.Random` that the disk uses. The code that creates the disk owns
    the seed."""

    def random(self) -> float:
        """Returns a number in [0, 1)."""

    def randrange(self, bound: int, /) -> int:
        """Returns an integer in [0, bound)."""

    def getrandbits(self, count: int, /) -> int:
        """Returns that many random bits."""


class Inode:
    """A file, independent of its names.

    `pending` applied to `durable` gives `cache`, except after a failed fsync (`doubtful`), when the
    cache continues to show writes that never reached the disk.
    """

    __slots__ = (
        "cache",
        "doubtful",
        "durable",
        "handles",
        "linked",
        "modified_ms",
        "number",
        "pending",
    )

    def __init__(self, number: int, modified_ms: int) -> None:
        self.number = number
        self.modified_ms = modified_ms
        self.cache = bytearray()
        self.durable = bytearray()
        self.pending: list[Operation] = []
        self.doubtful = False
        self.handles = 0
        self.linked = True

    def reload(self) -> None:
        """Reads the file again from the platter. Only pending operations still come from memory."""
        self.cache = bytearray(self.durable)
        for operation in self.pending:
            apply(self.cache, operation)
        self.doubtful = False


class Directory:
    """A directory: its names as processes see them (`entries`) and as they are on the
    platter (`durable`)."""

    __slots__ = ("durable", "entries", "modified_ms", "number")

    def __init__(self, number: int, modified_ms: int) -> None:
        self.number = number
        self.modified_ms = modified_ms
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node: TypeAlias = Inode | Directory


@dataclass(slots=True)
class Survival:
    kept: int = 0
    dropped: int = 0
    torn: int = 0


def apply(content: bytearray, operation: Operation) -> None:
    position, data = operation
    size = len(content)
    if data is None:
        if position < size:
            del content[position:]
        else:
            content.extend(bytes(position - size))
    elif position == size:
        content += data
    else:
        if position > size:
            content.extend(bytes(position - size))
        content[position : position + len(data)] = data


def apply_survivors(durable: bytearray, pending: list[Operation], draws: Draws) -> Survival:
    """Applies to `durable` what a power loss leaves of the pending operations."""
    outcome = Survival()
    pattern = draws.randrange(5)
    cut = draws.randrange(len(pending)) if pattern == PREFIX else 0
    for index, operation in enumerate(pending):
        if pattern == PREFIX:
            keep, tear = index < cut, index == cut
        else:
            keep = draws.random() < KEEP_CHANCE[pattern]
            tear = pattern > PREFIX and draws.random() < 0.5
        data = operation[1]
        if keep:
            apply(durable, operation)
            outcome.kept += 1
        elif tear and data:
            _apply_torn(durable, operation[0], data, draws)
            outcome.torn += 1
        else:
            outcome.dropped += 1
    return outcome


def _apply_torn(durable: bytearray, position: int, data: bytes, draws: Draws) -> None:
    sector_bytes = SECTORS_BYTES[draws.randrange(2)]
    end = position + len(data)
    first = position // sector_bytes
    count = (end - 1) // sector_bytes - first + 1
    survivors = draws.getrandbits(count)
    for index in range(count):
        if survivors >> index & 1:
            start = max(position, (first + index) * sector_bytes)
            stop = min(end, (first + index + 1) * sector_bytes)
            apply(durable, (start, data[start - position : stop - position]))
    if draws.random() < 0.5 and len(durable) < end:
        durable.extend(bytes(end - len(durable)))


class NameChange:
    """One atomic step of the name journal: entries to set, or to remove where the node is None."""

    __slots__ = ("edits", "follows_all", "keys", "needs")

    def __init__(
        self,
        *edits: tuple[Directory, str, Node | None],
        needs: tuple[Key, ...] = (),
        follows_all: bool = False,
    ) -> None:
        self.edits = edits
        self.keys: tuple[Key, ...] = tuple((edit[0].number, edit[1]) for edit in edits)
        self.needs = needs
        self.follows_all = follows_all

    def show(self, now_ms: int) -> None:
        """Makes the change visible to processes."""
        for directory, name, node in self.edits:
            directory.modified_ms = now_ms
            _set(directory.entries, name, node)

    def settle(self) -> None:
        """Makes the change durable."""
        for directory, name, node in self.edits:
            _set(directory.durable, name, node)


def _set(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


class NameJournal:
    """The name changes that no `sync_directory` has made durable yet, in order."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[NameChange] = []

    def append(self, change: NameChange) -> None:
        self._pending.append(change)

    def is_empty(self) -> bool:
        return not self._pending

    def settle_directory(self, number: int) -> None:
        """Makes every change of a name in this directory durable, and the changes those
        depend on."""
        if self._pending:
            self._settle([any(key[0] == number for key in c.keys) for c in self._pending])

    def settle_name(self, key: Key) -> None:
        self._settle([key in change.keys for change in self._pending])

    def lose_power(self, draws: Draws) -> Survival:
        """Makes the surviving changes durable, drops the others, and shows processes what is on
        the platter."""
        pending = self._pending
        if not pending:
            return Survival()
        pattern = draws.randrange(5)
        if pattern == PREFIX:
            cut = draws.randrange(len(pending) + 1)
            chosen = [index < cut for index in range(len(pending))]
        else:
            chosen = [draws.random() < KEEP_CHANCE[pattern] for _ in pending]
        self._settle(chosen)
        dropped = len(self._pending)
        self._pending = []
        for change in pending:
            for directory, _, _ in change.edits:
                directory.entries = dict(directory.durable)
        return Survival(kept=len(pending) - dropped, dropped=dropped)

    def _settle(self, chosen: list[bool]) -> None:
        pending = self._pending
        needed: dict[Key, None] = {}
        everything = False
        for index in range(len(pending) - 1, -1, -1):
            change = pending[index]
            if everything or chosen[index] or any(key in needed for key in change.keys):
                chosen[index] = True
                needed.update(dict.fromkeys(change.keys))
                needed.update(dict.fromkeys(change.needs))
                everything = everything or change.follows_all
        self._pending = []
        for change, settled in zip(pending, chosen, strict=True):
            if settled:
                change.settle()
            else:
                self._pending.append(change)
