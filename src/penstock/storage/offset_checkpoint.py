"""`penstock-offsets`: the last known offsets of all logs, in one file of the data directory.

For each log it holds two offsets that are too expensive to store at every flush:

    synced offset     everything below it was on disk. The log's own checkpoint has the recovery
                      point, but that moves only when files are created or removed. Bad bytes below
                      the synced offset are damage, not a torn tail (`salvage`).
    high watermark    everything below it was committed. A broker that restarts lets consumers read
                      up to here at once, without waiting for another replica.

Kafka has a file for each, `recovery-point-offset-checkpoint` and `replication-offset-checkpoint`,
and writes them periodically and at a clean stop. So does this broker
(`broker.partitions.offset_checkpoints`). One file for all logs costs one fsync per round; a field
in each log's checkpoint would cost one fsync per log.

Both offsets may be out of date. They are then too low, which is harmless. They must never be too
high. A log that lost its end, by a truncation or in a crash, can hold other records where the old
ones were synced and committed. So a log has a generation, a number that changes with every such
cut, durably before the first byte is removed (`Checkpoint.generation`). The log's checkpoint also
says down to which offset it was truncated since the file was last written: offsets of an earlier
generation count up to there (`valid_offsets`). Those of other generations are ignored, and so are
those of another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.ports import Disk
from penstock.storage.checkpoints import Checkpoint, read_file, write_atomic
from penstock.storage.errors import CorruptFile

OFFSETS: Final = "penstock-offsets"
_HEAD: Final = "penstock-offsets 1"


class LogOffsets(NamedTuple):
    """The stored offsets of one log."""

    topic_id: str
    generation: int
    synced_offset: int
    high_watermark: int


def valid_offsets(noted: LogOffsets | None, checkpoint: Checkpoint | None) -> LogOffsets | None:
    """Returns how far the stored offsets are right for the log with this checkpoint; None if they
    say nothing about it."""
    if noted is None or checkpoint is None:
        return None
    if noted.generation == checkpoint.generation:
        return noted
    if not 0 <= checkpoint.cut_since <= noted.generation < checkpoint.generation:
        return None
    kept = checkpoint.cut_offset
    return noted._replace(
        synced_offset=min(noted.synced_offset, kept),
        high_watermark=min(noted.high_watermark, kept),
    )


def encode_offsets(offsets: Mapping[str, LogOffsets]) -> bytes:
    """Encodes the offsets of all logs, keyed by the name of the log's directory."""
    lines = [_HEAD]
    for name, (topic_id, generation, synced_offset, high_watermark) in offsets.items():
        lines.append(f"{name} {topic_id} {generation} {synced_offset} {high_watermark}")
    body = ("\n".join(lines) + "\n").encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_offsets(data: bytes) -> dict[str, LogOffsets]:
    """Decodes the file. Raises `CorruptFile` if it is incomplete or has another version."""
    body, mark, checksum = data.rpartition(b"crc32c ")
    try:
        if not mark or int(checksum, 16) != crc32c(body):
            raise CorruptFile(f"the CRC of {OFFSETS} does not match")
        head, *lines = body.decode().splitlines()
        if head != _HEAD:
            raise CorruptFile(f"{OFFSETS} has version {head!r}, but this broker reads {_HEAD!r}")
        found = {}
        for line in lines:
            name, topic_id, *numbers = line.split(" ")
            generation, synced_offset, high_watermark = map(int, numbers)
            found[name] = LogOffsets(topic_id, generation, synced_offset, high_watermark)
    except ValueError as error:
        raise CorruptFile(f"{OFFSETS} cannot be decoded: {error}") from error
    return found


def read_offsets(disk: Disk, root: str) -> dict[str, LogOffsets]:
    """Returns the stored offsets; an empty dict if there is no file. Raises `CorruptFile` if it is
    bad."""
    data = read_file(disk, f"{root}/{OFFSETS}")
    return {} if data is None else decode_offsets(data)


def write_offsets(disk: Disk, root: str, offsets: Mapping[str, LogOffsets]) -> None:
    """Stores the offsets. Blocking."""
    write_atomic(disk, root, OFFSETS, encode_offsets(offsets))
