"""Where the dead letters of a share group are, and how many of them were not sent back yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.client.admin.groups import group_offsets
from penstock.client.admin.offsets import EARLIEST, LATEST, list_offsets
from penstock.client.admin.operations import ResourceType, describe_configs
from penstock.client.cluster import Cluster
from penstock.client.redrive import redrive_group
from penstock.topic_partition import TopicPartition

SETTING: Final = "errors.deadletterqueue.topic.name"
"""The setting of a group that names its dead-letter topic (KIP-1191)."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a share group."""

    topic: str
    waiting: int
    """Offsets behind what the last redrive has read. Some may have no record, such as the markers
    of transactions, so this is the most that there can be. Other groups may use the topic too."""


async def dead_letter_topic(cluster: Cluster, group: str) -> str:
    """Returns the dead-letter topic of a group; empty if it has none."""
    entries = await describe_configs(cluster, ResourceType.GROUP, group)
    return next((entry.value or "" for entry in entries if entry.name == SETTING), "")


async def dead_letters(cluster: Cluster, topic: str) -> DeadLetters:
    parts = [TopicPartition(topic, index) for index in range(await cluster.partitions(topic))]
    starts = await list_offsets(cluster, dict.fromkeys(parts, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(parts, LATEST))
    done = await group_offsets(cluster, redrive_group(topic))
    waiting = 0
    for part in parts:
        start, end = starts[part], ends[part]
        if start is not None and end is not None:
            read = done[part].offset if part in done else 0
            waiting += max(0, end.offset - max(start.offset, read))
    return DeadLetters(topic, waiting)
