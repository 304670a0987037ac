"""Serves a fetch of thousands of partitions in slices, with other requests in between.

The outcome is that of a small fetch (`handlers/fetch`). The following may change between two
slices, without harm:

- A partition gets more records after it was read. The fetch registers as a listener in the same
  event loop iteration in which it reads the partition, so it misses no record. (A small fetch
  registers after it has read all partitions.)
- A partition is moved or deleted. If it was read before that, the result is still correct, as it is
  when a response takes long on the network. If it is read after that, the answer is an error. Both
  end the wait.
- The session is ended, or replaced by its client on another connection. The fetch continues with
  the partitions it has, and the client gets the error with its next request.
- The leadership of a partition ends while a follower fetches it. The fetch offset is counted in the
  leadership that exists when the partition is read (`HostedPartition.on_follower_fetch`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import in_slices
from penstock.broker.handlers.fetch_reads import IDS_SINCE, READ_COMMITTED, FetchReads, Reading
from penstock.broker.handlers.fetch_sender import fetching_follower, read_rights
from penstock.broker.handlers.large_requests import free
from penstock.broker.partitions.fetch_sessions import Session, Wanted
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.parked_requests import COMMITS_S, DataWait, end_with_news_of_roles
from penstock.wire.messages import FetchRequest, FetchResponse


class PartitionsWait(DataWait[None]):
    """A `DataWait` to which partitions are added, and from which they are removed, in portions."""

    __slots__ = ()

    def __init__(self, bytes_due: int, timeout_s: float, *, appends: bool, stable: bool) -> None:
        super().__init__((), bytes_due, timeout_s, lambda: None, appends=appends, stable=stable)

    def count_read(self, size: int) -> None:
        """Subtracts the bytes that were read already from the bytes to wait for."""
        self._bytes_due -= size
        if self._bytes_due <= 0:
            self._end()

    def end_within(self, seconds: float) -> None:
        # This may be called while the partitions are being removed, after the wait has ended.
        if not self.future.done():
            super().end_within(seconds)

    def _forget(self, _: object) -> None:
        """Cancels the timers. `remove` removes the partitions, in portions."""
        self._timer.cancel()
        if self._soon is not None:
            self._soon.cancel()

    def end(self) -> None:
        self._end()

    def remove(self, count: int) -> bool:
        """Stops listening to up to `count` partitions. Returns whether there are more."""
        portion = list(islice(self._seen, count))
        self._unlisten(portion)
        for hosted in portion:
            del self._seen[hosted]
        return bool(self._seen)


class LargeFetch:
    def __init__(self, request: FetchRequest, context: RequestContext, *, privileged: bool) -> None:
        self._request = request
        self._context = context
        self._privileged = privileged
        self._services = context.services
        self._now = context.services.env.clock.monotonic
        self._slices = context.slices()
        self._portion = context.slicing.fetch_portion

    async def serve(self) -> FetchResponse:
        request = self._request
        began = self._now()
        session, wanted = await self._begin(began)
        await free(request, self._slices)  # `wanted` has everything that is needed.
        version = self._context.version
        may_read = read_rights(self._context, fetching_follower(request, version))
        meter = None if self._privileged else self._context.meter
        fetch = FetchReads(request, self._services, session, wanted, version, may_read, meter)
        wait: PartitionsWait | None = None
        if request.max_wait_ms > 0:
            wait = PartitionsWait(
                request.min_bytes,
                request.max_wait_ms / 1000,
                appends=fetch.is_from_follower,
                stable=request.isolation_level == READ_COMMITTED and not fetch.is_from_follower,
            )
        try:
            return await self._answer(fetch, await self._read_enough(fetch, wait))
        finally:
            if wait is not None:
                wait.end()
                while wait.remove(self._portion):
                    await self._slices.give_way()
            while fetch.wanted:
                del fetch.wanted[-self._portion :]
                await self._slices.give_way()

    async def _begin(self, now: float) -> tuple[Session | None, list[Wanted]]:
        steps = self._services.fetch_sessions.beginning(
            self._request,
            now,
            by_id=self._context.version >= IDS_SINCE,
            privileged=self._privileged,
        )
        return await in_slices(steps, self._slices)

    async def _read_enough(self, fetch: FetchReads, wait: PartitionsWait | None) -> Reading:
        request = self._request
        deadline = self._now() + request.max_wait_ms / 1000
        if wait is not None and fetch.is_from_follower:
            # Before the first read, so that a change of role after the read is not missed.
            forget_roles = end_with_news_of_roles(wait, self._services.replicas)
        reading = fetch.begin()
        for start, stop in self._portions(fetch):
            fetch.look_up(start, stop)
            fetch.read_some(reading, start, stop)
            if wait is not None:
                wait.add(_readable(fetch, start, stop))
            await self._slices.give_way()
        if (
            wait is None
            or reading.size >= request.min_bytes
            or reading.must_answer
            or self._now() >= deadline
        ):
            return reading
        if fetch.is_from_follower and not fetch.is_early:
            forget_roles()
        wait.count_read(reading.size)
        if fetch.throttled:
            wait.end_within(fetch.throttled_ms / 1000)
        if fetch.is_behind:
            wait.end_within(COMMITS_S)
        await wait.future
        reading = fetch.begin()
        for start, stop in self._portions(fetch):
            fetch.read_some(reading, start, stop)
            await self._slices.give_way()
        return reading

    async def _answer(self, fetch: FetchReads, reading: Reading) -> FetchResponse:
        if fetch.is_over_quota(reading):
            return fetch.empty_answer()
        response = fetch.begin_answer()
        for start, stop in self._portions(fetch):
            fetch.answer_some(response, reading, start, stop)
            reading.free(start, stop)
            await self._slices.give_way()
        # Even with thousands of partitions in the session, most responses name only a few.
        answered = sum([len(topic.partitions) for topic in response.responses])
        self._context.is_large = answered > self._context.slicing.elements
        return response

    def _portions(self, fetch: FetchReads) -> Iterator[tuple[int, int]]:
        for start in range(0, len(fetch.wanted), self._portion):
            yield start, start + self._portion


def _readable(fetch: FetchReads, start: int, stop: int) -> Iterable[HostedPartition]:
    for hosted in fetch.hosted[start:stop]:
        if hosted is not None and hosted not in fetch.throttled:
            yield hosted
