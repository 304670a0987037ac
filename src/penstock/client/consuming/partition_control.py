"""Moves, pauses and resumes the partitions of a consumer, and tells where it reads.

Calls take effect immediately and do not wait, except `position`, whose answer may have to come from
a broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from penstock.client.admin.offsets import EARLIEST, LATEST
from penstock.client.consuming.core import ConsumerCore
from penstock.client.consuming.positions import milliseconds
from penstock.client.errors import DeadlineExceeded, RequestTimedOut
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition


class PartitionControl:
    """The positions and pauses of one consumer. They are stored in its subscription."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._reading = core.reading
        self._options = core.options
        self._clock = core.env.clock

    async def position(
        self, topic_partition: TopicPartition, *, timeout_ms: int | None = None
    ) -> int:
        """Returns the offset of the next record to be returned. Waits until it is known."""
        core = self._core
        limit_ms = self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._clock.monotonic() + limit_ms / 1000
        while True:
            core.news.clear()
            self._reading.settle()
            state = core.subscription.state(topic_partition)
            if state.position is not None:
                return state.position
            if state.error is not None:
                raise state.error
            core.cluster  # noqa: B018 - raises unless the consumer runs
            if not await core.wait(deadline):
                raise DeadlineExceeded(
                    f"the position of {topic_partition}",
                    limit_ms / 1000,
                    RequestTimedOut("the brokers have not reported the start offset"),
                )

    def known_position(self, topic_partition: TopicPartition) -> int | None:
        """Returns the position if it is known, and None otherwise. Does not wait."""
        self._reading.settle()
        return self._core.subscription.state(topic_partition).position

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all positions that are known. `commit()` commits these."""
        self._reading.settle()
        return self._core.subscription.positions()

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Moves the position: the record at this offset is returned next, whatever was
        prefetched."""
        subscription = self._core.subscription
        self._reading.drop_run()
        state = subscription.state(topic_partition)
        if isinstance(offset, OffsetAndMetadata):
            subscription.seek(state, offset.offset, offset.leader_epoch)
        else:
            subscription.seek(state, offset)
        self._core.wake_fetcher()

    def seek_to_beginning(self, *topic_partitions: TopicPartition) -> None:
        """Seeks to the first record of these partitions, or of all assigned partitions."""
        self._look_up(topic_partitions, EARLIEST)

    def seek_to_end(self, *topic_partitions: TopicPartition) -> None:
        """Seeks to the end of these partitions, or of all assigned partitions."""
        self._look_up(topic_partitions, LATEST)

    def seek_to_time(self, when: int | datetime, *topic_partitions: TopicPartition) -> None:
        """Seeks to the first record at or after a time: milliseconds since 1970, or a datetime."""
        self._look_up(topic_partitions, milliseconds(when))

    def _look_up(self, topic_partitions: Sequence[TopicPartition], time: int) -> None:
        subscription = self._core.subscription
        self._reading.drop_run()
        for topic_partition in topic_partitions or list(subscription.states):
            subscription.look_up(subscription.state(topic_partition), time)
        self._core.wake_fetcher()

    def pause(self, *topic_partitions: TopicPartition) -> None:
        """Pauses these partitions: none of their records are returned until `resume`.

        Their positions do not change.
        """
        self._reading.drop_run()
        for topic_partition in topic_partitions:
            self._core.subscription.state(topic_partition).paused = True

    def resume(self, *topic_partitions: TopicPartition) -> None:
        """Resumes paused partitions."""
        for topic_partition in topic_partitions:
            self._core.subscription.state(topic_partition).paused = False
        self._core.news.set()
        self._core.wake_fetcher()

    def paused(self) -> frozenset[TopicPartition]:
        """Returns the partitions that are paused."""
        states = self._core.subscription.states
        return frozenset(
            topic_partition for topic_partition, state in states.items() if state.paused
        )

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Returns the number of offsets between the position and the end, or None while it is
        unknown."""
        self._reading.settle()
        committed_only = bool(self._options.isolation_level)
        return self._core.subscription.state(topic_partition).lag(committed_only=committed_only)
