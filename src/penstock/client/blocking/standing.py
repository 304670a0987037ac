"""A sync consumer's positions, seeks, pauses and commits: the methods that return no records.

Every call runs on the event loop's thread, even simple lookups, because that thread changes the
state they read.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from penstock.client.admin.offsets import FoundOffset
from penstock.client.blocking.caller_executor import CallerExecutor
from penstock.client.blocking.lifecycle import Lifecycle
from penstock.client.blocking.thread_guard import ThreadGuard
from penstock.client.consuming.consumer import Consumer as AsyncConsumer
from penstock.client.consuming.core import OnCommit
from penstock.client.consuming.standing import CommitOffsets
from penstock.client.errors import ClientError
from penstock.client.membership.steps import Identity
from penstock.client.metrics import ConsumerMetrics
from penstock.client.model import OffsetAndMetadata, Record, TopicPartition

P = ParamSpec("P")
T = TypeVar("T")


class Kept:
    """The records of a poll whose caller was interrupted before it received them.

    It does not refer to the sync consumer, so that the records can be put back when the garbage
    collector has removed that consumer.
    """

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
        """Puts the records back, so that they are not committed, and closes the consumer."""
        await self.put_back()
        await self._async.close(timeout_s)


class Standing:
    """The base class of the sync `Consumer`, with the methods that return no records."""

    def __init__(self, core: AsyncConsumer[Any, Any], on_caller: CallerExecutor) -> None:
        self._async = core
        self._on_caller = on_caller
        self._turns = ThreadGuard()
        self._kept = Kept(core)
        self._life = Lifecycle("consumer", core.env.clock, core.start, self._kept.close)

    # -- calls on the event loop ----------------------------------------------------------------

    def _wait(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout_s: float | None = None,
        watch: Callable[[], object] | None = None,
    ) -> T:
        """Runs a coroutine on the loop while holding the turn. Meanwhile this thread runs listeners
        and handlers."""
        try:
            outermost = self._turns.begin()
        except ClientError:
            coroutine.close()
            raise
        try:
            # A listener may call its consumer: a wait within a wait, which needs its own queue.
            on_caller = self._on_caller if outermost else None
            if self._kept.records:
                self._life.call(self._kept.put_back())
            return self._life.call(coroutine, timeout_s, on_caller=on_caller, watch=watch)
        finally:
            self._turns.end(outermost)

    def _do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a plain function on the event loop's thread."""

        async def call() -> T:
            return function(*args, **kwargs)

        return self._wait(call())

    @property
    def membership(self) -> tuple[str, Identity]:
        """The group's name, and this consumer's membership when it last returned records.

        Used to commit offsets in a producer's transaction.
        """

        async def look() -> tuple[str, Identity]:
            return self._async.membership

        return self._wait(look())

    # -- positions ------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this consumer reads at the moment."""
        return self._do(self._async.assignment)

    def position(self, place: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Returns the offset of the next record to be returned. Waits until it is known."""
        return self._wait(self._async.position(place, timeout_ms=timeout_ms))

    def known_position(self, place: TopicPartition) -> int | None:
        """Returns the position if it is known, and None otherwise. Does not wait."""
        return self._do(self._async.known_position, place)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all positions that are known. `commit()` commits these."""
        return self._do(self._async.positions)

    def seek(self, place: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Moves the position: the record at this offset is returned next, whatever was
        prefetched."""
        self._do(self._async.seek, place, offset)

    def seek_to_beginning(self, *places: TopicPartition) -> None:
        """Seeks to the first record of these partitions, or of all assigned partitions."""
        self._do(self._async.seek_to_beginning, *places)

    def seek_to_end(self, *places: TopicPartition) -> None:
        """Seeks to the end of these partitions, or of all assigned partitions."""
        self._do(self._async.seek_to_end, *places)

    def seek_to_time(self, when: int | datetime, *places: TopicPartition) -> None:
        """Seeks to the first record at or after a time: milliseconds since 1970, or a datetime."""
        self._do(self._async.seek_to_time, when, *places)

    def pause(self, *places: TopicPartition) -> None:
        """Pauses these partitions: none of their records are returned until `resume`.

        Their positions do not change.
        """
        self._do(self._async.pause, *places)

    def resume(self, *places: TopicPartition) -> None:
        """Resumes paused partitions."""
        self._do(self._async.resume, *places)

    def paused(self) -> frozenset[TopicPartition]:
        """Returns the partitions that are paused."""
        return self._do(self._async.paused)

    def lag(self, place: TopicPartition) -> int | None:
        """Returns the number of offsets between the position and the end, or None while it is
        unknown."""
        return self._do(self._async.lag, place)

    # -- offsets --------------------------------------------------------------------------------

    def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commits these offsets, or all positions, for the group, and waits for the answer."""
        self._wait(self._async.commit(offsets))

    def commit_nowait(
        self, offsets: CommitOffsets | None = None, on_commit: OnCommit | None = None
    ) -> None:
        """Commits like `commit`, without waiting. Commits keep their order.

        A failure is passed to `on_commit`, on the consumer's own thread, or logged if there is
        none.
        """
        self._do(self._async.commit_nowait, offsets, on_commit)

    def committed(self, *places: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets of these partitions, or of all assigned
        partitions."""
        return self._wait(self._async.committed(*places))

    def hold_auto_commit(self) -> None:
        """Stops auto-commit until `release_auto_commit` has been called once for each hold."""
        self._do(self._async.hold_auto_commit)

    def release_auto_commit(self) -> None:
        """Undoes one `hold_auto_commit`."""
        self._do(self._async.release_auto_commit)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Returns the first record at or after each time, or None where there is no such record."""
        return self._wait(self._async.offsets_for_times(times))

    def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return self._wait(self._async.beginning_offsets(places))

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset that the next record will get; with read_committed, the last stable
        offset."""
        return self._wait(self._async.end_offsets(places))

    # -- the cluster ----------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> int:
        """Returns the number of the topic's partitions."""
        return self._wait(self._async.partitions_for(topic))

    def topics(self) -> dict[str, int]:
        """Returns all topics with their numbers of partitions."""
        return self._wait(self._async.topics())

    def metrics(self) -> ConsumerMetrics:
        """Returns a snapshot of this consumer's metrics."""
        return self._do(self._async.metrics)
