"""The file system of a simulated disk: its directory tree, its inodes, its space.

Nothing here fails at random: `disk` asks its fault plan first and then calls this module. Space is
counted by file size, holes included. A file uses its space as long as it has a name or a handle.

Invariant: an inode whose cache differs from its durable bytes is in `_dirty`, so that a power loss
touches only what it can change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from errno import EBUSY, EINVAL, EISDIR, ENOENT, ENOSPC, ENOTDIR
from functools import lru_cache
from itertools import count

from penstock.sim.disk.power_loss import (
    Directory,
    Draws,
    Inode,
    Key,
    NameChange,
    NameJournal,
    Node,
    Operation,
    apply,
    apply_survivors,
)

EVENTS = (
    "fault_enospc",
    "kill",
    "power_loss",
    "bytes_kept",
    "bytes_dropped",
    "bytes_torn",
    "names_kept",
    "names_dropped",
)


def disk_error(code: int, path: str, detail: str = "") -> OSError:
    return OSError(code, os.strerror(code) + detail, path)


@lru_cache(4096)
def split_path(path: str) -> tuple[str, ...]:
    parts = tuple([part for part in path.split("/") if part and part != "."])
    if ".." in parts:
        raise disk_error(EINVAL, path, ": the simulated disk does not resolve '..'")
    return parts


class Volume:
    """The directory tree and the inodes. `life` counts the kills and power losses so far; a handle
    from an earlier life is dead."""

    def __init__(
        self,
        crash_draws: Draws,
        counters: dict[str, int],
        capacity_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.life = 0
        self.handles: dict[int, tuple[str, Inode]] = {}
        self._crash_draws = crash_draws
        self._counters = counters
        self._now_ms = now_ms
        self._numbers = count(1)
        self._root = Directory(0, now_ms())
        self._journal = NameJournal()
        self._dirty: dict[int, Inode] = {}

    # Lookup.

    def locate(self, path: str) -> tuple[Directory, str]:
        """Returns the directory that has (or would have) the path's last name, and that name."""
        parts = split_path(path)
        if not parts:
            raise disk_error(EBUSY, path, ": the root has no name to change")
        return self.chain(parts[:-1], path)[-1], parts[-1]

    def chain(self, parts: Sequence[str], path: str) -> list[Directory]:
        """Returns the directories on the path of these names, from the root on."""
        directories = [self._root]
        for part in parts:
            child = directories[-1].entries.get(part)
            if child is None:
                raise disk_error(ENOENT, path)
            if isinstance(child, Inode):
                raise disk_error(ENOTDIR, path)
            directories.append(child)
        return directories

    def ancestry(self, path: str) -> tuple[Key, ...]:
        """Returns the names of the directories that the path goes through."""
        parts = split_path(path)[:-1]
        return tuple(
            (directory.number, part)
            for directory, part in zip(self.chain(parts, path), parts, strict=False)
        )

    def node(self, path: str) -> Node:
        parts = split_path(path)
        directory = self.chain(parts[:-1], path)[-1]
        node = directory.entries.get(parts[-1]) if parts else self._root
        if node is None:
            raise disk_error(ENOENT, path)
        return node

    def file(self, path: str) -> Inode:
        node = self.node(path)
        if isinstance(node, Directory):
            raise disk_error(EISDIR, path)
        return node

    def directory(self, path: str) -> Directory:
        node = self.node(path)
        if isinstance(node, Inode):
            raise disk_error(ENOTDIR, path)
        return node

    def walk(self, *, durable: bool) -> Iterator[tuple[str, Inode]]:
        """Yields every file with its (durable) path, sorted by the parts of the paths."""
        waiting: list[tuple[str, Node]] = [("", self._root)]
        while waiting:
            path, node = waiting.pop()
            if isinstance(node, Inode):
                yield path, node
            else:
                entries = node.durable if durable else node.entries
                waiting.extend((f"{path}/{n}", entries[n]) for n in sorted(entries, reverse=True))

    # Names.

    def make_file(self, path: str) -> Inode:
        directory, name = self.locate(path)
        self._require_space(path)
        inode = Inode(next(self._numbers), self._now_ms())
        self.change(NameChange((directory, name, inode)))
        return inode

    def make_directory(self, parent: Directory, name: str, path: str) -> Directory:
        self._require_space(path)
        child = Directory(next(self._numbers), self._now_ms())
        self.change(NameChange((parent, name, child)))
        return child

    def change(self, change: NameChange) -> None:
        change.show(self._now_ms())
        self._journal.append(change)

    def lose_name(self, directory: Directory, name: str) -> None:
        """Removes a name durably, at once."""
        self.change(NameChange((directory, name, None)))
        self._journal.settle_name((directory.number, name))

    def sync_names(self, directory: Directory) -> None:
        self._journal.settle_directory(directory.number)
        if self._journal.is_empty():
            for inode in list(self._dirty.values()):
                self._forget_if_gone(inode)

    def unlinked(self, inode: Inode) -> None:
        """The inode's last name is gone. Its space is freed with its last handle."""
        inode.linked = False
        if not inode.handles:
            self.used_bytes -= len(inode.cache)

    def _require_space(self, path: str) -> None:
        if self.used_bytes >= self.capacity_bytes:
            self._counters["fault_enospc"] += 1
            raise disk_error(ENOSPC, path)

    def _forget_if_gone(self, inode: Inode) -> None:
        """Drops the state of a file that not even a power loss can bring back."""
        if not (inode.linked or inode.handles) and self._journal.is_empty():
            self._dirty.pop(inode.number, None)

    # Handles.

    def add_handle(self, path: str, inode: Inode) -> int:
        number = next(self._numbers)
        inode.handles += 1
        self.handles[number] = (path, inode)
        return number

    def drop_handle(self, number: int) -> None:
        _, inode = self.handles.pop(number)
        inode.handles -= 1
        if not (inode.linked or inode.handles):
            self.used_bytes -= len(inode.cache)
            self._forget_if_gone(inode)

    def end_life(self) -> None:
        """Closes the handles of all processes, which are dead and cannot notice it."""
        self.life += 1
        for number in list(self.handles):
            self.drop_handle(number)

    # Bytes.

    def add_pending(self, inode: Inode, operation: Operation) -> None:
        if not inode.pending:
            self._dirty[inode.number] = inode
        inode.pending.append(operation)
        inode.modified_ms = self._now_ms()

    def flush(self, inode: Inode) -> None:
        if inode.pending:
            for operation in inode.pending:
                apply(inode.durable, operation)
            inode.pending = []
            if not inode.doubtful:
                del self._dirty[inode.number]

    def lose_pages(self, inode: Inode) -> None:
        """Handles a failed flush: decides which bytes reached the platter. The rest is never
        written again.

        The cache still shows all bytes, so the inode stays dirty until the cache is read again.
        """
        if inode.pending:
            self._draw_survivors(inode)
            inode.doubtful = True

    def reload(self, inode: Inode) -> None:
        """Reads the file again from the platter. Its size may change if a flush had failed."""
        self.used_bytes -= len(inode.cache)
        inode.reload()
        self.used_bytes += len(inode.cache)
        if not inode.pending:
            self._dirty.pop(inode.number, None)

    def wipe(self) -> None:
        self.used_bytes = 0
        self._root = Directory(0, self._now_ms())
        self._journal = NameJournal()
        self._dirty.clear()

    def drop_caches(self) -> None:
        for inode in list(self._dirty.values()):
            if inode.linked or inode.handles:
                self.reload(inode)

    def lose_power(self) -> None:
        counters = self._counters
        names = self._journal.lose_power(self._crash_draws)
        counters["names_kept"] += names.kept
        counters["names_dropped"] += names.dropped
        for inode in self._dirty.values():
            self._draw_survivors(inode)
            inode.reload()
        self._dirty.clear()
        self.end_life()
        self.used_bytes = 0
        for _, inode in self.walk(durable=True):
            inode.linked = True
            self.used_bytes += len(inode.cache)

    def _draw_survivors(self, inode: Inode) -> None:
        if inode.pending:
            survival = apply_survivors(inode.durable, inode.pending, self._crash_draws)
            self._counters["bytes_kept"] += survival.kept
            self._counters["bytes_dropped"] += survival.dropped
            self._counters["bytes_torn"] += survival.torn
            inode.pending = []
