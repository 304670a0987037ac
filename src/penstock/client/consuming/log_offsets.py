"""Looks up offsets in the logs of partitions: the beginning, the end, and by time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from penstock.client.admin.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from penstock.client.consuming.core import ConsumerCore
from penstock.client.consuming.positions import milliseconds
from penstock.topic_partition import TopicPartition


class LogOffsets:
    """Asks the brokers of one consumer's cluster."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    async def for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Returns the first record at or after each time, or None where there is no such record."""
        return await self._find(
            {topic_partition: milliseconds(when) for topic_partition, when in times.items()}
        )

    async def beginnings(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        found = await self._find(dict.fromkeys(topic_partitions, EARLIEST))
        return {
            topic_partition: each.offset
            for topic_partition, each in found.items()
            if each is not None
        }

    async def ends(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset that the next record will get; with read_committed, the last stable
        offset."""
        found = await self._find(dict.fromkeys(topic_partitions, LATEST))
        return {
            topic_partition: each.offset
            for topic_partition, each in found.items()
            if each is not None
        }

    async def _find(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | None]:
        return await list_offsets(
            self._core.cluster,
            times,
            isolation_level=self._core.options.isolation_level,
            deadline_s=self._core.options.default_api_timeout_ms / 1000,
        )
