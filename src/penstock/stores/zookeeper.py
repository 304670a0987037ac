"""The metadata store for many machines, in ZooKeeper 3.5 or newer.

ZooKeeper orders all writes by consensus of its members, and answers a write once a majority has it
on disk. On top of that, this store keeps a log of commits (`zk_log`), because ZooKeeper knows
neither revisions of a whole tree nor a history of changes. Every handle applies the log to a copy
of all metadata in its memory (`zk_replica`). So the metadata should fit in the memory of each
broker, and of each member, a few times over. Snapshots bound the log (`zk_snapshots`). `zk_format`
describes the znodes.

These are the promises of the port, and what each rests on:

- Commits: a commit is decided on the copy, and is one ZooKeeper transaction, on condition that the
  log has not grown. All changes of a commit have one revision, and each revision has one commit.
- Reads: a read first writes to a znode, which only a majority can confirm, and then catches up with
  the log. Reads that wait at the same time share this.
- Watches: they read the applied log entries of their handle. Entries are applied in the order of
  their revisions, without a gap. So a watch can neither miss nor repeat a change, nor report two
  changes in another order, whatever ZooKeeper's own watches do.
- Leases: a lease is a znode, and a renewal is a write (`zk_leases`). It is not an ephemeral znode.
  kazoo keeps a session alive from its own thread, so the lease of a broker that hangs would never
  end. A member confirms that a session is alive before the leader knows, so a holder could count
  longer than ZooKeeper. And an ephemeral znode is deleted without a revision.

A handle needs no session of ZooKeeper in particular: when one expires, it continues in the next.

A call that raised did nothing, unless it raised `OutcomeUnknown`, which only `commit` does, and
only if ZooKeeper does not answer again in time. A lease ends its time to live after its last
renewal, counted by the other handles while ZooKeeper answers them, and two seconds later at most.
Somebody has to look: while no handle is open, no lease ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    ZookeeperError,
)

from penstock.ports import (
    Clock,
    Committed,
    Compare,
    Delete,
    Executor,
    KeyValue,
    Put,
    Random,
    WatchEvent,
)
from penstock.stores.errors import (
    LeaseNotFound,
    RevisionNotKept,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnreachable,
)
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.stores.zk_failures import cannot_create
from penstock.stores.zk_format import (
    BARRIER,
    HEAD,
    LEASES,
    LOG,
    PULSES,
    SNAPSHOTS,
    Head,
    Pulse,
    lease_path,
    pulse_of,
    pulse_path,
)
from penstock.stores.zk_leases import LeaseObserver
from penstock.stores.zk_log import Operation, OperationRejected, Plan, ZooKeeperLog
from penstock.stores.zk_replica import Replica
from penstock.stores.zk_session import Lost, Rejected, ZooKeeperConfig, ZooKeeperSession
from penstock.stores.zk_snapshots import Snapshots

_WATCH_REVISIONS_MAX: Final = 1000
_ENDED_AT_ONCE: Final = 50
_log = logging.getLogger(__name__)


class ZooKeeperStore:
    """Implements `ports.MetadataStore`. Created by `open`."""

    def __init__(
        self,
        session: ZooKeeperSession,
        log: ZooKeeperLog,
        snapshots: Snapshots,
        clock: Clock,
        random: Random,
    ) -> None:
        self._session = session
        self._log = log
        self.snapshots = snapshots
        self._clock = clock
        self._random = random
        self._observer = LeaseObserver()
        self._looking = asyncio.Lock()
        self._pulses: dict[int, Pulse] = {}
        self._held: set[int] = set()
        self._full: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        return self._session.closing.is_set()

    @property
    def full(self) -> str | None:
        return self._full

    @classmethod
    async def open(
        cls,
        address: ZooKeeperAddress,
        clock: Clock,
        random: Random,
        executor: Executor,
        config: ZooKeeperConfig = ZooKeeperConfig(),  # noqa: B008 -- frozen
    ) -> ZooKeeperStore:
        """Connects, makes the znodes of the store if there are none, and reads everything."""
        if address.user and not address.ca and not address.is_local:
            _log.warning(
                "the password for %s crosses the network in plain text: use TLS, ?ca=FILE", address
            )
        session = ZooKeeperSession(address, clock, random, executor, config)
        log = ZooKeeperLog(session, clock, random, executor)
        snapshots = Snapshots(session, log, random, executor, config)
        store = cls(session, log, snapshots, clock, random)
        try:
            with store._translated():
                await store._create_root()
                await log.refresh(session.deadline())
        except BaseException:
            await session.close()
            raise
        store._tasks = [
            asyncio.create_task(log.follow()),
            asyncio.create_task(store._watch_leases()),
        ]
        for task in store._tasks:
            task.add_done_callback(store._on_end)
        return store

    async def get(self, key: str) -> KeyValue | None:
        await self._refresh()
        return self._log.replica.get(key)

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        await self._refresh()
        return self._log.replica.range(prefix), self._log.replica.revision

    async def commit(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Committed:
        """Commits the changes. A key may be changed only once in one commit."""
        keys = [change.key for change in changes]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"one commit changes {', '.join(twice)} twice: change each key once")
        leases = sorted({each.lease for each in changes if isinstance(each, Put) and each.lease})
        operations = [_check_lease(lease) for lease in leases]

        def decide(replica: Replica) -> Plan | Committed:
            if not replica.holds(compares):
                return Committed(succeeded=False, revision=replica.revision)
            effective = replica.effective(changes)
            if not effective:
                return Committed(succeeded=True, revision=replica.revision)
            return Plan(effective, operations)

        with self._call():
            try:
                committed = await self._log.append(decide, self._session.deadline())
            except OperationRejected as rejected:
                raise LeaseNotFound(leases[rejected.position]) from rejected
            except StoreFull as error:
                self._full = str(error)
                raise
        self._full = None
        self._make_snapshot_if_due()
        return committed

    async def grant_lease(self, ttl_s: float) -> int:
        if not ttl_s > 0:
            raise ValueError(f"a lease of {ttl_s} s is not possible: it must be longer than 0 s")
        lease = 0
        while not lease:
            lease = int.from_bytes(self._random.bytes(8), "big") >> 1
        pulse = Pulse(lease, math.ceil(ttl_s * 1000), 0)

        def build(transaction: Any, path: Callable[[str], str]) -> None:
            transaction.create(path(lease_path(lease)), b"")
            transaction.create(path(pulse_path(pulse)), b"")

        with self._call():
            try:
                await self._transact(build)
            except Rejected as rejected:
                # Its id is random, so an earlier attempt of this call has made it.
                if not isinstance(rejected.error, NodeExistsError):
                    raise self._session.translated(rejected.error) from rejected.error
        self._pulses[lease] = pulse
        return lease

    async def keep_alive(self, lease: int, carry_s: float = 0.0) -> bool:
        """Renews the lease. While the caller holds it (`carry_s`), this handle never ends it. It
        does not renew it by itself."""
        with self._call():
            is_alive = await self._renew(lease)
        if is_alive and carry_s > 0:
            self._held.add(lease)
        if not is_alive:
            self._forget(lease)
        return is_alive

    async def revoke_lease(self, lease: int) -> None:
        deadline_s = self._session.deadline()
        # At once: if ZooKeeper does not answer, this handle must not keep the lease alive.
        self._forget(lease)
        with self._call():
            while (pulse := await self._find(lease, deadline_s)) is not None:
                if await self._end((pulse,), deadline_s):
                    break

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        while True:
            with suppress(StoreUnreachable):
                await self._refresh()
                break
        replica = self._log.replica
        next_revision = max(from_revision, 1)
        first_kept = max(self._log.head.first, replica.first_kept)
        if next_revision < first_kept:
            raise RevisionNotKept(next_revision, first_kept)
        while True:
            self._session.require_open()
            events = replica.events(prefix, next_revision, _WATCH_REVISIONS_MAX)
            last = min(replica.revision, next_revision + _WATCH_REVISIONS_MAX - 1)
            is_at_end = last == replica.revision or last < next_revision
            next_revision = max(next_revision, last + 1)
            if events:
                yield events
            elif is_at_end:
                if self._log.failure is not None:
                    raise self._log.failure
                await self._log.change()

    async def advance(self, revision: int) -> None:
        """Raises the revision of an empty store, so that all later ones are higher."""
        deadline_s = self._session.deadline()
        while True:
            await self._refresh()
            head, version = self._log.head, self._log.version
            if revision <= head.revision:
                return
            if self._log.replica.range(""):
                raise ValueError("only an empty store can be advanced")
            after = replace(
                Head(), revision=revision, first=revision + 1, snapshot_revision=revision
            )
            with self._call():
                try:
                    await self._session.transact(_set_head(after, version), deadline_s)
                except (Lost, Rejected) as error:
                    # Another handle has changed the head, or an earlier attempt of this call.
                    is_conflict = isinstance(error, Lost) or isinstance(
                        error.error, BadVersionError
                    )
                    if not is_conflict or self._clock.monotonic() >= deadline_s:
                        raise

    async def close(self) -> None:
        """Finishes the calls in progress. Watches and later calls raise `StoreClosed`."""
        tasks = [*self._tasks, *([self._upkeep] if self._upkeep else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._session.close()
        self._log.wake()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Called when a task in the background has ended, which only `close` should cause."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.failure = StoreUnavailable(
                f"the handle of {self._session.address} failed ({error!r}): restart this broker, "
                "and report the error"
            )
            # Also the task that follows the log: it would regard this failure as over.
            for each in self._tasks:
                each.cancel()
            self._log.wake()

    async def _refresh(self) -> None:
        with self._call():
            await self._log.refresh(self._session.deadline())

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Surrounds a call: `close` waits for it, and its errors are those of a store."""
        with self._session.call(), self._translated():
            yield

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ZookeeperError as error:
            raise self._session.translated(error) from error
        except Rejected as rejected:
            raise self._session.translated(rejected.error) from rejected.error
        except Lost as error:
            raise self._session.unreachable(error) from error

    async def _create_root(self) -> None:
        deadline_s = self._session.deadline()

        def exists(client: KazooClient) -> Any:
            return client.exists_async(self._session.path(HEAD))

        if await self._session.repeat(exists, deadline_s) is not None:
            return
        names = self._session.root.split("/")[1:]
        for depth in range(1, len(names) + 1):
            await self._create_folder("/" + "/".join(names[:depth]), deadline_s)

        def build(transaction: Any, path: Callable[[str], str]) -> None:
            for name in (BARRIER, LOG, SNAPSHOTS, LEASES, PULSES):
                transaction.create(path(name), b"")
            transaction.create(path(HEAD), Head().encode())

        try:
            await self._transact(build)
        except Rejected as rejected:
            # Another broker was faster, or an earlier attempt.
            if not isinstance(rejected.error, NodeExistsError):
                raise

    async def _create_folder(self, path: str, deadline_s: float) -> None:
        """Makes a znode above those of the store, unless there is one already. Often an
        administrator has made it, and others may not make znodes beside it."""
        repeat = self._session.repeat
        if await repeat(lambda client: client.exists_async(path), deadline_s) is not None:
            return
        try:
            with suppress(NodeExistsError):
                await repeat(lambda client: client.create_async(path), deadline_s)
        except NoAuthError as error:
            raise cannot_create(path, self._session.address) from error

    async def _transact(self, build: Callable[[Any, Callable[[str], str]], None]) -> None:
        """Repeats a transaction until it is answered."""
        deadline_s = self._session.deadline()
        failures = 0
        while True:
            try:
                await self._session.transact(build, deadline_s)
            except Lost as error:
                failures += 1
                await self._session.pause(failures)
                self._session.require_open()
                if self._clock.monotonic() >= deadline_s:
                    raise self._session.unreachable(error) from error
            else:
                return

    async def _renew(self, lease: int) -> bool:
        deadline_s = self._session.deadline()
        failures = 0
        pulse = self._pulses.get(lease)
        while True:
            if pulse is None:
                pulse = await self._find(lease, deadline_s)
                if pulse is None:
                    return False
            try:
                await self._session.transact(_replace_pulse(pulse), deadline_s)
            except Rejected as rejected:
                # Another handle has renewed or ended it, or an attempt of this call was made.
                if not isinstance(rejected.error, NoNodeError | NodeExistsError):
                    raise
            except Lost as error:
                self._session.require_open()
                if self._clock.monotonic() >= deadline_s:
                    raise self._session.unreachable(error) from error
            else:
                self._pulses[lease] = pulse.next()
                return True
            pulse = None
            failures += 1
            if failures > 1:
                await self._session.pause(failures)

    async def _find(self, lease: int, deadline_s: float) -> Pulse | None:
        """Returns the last pulse of a lease; None if it has ended."""
        for pulse in await self._read_pulses(deadline_s):
            if pulse.lease == lease:
                return pulse
        return None

    async def _read_pulses(self, deadline_s: float) -> list[Pulse]:
        path = self._session.path(PULSES)
        (names,) = await self._session.fresh(
            [lambda client: client.get_children_async(path)], deadline_s
        )
        return [pulse for pulse in map(pulse_of, names) if pulse is not None]

    async def _end(self, pulses: Sequence[Pulse], deadline_s: float) -> bool:
        """Ends leases, unless they were renewed or ended meanwhile. All their keys are deleted in
        one revision."""
        operations: list[Operation] = []
        for pulse in pulses:
            operations += (_delete(pulse_path(pulse)), _delete(lease_path(pulse.lease)))

        def decide(replica: Replica) -> Plan:
            keys = sorted(key for pulse in pulses for key in replica.keys_under(pulse.lease))
            return Plan([Delete(key) for key in keys], operations)

        try:
            await self._log.append(decide, deadline_s)
        except OperationRejected:
            return False
        return True

    async def look_for_ended_leases(self) -> None:
        """Looks at all leases, and ends those whose time is over."""
        async with self._looking:
            deadline_s = self._session.deadline()
            asked_at = self._clock.monotonic()
            pulses = await self._read_pulses(deadline_s)
            now = self._clock.monotonic()
            ended = self._observer.observe(pulses, asked_at, now)
            ended = [pulse for pulse in ended if pulse.lease not in self._held]
            for start in range(0, len(ended), _ENDED_AT_ONCE):
                await self._end_all(ended[start : start + _ENDED_AT_ONCE], deadline_s)

    async def _watch_leases(self) -> None:
        while True:
            await self._clock.sleep(self._observer.interval_s)
            try:
                with self._translated():
                    await self.look_for_ended_leases()
            except StoreError as error:
                # Following the log reports what needs an operator.
                _log.debug("cannot look for expired leases in ZooKeeper: %s", error)

    async def _end_all(self, pulses: Sequence[Pulse], deadline_s: float) -> None:
        if not await self._end(pulses, deadline_s) and len(pulses) > 1:
            # At least one was renewed, or ended by another handle.
            for pulse in pulses:
                await self._end((pulse,), deadline_s)

    def _forget(self, lease: int) -> None:
        self._held.discard(lease)
        self._pulses.pop(lease, None)

    def _make_snapshot_if_due(self) -> None:
        if self.is_closed or not self.snapshots.is_due:
            return
        if self._upkeep is None or self._upkeep.done():
            self._upkeep = asyncio.create_task(self.snapshots.keep_up())


def _check_lease(lease: int) -> Operation:
    return lambda transaction, path: transaction.check(path(lease_path(lease)), 0)


def _delete(of: str) -> Operation:
    return lambda transaction, path: transaction.delete(path(of))


def _replace_pulse(pulse: Pulse) -> Operation:
    def build(transaction: Any, path: Callable[[str], str]) -> None:
        transaction.delete(path(pulse_path(pulse)))
        transaction.create(path(pulse_path(pulse.next())), b"")

    return build


def _set_head(head: Head, version: int) -> Operation:
    return lambda transaction, path: transaction.set_data(path(HEAD), head.encode(), version)
