"""Calls of the share coordinator by group coordinators, many partitions at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import InitializeShare, ShareStateCall
from penstock.shares.state_port import CallOrder, SharePartitionId, ShareState, StateSummary
from penstock.wire.errors import ErrorCode, KafkaError

_AT_A_TIME: Final = 64
_log = logging.getLogger(__name__)
T = TypeVar("T")


class ShareCalls:
    """The share coordinator as group coordinators use it."""

    def __init__(self) -> None:
        self.share_state: ShareState | None = None
        """Set when the broker is wired. Without it, all calls fail."""
        self._number = 0

    def _require(self) -> ShareState:
        if self.share_state is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "This broker has no share coordinator."
            )
        return self.share_state

    async def make(
        self, call: ShareStateCall, coordinator_epoch: int, wall_ms: int
    ) -> dict[TopicIdPartition, KafkaError]:
        """Makes all calls. Returns those that failed.

        Calls are numbered by the time, because a broker that starts again may still have the same
        coordinator epoch.
        """
        group_id = call.group_id
        self._number = max(self._number + 1, wall_ms)
        order = CallOrder(coordinator_epoch, self._number)

        async def initialize(wanted: InitializeShare) -> None:
            share_partition = SharePartitionId(group_id, *wanted.partition)
            await self._require().initialize(
                share_partition, wanted.state_epoch, wanted.start_offset, order
            )

        async def delete(partition: TopicIdPartition) -> None:
            await self._require().delete(SharePartitionId(group_id, *partition), order)

        begun = await _all(call.initialize, initialize)
        deleted = await _all(call.delete, delete)
        outcomes = [
            *zip((each.partition for each in call.initialize), begun, strict=True),
            *zip(call.delete, deleted, strict=True),
        ]
        failures = {about: each for about, each in outcomes if isinstance(each, KafkaError)}
        for about, error in list(failures.items())[:1]:
            _log.warning(
                "the share coordinator refused %d of %d calls for group %s, for example for "
                "partition %d of topic %s; retrying later: %s",
                len(failures),
                len(outcomes),
                group_id,
                about.partition,
                about.topic_id.hex(),
                error,
            )
        return failures

    async def summaries(
        self, group_id: str, partitions: Sequence[TopicIdPartition]
    ) -> list[StateSummary | KafkaError | None]:
        """Returns what is stored of each partition; None for one without a state."""

        async def summary(partition: TopicIdPartition) -> StateSummary | None:
            return await self._require().summary(SharePartitionId(group_id, *partition))

        return await _all(partitions, summary)


async def _all(
    subjects: Sequence[object], call: Callable[..., Awaitable[T]]
) -> list[T | KafkaError]:
    """Calls for each subject, a limited number at a time. Returns results and errors in order."""

    async def tried(subject: object) -> T | KafkaError:
        try:
            return await call(subject)
        except KafkaError as error:
            return error

    results: list[T | KafkaError] = []
    for start in range(0, len(subjects), _AT_A_TIME):
        portion = subjects[start : start + _AT_A_TIME]
        results += await asyncio.gather(*map(tried, portion))
    return results
