"""Finds the positions to read from: committed offsets, reset policies, times, truncation.

Offsets are looked up in two ways. A caller that asks for offsets waits for them, and the request is
retried until the caller's deadline. A partition without a position is handled in the background: a
round of `Positions.resolve` asks once about all partitions that are due. Failures are postponed
partition by partition, so that one unavailable leader does not delay the others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from penstock.client.admin.leaders import ask_leaders, by_topic, know_leaders
from penstock.client.admin.offsets import LATEST, FoundOffset, ask_offsets
from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.consuming.subscription import UNKNOWN, Need, PartitionState, Subscription
from penstock.client.errors import (
    ApiNotServed,
    BrokerError,
    ClientError,
    DeadlineExceeded,
    NoOffset,
    OptionError,
    TopicNotFound,
)
from penstock.client.model import OffsetAndMetadata
from penstock.client.option_values import ResetPolicy
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

_CONSUMER: Final = -1
_EPOCHS_SINCE: Final = 3
"""The first version of OffsetForLeaderEpoch that requires no more rights than a consumer has."""
_log: Final = logging.getLogger("penstock.client")

Committed = Callable[
    [Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]]
]


class EpochEnd(NamedTuple):
    """How far a leader's log goes in an epoch: up to `end_offset`, in the epoch that it found."""

    epoch: int
    end_offset: int


def milliseconds(when: int | datetime) -> int:
    """Returns a time as milliseconds since 1970. A datetime must have a time zone."""
    if not isinstance(when, datetime):
        return when
    if when.tzinfo is None:
        raise OptionError(f"{when} has no time zone: give one, such as tzinfo=timezone.utc")
    return int(when.timestamp() * 1000)


async def ask_epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEnd | ClientError]:
    """Asks the partitions' leaders once where the epochs end in their logs."""

    async def ask(
        connection: Connection, topic_partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, EpochEnd | ClientError]:
        if connection.version_of(OffsetForLeaderEpochRequest) < _EPOCHS_SINCE:
            raise ApiNotServed("the broker is too old to report where leader epochs end")
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[
                OffsetForLeaderEpochRequest.Topic(
                    topic,
                    [
                        OffsetForLeaderEpochRequest.Partition(
                            topic_partition.partition,
                            leader.epoch
                            if (leader := cluster.known_leader(topic_partition))
                            else UNKNOWN,
                            epochs[topic_partition],
                        )
                        for topic_partition in group
                    ],
                )
                for topic, group in by_topic(topic_partitions).items()
            ],
        )
        answer = await connection.call(request, OffsetForLeaderEpochResponse)
        return {
            (topic_partition := TopicPartition(topic.topic, found.partition)): (
                EpochEnd(found.leader_epoch, found.end_offset)
                if found.error_code == ErrorCode.NONE
                else BrokerError(found.error_code, subject=str(topic_partition))
            )
            for topic in answer.topics
            for found in topic.partitions
        }

    return await ask_leaders(cluster, epochs, ask)


