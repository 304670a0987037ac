"""The name by which the share coordinator of a share partition is found, as in Kafka."""

from __future__ import annotations

from penstock.metadata.topic_ids import from_text, to_text
from penstock.shares.state_port import SharePartitionId


def share_key(share_partition: SharePartitionId) -> str:
    """Returns `group:topic id:partition`. The hash of it chooses the partition of
    `__share_group_state`."""
    group_id, topic_id, partition = share_partition
    return f"{group_id}:{to_text(topic_id)}:{partition}"


def is_share_key(key: str) -> bool:
    group_id, _, rest = key.rpartition(":")
    group_id, _, topic_id = group_id.rpartition(":")
    try:
        from_text(topic_id)
    except ValueError:
        return False
    return bool(group_id) and rest.isascii() and rest.isdigit()
