"""The small files of a log. Each one is replaced atomically.

A replacement writes a temporary file, syncs it, renames it, and syncs the directory.
`penstock-checkpoint` is Penstock's own format and has a CRC. It stores how far the log is known to
be on disk, where it starts, and after a clean stop the shape of its last segment. With it, recovery
distinguishes a torn tail (bytes after the recovery point, never promised) from damage (bytes before
it). A stop counts as clean only if the last segment still has the size stored here. So nothing must
be erased when appends begin again: the first append makes the stored size wrong.

The checkpoint also holds the leader epochs. Kafka's `leader-epoch-checkpoint` has no CRC; it is
written for Kafka's tools and never read back. `partition.metadata` is in Kafka's format too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields

from crc32c import crc32c

from penstock.partition.epochs import EpochStart
from penstock.ports import Disk
from penstock.storage.damage import Damage
from penstock.storage.errors import CorruptFile
from penstock.storage.files import PARTITION_METADATA, TEMPORARY, write_all

_HEAD = "penstock-checkpoint 1"
_NUMBERS = (
    "recovery_point",
    "indexed_offset",
    "log_start_offset",
    "cleaned_offset",
    "sparse_offset",
    "truncating_to",
    "restarting_at",
    "generation",
    "cut_since",
    "cut_offset",
)
_DAMAGE_NUMBERS = tuple(field.name for field in fields(Damage) if field.name != "reason")


def write_atomic(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replaces the file atomically: after a crash it holds the old content or the new, never a
    mix."""
    write_unnamed(disk, directory, name, data)
    disk.sync_directory(directory)


