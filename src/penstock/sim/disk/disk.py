"""A simulated disk in memory that can lose power, fill up, rot and fail, all under a seed.

It implements the `Disk` port. Processes see one consistent file system, as POSIX defines it (an
unlinked file exists while it is open, a rename keeps handles valid, writing past the end leaves
zeros). Behind it is the state of the platter: `power_loss` defines what a power loss leaves of the
difference, `faults` decides when a call fails, `volume` keeps the directory tree.

There are two ways to stop a process: `kill` (the page cache stays) and `power_loss` (only what the
crash model lets through stays). Either way every open handle is dead, and using one raises EBADF:
code of a dead process that still runs is a bug in the test.

A failed fsync behaves as on Linux: the error is reported once, the dirty pages count as clean and
are never written again, so the next fsync succeeds although bytes are missing. Which bytes had
reached the platter is drawn at once. Reads show all of them until the cache is lost (`power_loss`)
or dropped (`drop_caches`). A failed `sync_directory` leaves its name changes pending, because they
are in the journal and not in data pages. A later one may succeed, and then they are durable.

`sync_directory` makes only the names in that directory durable. A new directory survives a power
loss only if its parent was synced too.

Paths are absolute or relative to the same root. `..` is refused. Randomness comes from two streams,
one for faults and one for crashes, so that a test that adds a draw in one does not shift the other.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EBADF, EEXIST, EINVAL, EISDIR, EMFILE, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY
from itertools import count

from penstock.ports import Buffer, FileStat
from penstock.sim.disk.faults import OPERATIONS, DiskFaults, FaultPlan
from penstock.sim.disk.power_loss import Directory, Draws, Inode, Key, NameChange, apply
from penstock.sim.disk.volume import EVENTS, Volume, disk_error, split_path

NO_FAULTS = DiskFaults()
_COUNTED = (
    *OPERATIONS,
    *("fault_" + operation for operation in OPERATIONS),
    "fault_short_write",
    "fault_emfile",
    "fault_corrupt",
    "fault_lost_file",
    "fault_wiped",
    *EVENTS,
)


class SimFile:
    """An open `File` of a simulated disk. `path` is the name it was opened by, whatever its name
    is now."""

    __slots__ = ("_counters", "_inode", "_life", "_number", "_plan", "_volume", "path")

    def __init__(
        self, volume: Volume, plan: FaultPlan, counters: dict[str, int], inode: Inode, path: str
    ) -> None:
        self._volume = volume
        self._plan = plan
        self._counters = counters
        self._inode = inode
        self._life = volume.life
        self._number = volume.add_handle(path, inode)
        self.path = path

    def pread(self, size: int, position: int) -> bytes:
        self._enter("pread")
        if size < 0 or position < 0:
            raise disk_error(EINVAL, self.path, f": pread of {size} bytes at {position}")
        return bytes(memoryview(self._inode.cache)[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> int:
        self._enter("pwrite")
        if position < 0:
            raise disk_error(EINVAL, self.path, f": pwrite at {position}")
        chunk = bytes(data)
        if self._plan.active:
            chunk = chunk[: self._plan.accepted_bytes(self.path, len(chunk))]
        if not chunk:
            return 0
        volume, inode = self._volume, self._inode
        growth = position + len(chunk) - len(inode.cache)
        if growth > 0:
            free = max(0, volume.capacity_bytes - volume.used_bytes)
            if growth > free:
                self._counters["fault_enospc"] += 1
                chunk = chunk[: max(0, len(chunk) - growth + free)]
                growth = free
                if not chunk:
                    raise disk_error(ENOSPC, self.path)
            volume.used_bytes += growth
        operation = (position, chunk)
        apply(inode.cache, operation)
        volume.add_pending(inode, operation)
        return len(chunk)

    def truncate(self, size: int) -> None:
        self._enter("truncate")
        if size < 0:
            raise disk_error(EINVAL, self.path, f": truncate to {size}")
        volume, inode = self._volume, self._inode
        volume.used_bytes += size - len(inode.cache)
        apply(inode.cache, (size, None))
        volume.add_pending(inode, (size, None))

    def size(self) -> int:
        if self._life != self._volume.life:
            raise self._dead()
        return len(self._inode.cache)

    def fsync(self) -> None:
        if self._life != self._volume.life:
            raise self._dead()
        try:
            self._enter("fsync")
        except OSError:
            self._volume.lose_pages(self._inode)
            raise
        self._volume.flush(self._inode)

    def drop_cache(self) -> None:
        if self._life != self._volume.life:
            raise self._dead()
        self._volume.reload(self._inode)

    def close(self) -> None:
        """Closes the file. Closing twice is harmless; closing a dead process's file is not."""
        if self._life == -1:
            return
        self._enter("close")
        self._life = -1
        self._volume.drop_handle(self._number)

    def _enter(self, operation: str) -> None:
        if self._life != self._volume.life:
            raise self._dead()
        self._counters[operation] += 1
        if self._plan.active:
            self._plan.check(operation, self.path)

    def _dead(self) -> OSError:
        reason = "is closed" if self._life == -1 else "died with its process; open the file again"
        return disk_error(EBADF, self.path, f": this handle {reason}")


