"""Where a consumer stands, as its users ask and tell it: positions, seeks, pauses, commits.

Asking and telling take effect at once and wait for nothing, unless the answer lies with a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from penstock.client.consuming.core import ConsumerCore, OnCommit
from penstock.client.consuming.positions import milliseconds
from penstock.client.environment import ClientEnv
from penstock.client.errors import ClientError, DeadlineExceeded, RequestTimedOut
from penstock.client.membership.steps import Identity
from penstock.client.metrics import ConsumerMetrics
from penstock.client.model import OffsetAndMetadata, TopicPartition
from penstock.client.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from penstock.client.options import ConsumerOptions

CommitOffsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class Standing:
    """The part of `Consumer` that hands out no records."""

    def __init__(self, options: ConsumerOptions, env: ClientEnv, core: ConsumerCore) -> None:
        self.options = options
        self.env = env
        self._core = core
        self._reading = core.reading

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads at the moment."""
        return frozenset(self._core.subscription.states)

    @property
    def membership(self) -> tuple[str, Identity]:
        """The group, and how this consumer signed there when it last handed out records: for
        commits in a producer's transaction."""
        return self._core.membership

    # -- positions ------------------------------------------------------------------------------

    async def position(self, place: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The next offset to be handed out; waits until it is known."""
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
                    f"the position in {place}",
                    limit_ms / 1000,
                    RequestTimedOut("nobody has said where to begin"),
                )

    def known_position(self, place: TopicPartition) -> int | None:
        self._reading.settle()
        return self._core.subscription.state(place).position

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All positions that are known: what `commit()` commits."""
        self._reading.settle()
        return self._core.subscription.positions()

    def seek(self, place: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Hand out this offset next, whatever was fetched ahead."""
        subscription = self._core.subscription
        self._reading.drop_run()
        state = subscription.state(place)
        if isinstance(offset, OffsetAndMetadata):
            subscription.seek(state, offset.offset, offset.leader_epoch)
        else:
            subscription.seek(state, offset)
        self._core.wake_fetcher()

    def seek_to_beginning(self, *places: TopicPartition) -> None:
        self._look_up(places, EARLIEST)

    def seek_to_end(self, *places: TopicPartition) -> None:
        self._look_up(places, LATEST)

    def seek_to_time(self, when: int | datetime, *places: TopicPartition) -> None:
        """To the first record at or after a time, in milliseconds since 1970 or as a datetime."""
        self._look_up(places, milliseconds(when))

    def _look_up(self, places: Sequence[TopicPartition], time: int) -> None:
        subscription = self._core.subscription
        self._reading.drop_run()
        for place in places or list(subscription.states):
            subscription.look_up(subscription.state(place), time)
        self._core.wake_fetcher()

    def pause(self, *places: TopicPartition) -> None:
        """Hand out nothing of these until they are resumed; the place in the log is kept."""
        self._reading.drop_run()
        for place in places:
            self._core.subscription.state(place).paused = True

    def resume(self, *places: TopicPartition) -> None:
        for place in places:
            self._core.subscription.state(place).paused = False
        self._core.news.set()
        self._core.wake_fetcher()

    def paused(self) -> frozenset[TopicPartition]:
        states = self._core.subscription.states
        return frozenset(place for place, state in states.items() if state.paused)

    def lag(self, place: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end; None while that is not known."""
        self._reading.settle()
        committed_only = bool(self.options.isolation_level)
        return self._core.subscription.state(place).lag(committed_only=committed_only)

    # -- offsets --------------------------------------------------------------------------------

    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commit these offsets, or all positions, in the name of the group, and wait for it."""
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
        """The same without waiting; commits keep their order. A failure is told to `on_commit`, or
        else logged."""
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
        """What the group has committed for these partitions, or for all that are assigned."""
        return await self._core.committer.committed(places or self.assignment())

    def hold_auto_commit(self) -> None:
        """From now on commit only what is asked for, until as many releases as holds came."""
        self._core.auto_commit_holds += 1

    def release_auto_commit(self) -> None:
        self._core.auto_commit_holds -= 1

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """The first record at or after each time; None where there is none that young."""
        return await self._find({place: milliseconds(when) for place, when in times.items()})

    async def beginning_offsets(
        self, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        found = await self._find(dict.fromkeys(places, EARLIEST))
        return {place: each.offset for place, each in found.items() if each is not None}

    async def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the next record will be; with read_committed, where the first open transaction
        begins."""
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
        return await self._core.cluster.partitions(topic)

    async def topics(self) -> dict[str, int]:
        """All topics, with the number of their partitions."""
        return await self._core.list_topics()

    def metrics(self) -> ConsumerMetrics:
        return self._core.snapshot()
