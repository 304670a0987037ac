"""Where a sync consumer stands: positions, seeks, pauses, commits; the part that hands out nothing.

Every call is made on the loop's thread, even where it only looks something up: what it looks at is
changed there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from penstock.client.blocking.errands import Errands
from penstock.client.blocking.life import Life
from penstock.client.blocking.turns import Turns
from penstock.client.consuming.consumer import Consumer as AsyncConsumer
from penstock.client.consuming.core import OnCommit
from penstock.client.consuming.standing import CommitOffsets
from penstock.client.errors import ClientError
from penstock.client.membership.steps import Identity
from penstock.client.metrics import ConsumerMetrics
from penstock.client.model import OffsetAndMetadata, Record, TopicPartition
from penstock.client.offsets import FoundOffset

P = ParamSpec("P")
T = TypeVar("T")


class Kept:
    """What a poll had found when its caller was interrupted: handed to nobody.

    It holds no sync consumer, so that it can be put back when that one is garbage."""

    def __init__(self, core: AsyncConsumer[Any, Any]) -> None:
        self._async = core
        self.records: list[Record[Any, Any]] = []

    async def put_back(self) -> None:
        records, self.records = self.records, []
        assigned = self._async.assignment()
        for record in reversed(records):
            if record.place in assigned:
                self._async.seek(record.place, record.offset)

    async def close(self, timeout_s: float | None) -> None:
        """Close the consumer, and let it commit no record that nobody had."""
        await self.put_back()
        await self._async.close(timeout_s)


class Standing:
    def __init__(self, core: AsyncConsumer[Any, Any], errands: Errands) -> None:
        self._async = core
        self._errands = errands
        self._turns = Turns()
        self._kept = Kept(core)
        self._life = Life("consumer", core.env.clock, core.start, self._kept.close)

    # -- reaching the loop ----------------------------------------------------------------------

    def _wait(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout_s: float | None = None,
        watch: Callable[[], object] | None = None,
    ) -> T:
        """In turn; while it waits, this thread runs the listeners and handlers."""
        try:
            outermost = self._turns.begin()
        except ClientError:
            coroutine.close()
            raise
        try:
            # A listener that calls its consumer waits within a wait, with a queue of its own.
            errands = self._errands if outermost else None
            if self._kept.records:
                self._life.call(self._kept.put_back())
            return self._life.call(coroutine, timeout_s, errands=errands, watch=watch)
        finally:
            self._turns.end(outermost)

    def _do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A plain function, on the loop's thread."""

        async def call() -> T:
            return function(*args, **kwargs)

        return self._wait(call())

    @property
    def membership(self) -> tuple[str, Identity]:
        """The group, and how this consumer signed there when it last handed out records: for
        commits in a producer's transaction."""

        async def look() -> tuple[str, Identity]:
            return self._async.membership

        return self._wait(look())

    # -- positions ------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads at the moment."""
        return self._do(self._async.assignment)

    def position(self, place: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The next offset to be handed out; waits until it is known."""
        return self._wait(self._async.position(place, timeout_ms=timeout_ms))

    def known_position(self, place: TopicPartition) -> int | None:
        return self._do(self._async.known_position, place)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All positions that are known: what `commit()` commits."""
        return self._do(self._async.positions)

    def seek(self, place: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Hand out this offset next, whatever was fetched ahead."""
        self._do(self._async.seek, place, offset)

    def seek_to_beginning(self, *places: TopicPartition) -> None:
        self._do(self._async.seek_to_beginning, *places)

    def seek_to_end(self, *places: TopicPartition) -> None:
        self._do(self._async.seek_to_end, *places)

    def seek_to_time(self, when: int | datetime, *places: TopicPartition) -> None:
        """To the first record at or after a time, in milliseconds since 1970 or as a datetime."""
        self._do(self._async.seek_to_time, when, *places)

    def pause(self, *places: TopicPartition) -> None:
        """Hand out nothing of these until they are resumed; the place in the log is kept."""
        self._do(self._async.pause, *places)

    def resume(self, *places: TopicPartition) -> None:
        self._do(self._async.resume, *places)

    def paused(self) -> frozenset[TopicPartition]:
        return self._do(self._async.paused)

    def lag(self, place: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end; None while that is not known."""
        return self._do(self._async.lag, place)

    # -- offsets --------------------------------------------------------------------------------

    def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commit these offsets, or all positions, in the name of the group, and wait for it."""
        self._wait(self._async.commit(offsets))

    def commit_nowait(
        self, offsets: CommitOffsets | None = None, on_commit: OnCommit | None = None
    ) -> None:
        """The same without waiting; commits keep their order. A failure is told to `on_commit`, on
        the consumer's own thread, or else logged."""
        self._do(self._async.commit_nowait, offsets, on_commit)

    def committed(self, *places: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for these partitions, or for all that are assigned."""
        return self._wait(self._async.committed(*places))

    def hold_auto_commit(self) -> None:
        """From now on commit only what is asked for."""
        self._do(self._async.hold_auto_commit)

    def release_auto_commit(self) -> None:
        self._do(self._async.release_auto_commit)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """The first record at or after each time; None where there is none that young."""
        return self._wait(self._async.offsets_for_times(times))

    def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._wait(self._async.beginning_offsets(places))

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the next record will be; with read_committed, where the first open transaction
        begins."""
        return self._wait(self._async.end_offsets(places))

    # -- the cluster ----------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> int:
        return self._wait(self._async.partitions_for(topic))

    def topics(self) -> dict[str, int]:
        """All topics, with the number of their partitions."""
        return self._wait(self._async.topics())

    def metrics(self) -> ConsumerMetrics:
        return self._do(self._async.metrics)
