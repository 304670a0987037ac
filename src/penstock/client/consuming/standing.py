"""A consumer's positions, seeks, pauses and commits: the methods that return no records.

Calls take effect immediately and do not wait, unless the answer has to come from a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from penstock.client.admin.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from penstock.client.consuming.core import ConsumerCore, OnCommit
from penstock.client.consuming.positions import milliseconds
from penstock.client.environment import ClientEnv
from penstock.client.errors import ClientError, DeadlineExceeded, RequestTimedOut
from penstock.client.membership.steps import Identity
from penstock.client.metrics import ConsumerMetrics
from penstock.client.model import OffsetAndMetadata, TopicPartition
from penstock.client.options import ConsumerOptions

CommitOffsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class Standing:
    """The base class of `Consumer`, with the methods that return no records."""

    def __init__(self, options: ConsumerOptions, env: ClientEnv, core: ConsumerCore) -> None:
        self.options = options
        self.env = env
        self._core = core
        self._reading = core.reading

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this consumer reads at the moment."""
        return frozenset(self._core.subscription.states)

    @property
    def membership(self) -> tuple[str, Identity]:
        """The group's name, and this consumer's membership when it last returned records.

        Used to commit offsets in a producer's transaction.
        """
        return self._core.membership

    # -- positions ------------------------------------------------------------------------------

    async def position(self, place: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Returns the offset of the next record to be returned. Waits until it is known."""
        core = self._core
        limit_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self.env.clock.monotonic() + limit_ms / 1000
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
        committed_only = bool(self.options.isolation_level)
        return self._core.subscription.state(place).lag(committed_only=committed_only)

    # -- offsets --------------------------------------------------------------------------------

    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commits these offsets, or all positions, for the group, and waits for the answer."""
        clock, meter = self.env.clock, self._core.meter
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
            return self.positions()
        return {
            TopicPartition(*place): (
                offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            )
            for place, offset in offsets.items()
        }

    async def committed(
        self, *places: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets of these partitions, or of all assigned
        partitions."""
        return await self._core.committer.committed(places or self.assignment())

    def hold_auto_commit(self) -> None:
        """Stops auto-commit until `release_auto_commit` has been called once for each hold."""
        self._core.auto_commit_holds += 1

    def release_auto_commit(self) -> None:
        """Undoes one `hold_auto_commit`."""
        self._core.auto_commit_holds -= 1

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Returns the first record at or after each time, or None where there is no such record."""
        return await self._find({place: milliseconds(when) for place, when in times.items()})

    async def beginning_offsets(
        self, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        found = await self._find(dict.fromkeys(places, EARLIEST))
        return {place: each.offset for place, each in found.items() if each is not None}

    async def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset that the next record will get; with read_committed, the last stable
        offset."""
        found = await self._find(dict.fromkeys(places, LATEST))
        return {place: each.offset for place, each in found.items() if each is not None}

    async def _find(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | None]:
        return await list_offsets(
            self._core.cluster,
            times,
            isolation_level=self.options.isolation_level,
            deadline_s=self.options.default_api_timeout_ms / 1000,
        )

    # -- the cluster ----------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> int:
        """Returns the number of the topic's partitions."""
        return await self._core.cluster.partitions(topic)

    async def topics(self) -> dict[str, int]:
        """Returns all topics with their numbers of partitions."""
        return await self._core.list_topics()

    def metrics(self) -> ConsumerMetrics:
        """Returns a snapshot of this consumer's metrics."""
        return self._core.snapshot()
