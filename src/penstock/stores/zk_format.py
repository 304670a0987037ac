"""What the ZooKeeper store keeps in znodes, as bytes.

Below the namespace of the address:

    penstock                    the root of the store
    penstock/head               the revision of the store, and where its snapshot is (`Head`)
    penstock/log/REVISION       the changes of one commit (`LogEntry`); never altered
    penstock/snapshots/ID       marks a snapshot; its parts are ID-0, ID-1 and so on
    penstock/leases/ID          a lease that has not ended
    penstock/pulses/PULSE       the last renewal of a lease (`Pulse`): only its name says something
    penstock/barrier            written by reads, to find out that a majority answers

Log entries and snapshots are binary, because values are. Large ones are compressed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.ports import Delete, KeyValue, Put
from penstock.stores.errors import StoreCorrupt

FORMAT: Final = 1
ROOT: Final = "/penstock"
HEAD: Final = "/head"
LOG: Final = "/log"
SNAPSHOTS: Final = "/snapshots"
LEASES: Final = "/leases"
PULSES: Final = "/pulses"
BARRIER: Final = "/barrier"

ENTRY_BYTES_MAX: Final = 1_000_000
"""The largest log entry. ZooKeeper refuses requests of 1 MiB (jute.maxbuffer) by closing the
connection, and the rest of a commit's request takes less than the difference."""
COMPRESSED_FROM: Final = 64 << 10
"""Entries of this size are compressed, which takes a thread."""
PART_BYTES: Final = 512 << 10
ID_BYTES: Final = 20

_PLAIN: Final = b"\0"
_ZLIB: Final = b"\1"
_CHANGE: Final = struct.Struct(">IIq")
_DELETED: Final = 0xFFFFFFFF
_RECORD: Final = struct.Struct(">IIqqq")


@dataclass(frozen=True, slots=True)
class Head:
    """`first` is the first revision that the log keeps. `snapshot` is the id of a snapshot at
    `snapshot_revision`, empty if there is none yet. The log keeps everything after it."""

    revision: int = 0
    first: int = 1
    snapshot: str = ""
    snapshot_revision: int = 0
    snapshot_parts: int = 0

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({"format": FORMAT, **fields}).encode()


def decode_head(data: bytes, where: str) -> Head:
    try:
        fields: dict[str, Any] = json.loads(data)
        found = fields.pop("format")
        if found == FORMAT:
            return Head(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreCorrupt(
            f"{where} does not hold a metadata store of Penstock: use another namespace, or "
            "restore ZooKeeper from a backup"
        ) from error
    raise StoreCorrupt(
        f"{where} has format {found}, but this version of Penstock reads format {FORMAT}: use the "
        "version of Penstock that the other brokers run"
    )


class LogEntry(NamedTuple):
    """`id` is unique to the commit: it shows whose entry this is."""

    id: bytes
    changes: tuple[Put | Delete, ...]
    size: int


def encode_entry(entry_id: bytes, changes: Sequence[Put | Delete]) -> bytes:
    """Returns the entry without compression. See `compress`."""
    parts = [_PLAIN, entry_id]
    for change in changes:
        key = change.key.encode()
        if isinstance(change, Put):
            parts += (_CHANGE.pack(len(key), len(change.value), change.lease), key, change.value)
        else:
            parts += (_CHANGE.pack(len(key), _DELETED, 0), key)
    return b"".join(parts)


def compress(data: bytes) -> bytes:
    """Compresses an entry or a snapshot."""
    return _ZLIB + zlib.compress(memoryview(data)[1:], 1)


def is_compressed(data: bytes) -> bool:
    """Whether an entry is large when it is decoded."""
    return data[:1] == _ZLIB


def decode_entry(data: bytes, where: str) -> LogEntry:
    size = len(data)
    try:
        body = _body(data)
        changes: list[Put | Delete] = []
        position = ID_BYTES
        while position < len(body):
            key_size, value_size, lease = _CHANGE.unpack_from(body, position)
            position += _CHANGE.size
            key = _slice(body, position, key_size).decode()
            position += key_size
            if value_size == _DELETED:
                changes.append(Delete(key))
            else:
                changes.append(Put(key, _slice(body, position, value_size), lease))
                position += value_size
        return LogEntry(_slice(body, 0, ID_BYTES), tuple(changes), size)
    except (ValueError, struct.error, zlib.error) as error:
        raise _damaged(where) from error


def encode_snapshot(entries: Iterable[KeyValue]) -> list[bytes]:
    """Returns the parts of a snapshot."""
    parts = [_PLAIN]
    for entry in entries:
        key = entry.key.encode()
        sizes = (len(key), len(entry.value))
        revisions = (entry.create_revision, entry.modify_revision, entry.lease)
        parts += (_RECORD.pack(*sizes, *revisions), key, entry.value)
    data = compress(b"".join(parts))
    return [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]


def decode_snapshot(parts: Sequence[bytes], where: str) -> list[KeyValue]:
    entries: list[KeyValue] = []
    try:
        body = _body(b"".join(parts))
        position = 0
        while position < len(body):
            key_size, value_size, created, modified, lease = _RECORD.unpack_from(body, position)
            position += _RECORD.size
            key = _slice(body, position, key_size).decode()
            position += key_size
            value = _slice(body, position, value_size)
            position += value_size
            entries.append(KeyValue(key, value, created, modified, lease))
    except (ValueError, struct.error, zlib.error) as error:
        raise _damaged(where) from error
    return entries


class Pulse(NamedTuple):
    """A renewal of a lease. Every renewal has a higher `number`, so another name."""

    lease: int
    ttl_ms: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.lease:016x}.{self.ttl_ms}.{self.number}"

    def next(self) -> Pulse:
        return self._replace(number=self.number + 1)


def pulse_of(name: str) -> Pulse | None:
    """Returns the pulse of this name; None if it is not the name of one."""
    try:
        lease, ttl_ms, number = name.split(".")
        return Pulse(int(lease, 16), int(ttl_ms), int(number))
    except ValueError:
        return None


def log_path(revision: int) -> str:
    return f"{LOG}/{revision:019d}"


def lease_path(lease: int) -> str:
    return f"{LEASES}/{lease:016x}"


def pulse_path(pulse: Pulse) -> str:
    return f"{PULSES}/{pulse.name}"


def part_path(snapshot: str, number: int) -> str:
    return f"{SNAPSHOTS}/{snapshot}-{number}"


def _body(data: bytes) -> bytes:
    kind, rest = data[:1], memoryview(data)[1:]
    if kind == _PLAIN:
        return bytes(rest)
    if kind == _ZLIB:
        return zlib.decompress(rest)
    raise ValueError(f"unknown kind {kind!r}")


def _slice(body: bytes, start: int, size: int) -> bytes:
    if start + size > len(body):
        raise ValueError("it ends too early")
    return body[start : start + size]


def _damaged(where: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{where} is damaged, or was written by another program: stop the brokers of the cluster "
        "and restore ZooKeeper from a backup"
    )
