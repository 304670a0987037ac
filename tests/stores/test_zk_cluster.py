"""Handles on three ZooKeeper members while some of the members die, freeze or come back.

These hold throughout: an acknowledged commit stays; one that raised anything but `OutcomeUnknown`
was not made; revisions only grow; and a watch shows each change once, in order.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.ports import Put, WatchEvent
from penstock.stores.errors import OutcomeUnknown, RevisionNotKept, StoreError, StoreUnavailable
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.stores.zk_session import ZooKeeperConfig
from penstock.stores.zookeeper import ZooKeeperStore
from penstock.testing.slowness import patient

from .store_bench import keys_of, put, revision_of, take
from .zk_server import ZooKeeperEnsemble, open_store

ROOT = Path(__file__).resolve().parents[2]
SLACK_S = 4.0
LIMIT_S = 150.0


def eager() -> ZooKeeperConfig:
    """Gives up on members soon; later on a busy machine."""
    return ZooKeeperConfig(
        request_timeout_s=min(25.0, patient(9.0)),
        attempt_timeout_s=patient(1.0),
        trust_s=0.5,
        session_timeout_s=patient(3.0),
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[ZooKeeperEnsemble]:
    cluster = ZooKeeperEnsemble(3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def zookeeper(cluster: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    yield cluster
    cluster.heal()


class Writer:
    """Puts one key after the other and records the outcome of each."""

    def __init__(self, store: ZooKeeperStore, name: str) -> None:
        self.store = store
        self.name = name
        self.acknowledged: dict[str, int] = {}
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self.progress = asyncio.Event()

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            key = f"/{self.name}/{number:05}"
            try:
                committed = await self.store.commit((), [Put(key, b"")])
            except OutcomeUnknown:
                self.unknown.add(key)
            except StoreError:
                self.refused.add(key)
            else:
                assert committed.revision > max(self.acknowledged.values(), default=0)
                self.acknowledged[key] = committed.revision
                self.progress.set()

    async def advance(self, count: int) -> None:
        """Waits until `count` more were acknowledged."""
        goal = len(self.acknowledged) + count
        while len(self.acknowledged) < goal:
            self.progress.clear()
            await self.progress.wait()


class History:
    """Everything that a watch reports."""

    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self.progress = asyncio.Event()

    async def run(self, store: ZooKeeperStore, from_revision: int) -> None:
        async for batch in store.watch("/", from_revision):
            self.events.extend(batch)
            self.progress.set()

    async def reach(self, revision: int) -> None:
        while not self.events or self.events[-1].revision < revision:
            self.progress.clear()
            await self.progress.wait()


@asynccontextmanager
async def under_load(zookeeper: ZooKeeperEnsemble, namespace: str) -> AsyncIterator[list[Writer]]:
    """Runs writers on all members and a watch, and finally compares them with what is stored."""
    stores = [
        await open_store(zookeeper.address(namespace, first=first), eager())
        for first in range(len(zookeeper.members))
    ]
    writers = [Writer(store, f"w{number}") for number, store in enumerate(stores)]
    history = History()
    start = await revision_of(stores[0])
    async with asyncio.timeout(patient(LIMIT_S)):
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        watching = asyncio.create_task(history.run(stores[0], start + 1))
        for writer in writers:
            await writer.advance(5)
        yield writers
        for writer in writers:
            await writer.advance(5)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        # A late commit of a canceled writer may come after a read, so write once more.
        last = await put(await plain_store(zookeeper, namespace), "/last", b"")
        await history.reach(last)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await check(zookeeper, namespace, writers, history)
    for store in stores:
        await store.close()


async def plain_store(zookeeper: ZooKeeperEnsemble, namespace: str) -> ZooKeeperStore:
    return await open_store(zookeeper.address(namespace))


async def check(
    zookeeper: ZooKeeperEnsemble, namespace: str, writers: list[Writer], history: History
) -> None:
    store = await plain_store(zookeeper, namespace)
    entries = {entry.key: entry.modify_revision for entry in (await store.range("/"))[0]}
    for writer in writers:
        lost = writer.acknowledged.items() - entries.items()
        assert not lost, f"acknowledged, and gone or changed: {lost}"
        assert not writer.refused & entries.keys(), "said to be without effect, and made"
    revisions = [event.revision for event in history.events]
    assert revisions == sorted(set(revisions))
    seen = {event.key: event.revision for event in history.events}
    assert len(seen) == len(history.events)
    through = history.events[-1].revision
    assert seen == {key: revision for key, revision in entries.items() if revision <= through}
    await store.close()


def test_nothing_acknowledged_is_lost_with_the_leader(zookeeper: ZooKeeperEnsemble) -> None:
    """It is killed while three handles commit, and all of them continue with the other members."""

    async def main() -> None:
        async with under_load(zookeeper, "/leader") as writers:
            leader = zookeeper.leader()
            leader.kill()
            for writer in writers:
                await writer.advance(5)
            leader.start(zookeeper.members, zookeeper.settings)

    asyncio.run(main())


def test_nothing_acknowledged_is_lost_when_all_members_restart(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    """All are killed at once. Calls fail meanwhile and succeed afterwards."""

    async def main() -> None:
        async with under_load(zookeeper, "/all") as writers:
            before = max(max(writer.acknowledged.values()) for writer in writers)
            for member in zookeeper.members:
                member.kill()
            for member in zookeeper.members:
                member.start(zookeeper.members, zookeeper.settings)
            for writer in writers:
                await writer.advance(5)
            store = await plain_store(zookeeper, "/all")
            assert await revision_of(store) > before
            await store.close()

    asyncio.run(main())


def test_a_frozen_member_is_replaced_by_another(zookeeper: ZooKeeperEnsemble) -> None:
    """Its connections stay open and silent. Calls and the watch move to another member within the
    time limit of a call."""

    async def main() -> None:
        config = eager()
        store = await open_store(zookeeper.address("/frozen"), config)
        other = await open_store(zookeeper.address("/frozen", first=1), config)
        start = await put(store, "/a", b"1")
        watching = asyncio.create_task(take(store, "/", start + 1, 1))
        await store.get("/a")
        zookeeper.members[0].freeze()
        begun_s = time.monotonic()
        entry = await store.get("/a")
        assert time.monotonic() - begun_s < patient(config.request_timeout_s + SLACK_S)
        assert entry is not None
        assert entry.value == b"1"
        async with asyncio.timeout(patient(LIMIT_S)):
            revision = await retried(other, "/a", b"2")
            event = (await watching)[0]
        assert (event.key, event.value) == ("/a", b"2")
        assert start < event.revision <= revision
        await store.close()
        await other.close()

    asyncio.run(main())


def test_without_a_majority_calls_fail_in_time(zookeeper: ZooKeeperEnsemble) -> None:
    """With one of three members down everything continues. With two down reads and commits fail
    within their limit, and succeed again on the same handle when one is back. The watch has missed
    nothing."""

    async def main() -> None:
        config = eager()
        store = await open_store(zookeeper.address("/most"), config)
        start = await put(store, "/a", b"1")
        watching = asyncio.create_task(take(store, "/b", start + 1, 1))
        zookeeper.members[1].kill()
        await retried(store, "/a", b"2")
        zookeeper.members[2].kill()
        begun_s = time.monotonic()
        calls = (store.get("/a"), put(store, "/c", b""), store.grant_lease(5.0))
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, StoreUnavailable), outcome
        assert time.monotonic() - begun_s < patient(config.request_timeout_s + SLACK_S)
        zookeeper.members[1].start(zookeeper.members, zookeeper.settings)
        revision = await retried(store, "/b", b"3")
        async with asyncio.timeout(patient(LIMIT_S)):
            events = await watching
        assert events[-1].key == "/b"
        assert events[-1].revision <= revision
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value == b"2"
        await store.close()

    asyncio.run(main())


async def retried(store: ZooKeeperStore, key: str, value: bytes) -> int:
    """Puts a key and retries. The put may be made more than once."""
    async with asyncio.timeout(patient(LIMIT_S)):
        while True:
            try:
                return await put(store, key, value)
            except StoreUnavailable:
                continue


def test_a_watch_that_missed_pruned_changes_is_refused(zookeeper: ZooKeeperEnsemble) -> None:
    """Changes that it has not seen are replaced by a snapshot while its member is down, so it must
    not continue. A watch that has seen them is not affected, and both handles have the same."""
    away, present = zookeeper.members[0], zookeeper.members[1]

    async def main() -> None:
        lone = await open_store(ZooKeeperAddress((away.endpoint,), "/pruned"))
        store = await open_store(ZooKeeperAddress((present.endpoint,), "/pruned"))
        first = await put(store, "/a", b"1")
        behind = lone.watch("/", first)
        assert [event.revision for event in await anext(behind)] == [first]
        current = store.watch("/", first + 1)
        away.kill()
        for value in (b"2", b"3"):
            await retried(store, "/a", value)
        async with asyncio.timeout(patient(LIMIT_S)):
            assert (await anext(current))[0].value == b"2"
            await store.snapshots.make(revisions_kept=0)
            away.start(zookeeper.members, zookeeper.settings)
            with pytest.raises(RevisionNotKept) as caught:
                await anext(behind)
            assert caught.value.from_revision == first + 1
            assert await lone.range("/") == await store.range("/")
            last = await retried(lone, "/a", b"4")
            while (await anext(current))[-1].revision < last:
                continue
        await lone.close()
        await store.close()

    asyncio.run(main())


def test_a_lease_ends_while_its_holder_is_frozen(zookeeper: ZooKeeperEnsemble) -> None:
    """It survives the death of ZooKeeper's leader as long as it is renewed. When its process is
    frozen, the key is deleted, everyone sees it, and the process learns of it when it continues."""
    address = str(zookeeper.address("/holder"))

    async def main(holder: subprocess.Popen[str]) -> None:
        assert holder.stdout is not None
        lines = iter(holder.stdout.readline, "")
        assert next(lines) == "renewed\n"
        (zookeeper.leader()).kill()
        for _ in range(4):
            assert next(lines) == "renewed\n"
        store = await plain_store(zookeeper, "/holder")
        entry = await store.get("/held")
        assert entry is not None
        watching = asyncio.create_task(take(store, "/held", entry.modify_revision + 1, 1))
        holder.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(patient(LIMIT_S)):
            (gone,) = await watching
        assert (gone.key, gone.value) == ("/held", None)
        assert await keys_of(store) == []
        holder.send_signal(signal.SIGCONT)
        assert list(lines)[-1] == "lost\n"
        assert holder.wait(timeout=patient(LIMIT_S)) == 0
        await store.close()

    command = [sys.executable, "-m", "tests.stores.zk_process", address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            asyncio.run(main(holder))
        finally:
            holder.kill()
