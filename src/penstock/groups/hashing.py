"""Which partition of `__consumer_offsets` a group lives on.

Tools and clients compute this too, so it must be Kafka's answer to the bit.
"""

from __future__ import annotations

from penstock.wire.java import partition_of


def partition_for_group(group_id: str, partition_count: int) -> int:
    return partition_of(group_id, partition_count)