class Positions:
    """Finds the positions that partitions need, in rounds."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        policy: ResetPolicy,
        *,
        isolation_level: int,
        committed: Committed | None,
        on_reset: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._policy = policy
        self._isolation_level = isolation_level
        self._committed = committed
        self._on_reset = on_reset

    @property
    def may_reset(self) -> bool:
        return self._policy.kind != "none"

    def is_due(self, now: float) -> bool:
        return any(
            state.need is not Need.NOTHING and state.error is None and state.retry_at <= now
            for state in self._subscription.states.values()
        )

    async def resolve(self) -> None:
        """Runs one round for all partitions that are due. Failures are postponed, not raised."""
        now = self._cluster.clock.monotonic()
        needing = self._subscription.needing
        await self._resolve_committed(needing(Need.COMMITTED, now))
        await self._resolve_times(needing(Need.TIME, now))
        await self._resolve_epochs(needing(Need.VALIDATION, now))

    def reset(self, state: PartitionState, why: str) -> None:
        """Applies the reset policy: there is no position, or the log does not have it."""
        topic_partition = state.topic_partition
        if not self.may_reset:
            state.fail(
                NoOffset(
                    f"{topic_partition} {why}, and auto_offset_reset is none: seek to an offset"
                )
            )
            return
        self._on_reset()
        time = self._policy.timestamp_ms(self._cluster.clock.wall_ms())
        self._subscription.look_up(state, time)

    def put_off(self, state: PartitionState, error: ClientError) -> None:
        """Postpones the partition, for longer each time. An error that no retry can fix stops it.

        The caller's next poll raises such an error. A missing topic is retried: it may still be
        created, or its metadata may not have spread yet.
        """
        if not error.retriable and not isinstance(error, TopicNotFound):
            state.fail(error)
            return
        config = self._cluster.config
        pause_s = min(
            config.retry_backoff_s * 2 ** min(state.failures, 16), config.retry_backoff_max_s
        )
        jitter = 0.5 + self._cluster.random.uniform()
        state.postpone(self._cluster.clock.monotonic() + pause_s * jitter)

    async def _resolve_committed(self, states: list[PartitionState]) -> None:
        if not states:
            return
        tokens = {state.topic_partition: state.token for state in states}
        found: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
        if self._committed is not None:
            try:
                found = await self._committed(list(tokens))
            except ClientError as error:
                reason = error.last if isinstance(error, DeadlineExceeded) else error
                for state in self._still(tokens):
                    self.put_off(state, reason)
                return
        for state in self._still(tokens):
            committed = found.get(state.topic_partition)
            if committed is None:
                self.reset(state, "has no committed offset")
            else:
                self._subscription.seek(state, committed.offset, committed.leader_epoch)

    async def _resolve_times(self, states: list[PartitionState]) -> None:
        times = {state.topic_partition: state.time for state in states}
        tokens = {state.topic_partition: state.token for state in states}
        while times:
            outcomes = await self._outcomes(times, tokens)
            times = {}
            for state in self._still(tokens):
                outcome = outcomes.get(state.topic_partition)
                if isinstance(outcome, ClientError):
                    self.put_off(state, outcome)
                elif outcome is not None and outcome.offset >= 0:
                    self._subscription.set_position(state, outcome.offset, outcome.leader_epoch)
                elif outcome is not None:
                    # No record is at or after that time, so the next one to be written will be.
                    times[state.topic_partition] = LATEST

    async def _outcomes(
        self, times: Mapping[TopicPartition, int], tokens: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, FoundOffset | ClientError]:
        try:
            await know_leaders(self._cluster, times, fresh=self._failed_before(tokens))
        except ClientError as error:
            return dict.fromkeys(times, error)
        return await ask_offsets(self._cluster, times, self._isolation_level)

    async def _resolve_epochs(self, states: list[PartitionState]) -> None:
        if not states:
            return
        tokens = {state.topic_partition: state.token for state in states}
        epochs = {state.topic_partition: state.fetch_epoch for state in states}
        fetched = {state.topic_partition: state.fetch_offset for state in states}
        outcomes: Mapping[TopicPartition, EpochEnd | ClientError]
        try:
            await know_leaders(self._cluster, epochs, fresh=self._failed_before(tokens))
            outcomes = await ask_epoch_ends(self._cluster, epochs)
        except ClientError as error:
            outcomes = dict.fromkeys(epochs, error)
        for state in self._still(tokens):
            outcome = outcomes[state.topic_partition]
            if isinstance(outcome, ApiNotServed):
                state.need = Need.NOTHING
            elif isinstance(outcome, ClientError):
                self.put_off(state, outcome)
            elif fetched[state.topic_partition] != state.fetch_offset:
                # A fetch in flight has returned more in the meantime, perhaps of another epoch. The
                # answer does not cover that, so the leader is asked again.
                state.succeeded()
            else:
                state.succeeded()
                lost = self._subscription.validated(state, *outcome, may_reset=self.may_reset)
                if lost is not None:
                    self._on_reset()
                    _log.warning(
                        "the log of %s was truncated: reading continues at offset %d; records "
                        "that were read after it, up to offset %d, are no longer in the log",
                        state.topic_partition,
                        outcome.end_offset,
                        lost,
                    )

    def _still(self, tokens: Mapping[TopicPartition, int]) -> list[PartitionState]:
        """Returns the partitions that were not moved in the meantime."""
        states = (
            self._subscription.current(topic_partition, token)
            for topic_partition, token in tokens.items()
        )
        return [state for state in states if state is not None]

    def _failed_before(self, tokens: Mapping[TopicPartition, int]) -> bool:
        return any(state.failures for state in self._still(tokens))
