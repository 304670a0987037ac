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
from penstock.client.model import OffsetAndMetadata, TopicPartition


class PartitionControl:
    """The positions and pauses of one consumer. They are stored in its subscription."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._reading = core.reading
        self._options = core.options
        self._clock = core.env.clock

    async def position(self, place: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Returns the offset of the next record to be returned. Waits until it is known."""
        core = self._core
        limit_ms = self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._clock.monotonic() + limit_ms / 1000
        while True:
            core.news.clear()
            self._reading.settle()
            state = core.subscription.state(place)
            if state.position is not None:
                return state.position
            if state.error is not None:
                raise state.error
            core.cluster  # noqa: B018 - raises unless the consumer runs
            if not await core.wait(deadline):
                raise DeadlineExceeded(
                    f"the position of {place}",
                    limit_ms / 1000,
                    RequestTimedOut("the brokers have not reported the start offset"),
                )

    def known_position(self, place: TopicPartition) -> int | None:
        """Returns the position if it is known, and None otherwise. Does not wait."""
        self._reading.settle()
        return self._core.subscription.state(place).position

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all positions that are known. `commit()` commits these."""
        self._reading.settle()
        return self._core.subscription.positions()

    def seek(self, place: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Moves the position: the record at this offset is returned next, whatever was
        prefetched."""
        subscription = self._core.subscription
        self._reading.drop_run()
        state = subscription.state(place)
        if isinstance(offset, OffsetAndMetadata):
            subscription.seek(state, offset.offset, offset.leader_epoch)
        else:
            subscription.seek(state, offset)
        self._core.wake_fetcher()

    def seek_to_beginning(self, *places: TopicPartition) -> None:
        """Seeks to the first record of these partitions, or of all assigned partitions."""
        self._look_up(places, EARLIEST)

    def seek_to_end(self, *places: TopicPartition) -> None:
        """Seeks to the end of these partitions, or of all assigned partitions."""
        self._look_up(places, LATEST)

    def seek_to_time(self, when: int | datetime, *places: TopicPartition) -> None:
        """Seeks to the first record at or after a time: milliseconds since 1970, or a datetime."""
        self._look_up(places, milliseconds(when))

    def _look_up(self, places: Sequence[TopicPartition], time: int) -> None:
        subscription = self._core.subscription
        self._reading.drop_run()
        for place in places or list(subscription.states):
            subscription.look_up(subscription.state(place), time)
        self._core.wake_fetcher()

    def pause(self, *places: TopicPartition) -> None:
        """Pauses these partitions: none of their records are returned until `resume`.

        Their positions do not change.
        """
        self._reading.drop_run()
        for place in places:
            self._core.subscription.state(place).paused = True

    def resume(self, *places: TopicPartition) -> None:
        """Resumes paused partitions."""
        for place in places:
            self._core.subscription.state(place).paused = False
        self._core.news.set()
        self._core.wake_fetcher()

    def paused(self) -> frozenset[TopicPartition]:
        """Returns the partitions that are paused."""
        states = self._core.subscription.states
        return frozenset(place for place, state in states.items() if state.paused)

    def lag(self, place: TopicPartition) -> int | None:
        """Returns the number of offsets between the position and the end, or None while it is
        unknown."""
        self._reading.settle()
        committed_only = bool(self._options.isolation_level)
        return self._core.subscription.state(place).lag(committed_only=committed_only)
