"""The doors to the outside world, as protocols only.

Whatever needs a clock, randomness, a disk, a network, threads or the shared metadata is handed one
of these; nobody reaches for the originals. Production passes the real ones, the simulator passes
its own, and so a whole cluster runs under one seed.

Disk calls are plain calls, not coroutines. A write into the page cache costs about a microsecond,
less than suspending a coroutine; the calls that really wait (`fsync`, recovery, cleaning) are
sent through an `Executor` by their callers. The simulator makes those steps of its own schedule.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as this node believes: it may jump and differ between nodes."""

    async def sleep(self, seconds: float) -> None: ...


class Random(Protocol):
    def bytes(self, size: int) -> bytes:
        """Unpredictable bytes, good enough for ids and nonces."""

    def below(self, bound: int) -> int:
        """A whole number in [0, bound)."""

    def uniform(self) -> float:
        """A number in [0, 1), for jitter."""


class File(Protocol):
    """An open file, addressed by position; there is no cursor to share.

    As with POSIX, `pwrite` may write less than it was given and says how much. Any call may raise
    `OSError`; after a failed `fsync` what reached the disk is unknown for ever.
    """

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> int: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def fsync(self) -> None: ...

    def drop_cache(self) -> None:
        """Let later reads come from the disk, where the system holds clean pages of this file.

        After a failed fsync such pages look written and are not. Pages that still wait to be
        written stay.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileStat:
    size: int
    modified_ms: int
    is_directory: bool


class Disk(Protocol):
    """A file system. Names become durable only by `sync_directory`, bytes only by `fsync`."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with `create`, make an empty file where there is none."""

    def stat(self, path: str) -> FileStat:
        """Raises `FileNotFoundError` where nothing is."""

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents; fine if it is there already.

        Each one made needs its own parent synced before it is sure to survive."""

    def rename(self, source: str, target: str) -> None:
        """Atomic, and replaces `target`."""

    def unlink(self, path: str) -> None: ...

    def discard(self, path: str) -> bool:
        """Remove a file that nobody will open again, or a piece of it if it is large; whether it is
        gone. To free much space in one go may keep everybody's fsync waiting.

        Whoever has it open already still reads all of it."""

    def rmdir(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make the names in this directory durable."""

    def free_bytes(self, path: str) -> int:
        """Space left for this process on the file system that holds `path`."""

    def total_bytes(self, path: str) -> int:
        """The size of the file system that holds `path`."""


class Executor(Protocol):
    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work off the event loop and wait for its result.

        It is done, begun or not, whether or not anyone still waits for it."""


class Transport(Protocol):
    """One connection's sending half; the receiving half is the `Receiver` it was opened with.

    The names are those of `asyncio.Transport`, so that a real one needs no wrapper.
    """

    def write(self, data: Buffer) -> None:
        """The data must not change until it has left: it may be kept instead of copied."""

    def writelines(self, parts: Sequence[Buffer]) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None:
        """How much may wait to be sent before the receiver is told to pause writing."""

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Send what is buffered, then close."""

    def abort(self) -> None:
        """Drop the connection and whatever is buffered."""

    def get_extra_info(self, name: str) -> Any:
        """ "peername": the other end's address, host and port first; None once it is gone."""


class Receiver(Protocol):
    """What a connection tells its owner, with the semantics of `asyncio`'s protocols.

    Every receiver is also either a `StreamReceiver` or a `BufferedReceiver`; a network finds out
    which by looking for `get_buffer`.
    """

    def connection_made(self, transport: Transport) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class StreamReceiver(Receiver, Protocol):
    """Is handed what was read."""

    def data_received(self, data: bytes) -> None: ...


class BufferedReceiver(Receiver, Protocol):
    """Says where to read to. Saves two copies of every large request."""

    def get_buffer(self, size_hint: int) -> Buffer:
        """Where to put the next bytes; never empty. It is filled before anything else happens."""

    def buffer_updated(self, size: int) -> None: ...

    def eof_received(self) -> bool:
        """The peer sends no more. True keeps the sending half open until the owner closes it."""


class Listener(Protocol):
    def address(self) -> tuple[str, int]: ...

    async def close(self) -> None: ...


class Network(Protocol):
    async def listen(self, host: str, port: int, receiver: Callable[[], Receiver]) -> Listener: ...

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport: ...


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: int
    modify_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds when the key was last changed at `modify_revision` (0: the key does not exist)."""

    key: str
    modify_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class Committed:
    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A key's new state; `value` is None when it was deleted."""

    key: str
    value: bytes | None
    revision: int


class MetadataStore(Protocol):
    """A small linearizable key-value store that the brokers of a cluster share."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        """All keys under the prefix, in key order, and the revision they were read at."""

    async def commit(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Committed:
        """Apply all changes if all compares hold, else none. If the outcome cannot be learned this
        raises, and the caller must read to find out."""

    async def grant_lease(self, ttl_s: float) -> int: ...

    async def keep_alive(self, lease: int, carry_s: float = 0.0) -> bool:
        """Renew; False when the lease has expired and its keys are gone.

        With `carry_s` the caller holds the lease: a store that can goes on to renew it for that
        many seconds while the event loop is too busy to ask again, and never ends it on behalf of
        this handle. Revoking the lease, or closing the handle, ends that."""

    async def revoke_lease(self, lease: int) -> None: ...

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        """Every change under the prefix from that revision on, in order and without gaps; raises
        when the revision is no longer kept, and the caller reads afresh."""

    @property
    def full(self) -> str | None:
        """Why the store takes no writes for want of room, and what to do; None while it does."""

    def close(self) -> Awaitable[None]: ...


def no_boot_id() -> str:
    """For a node that cannot tell one boot of its machine from the next."""
    return ""


@dataclass(frozen=True, slots=True)
class Slicing:
    """When a broker divides long work on its event loop, so that other requests get their turn.

    In the simulator no time passes while a broker works, so `slice_s` alone would divide nothing.
    Some of its seeds use `DIVIDE_ALL` instead."""

    slice_s: float = 0.004
    """How long one slice takes. On a busy loop the wait for the next slice may take as long, so
    shorter slices would delay the answer too much."""
    elements: int = 500
    """Elements of a request that a handler works off at once: a few milliseconds."""
    fetch_portion: int = 64
    """Partitions of a large fetch that are handled in one step: about a millisecond, if their
    records are few."""
    frame_bytes: int = 32 << 10
    """Larger requests are decoded on a thread."""
    produce_bytes: int = (1 << 20) + (64 << 10)
    """Larger produces are decoded on a thread. Most clients send no larger ones by default, and
    those that they send need no thread: records are not decoded."""


DIVIDE_ALL: Final = Slicing(-1.0, elements=0, fetch_portion=1, frame_bytes=0, produce_bytes=0)
"""Every request is decoded on a thread and worked off in the smallest slices."""


@dataclass(frozen=True, slots=True)
class Env:
    """All the doors of one node, passed down from where it is wired; never a global."""

    clock: Clock
    random: Random
    disk: Disk
    network: Network
    executor: Executor
    store: MetadataStore
    boot_id: Callable[[], str] = no_boot_id
    """Names the present boot of the machine: as long as it is the same, what was written to files
    and not synced is still there, in the page cache. Empty where it is not known."""
    slicing: Slicing = Slicing()
