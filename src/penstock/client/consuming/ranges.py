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
from penstock.client.model import TopicPartition
from penstock.client.option_values import ResetPolicy
from penstock.client.options import ConsumerOptions

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
        places = [TopicPartition(topic, partition) for partition in chosen]
        for place in places:
            if not 0 <= place.partition < count:
                raise TopicNotFound(topic, place.partition)
        earliest = await self._find(dict.fromkeys(places, EARLIEST))
        latest = await self._find(dict.fromkeys(places, LATEST))
        starts = await self._offsets(places, start, "start", latest)
        ends = await self._offsets(places, end, "end", latest)
        for place in places:
            if starts[place] >= ends[place]:
                continue
            for offset in (starts[place], ends[place]):
                if not earliest[place] <= offset <= latest[place]:
                    raise OutsideLog(place, offset, earliest[place], latest[place])
            self._subscription.add([place])
            state = self._subscription.state(place)
            self._subscription.set_position(state, starts[place], -1)
            self._ends[place] = ends[place]

    async def _offsets(
        self,
        places: list[TopicPartition],
        bound: Bound,
        name: str,
        latest: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        if isinstance(bound, Mapping):
            missing = [place.partition for place in places if place.partition not in bound]
            if missing:
                raise OptionError(
                    f"{name} gives no offset for partitions {missing}: add them, or name the "
                    "partitions to read"
                )
            return {place: bound[place.partition] for place in places}
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
        found = await self._find(dict.fromkeys(places, time))
        # If no record is at or after the time, the bound is the end of the log.
        return {place: found.get(place, latest[place]) for place in places}

    async def _find(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = await list_offsets(
            self._cluster,
            times,
            isolation_level=self._options.isolation_level,
            deadline_s=self._options.default_api_timeout_ms / 1000,
        )
        return {place: each.offset for place, each in found.items() if each is not None}

    # -- reading --------------------------------------------------------------------------------

    async def _refresh(self, topic: str) -> bool:
        await self._cluster.refresh([topic])
        return self._cluster.known_partitions(topic) is not None

    def _take(self, topic: str) -> pa.RecordBatch | None:
        """Returns what is buffered of all partitions; None if that is nothing."""
        parts: list[Part] = []
        left = TABLE_BYTES
        for place, state in list(self._subscription.states.items()):
            spans = state.buffer.peek(_UNBOUNDED, left) if left > 0 else []
            if spans:
                parts.append(Part(state, spans, state.buffer.floor, self._ends[place]))
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
        if next_offset >= self._ends[state.place]:
            self._subscription.drop([state.place])
        else:
            # To the end of the line: partitions take turns.
            states = self._subscription.states
            states[state.place] = states.pop(state.place)

    async def _explain(self, error: NoOffset) -> None:
        """Raises `OutsideLog`: retention was faster than the reader."""
        for place, state in self._subscription.states.items():
            if state.error is error:
                start = (await self._find({place: EARLIEST})).get(place, -1)
                end = (await self._find({place: LATEST})).get(place, -1)
                raise OutsideLog(place, state.fetch_offset, start, end) from error

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
            waiting = ", ".join(str(place) for place in self._subscription.states)
            raise DeadlineExceeded(
                f"reading {waiting}", limit_s, RequestTimedOut("no broker sent anything")
            ) from None