class SimDisk:
    """A `Disk` in memory, with the faults of a real one.

    `counters` counts operations by name, faults as `fault_<kind>`, and the effects of power losses.
    """

    def __init__(
        self,
        crash_draws: Draws,
        fault_draws: Draws,
        *,
        faults: DiskFaults = NO_FAULTS,
        capacity_bytes: int = 1 << 40,
        open_files_max: int = 1 << 16,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.counters: dict[str, int] = dict.fromkeys(_COUNTED, 0)
        self.open_files_max = open_files_max
        self._fault_draws = fault_draws
        self._plan = FaultPlan(faults, fault_draws, self.counters)
        self._volume = Volume(
            crash_draws, self.counters, capacity_bytes, now_ms or count().__next__
        )

    @property
    def capacity_bytes(self) -> int:
        return self._volume.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, size: int) -> None:
        self._volume.capacity_bytes = size

    def leave_room(self, size: int) -> None:
        """Sets the capacity to the space in use plus this much."""
        self._volume.capacity_bytes = self._volume.used_bytes + size

    # The Disk port.

    def open(self, path: str, *, create: bool = False, private: bool = False) -> SimFile:
        self._enter("open", path)
        if len(self._volume.handles) >= self.open_files_max:
            self.counters["fault_emfile"] += 1
            raise disk_error(EMFILE, path)
        try:
            inode = self._volume.file(path)
        except FileNotFoundError:
            if not create:
                raise
            self._enter("create", path)
            inode = self._volume.make_file(path)
        return SimFile(self._volume, self._plan, self.counters, inode, path)

    def stat(self, path: str) -> FileStat:
        self._enter("stat", path)
        node = self._volume.node(path)
        if isinstance(node, Directory):
            return FileStat(0, node.modified_ms, is_directory=True)
        return FileStat(len(node.cache), node.modified_ms, is_directory=False)

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def listdir(self, path: str) -> list[str]:
        self._enter("listdir", path)
        return sorted(self._volume.directory(path).entries)

    def mkdir(self, path: str) -> None:
        self._enter("mkdir", path)
        parts = split_path(path)
        directory = self._volume.directory("/")
        for depth, name in enumerate(parts, 1):
            child = directory.entries.get(name)
            if child is None:
                child = self._volume.make_directory(directory, name, path)
            elif isinstance(child, Inode):
                raise disk_error(EEXIST if depth == len(parts) else ENOTDIR, path)
            directory = child

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", f"{source} -> {target}")
        volume = self._volume
        origin, old_name = volume.locate(source)
        destination, new_name = volume.locate(target)
        node = origin.entries.get(old_name)
        if node is None:
            raise disk_error(ENOENT, source)
        replaced = destination.entries.get(new_name)
        if replaced is node:
            return
        is_directory = isinstance(node, Directory)
        if is_directory and node in volume.chain(split_path(target)[:-1], target):
            raise disk_error(EINVAL, target, ": a directory cannot move into itself")
        if isinstance(replaced, Directory):
            if not is_directory:
                raise disk_error(EISDIR, target)
            if replaced.entries:
                raise disk_error(ENOTEMPTY, target)
        elif replaced is not None and is_directory:
            raise disk_error(ENOTDIR, target)
        needs: tuple[Key, ...] = ()
        if origin is not destination:
            needs = (*volume.ancestry(source), *volume.ancestry(target))
        volume.change(
            NameChange(
                (origin, old_name, None),
                (destination, new_name, node),
                needs=needs,
                follows_all=is_directory,
            )
        )
        if isinstance(replaced, Inode):
            volume.unlinked(replaced)

    def unlink(self, path: str) -> None:
        self._enter("unlink", path)
        inode = self._volume.file(path)
        directory, name = self._volume.locate(path)
        self._volume.change(NameChange((directory, name, None)))
        self._volume.unlinked(inode)

    def discard(self, path: str) -> bool:
        self.unlink(path)
        return True

    def rmdir(self, path: str) -> None:
        self._enter("rmdir", path)
        if self._volume.directory(path).entries:
            raise disk_error(ENOTEMPTY, path)
        parent, name = self._volume.locate(path)
        self._volume.change(NameChange((parent, name, None), follows_all=True))

    def sync_directory(self, path: str) -> None:
        self._enter("sync_directory", path)
        self._volume.sync_names(self._volume.directory(path))

    def free_bytes(self, path: str) -> int:
        self._enter("free_bytes", path)
        self._volume.node(path)
        return max(0, self._volume.capacity_bytes - self._volume.used_bytes)

    def total_bytes(self, path: str) -> int:
        self._enter("total_bytes", path)
        self._volume.node(path)
        return self._volume.capacity_bytes

    def _enter(self, operation: str, path: str) -> None:
        self.counters[operation] += 1
        if self._plan.active:
            self._plan.check(operation, path)

    # Crashes.

    def kill(self) -> None:
        """Like SIGKILL: the processes that use the disk are gone, but the page cache stays."""
        self.counters["kill"] += 1
        self._volume.end_life()

    def power_loss(self) -> None:
        """Stops the machine. It comes back with what the crash model leaves on the platter."""
        self.counters["power_loss"] += 1
        self._volume.lose_power()

    # Faults.

    def set_faults(self, faults: DiskFaults) -> None:
        self._plan.set_faults(faults)

    def heal(self) -> None:
        """Ends all faults, random and scheduled."""
        self._plan.set_faults(NO_FAULTS)
        self._plan.forget_cues()

    def fail_next(
        self, operation: str, code: int, *, path_contains: str = "", skip: int = 0, times: int = 1
    ) -> None:
        """Makes the next matching call raise this errno, after letting `skip` of them pass.

        The path of a rename is `source -> target`. An open that creates its file is first an `open`
        and then a `create`. The path of an open file is the one it was opened by.
        """
        self._plan.fail_next(operation, code, path_contains=path_contains, skip=skip, times=times)

    def shorten_next(
        self, size: int, *, path_contains: str = "", skip: int = 0, times: int = 1
    ) -> None:
        """Makes the next matching `pwrite` write at most `size` bytes."""
        self._plan.shorten_next(size, path_contains=path_contains, skip=skip, times=times)

    def observe(self, observer: Callable[[str, str], None] | None) -> None:
        """Calls `observer(operation, path)` before each operation takes effect. To stop a
        process right there, the observer raises an exception: any except `OSError`, which the
        process may handle."""
        self._plan.observe(observer)

    def corrupt(self, path: str, position: int, data: bytes) -> None:
        """Silently puts other bytes on the platter: bit rot, or a stale or misdirected block.

        Readers see them, unless one of their own writes at the same position is still pending.
        """
        inode = self._volume.file(path)
        size = len(inode.durable)
        if position < 0 or position + len(data) > size:
            raise ValueError(
                f"{path} has {size} durable bytes, so {len(data)} at {position} cannot be "
                "corrupted: fsync the file first or choose an earlier position"
            )
        apply(inode.durable, (position, data))
        self._volume.reload(inode)
        self.counters["fault_corrupt"] += 1

    def rot(self, path: str, position: int, bit: int) -> None:
        """Flips one durable bit."""
        byte = self._volume.file(path).durable[position : position + 1] or b"\0"
        self.corrupt(path, position, bytes([byte[0] ^ 1 << bit]))

    def rot_random(self, path_contains: str = "") -> tuple[str, int, int] | None:
        """Flips a random durable bit and returns which. None if no matching file has
        durable bytes."""
        files = [
            (path, len(inode.durable))
            for path, inode in self._volume.walk(durable=False)
            if inode.durable and path_contains in path
        ]
        if not files:
            return None
        path, size = files[self._fault_draws.randrange(len(files))]
        position = self._fault_draws.randrange(size)
        bit = self._fault_draws.randrange(8)
        self.rot(path, position, bit)
        return path, position, bit

    def lose_file(self, path: str) -> None:
        """Removes the file durably and silently."""
        inode = self._volume.file(path)
        self._volume.lose_name(*self._volume.locate(path))
        self._volume.unlinked(inode)
        self.counters["fault_lost_file"] += 1

    def wipe(self) -> None:
        """Replaces the disk with an empty one. No process may have a file open."""
        if self._volume.handles:
            raise RuntimeError("a process has files open on this disk: kill it first")
        self._volume.wipe()
        self.counters["fault_wiped"] += 1

    def drop_caches(self) -> None:
        """Drops clean pages, so that reads come from the platter. Pending writes stay."""
        self._volume.drop_caches()

    # For tests.

    def files(self) -> dict[str, bytes]:
        """Returns every file as processes see it, by absolute path."""
        return {path: bytes(inode.cache) for path, inode in self._volume.walk(durable=False)}

    def peek(self, path: str, position: int, size: int) -> bytes:
        """Reads from a file as its process sees it, but without a disk call: for checks
        from outside."""
        return bytes(self._volume.file(path).cache[position : position + size])

    def durable_files(self) -> dict[str, bytes]:
        """Returns what would be left if a power loss dropped everything that is pending."""
        return {path: bytes(inode.durable) for path, inode in self._volume.walk(durable=True)}

    def open_paths(self) -> list[str]:
        """Returns the paths of the open handles, in the order of opening."""
        return [path for path, _ in self._volume.handles.values()]
