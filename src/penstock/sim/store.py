"""The metadata store of a simulated cluster: a linearizable model, and each node's port to it.

`StoreModel` is the store: a request that reaches it takes effect at one instant. `SimStore` is the
`MetadataStore` port of one node, and behaves as the etcd client does: a request may be late, lost,
or executed with its reply lost. Requests that are safe to repeat are repeated until the timeout;
then the store is `StoreUnreachable`. A commit is sent once: without a reply its outcome is unknown.

Leases expire by virtual time, whether their holder is frozen or not. During an outage of the
whole store no lease expires, and all are extended by their full time when it ends, as with etcd's
next leader.

Watches show every change after a lag, in order, whole revisions at a time. A node that is
cut off sees nothing until it is reconnected. If changes have been dropped by then, it
gets `RevisionNotKept`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Any, Final, TypeVar

from penstock.ports import Committed, Compare, Delete, KeyValue, Put, WatchEvent
from penstock.sim.loop import SimLoop
from penstock.sim.process import Process
from penstock.stores.errors import (
    LeaseNotFound,
    OutcomeUnknown,
    RevisionNotKept,
    StoreClosed,
    StoreFull,
    StoreUnreachable,
)

T = TypeVar("T")
_TRUST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class StoreConfig:
    delay_min_s: float = 0.0005
    delay_mean_s: float = 0.002
    """Each way."""
    watch_lag_s: float = 0.003
    """The mean, on top of the delay."""
    lost_request_chance: float = 0.0
    lost_reply_chance: float = 0.0
    attempt_timeout_s: float = 1.5
    timeout_s: float = 5.0


@dataclass(slots=True)
class _Lease:
    holder: str
    ttl_s: float
    deadline: float
    renewed_at: float
    """When the last renewal arrived, or when it was granted."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """A lease that was not renewed in time."""

    lease: int
    holder: str
    renewed_at: float
    """The time of the loop."""


class StoreModel:
    def __init__(self, loop: SimLoop, config: StoreConfig, draws: Random) -> None:
        self.loop = loop
        self.config = config
        self.draws = draws
        self.revision = 0
        self.entries: dict[str, KeyValue] = {}
        self.leases: dict[int, _Lease] = {}
        self.renewing: set[int] = set()
        """Leases whose holder has sent a renewal that is not answered yet."""
        self.expiries: list[Expiry] = []
        self.unreachable_from: dict[str, None] = {}
        """Names of nodes that cannot reach the store."""
        self.outage = False
        self.extra_lag_s = 0.0
        self.lags_s: dict[str, float] = {}
        """By node: how much later its watches show changes than those of other nodes."""
        self.extra_delay_s = 0.0
        """Each way: the disk under the store is slow."""
        self.full = False
        """No space for a write. Reads and lease renewals continue."""
        self._first_kept = 1
        self._changes: list[tuple[int, tuple[WatchEvent, ...]]] = []
        self._last_lease = 0
        self._watches: dict[_Watch, None] = {}
        self._listeners: list[Callable[[Sequence[WatchEvent]], None]] = []

    def listen(self, listener: Callable[[Sequence[WatchEvent]], None]) -> None:
        """Registers a listener that receives every change at the instant it is made. For checks."""
        self._listeners.append(listener)

    # Faults

    def compact(self) -> None:
        """Drops the changes before the current revision."""
        self._first_kept = self.revision + 1
        self._changes.clear()
        for watch in list(self._watches):
            watch.wake()

    def set_outage(self, on: bool) -> None:
        self.outage = on
        if not on:
            for number, lease in self.leases.items():
                lease.deadline = self.loop.now + lease.ttl_s
                self._expire_at(number, lease.deadline)
            self.reached()

    def cut(self, name: str, on: bool) -> None:
        if on:
            self.unreachable_from[name] = None
        else:
            self.unreachable_from.pop(name, None)
            self.reached()

    def heal(self) -> None:
        self.config = replace(self.config, lost_request_chance=0.0, lost_reply_chance=0.0)
        self.extra_lag_s = 0.0
        self.lags_s.clear()
        self.extra_delay_s = 0.0
        self.full = False
        self.unreachable_from.clear()
        if self.outage:
            self.set_outage(False)
        self.reached()

    def reached(self) -> None:
        """Brings the watches up to date: a node may be able to reach the store again."""
        for watch in list(self._watches):
            self._show(watch)

    def is_cut(self, name: str) -> bool:
        return self.outage or name in self.unreachable_from

    def late_leases(self) -> frozenset[int]:
        """Returns the leases in use that may expire soon, although all faults have been healed.

        The holder waits for the answer to a renewal, which may never come, or it has not sent a
        renewal for longer than it should, because it was frozen.
        """
        used = sorted({entry.lease for entry in self.entries.values() if entry.lease})
        return frozenset(
            number
            for number in used
            if number in self.renewing
            or self.loop.now - self.leases[number].renewed_at > self.leases[number].ttl_s / 3
        )

    # Operations of the store, each at one instant

    def get(self, key: str) -> KeyValue | None:
        return self.entries.get(key)

    def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        found = [self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)]
        return found, self.revision

    def commit(self, compares: Sequence[Compare], changes: Sequence[Put | Delete]) -> Committed:
        for change in changes:
            if isinstance(change, Put) and change.lease and change.lease not in self.leases:
                raise LeaseNotFound(change.lease)
        for compare in compares:
            entry = self.entries.get(compare.key)
            if (0 if entry is None else entry.modify_revision) != compare.modify_revision:
                return Committed(succeeded=False, revision=self.revision)
        if changes:
            self._require_room()
        self._write(changes)
        return Committed(succeeded=True, revision=self.revision)

    def _require_room(self) -> None:
        if self.full:
            raise StoreFull("the simulated store is full: wait until it has room")

    def grant_lease(self, ttl_s: float, holder: str) -> int:
        self._require_room()
        self._last_lease += 1
        now = self.loop.now
        deadline = now + ttl_s
        self.leases[self._last_lease] = _Lease(holder, ttl_s, deadline, now)
        self._expire_at(self._last_lease, deadline)
        return self._last_lease

    def keep_alive(self, number: int) -> bool:
        lease = self.leases.get(number)
        if lease is None:
            return False
        lease.renewed_at = self.loop.now
        lease.deadline = lease.renewed_at + lease.ttl_s
        return True

    def revoke_lease(self, number: int) -> None:
        if self.leases.pop(number, None) is not None:
            held = sorted(key for key, entry in self.entries.items() if entry.lease == number)
            self._write([Delete(key) for key in held])

    def changes_from(self, position: int, shown: int, prefix: str) -> tuple[list[WatchEvent], int]:
        """Returns the changes under a prefix from one revision to another, and the position to
        continue from."""
        if position < self._first_kept:
            raise RevisionNotKept(position, self._first_kept)
        events: list[WatchEvent] = []
        for revision, changes in self._changes[max(0, position - self._first_kept) :]:
            if revision > shown:
                break
            events += [event for event in changes if event.key.startswith(prefix)]
        return events, max(position, shown + 1)

    def _write(self, changes: Sequence[Put | Delete]) -> None:
        revision = self.revision + 1
        events: list[WatchEvent] = []
        for change in changes:
            before = self.entries.get(change.key)
            if isinstance(change, Put):
                created = revision if before is None else before.create_revision
                self.entries[change.key] = KeyValue(
                    change.key, change.value, created, revision, change.lease
                )
                events.append(WatchEvent(change.key, change.value, revision))
            elif before is not None:
                del self.entries[change.key]
                events.append(WatchEvent(change.key, None, revision))
        if not events:
            return
        self.revision = revision
        self._changes.append((revision, tuple(events)))
        self.loop.trace.mark("revision", len(events), revision)
        for listener in self._listeners:
            listener(events)
        for watch in list(self._watches):
            self._show(watch)

    def _expire_at(self, number: int, deadline: float) -> None:
        self.loop.call_at(deadline, self._expire, number, context=self.loop.world.context)

    def _expire(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is None or self.outage:
            return
        if lease.deadline > self.loop.now:
            self._expire_at(number, lease.deadline)
            return
        self.loop.trace.tell(f"store: lease {number} expires")
        self.expiries.append(Expiry(number, lease.holder, lease.renewed_at))
        self.revoke_lease(number)

    # Watches

    def add(self, watch: _Watch) -> None:
        self._watches[watch] = None
        self._show(watch)

    def remove(self, watch: _Watch) -> None:
        self._watches.pop(watch, None)

    def delay(self) -> float:
        delay_s = self.config.delay_min_s - self.config.delay_mean_s * log(
            1.0 - self.draws.random()
        )
        return delay_s + self.extra_delay_s

    def _show(self, watch: _Watch) -> None:
        """Lets the watch see everything up to now, after the lag."""
        if watch.process.dead:
            self.remove(watch)
            return
        lag = self.delay() + self.extra_lag_s + self.lags_s.get(watch.name, 0.0)
        lag -= self.config.watch_lag_s * log(1.0 - self.draws.random())
        watch.due = max(watch.due, self.loop.now + lag)
        self.loop.call_at(watch.due, watch.show, self.revision, context=self.loop.world.context)


class _Watch:
    def __init__(self, model: StoreModel, name: str, process: Process) -> None:
        self._model = model
        self.name = name
        self.process = process
        self.due = 0.0
        self.shown = 0
        self._news = asyncio.Event()

    def show(self, revision: int) -> None:
        if not self._model.is_cut(self.name):
            self.shown = max(self.shown, revision)
            self.wake()

    def wake(self) -> None:
        self._news.set()

    async def wait(self) -> None:
        await self._news.wait()
        self._news.clear()


class SimStore:
    """The `MetadataStore` port of one node, for one run of its process."""

    def __init__(self, model: StoreModel, name: str, process: Process | None = None) -> None:
        self._model = model
        self._name = name
        self._process = process or model.loop.world
        self._watching: dict[_Watch, None] = {}
        self._heard_at = float("-inf")
        self._closed = False

    async def get(self, key: str) -> KeyValue | None:
        return await self._repeat(lambda: self._model.get(key))

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        return await self._repeat(lambda: self._model.range(prefix))

    async def commit(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Committed:
        """Commits changes if the compares hold. No key may be changed twice in one commit."""
        keys = [change.key for change in changes]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"one commit changes {', '.join(twice)} twice: change each key once")
        self._require_open()
        loop, config = self._model.loop, self._model.config
        if self._model.is_cut(self._name) and self._heard_at + _TRUST_S < loop.now:
            # A client that has received nothing for a while sends a harmless request first.
            await self._repeat(lambda: None)
        try:
            return await self._ask(
                lambda: self._model.commit(compares, changes), config.attempt_timeout_s
            )
        except TimeoutError:
            raise OutcomeUnknown(
                "the store did not answer a commit: read to learn whether it was made"
            ) from None

    async def grant_lease(self, ttl_s: float) -> int:
        if not ttl_s > 0:
            raise ValueError(f"a lease of {ttl_s} s: ask for more than 0")
        return await self._repeat(lambda: self._model.grant_lease(ttl_s, self._name))

    async def keep_alive(self, lease: int, carry_s: float = 0.0) -> bool:
        """Renews a lease. `carry_s` is ignored, as with etcd: a frozen process is frozen as
        a whole."""
        self._model.renewing.add(lease)
        try:
            return await self._repeat(lambda: self._model.keep_alive(lease))
        finally:
            self._model.renewing.discard(lease)

    @property
    def full(self) -> str | None:
        return None

    async def revoke_lease(self, lease: int) -> None:
        await self._repeat(lambda: self._model.revoke_lease(lease))

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        position = max(from_revision, 1)
        watch = _Watch(self._model, self._name, self._process)
        self._watching[watch] = None
        self._model.add(watch)
        try:
            while True:
                self._require_open()
                events: list[WatchEvent] = []
                if not self._model.is_cut(self._name):
                    events, position = self._model.changes_from(position, watch.shown, prefix)
                if events:
                    yield events
                else:
                    await watch.wait()
        finally:
            self._model.remove(watch)
            self._watching.pop(watch, None)

    async def close(self) -> None:
        """Closes the port. Calls in progress are answered; watches and later calls
        raise `StoreClosed`."""
        self._closed = True
        for watch in self._watching:
            watch.wake()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("this handle on the metadata store was closed: open another")

    async def _repeat(self, body: Callable[[], T]) -> T:
        """Sends a request until there is a reply or the time is up."""
        self._require_open()
        config, loop = self._model.config, self._model.loop
        deadline = loop.now + config.timeout_s
        while (left_s := deadline - loop.now) > 0:
            try:
                return await self._ask(body, min(left_s, config.attempt_timeout_s))
            except TimeoutError:
                continue
        raise StoreUnreachable(
            f"the metadata store gave no answer for {config.timeout_s:g} s: try again later"
        )

    async def _ask(self, body: Callable[[], T], timeout_s: float) -> T:
        model, loop = self._model, self._model.loop
        future: asyncio.Future[Any] = loop.create_future()

        def arrive() -> None:
            if model.is_cut(self._name):
                return
            answer: Any = None
            error: Exception | None = None
            try:
                answer = body()
            except (LeaseNotFound, StoreFull) as refusal:
                error = refusal
            if model.draws.random() >= model.config.lost_reply_chance:
                loop.call_later(model.delay(), settle, answer, error, context=loop.world.context)
            else:
                loop.trace.tell(f"store: an answer to {self._name} is lost")

        def settle(answer: Any, error: Exception | None) -> None:
            if future.done() or model.is_cut(self._name):
                return
            self._heard_at = loop.now
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)

        if model.draws.random() >= model.config.lost_request_chance:
            loop.call_later(model.delay(), arrive, context=loop.world.context)
        async with asyncio.timeout(timeout_s):
            result: T = await future
            return result
