"""Reads a range of a topic as Arrow batches, all partitions concurrently, in bounded memory.

The bounds are determined first: for every partition a first offset and an end, which is the current
end of the log if it was not given. Then the range is read as a consumer would read it, with its own
subscription, fetcher and connections, so that the consumer's positions do not move. A partition is
done when its position has reached its end. There is no reset policy: if a part of the range is no
longer in the log, or not yet, that is an error (`OutsideLog`), because the caller wants all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

import pyarrow as pa

from penstock.client.admin.offsets import EARLIEST, LATEST, list_offsets
from penstock.client.cluster import Cluster
from penstock.client.consuming.fetcher import Fetcher, let_fetches_start
from penstock.client.consuming.positions import Positions, milliseconds
from penstock.client.consuming.subscription import PartitionState, Subscription
from penstock.client.consuming.tables import PARTITION_BYTES, TABLE_BYTES, Part, decode_parts
from penstock.client.errors import (
    DeadlineExceeded,
    NoOffset,
    OptionError,
    OutsideLog,
    RequestTimedOut,
    TopicNotFound,
)
from penstock.client.metrics import ConsumerMeter
from penstock.client.option_values import ResetPolicy
from penstock.client.options import ConsumerOptions
from penstock.topic_partition import TopicPartition

Bound = str | int | datetime | Mapping[int, int]
"""Where a range begins or ends: "earliest", "latest", a time, or an offset for each partition."""

_HELD_BYTES: Final = 32 << 20
_UNBOUNDED: Final = 1 << 30
_MARKS: Final = {"earliest": EARLIEST, "latest": LATEST}


class RangeReader:
    """Reads one range of a topic."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions, *, headers: bool) -> None:
        self._cluster = cluster
        self._options = replace(
            options,
            max_partition_fetch_bytes=max(options.max_partition_fetch_bytes, PARTITION_BYTES),
            queued_bytes_max=min(options.queued_bytes_max, _HELD_BYTES),
        )
        self._headers = headers
        self._news = asyncio.Event()
        committed_only = bool(options.isolation_level)
        self._subscription = Subscription(
            check_crcs=options.check_crcs, committed_only=committed_only
        )
        self._ends: dict[TopicPartition, int] = {}

    async def read(
        self, topic: str, start: Bound, end: Bound, partitions: Iterable[int] | None
    ) -> AsyncIterator[pa.RecordBatch]:
        await self._settle_bounds(topic, start, end, partitions)
        positions = Positions(
            self._cluster,
            self._subscription,
            ResetPolicy("none"),
            isolation_level=self._options.isolation_level,
            committed=None,
            on_reset=lambda: None,
        )
        fetcher = Fetcher(
            self._cluster,
            self._subscription,
            positions,
            self._options,
            ConsumerMeter(),
            refresh=lambda: self._refresh(topic),
            on_news=self._news.set,
            purpose="read",
        )
        background = asyncio.create_task(fetcher.run(), name=f"penstock reads {topic}")
        background.add_done_callback(lambda _: self._news.set())
        try:
            while self._subscription.states:
                self._news.clear()
                await let_fetches_start()
                batch = self._take(topic)
                if batch is None:
                    await self._wait(background)
                    continue
                fetcher.wake()
                if batch.num_rows:
                    yield batch
        finally:
            background.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([background])

    # -- bounds ---------------------------------------------------------------------------------

    async def _settle_bounds(
        self, topic: str, start: Bound, end: Bound, partitions: Iterable[int] | None
    ) -> None:
        count = await self._cluster.partitions(topic)
        chosen = range(count) if partitions is None else sorted(set(partitions))
        topic_partitions = [TopicPartition(topic, partition) for partition in chosen]
        for topic_partition in topic_partitions:
            if not 0 <= topic_partition.partition < count:
                raise TopicNotFound(topic, topic_partition.partition)
        earliest = await self._find(dict.fromkeys(topic_partitions, EARLIEST))
        latest = await self._find(dict.fromkeys(topic_partitions, LATEST))
        starts = await self._offsets(topic_partitions, start, "start", latest)
        ends = await self._offsets(topic_partitions, end, "end", latest)
        for topic_partition in topic_partitions:
            if starts[topic_partition] >= ends[topic_partition]:
                continue
            for offset in (starts[topic_partition], ends[topic_partition]):
                if not earliest[topic_partition] <= offset <= latest[topic_partition]:
                    raise OutsideLog(
                        topic_partition, offset, earliest[topic_partition], latest[topic_partition]
                    )
            self._subscription.add([topic_partition])
            state = self._subscription.state(topic_partition)
            self._subscription.set_position(state, starts[topic_partition], -1)
            self._ends[topic_partition] = ends[topic_partition]

    async def _offsets(
        self,
        topic_partitions: list[TopicPartition],
        bound: Bound,
        name: str,
        latest: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        if isinstance(bound, Mapping):
            missing = [
                topic_partition.partition
                for topic_partition in topic_partitions
                if topic_partition.partition not in bound
            ]
            if missing:
                raise OptionError(
                    f"{name} gives no offset for partitions {missing}: add them, or name the "
                    "partitions to read"
                )
            return {
                topic_partition: bound[topic_partition.partition]
                for topic_partition in topic_partitions
            }
        if isinstance(bound, str):
            if bound not in _MARKS:
                raise OptionError(
                    f'{name} is {bound!r}: give "earliest", "latest", a time, or an offset for '
                    "each partition"
                )
            time = _MARKS[bound]
        else:
            time = milliseconds(bound)
        if time == LATEST:
            return latest
        found = await self._find(dict.fromkeys(topic_partitions, time))
        # If no record is at or after the time, the bound is the end of the log.
        return {
            topic_partition: found.get(topic_partition, latest[topic_partition])
            for topic_partition in topic_partitions
        }

    async def _find(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = await list_offsets(
            self._cluster,
            times,
            isolation_level=self._options.isolation_level,
            deadline_s=self._options.default_api_timeout_ms / 1000,
        )
        return {
            topic_partition: each.offset
            for topic_partition, each in found.items()
            if each is not None
        }

    # -- reading --------------------------------------------------------------------------------

    async def _refresh(self, topic: str) -> bool:
        await self._cluster.refresh([topic])
        return self._cluster.known_partitions(topic) is not None

    def _take(self, topic: str) -> pa.RecordBatch | None:
        """Returns what is buffered of all partitions; None if that is nothing."""
        parts: list[Part] = []
        left = TABLE_BYTES
        for topic_partition, state in list(self._subscription.states.items()):
            spans = state.buffer.peek(_UNBOUNDED, left) if left > 0 else []
            if spans:
                parts.append(Part(state, spans, state.buffer.floor, self._ends[topic_partition]))
                left -= sum(span.size for span in spans)
        if not parts:
            return None
        batch = decode_parts(
            topic, parts, headers=self._headers, check_crcs=self._options.check_crcs
        )
        for part in parts:
            self._passed(part.state, part.spans[-1].next_offset)
        return batch

    def _passed(self, state: PartitionState, next_offset: int) -> None:
        state.returned(next_offset, -1)
        state.buffer.advance_to(next_offset)
        if next_offset >= self._ends[state.topic_partition]:
            self._subscription.drop([state.topic_partition])
        else:
            # To the end of the line: partitions take turns.
            states = self._subscription.states
            states[state.topic_partition] = states.pop(state.topic_partition)

    async def _explain(self, error: NoOffset) -> None:
        """Raises `OutsideLog`: retention was faster than the reader."""
        for topic_partition, state in self._subscription.states.items():
            if state.error is error:
                start = (await self._find({topic_partition: EARLIEST})).get(topic_partition, -1)
                end = (await self._find({topic_partition: LATEST})).get(topic_partition, -1)
                raise OutsideLog(topic_partition, state.fetch_offset, start, end) from error

    async def _wait(self, background: asyncio.Task[None]) -> None:
        """Waits for data. Raises an error if nothing arrives for too long."""
        if background.done():
            background.result()
        error = self._subscription.take_error(0.0, again=True)
        if isinstance(error, NoOffset):
            await self._explain(error)
        if error is not None:
            raise error
        limit_s = self._options.default_api_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            waiting = ", ".join(
                str(topic_partition) for topic_partition in self._subscription.states
            )
            raise DeadlineExceeded(
                f"reading {waiting}", limit_s, RequestTimedOut("no broker sent anything")
            ) from None
