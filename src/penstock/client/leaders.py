"""The leaders of a topic's partitions, as metadata responses report them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from penstock.wire.errors import ErrorCode
from penstock.wire.messages import MetadataResponse


class Leader(NamedTuple):
    """The leader of a partition and its leader epoch; -1 if the broker is too old to report it."""

    broker_id: int
    epoch: int


def leaders_of(topic: MetadataResponse.Topic) -> dict[int, Leader]:
    """Returns the leaders by partition. They are looked up for every partition at every fetch, so
    this is a dict and not a search."""
    if topic.error_code != ErrorCode.NONE:
        return {}
    return {
        partition.partition_index: Leader(partition.leader_id, partition.leader_epoch)
        for partition in topic.partitions
    }


def newest_leaders(
    known: MetadataResponse.Topic | None, heard: MetadataResponse.Topic
) -> MetadataResponse.Topic:
    """Keeps the newer leader of each partition: a broker with stale metadata may name old leaders.

    A topic that was deleted and created again starts with new epochs, under another id.
    """
    if known is None or known.topic_id != heard.topic_id:
        return heard
    newest = {partition.partition_index: partition for partition in known.partitions}
    heard.partitions = [
        older
        if (older := newest.get(partition.partition_index)) is not None
        and older.leader_epoch > partition.leader_epoch
        else partition
        for partition in heard.partitions
    ]
    return heard
