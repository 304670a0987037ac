"""The change log of a ZooKeeper store: how a handle follows it, and how it appends to it.

ZooKeeper has no history of changes, and its watches may report several changes as one. So the store
has a log: every commit makes one znode, whose name is its revision, and whose content never
changes. A handle reads the entries in the order of their revisions, each exactly once, and applies
them to its replica. Revisions have no gaps, so a handle notices if one is missing. A watch on the
head only says that it is time to look, and without it a handle looks every `LOOK_EVERY_S` anyway.

An append is one ZooKeeper transaction. It makes the entry of the next revision, and sets the head
to it on condition that the head is unchanged. So it succeeds only if the replica, on which the
commit was decided, was the current state; commits of all handles have one order. If another handle
was faster, the commit is decided again on the newer state.

It can also be repeated when its answer was lost. At most one of the attempts can succeed, because
all but the last depend on a head that the next one replaces, or on the same head. If one succeeded,
its entry carries the id of the commit. `OutcomeUnknown` remains for the case that ZooKeeper does
not answer again before the time is up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, ZookeeperError

from penstock.ports import Clock, Committed, Delete, Executor, Put, Random
from penstock.stores.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    StoreUnreachable,
)
from penstock.stores.zk_format import (
    COMPRESSED_FROM,
    ENTRY_BYTES_MAX,
    HEAD,
    ID_BYTES,
    Head,
    LogEntry,
    compress,
    decode_entry,
    decode_head,
    decode_snapshot,
    encode_entry,
    is_compressed,
    log_path,
    part_path,
)
from penstock.stores.zk_replica import Replica
from penstock.stores.zk_session import Lost, Rejected, ZooKeeperSession

LOOK_EVERY_S: Final = 1.0
VERSION_MAX: Final = 2**31 - 1_000
"""ZooKeeper counts the changes of a znode in 31 bits. A version of -1 would mean any version."""
_READ_AT_ONCE: Final = 50
_LOOKS_MAX: Final = 20
_PREFIX_BYTES: Final = 4
_RIVALRY_S: Final = 1.0
_COURTESY_S: Final = 0.1
"""How long a handle lets others go first, at most."""
_log = logging.getLogger(__name__)

Operation = Callable[[TransactionRequest, Callable[[str], str]], None]
"""Adds one operation to a transaction. The second argument turns a path of ours into a full one."""


class Plan(NamedTuple):
    """Changes to commit, and operations that must succeed with them."""

    changes: Sequence[Put | Delete]
    operations: Sequence[Operation] = ()


Decide = Callable[[Replica], "Plan | Committed"]
"""Returns what to commit, or the outcome if there is nothing to commit."""


class OperationRejected(Exception):
    """An operation of the plan failed, so nothing was changed."""

    def __init__(self, position: int) -> None:
        super().__init__(f"operation {position}")
        self.position = position


class _Pruned(Exception):
    """What was to be read has been removed: the head has moved on."""


class ZooKeeperLog:
    def __init__(
        self, session: ZooKeeperSession, clock: Clock, random: Random, executor: Executor
    ) -> None:
        self.replica = Replica()
        self.head = Head()
        self.version = -1
        """The version of the head's znode."""
        self.failure: StoreError | None = None
        """Why the log cannot be followed; None if it can, or if ZooKeeper does not answer."""
        self._session = session
        self._clock = clock
        self._random = random
        self._executor = executor
        self._applying = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._refreshing = asyncio.Lock()
        self._rounds_begun = 0
        self._round_done = 0
        """The last round of reading that succeeded."""
        self._prefix = random.bytes(_PREFIX_BYTES)
        """How the ids of this handle's entries begin."""
        self._is_last = False
        """Whether this handle made the last commit."""
        self._rival_at = float("-inf")
        """When a commit of another handle was last seen."""
        self._commit_s = 0.0
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def refresh(self, deadline_s: float) -> None:
        """Makes the replica current: it then has everything that was committed before this call.

        Callers share the work. One that began before this call does not count, nor does one that
        failed or was cancelled.
        """
        needed = self._rounds_begun + 1
        async with self._refreshing:
            if self._round_done < needed:
                self._rounds_begun += 1
                await self._refresh(deadline_s)
                self._round_done = self._rounds_begun

    async def follow(self) -> None:
        """Keeps the replica nearly current until cancelled."""
        while True:
            self._news.clear()
            try:
                deadline_s = self._session.deadline()
                answer = await self._session.repeat(self._ask_for_head(watch=True), deadline_s)
                await self._follow_to(*self._head_of(answer), deadline_s)
                self.failure = None
            except (ZookeeperError, StoreError) as raised:
                error = self._session.translated(raised)
                if not isinstance(error, StoreUnreachable):
                    if self.failure is None:
                        _log.warning("cannot follow the metadata in ZooKeeper: %s", error)
                    self.failure = error
                self.wake()
                await self._clock.sleep(LOOK_EVERY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._news.wait()

    def wake(self) -> None:
        """Lets everyone who waits for a change look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Waits for the next change of the replica."""
        await self._changed.wait()

    async def append(self, decide: Decide, deadline_s: float) -> Committed:
        """Commits what `decide` returns for the current state.

        Raises `OperationRejected` if an operation of the plan fails."""
        async with self.turn(deadline_s):
            await self._let_others_go_first()
            return await self._append(decide, deadline_s)

    @asynccontextmanager
    async def turn(self, deadline_s: float) -> AsyncIterator[None]:
        """Lets nothing else of this handle change the head meanwhile."""
        try:
            async with asyncio.timeout(max(deadline_s - self._clock.monotonic(), 0.001)):
                await self._turn.acquire()
        except TimeoutError:
            raise self._session.unreachable(None) from None
        try:
            yield
        finally:
            self._turn.release()

    async def _let_others_go_first(self) -> None:
        """Waits a little if this handle made the last commit and another one wants to commit too.

        A handle whose commit failed must read first, and would always be slower than the one whose
        commit succeeded."""
        if self._is_last and self._clock.monotonic() - self._rival_at < _RIVALRY_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(2 * self._commit_s, _COURTESY_S)):
                    await self.change()

    async def _append(self, decide: Decide, deadline_s: float) -> Committed:
        entry_id = self._prefix + self._random.bytes(ID_BYTES - _PREFIX_BYTES)
        lost_at: int | None = None
        failures = 0
        is_fresh = False
        try:
            while True:
                if lost_at is not None or not (is_fresh or self._session.is_trusted):
                    await self.refresh(deadline_s)
                    is_fresh = True
                if lost_at is not None:
                    if done := self._settled(entry_id, lost_at):
                        return done
                    if self.replica.revision >= lost_at:
                        lost_at = None
                plan, head, version = await self._decided(decide, deadline_s)
                if isinstance(plan, Committed):
                    if is_fresh:
                        self._require_settled(lost_at)
                        return plan
                    await self.refresh(deadline_s)
                    is_fresh = True
                    continue
                try:
                    return await self._attempt(plan, entry_id, head, version, deadline_s)
                except Lost as error:
                    lost_at = head.revision + 1 if plan.changes else None
                    failures += 1
                    await self._session.pause(failures)
                    if self._clock.monotonic() >= deadline_s:
                        raise self._session.unreachable(error) from error
                    is_fresh = False
                except Rejected as rejected:
                    if lost_at is not None:
                        await self.refresh(deadline_s)
                        if done := self._settled(entry_id, lost_at):
                            return done
                        lost_at = None
                    self._require_conflict(rejected, len(plan.operations))
                    await self._after_conflict(deadline_s)
                    is_fresh = False
        except StoreError as error:
            if lost_at is None or isinstance(error, OutcomeUnknown):
                raise
            raise self._unknown(error) from error

    def _require_conflict(self, rejected: Rejected, operations: int) -> None:
        """Raises an error unless the commit failed because another handle was faster."""
        if not isinstance(rejected.error, BadVersionError | NodeExistsError | NoNodeError):
            raise self._session.translated(rejected.error) from rejected.error
        if rejected.position < operations:
            raise OperationRejected(rejected.position) from rejected.error

    async def _decided(
        self, decide: Decide, deadline_s: float
    ) -> tuple[Plan | Committed, Head, int]:
        """Decides on the replica, while it is the state that the head describes."""
        while True:
            async with self._applying:
                if self.version >= 0 and self.head.revision == self.replica.revision:
                    return decide(self.replica), self.head, self.version
            await self.refresh(deadline_s)

    async def _attempt(
        self, plan: Plan, entry_id: bytes, head: Head, version: int, deadline_s: float
    ) -> Committed:
        if not plan.changes:

            def only_operations(transaction: Any, path: Callable[[str], str]) -> None:
                for add in plan.operations:
                    add(transaction, path)
                transaction.check(path(HEAD), version)

            await self._session.transact(only_operations, deadline_s)
            return Committed(succeeded=True, revision=head.revision)
        if version >= VERSION_MAX:
            raise StoreUnavailable(
                f"the version counter of the head of {self._session.address} is exhausted, and "
                "nothing was changed: stop all brokers and copy the cluster to another namespace "
                "(penstock store copy)"
            )
        data = encode_entry(entry_id, plan.changes)
        if len(data) >= COMPRESSED_FROM:
            data = await self._executor.run(partial(compress, data))
        if len(data) > ENTRY_BYTES_MAX:
            raise StoreUnavailable(
                f"a commit takes {len(data)} bytes, but ZooKeeper accepts at most "
                f"{ENTRY_BYTES_MAX}: nothing was changed; change fewer things in one request, or "
                "use etcd for this cluster"
            )
        after = replace(head, revision=head.revision + 1)

        def build(transaction: Any, path: Callable[[str], str]) -> None:
            for add in plan.operations:
                add(transaction, path)
            transaction.set_data(path(HEAD), after.encode(), version)
            transaction.create(path(log_path(after.revision)), data)

        began_at = self._clock.monotonic()
        results = await self._session.transact(build, deadline_s)
        self._commit_s = self._clock.monotonic() - began_at
        async with self._applying:
            if self.replica.revision == head.revision:
                entry = LogEntry(entry_id, tuple(plan.changes), len(data))
                self.replica.apply(after.revision, entry)
            self._is_last = self.replica.revision == after.revision
            if self.version == version:
                self.head, self.version = after, results[len(plan.operations)].version
        self.wake()
        return Committed(succeeded=True, revision=after.revision)

    def _settled(self, entry_id: bytes, lost_at: int) -> Committed | None:
        """Returns the outcome of an attempt whose answer was lost, if it was carried out."""
        if self.replica.revision < lost_at:
            return None
        found = self.replica.entry_id(lost_at)
        if found is None:
            raise self._unknown("its log entry has been removed already")
        if found == entry_id:
            return Committed(succeeded=True, revision=lost_at)
        return None

    def _require_settled(self, lost_at: int | None) -> None:
        """Raises an error if an attempt may still be carried out."""
        if lost_at is not None and self.replica.revision < lost_at:
            raise self._unknown("its answer was lost")

    def _unknown(self, cause: object) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self._session.address} did not confirm a commit ({cause}), so it is unknown whether "
            "it was made: read the keys to find out, and check that a majority of ZooKeeper's "
            "members is running"
        )

    async def _after_conflict(self, deadline_s: float) -> None:
        if self._clock.monotonic() >= deadline_s:
            raise StoreBusy(
                f"other brokers kept changing {self._session.address}, and nothing was changed: "
                "try again"
            )
        # ZooKeeper answers a refused transaction in order too. So the member that answered has what
        # made the commit fail, and no write is needed to find it there.
        answer = await self._session.repeat(self._ask_for_head(), deadline_s)
        await self._follow_to(*self._head_of(answer), deadline_s)

    async def _refresh(self, deadline_s: float) -> None:
        for _ in range(_LOOKS_MAX):
            known = self.version
            (answer,) = await self._session.fresh([self._ask_for_head()], deadline_s)
            head, version = self._head_of(answer)
            if version < known:
                raise StoreCorrupt(
                    f"{self._session.address} has an older state than before: it was restored from "
                    "a backup, or it lost its disks; stop all brokers of the cluster, then start "
                    "them again"
                )
            await self._follow_to(head, version, deadline_s)
            if self.replica.revision >= head.revision:
                return
        raise StoreCorrupt(
            f"{self._session.address} lacks parts of its log after revision "
            f"{self.replica.revision}: stop the brokers of the cluster and restore ZooKeeper from "
            "a backup"
        )

    async def _follow_to(self, head: Head, version: int, deadline_s: float) -> None:
        """Applies the log up to this head. If the log was pruned meanwhile, it does less."""
        async with self._applying:
            if version <= self.version:
                return
            with suppress(_Pruned):
                if self.version < 0 or self.replica.revision + 1 < head.first:
                    await self._load(head, deadline_s)
                while self.replica.revision < head.revision:
                    await self._apply_some(head.revision, deadline_s)
                if head.snapshot != self.head.snapshot:
                    self.replica.log_bytes = 0
                self.head, self.version = head, version
        self.wake()

    async def _apply_some(self, last: int, deadline_s: float) -> None:
        start = self.replica.revision + 1
        revisions = range(start, min(last, start + _READ_AT_ONCE - 1) + 1)
        asks = [self._read(log_path(revision), deadline_s) for revision in revisions]
        for revision, data in zip(revisions, await asyncio.gather(*asks), strict=True):
            where = self._session.path(log_path(revision))
            if is_compressed(data):
                entry = await self._executor.run(partial(decode_entry, data, where))
            else:
                entry = decode_entry(data, where)
            if revision > self.replica.revision and not self._is_own(entry):
                self._is_last = False
                self._rival_at = self._clock.monotonic()
            self.replica.apply(revision, entry)

    def _is_own(self, entry: LogEntry) -> bool:
        return entry.id.startswith(self._prefix)

    async def _load(self, head: Head, deadline_s: float) -> None:
        """Begins again with the snapshot."""
        parts = []
        for number in range(head.snapshot_parts):
            parts.append(await self._read(part_path(head.snapshot, number), deadline_s))
        where = self._session.path(part_path(head.snapshot, 0))
        entries = await self._executor.run(partial(decode_snapshot, parts, where)) if parts else []
        self.replica.reset(entries, head.snapshot_revision)

    async def _read(self, path: str, deadline_s: float) -> bytes:
        def ask(client: KazooClient) -> Any:
            return client.get_async(self._session.path(path))

        try:
            data: bytes = (await self._session.repeat(ask, deadline_s))[0]
        except NoNodeError:
            raise _Pruned from None
        return data

    def _ask_for_head(self, *, watch: bool = False) -> Callable[[KazooClient], Any]:
        path = self._session.path(HEAD)
        return lambda client: client.get_async(path, watch=self._on_news if watch else None)

    def _on_news(self, _event: Any) -> None:
        """Called on a thread of kazoo."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)

    def _head_of(self, answer: Any) -> tuple[Head, int]:
        data, stat = answer
        return decode_head(data, self._session.path(HEAD)), stat.version
