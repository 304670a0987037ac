"""Commits and reads the offsets of a consumer's group."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.consuming.core import ConsumerCore, OnCommit
from penstock.client.consuming.partition_control import PartitionControl
from penstock.client.errors import ClientError
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition

CommitOffsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class GroupOffsets:
    """The committed offsets of one consumer's group."""

    def __init__(self, core: ConsumerCore, control: PartitionControl) -> None:
        self._core = core
        self._control = control

    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commits these offsets, or all positions, for the group, and waits for the answer."""
        clock, meter = self._core.env.clock, self._core.meter
        started = clock.monotonic()
        chosen = self._to_commit(offsets)
        try:
            await self._core.committer.commit(chosen)
        except ClientError:
            meter.failed_commits += 1
            raise
        meter.commits += 1
        meter.commit_latency.add(clock.monotonic() - started)

    def commit_nowait(
        self, offsets: CommitOffsets | None = None, on_commit: OnCommit | None = None
    ) -> None:
        """Commits like `commit`, without waiting. Commits keep their order.

        A failure is passed to `on_commit`, or logged if there is none.
        """
        self._core.committer.commit_nowait(self._to_commit(offsets), on_commit)

    def _to_commit(self, offsets: CommitOffsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._control.positions()
        return {
            TopicPartition(*topic_partition): (
                offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            )
            for topic_partition, offset in offsets.items()
        }

    async def committed(
        self, *topic_partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets of these partitions, or of all assigned
        partitions."""
        return await self._core.committer.committed(
            topic_partitions or frozenset(self._core.subscription.states)
        )