def write_unnamed(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Does the same as `write_atomic` without the directory sync. A crash before the caller syncs
    the directory may leave the old content. Several files can share one directory sync."""
    temporary = f"{directory}/{name}{TEMPORARY}"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        write_all(file, data, 0)
        file.fsync()
    finally:
        file.close()
    disk.rename(temporary, f"{directory}/{name}")


def read_file(disk: Disk, path: str) -> bytes | None:
    """Returns the content of the file; None if it does not exist."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class CleanStop:
    """The shape of the last segment when the log was closed."""

    base_offset: int
    size: int
    end_offset: int
    index_crc: int
    time_index_crc: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log stores about itself for the next start."""

    recovery_point: int
    """All records below this offset are known to be on disk."""
    indexed_offset: int
    """Indexes of segments that end at or below this offset are known to be on disk."""
    log_start_offset: int
    cleaned_offset: int
    """Compaction has covered everything below this offset."""
    sparse_offset: int
    """Below this offset compaction may have removed batches and joined segments, so gaps are
    expected."""
    truncating_to: int = -1
    """The target of a truncation that was begun and may be half done; -1 if none."""
    restarting_at: int = -1
    """The offset at which `Log.start_at` was to begin an empty log, and may be half done; -1 if
    none."""
    generation: int = 0
    """Changes whenever records are removed from the end of the log (`offset_checkpoint`)."""
    cut_since: int = -1
    """Since this generation the log was truncated only to `cut_offset` or above; -1 if unknown."""
    cut_offset: int = -1
    clean_stop: CleanStop | None = None
    segment_bases: tuple[int, ...] = ()
    """The segments that existed when the checkpoint was written."""
    damage: tuple[Damage, ...] = ()
    epochs: tuple[EpochStart, ...] = ()
    aborted: tuple[tuple[int, int], ...] = ()
    """Segments that have a transaction index: base offset and CRC32C of its file."""


def first_checkpoint(offset: int) -> Checkpoint:
    """Returns the checkpoint of an empty log that starts at `offset`."""
    return Checkpoint(
        recovery_point=offset,
        indexed_offset=offset,
        log_start_offset=offset,
        cleaned_offset=offset,
        sparse_offset=offset,
    )


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    lines = [_HEAD]
    for name in _NUMBERS:
        lines.append(f"{name} {getattr(checkpoint, name)}")
    if checkpoint.clean_stop is not None:
        values = [getattr(checkpoint.clean_stop, field.name) for field in fields(CleanStop)]
        lines.append("clean_stop " + " ".join(str(value) for value in values))
    if checkpoint.segment_bases:
        lines.append("segments " + " ".join(str(base) for base in checkpoint.segment_bases))
    for epoch, start_offset in checkpoint.epochs:
        lines.append(f"epoch {epoch} {start_offset}")
    for base_offset, checksum in checkpoint.aborted:
        lines.append(f"aborted {base_offset} {checksum}")
    for damage in checkpoint.damage:
        numbers = " ".join(str(getattr(damage, name)) for name in _DAMAGE_NUMBERS)
        lines.append(f"damage {numbers} {json.dumps(damage.reason)}")
    body = ("\n".join(lines) + "\n").encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_checkpoint(data: bytes) -> Checkpoint:
    body, mark, checksum = data.rpartition(b"crc32c ")
    try:
        if not mark or int(checksum, 16) != crc32c(body):
            raise CorruptFile("the checkpoint's CRC does not match; it is rebuilt from the log")
        head, *lines = body.decode().splitlines()
        if head != _HEAD:
            raise CorruptFile(
                f"the checkpoint has version {head!r}, this broker reads {_HEAD!r}; "
                "upgrade penstock"
            )
        values: dict[str, int] = {}
        clean_stop = None
        segment_bases: tuple[int, ...] = ()
        damage: list[Damage] = []
        epochs: list[EpochStart] = []
        aborted: list[tuple[int, int]] = []
        for name, _, rest in (line.partition(" ") for line in lines):
            if name == "clean_stop":
                clean_stop = CleanStop(*map(int, rest.split()))
            elif name == "segments":
                segment_bases = tuple(map(int, rest.split()))
            elif name == "epoch":
                epochs.append(EpochStart(*map(int, rest.split())))
            elif name == "aborted":
                base_offset, checksum_noted = map(int, rest.split())
                aborted.append((base_offset, checksum_noted))
            elif name == "damage":
                *numbers, reason = rest.split(" ", len(_DAMAGE_NUMBERS))
                placed = dict(zip(_DAMAGE_NUMBERS, map(int, numbers), strict=True))
                damage.append(Damage(**placed, reason=json.loads(reason)))
            else:
                values[name] = int(rest)
        return Checkpoint(
            **values,
            clean_stop=clean_stop,
            segment_bases=segment_bases,
            damage=tuple(damage),
            epochs=tuple(epochs),
            aborted=tuple(aborted),
        )
    except (ValueError, TypeError) as error:
        raise CorruptFile(f"the checkpoint cannot be decoded: {error}") from error


def encode_epochs(entries: Iterable[EpochStart]) -> bytes:
    lines = [f"{entry.epoch} {entry.start_offset}" for entry in entries]
    return ("\n".join(["0", str(len(lines)), *lines]) + "\n").encode()


def decode_epochs(data: bytes) -> list[EpochStart]:
    try:
        version, count, *lines = data.decode().split("\n")[:-1]
        entries = [EpochStart(*map(int, line.split())) for line in lines]
        if int(version) != 0 or int(count) != len(entries):
            raise CorruptFile("the leader epoch checkpoint is incomplete")
    except (ValueError, TypeError) as error:
        raise CorruptFile(f"the leader epoch checkpoint cannot be decoded: {error}") from error
    for before, after in itertools.pairwise(entries):
        if before.epoch >= after.epoch or before.start_offset >= after.start_offset:
            raise CorruptFile(f"leader epochs do not increase: {before} comes before {after}")
    return entries


def encode_partition_metadata(topic_id: str) -> bytes:
    return f"version: 0\ntopic_id: {topic_id}".encode()


def decode_partition_metadata(data: bytes) -> str:
    try:
        version, topic = data.decode().splitlines()
    except ValueError as error:
        raise CorruptFile(f"partition.metadata cannot be decoded: {error}") from error
    topic_id = topic.removeprefix("topic_id: ")
    if version != "version: 0" or topic_id == topic or not topic_id:
        raise CorruptFile(f"partition.metadata cannot be decoded: {data!r}")
    return topic_id


def topic_id_of(disk: Disk, directory: str) -> str:
    """Returns the topic id of the log in this directory."""
    data = read_file(disk, f"{directory}/{PARTITION_METADATA}")
    if data is None:
        raise CorruptFile(f"{directory} has no {PARTITION_METADATA}: its creation did not finish")
    return decode_partition_metadata(data)
