"""The interfaces to the outside world, as protocols only.

Code that needs a clock, randomness, a disk, a network, threads or the shared metadata gets one of
these as an argument and never uses the originals directly. Production passes the real ones, the
simulator passes its own, so a whole cluster can run from one seed.

Disk calls are plain calls, not coroutines. A write into the page cache takes about a microsecond,
less than suspending a coroutine. Callers pass the calls that really wait (`fsync`, recovery,
cleaning) to an `Executor`. The simulator runs those as steps of its own schedule.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    def monotonic(self) -> float:
        """Returns seconds on a clock that never goes back. Only differences are meaningful."""

    def wall_ms(self) -> int:
        """Returns this node's milliseconds since 1970. They may jump, and differ between nodes."""

    async def sleep(self, seconds: float) -> None: ...


class Random(Protocol):
    def bytes(self, size: int) -> bytes:
        """Returns unpredictable bytes, suitable for ids and nonces."""

    def below(self, bound: int) -> int:
        """Returns an integer in [0, bound)."""

    def uniform(self) -> float:
        """Returns a number in [0, 1), for jitter."""


class File(Protocol):
    """An open file, addressed by position. There is no cursor to share.

    As in POSIX, `pwrite` may write less than it was given and returns how much it wrote. Any call
    may raise `OSError`. After a failed `fsync` it is unknown, for good, what has reached the disk.
    """

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes. Returns fewer only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> int: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def fsync(self) -> None: ...

    def drop_cache(self) -> None:
        """Drops the system's clean pages of this file, so that later reads come from the disk.

        After a failed fsync such pages look as if they were written, but are not. Pages that are
        still to be written stay in the cache.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileStat:
    size: int
    modified_ms: int
    is_directory: bool


class Disk(Protocol):
    """A file system. Only `sync_directory` makes names durable, and only `fsync` makes bytes
    durable."""

    def open(self, path: str, *, create: bool = False, private: bool = False) -> File:
        """Opens a file for reading and writing. With `create`, makes an empty file if there is
        none. `private`: only the user of this process may read it, also if it exists already."""

    def stat(self, path: str) -> FileStat:
        """Raises `FileNotFoundError` if the path does not exist."""

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Returns the names in the directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Makes the directory and its parents. It is not an error if it exists.

        Each new directory is durable only after its own parent was synced.
        """

    def rename(self, source: str, target: str) -> None:
        """Renames atomically, and replaces `target`."""

    def unlink(self, path: str) -> None: ...

    def discard(self, path: str) -> bool:
        """Removes a file that will not be opened again, or a part of it if it is large.

        Returns whether the file is gone. Freeing much space at once could delay every fsync on the
        disk. A reader that already has the file open can still read all of it.
        """

    def rmdir(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Makes the names in this directory durable."""

    def free_bytes(self, path: str) -> int:
        """Returns the space available to this process on the file system that holds `path`."""

    def total_bytes(self, path: str) -> int:
        """Returns the size of the file system that holds `path`."""


class Executor(Protocol):
    async def run(self, work: Callable[[], T]) -> T:
        """Runs blocking work off the event loop and waits for its result.

        Once requested, the work is always done, even if the caller stops waiting before it has
        begun.
        """


class KeyProvider(Protocol):
    """Holds the topic keys of encryption at rest. They wrap and unwrap data keys.

    Calls may wait for another machine or process, and are then for a thread. They raise
    `OSError`s: `storage.data_keys.KeyDropped` if the topic key does not exist, and
    `storage.data_keys.KeyUnavailable` if it is unknown whether it does.
    """

    @property
    def is_slow(self) -> bool:
        """Whether calls may take longer than reading a small file."""

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        """Returns the data key, encrypted with the newest version of the topic key."""

    def unwrap(self, key_name: str, token: bytes) -> bytes:
        """Returns the data key from its wrapped form."""


class Transport(Protocol):
    """The sending half of a connection. The receiving half is the `Receiver` it was opened with.

    The names are those of `asyncio.Transport`, so that a real one needs no wrapper.
    """

    def write(self, data: Buffer) -> None:
        """Sends data. The data must not change until it was sent: it may be kept instead of
        copied."""

    def writelines(self, parts: Sequence[Buffer]) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None:
        """Sets how much may be buffered before the receiver is asked to pause writing."""

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Sends what is buffered, then closes."""

    def abort(self) -> None:
        """Drops the connection and everything that is buffered."""

    def get_extra_info(self, name: str) -> Any:
        """Returns the peer's address for "peername", host and port first; None once it is gone."""


class Receiver(Protocol):
    """Receives the events of a connection, with the semantics of `asyncio`'s protocols.

    Every receiver is also either a `StreamReceiver` or a `BufferedReceiver`. A network
    distinguishes them by the presence of `get_buffer`.
    """

    def connection_made(self, transport: Transport) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class StreamReceiver(Receiver, Protocol):
    """Receives the bytes that were read."""

    def data_received(self, data: bytes) -> None: ...


class BufferedReceiver(Receiver, Protocol):
    """Provides the buffer to read into. This saves two copies of every large request."""

    def get_buffer(self, size_hint: int) -> Buffer:
        """Returns where to put the next bytes; never empty. It is filled before anything else
        happens."""

    def buffer_updated(self, size: int) -> None: ...

    def eof_received(self) -> bool:
        """Called when the peer sends no more. True keeps the sending half open until the owner
        closes it."""


class Listener(Protocol):
    def address(self) -> tuple[str, int]: ...

    async def close(self) -> None: ...


Pace = Callable[[], float]
"""Called for each connection that a listener accepts. Returns for how many seconds it is to accept
no further one; 0 if it may go on at once."""


class Network(Protocol):
    async def listen(
        self, host: str, port: int, receiver: Callable[[], Receiver], pace: Pace | None = None
    ) -> Listener: ...

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
    """Holds if the key was last changed at `modify_revision` (0: the key does not exist)."""

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
    """A key's new state. `value` is None if the key was deleted."""

    key: str
    value: bytes | None
    revision: int


class MetadataStore(Protocol):
    """A small linearizable key-value store that the brokers of a cluster share."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Returns all keys under the prefix, in key order, and the revision at which they were
        read."""

    async def commit(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Committed:
        """Applies all changes if all compares hold, and none otherwise.

        Raises an error if the outcome is unknown. The caller must then read the keys to find out.
        """

    async def grant_lease(self, ttl_s: float) -> int: ...

    async def keep_alive(self, lease: int, carry_s: float = 0.0) -> bool:
        """Renews the lease. Returns False if the lease has expired and its keys are gone.

        With `carry_s` the caller holds the lease: a store that supports it keeps renewing the lease
        for that many seconds while the event loop is too busy to call again, and never ends it on
        behalf of this handle. Revoking the lease, or closing the handle, stops that.
        """

    async def revoke_lease(self, lease: int) -> None: ...

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        """Yields every change under the prefix from that revision on, in order and without gaps.

        Raises an error if the store no longer has the revision. The caller must then read
        everything again.
        """

    @property
    def full(self) -> str | None:
        """The reason why the store is too full for writes, and what to do; None while it is not."""

    def close(self) -> Awaitable[None]: ...


def no_boot_id() -> str:
    """Used for a node that cannot distinguish one boot of its machine from the next."""
    return ""


@dataclass(frozen=True, slots=True)
class Slicing:
    """How a broker divides long work on its event loop, to serve other requests in between.

    In the simulator no time passes while a broker works, so `slice_s` alone would divide nothing.
    Some seeds use `DIVIDE_ALL` instead.
    """

    slice_s: float = 0.004
    """The duration of one slice. On a busy loop the wait for the next slice may take as long, so
    shorter slices would delay the response too much."""
    elements: int = 500
    """How many elements of a request a handler processes at once: a few milliseconds' work."""
    fetch_portion: int = 64
    """How many partitions of a large fetch are processed in one step: about a millisecond's work if
    they have few records."""
    frame_bytes: int = 32 << 10
    """Larger requests are decoded on a thread."""
    produce_bytes: int = (1 << 20) + (64 << 10)
    """Larger produce requests are decoded on a thread. By default most clients do not send larger
    ones, and smaller ones need no thread, because their records are not decoded."""


DIVIDE_ALL: Final = Slicing(-1.0, elements=0, fetch_portion=1, frame_bytes=0, produce_bytes=0)
"""Every request is decoded on a thread and processed in the smallest slices."""


@dataclass(frozen=True, slots=True)
class Env:
    """All ports of one node, passed down from where the node is assembled. Never a global."""

    clock: Clock
    random: Random
    disk: Disk
    network: Network
    executor: Executor
    store: MetadataStore
    boot_id: Callable[[], str] = no_boot_id
    """Identifies the current boot of the machine. As long as it stays the same, data that was
    written to files but not synced is still in the page cache. Empty if it is not known."""
    slicing: Slicing = Slicing()
    keys: KeyProvider | None = None
    """Holds the keys of encrypted topics; None if this node can have none."""
    handshakes: Executor | None = None
    """Computes the TLS handshakes of listeners; None: `executor`."""
    matching: Executor | None = None
    """Matches topics with the regular expressions of consumer groups; None: `executor`."""
