"""`penstock-offsets`: what a broker last knew of all its logs, in one file of the data directory.

For each log it holds two offsets that are too expensive to note at every flush:

    synced offset     everything below it was on disk. The log's own checkpoint says the same of its
                      recovery point, but that moves only when files come and go. Whatever is bad
                      below this offset is damage, and no torn tail (`salvage`).
    high watermark    everything below it was committed. A broker that restarts shows it to readers
                      at once, without having heard from another replica.

Kafka has a file for each, `recovery-point-offset-checkpoint` and `replication-offset-checkpoint`,
and writes them from time to time and at a clean stop. So does the broker here (`broker.
offset_keeper`). One file for all logs costs one fsync per round; a field in each log's checkpoint
would cost one per log.

Both offsets may be out of date, and are then too low, which is harmless. They must never be too
high. A log that was cut, by a truncation or because a crash took its end, can hold other records
now where the old ones were synced and committed. So a log has a generation, a number that changes
with every such cut, durably before the first byte goes (`Checkpoint.generation`). Offsets that were
noted of another generation are ignored, and so are those of another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.ports import Disk
from penstock.storage.checkpoints import read_file, write_atomic
from penstock.storage.errors import CorruptFile

OFFSETS: Final = "penstock-offsets"
_HEAD: Final = "penstock-offsets 1"


class LogOffsets(NamedTuple):
    """What was known of one log."""

    topic_id: str
    generation: int
    synced_offset: int
    high_watermark: int


def encode_offsets(offsets: Mapping[str, LogOffsets]) -> bytes:
    """By the name of the log's directory."""
    lines = [_HEAD]
    for name, (topic_id, generation, synced_offset, high_watermark) in offsets.items():
        lines.append(f"{name} {topic_id} {generation} {synced_offset} {high_watermark}")
    body = ("\n".join(lines) + "\n").encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_offsets(data: bytes) -> dict[str, LogOffsets]:
    """`CorruptFile` if it is not whole, or not of this version."""
    body, mark, checksum = data.rpartition(b"crc32c ")
    try:
        if not mark or int(checksum, 16) != crc32c(body):
            raise CorruptFile(f"the CRC of {OFFSETS} does not match")
        head, *lines = body.decode().splitlines()
        if head != _HEAD:
            raise CorruptFile(
                f"{OFFSETS} is of the version {head!r}, this software reads {_HEAD!r}"
            )
        found = {}
        for line in lines:
            name, topic_id, *numbers = line.split(" ")
            generation, synced_offset, high_watermark = map(int, numbers)
            found[name] = LogOffsets(topic_id, generation, synced_offset, high_watermark)
    except ValueError as error:
        raise CorruptFile(f"{OFFSETS} does not read: {error}") from error
    return found


def read_offsets(disk: Disk, root: str) -> dict[str, LogOffsets]:
    """What was noted last; nothing where there is no file. `CorruptFile` if it does not read."""
    data = read_file(disk, f"{root}/{OFFSETS}")
    return {} if data is None else decode_offsets(data)


def write_offsets(disk: Disk, root: str, offsets: Mapping[str, LogOffsets]) -> None:
    """Blocking."""
    write_atomic(disk, root, OFFSETS, encode_offsets(offsets))
