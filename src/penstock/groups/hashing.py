"""Maps a group to its partition of `__consumer_offsets`.

Tools and clients compute this too, so the result must be exactly Kafka's.
"""

from __future__ import annotations

from penstock.wire.java import partition_of


def partition_for_group(group_id: str, partition_count: int) -> int:
    return partition_of(group_id, partition_count)
