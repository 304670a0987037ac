"""A compacted partition keeps the newest record of each key, so every record needs one."""

from __future__ import annotations

from penstock.records.batch import BatchHeader, Buffer
from penstock.records.record import read_records


class KeylessRecord(ValueError):
    """A record without key came to a compacted topic."""


def refuse_keyless(batch: Buffer, header: BatchHeader) -> None:
    """Opens the batch: the price of compaction, paid when a record comes in."""
    if header.is_control:
        return
    for number, record in enumerate(read_records(batch, header)):
        if record.key is None:
            raise KeylessRecord(
                f"record {number} of the batch has no key and the topic is compacted: "
                "give every record a key, or set cleanup.policy=delete"
            )
