"""What is specific to the ZooKeeper store: lost answers, sessions, limits of time and size, the log
and its snapshots."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient

from penstock.ports import Compare, Put
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores import opening, zk_log
from penstock.stores.errors import (
    LeaseNotFound,
    OutcomeUnknown,
    RevisionNotKept,
    StoreClosed,
    StoreCorrupt,
    StoreUnavailable,
    StoreUnreachable,
)
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.stores.zk_session import ZooKeeperConfig
from penstock.stores.zookeeper import ZooKeeperStore
from penstock.testing.slowness import patient

from .store_bench import keys_of, put, revision_of, take
from .zk_proxy import proxy_to
from .zk_server import PATIENT, ZooKeeperEnsemble, open_store

LIMIT_S = 100.0
SLACK_S = 6.0


def brisk() -> ZooKeeperConfig:
    """Gives up soon; later on a busy machine."""
    return ZooKeeperConfig(
        request_timeout_s=min(20.0, patient(8.0)),
        attempt_timeout_s=min(6.0, patient(2.5)),
        trust_s=600.0,
    )


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(1)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.close()


@pytest.fixture
def frozen(zookeeper: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    """A ZooKeeper that the test may freeze. It runs again afterwards."""
    yield zookeeper
    zookeeper.members[0].thaw()


def children(ensemble: ZooKeeperEnsemble, path: str) -> list[str]:
    client = KazooClient(ensemble.members[0].endpoint, timeout=60)
    client.start(timeout=patient(LIMIT_S))
    try:
        return sorted(client.get_children(path))
    finally:
        client.stop()
        client.close()


def test_clusters_share_a_zookeeper_in_separate_namespaces(zookeeper: ZooKeeperEnsemble) -> None:
    """Neither sees, watches or affects the keys of the other, even if one namespace is a part of
    the other. Each has its own revisions."""

    async def main() -> None:
        prod = await open_store(zookeeper.address("/prod"))
        inner = await open_store(zookeeper.address("/prod/inner"))
        for store, value in ((prod, b"1"), (inner, b"2")):
            assert await put(store, "/penstock/a", value) == 1
        for store, value in ((prod, b"1"), (inner, b"2")):
            events = await take(store, "", 1, 1)
            assert [(event.key, event.value) for event in events] == [("/penstock/a", value)]
        for store in (prod, inner):
            await store.close()

    asyncio.run(main())


def test_opening_without_a_zookeeper_fails_in_time() -> None:
    """Within the time limit, and the error names the address that gave no answer."""

    async def main() -> None:
        config = brisk()
        address = ZooKeeperAddress(("127.0.0.1:1", "127.0.0.1:2"), "/x")
        began_s = time.monotonic()
        with pytest.raises(
            StoreUnreachable, match=r"zk://127.0.0.1:1,127.0.0.1:2/x did not answer"
        ):
            await open_store(address, config)
        assert time.monotonic() - began_s < patient(config.request_timeout_s + SLACK_S)

    asyncio.run(main())


def test_a_commit_whose_answer_is_lost_is_made_once(zookeeper: ZooKeeperEnsemble) -> None:
    """The store finds out by itself, on another connection. So is one that was made twice, and a
    lease that was granted or renewed."""

    async def main() -> None:
        async with proxy_to(zookeeper.members[0].endpoint) as proxy:
            config = replace(PATIENT, attempt_timeout_s=patient(1.0))
            store = await open_store(ZooKeeperAddress((proxy.address,), "/lost"), config)
            revision = await put(store, "/a", b"0")
            lease = await store.grant_lease(600.0)
            for number in range(1, 6):
                compares = [Compare("/a", revision)]
                put_it = Put("/a", b"%d" % number, lease)
                committing = asyncio.create_task(store.commit(compares, [put_it]))
                renewing = asyncio.create_task(store.keep_alive(lease))
                proxy.mute = True
                async with asyncio.timeout(patient(LIMIT_S)):
                    await proxy.lost.wait()
                    proxy.mute = False
                    proxy.lost.clear()
                    committed = await committing
                    assert await renewing
                assert (committed.succeeded, committed.revision) == (True, revision + 1)
                revision = committed.revision
            assert await revision_of(store) == revision
            await store.close()

    asyncio.run(main())


def test_a_commit_to_a_frozen_server_has_an_unknown_outcome(frozen: ZooKeeperEnsemble) -> None:
    """The error is raised within the time limit. A read shows the outcome later."""
    server = frozen.members[0]

    async def main() -> None:
        config = brisk()
        store = await open_store(frozen.address("/freeze"), config)
        revision = await put(store, "/a", b"1")
        server.freeze()
        began_s = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="read"):
            await store.commit([Compare("/a", revision)], [Put("/a", b"2")])
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        assert time.monotonic() - began_s < patient(2 * config.request_timeout_s + SLACK_S)
        server.thaw()
        store_again = await open_store(frozen.address("/freeze"))
        entry = await store_again.get("/a")
        assert entry is not None
        assert (entry.value, entry.modify_revision) in {(b"1", revision), (b"2", revision + 1)}
        await store.close()
        await store_again.close()

    asyncio.run(main())


def test_an_idle_connection_is_checked_before_a_commit(frozen: ZooKeeperEnsemble) -> None:
    """So if the server died meanwhile, it is known that the commit was not made."""
    server = frozen.members[0]

    async def main() -> None:
        store = await open_store(frozen.address("/quiet"), replace(brisk(), trust_s=0.0))
        await put(store, "/a", b"1")
        server.freeze()
        with pytest.raises(StoreUnreachable, match="nothing was changed"):
            await store.commit((), [Put("/a", b"2")])
        server.thaw()
        store_again = await open_store(frozen.address("/quiet"))
        entry = await store_again.get("/a")
        assert entry is not None
        assert entry.value == b"1"
        await store.close()
        await store_again.close()

    asyncio.run(main())


def test_nothing_depends_on_the_session(zookeeper: ZooKeeperEnsemble) -> None:
    """It expires, and commits, leases and the watch continue in another one."""

    async def main() -> None:
        store = await open_store(zookeeper.address("/session"))
        lease = await store.grant_lease(600.0)
        start = await put(store, "/a", b"1", lease)
        watching = asyncio.create_task(take(store, "/", start + 1, 3))
        for number in (2, 3, 4):
            await asyncio.to_thread(end_session, zookeeper, session_of(store))
            await put(store, "/a", b"%d" % number, lease)
            assert await store.keep_alive(lease)
        async with asyncio.timeout(patient(LIMIT_S)):
            events = await watching
        assert [event.value for event in events] == [b"2", b"3", b"4"]
        await store.close()

    asyncio.run(main())


def session_of(store: ZooKeeperStore) -> Any:
    return store._session._client.client_id  # type: ignore[union-attr] # of kazoo


def end_session(ensemble: ZooKeeperEnsemble, session: Any) -> None:
    """Ends a session from outside. To its owner it has expired."""
    client = KazooClient(ensemble.members[0].endpoint, client_id=session, timeout=60)
    client.start(timeout=patient(LIMIT_S))
    client.stop()
    client.close()


def test_closing_finishes_calls_and_ends_retries(frozen: ZooKeeperEnsemble) -> None:
    """A call in progress is completed, a call that would be retried fails, and closing takes
    limited time."""
    server = frozen.members[0]

    async def main() -> None:
        config = brisk()
        store = await open_store(frozen.address("/close"), PATIENT)
        answered = asyncio.create_task(put(store, "/a", b""))
        await asyncio.sleep(0)
        await store.close()
        assert await answered > 0
        store = await open_store(frozen.address("/close"), config)
        server.freeze()
        unanswered = asyncio.create_task(store.get("/a"))
        await asyncio.sleep(0)
        began_s = time.monotonic()
        await asyncio.gather(store.close(), store.close())
        assert time.monotonic() - began_s < patient(config.request_timeout_s + SLACK_S)
        with pytest.raises((StoreClosed, StoreUnavailable)):
            await unanswered

    asyncio.run(main())


def test_the_error_names_the_missing_lease(zookeeper: ZooKeeperEnsemble) -> None:
    """Among several in one commit. The commit changes nothing."""

    async def main() -> None:
        store = await open_store(zookeeper.address("/leases"))
        leases = sorted([await store.grant_lease(600.0) for _ in range(3)])
        for missing in leases:
            await store.revoke_lease(missing)
            puts = [Put(f"/{lease}", b"", lease) for lease in leases]
            with pytest.raises(LeaseNotFound) as caught:
                await store.commit((), puts)
            assert caught.value.lease == missing
            assert await keys_of(store) == []
            leases[leases.index(missing)] = await store.grant_lease(600.0)
        await store.close()

    asyncio.run(main())


def test_a_commit_beyond_zookeepers_limit_is_refused(zookeeper: ZooKeeperEnsemble) -> None:
    """Before it is sent, because ZooKeeper would only close the connection. Metadata is text, and
    is compressed first."""

    async def main() -> None:
        store = await open_store(zookeeper.address("/limits"))
        chance = random.Random(1)
        with pytest.raises(StoreUnavailable, match="accepts at most 1000000") as caught:
            await put(store, "/a", chance.randbytes(1_000_000))
        assert not isinstance(caught.value, OutcomeUnknown)
        assert await keys_of(store) == []
        largest = chance.randbytes(999_000)
        await put(store, "/a", largest)
        await put(store, "/b", b"text " * 1_000_000)
        other = await open_store(zookeeper.address("/limits"))
        entries, _ = await other.range("/")
        assert [entry.value for entry in entries] == [largest, b"text " * 1_000_000]
        await store.close()
        await other.close()

    asyncio.run(main())


def test_the_last_version_of_the_head_is_a_limit(
    zookeeper: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper counts to two billion. Reads and leases continue."""

    async def main() -> None:
        store = await open_store(zookeeper.address("/versions"))
        await put(store, "/a", b"1")
        monkeypatch.setattr(zk_log, "VERSION_MAX", 1)
        with pytest.raises(StoreUnavailable, match="penstock store copy"):
            await put(store, "/a", b"2")
        assert await keys_of(store) == ["/a"]
        assert await store.keep_alive(await store.grant_lease(600.0))
        await store.close()

    asyncio.run(main())


def test_the_log_does_not_grow_forever(zookeeper: ZooKeeperEnsemble) -> None:
    """Snapshots replace its beginning. A handle that is opened later has the same content, and
    continues with the log."""

    async def main() -> None:
        config = replace(PATIENT, snapshot_revisions=10, revisions_kept=5)
        snapshots = "/grows/penstock/snapshots"
        store = await open_store(zookeeper.address("/grows"), config)
        lease = await store.grant_lease(600.0)
        for number in range(100):
            await put(store, f"/{number % 7}", b"%d" % number, lease)
        async with asyncio.timeout(patient(LIMIT_S)):
            while len(await asyncio.to_thread(children, zookeeper, "/grows/penstock/log")) > 30:
                await put(store, "/7", b"", lease)
            # There is always one, and on a busy machine another one is being made or removed.
            while len(await asyncio.to_thread(children, zookeeper, snapshots)) > 4:
                await put(store, "/7", b"", lease)
        assert len(await asyncio.to_thread(children, zookeeper, snapshots)) >= 2
        other = await open_store(zookeeper.address("/grows"), config)
        assert await other.range("/") == await store.range("/")
        with pytest.raises(RevisionNotKept):
            await take(other, "/", 1, 1)
        revision = await put(other, "/last", b"")
        assert (await take(store, "/last", revision, 1))[0].revision == revision
        await other.revoke_lease(lease)
        assert await keys_of(store) == ["/last"]
        await store.close()
        await other.close()

    asyncio.run(main())


def test_handles_that_make_snapshots_at_once_do_no_harm(zookeeper: ZooKeeperEnsemble) -> None:
    async def main() -> None:
        config = replace(PATIENT, snapshot_revisions=1, revisions_kept=2)
        stores = [await open_store(zookeeper.address("/many"), config) for _ in range(3)]

        async def write(store: ZooKeeperStore, name: int) -> None:
            for number in range(15):
                await put(store, f"/{name}/{number}", b"")

        await asyncio.gather(*(write(store, name) for name, store in enumerate(stores)))
        await asyncio.gather(*(store.snapshots.make(1) for store in stores))
        last = await open_store(zookeeper.address("/many"), config)
        assert len(await keys_of(last)) == 45
        assert await last.range("/") == await stores[0].range("/")
        for store in (*stores, last):
            await store.close()

    asyncio.run(main())


def test_an_empty_store_can_begin_at_a_later_revision(zookeeper: ZooKeeperEnsemble) -> None:
    """As the target of a copy. Other handles follow."""

    async def main() -> None:
        store = await open_store(zookeeper.address("/later"))
        other = await open_store(zookeeper.address("/later"))
        await asyncio.gather(store.advance(1_000), other.advance(1_000))
        await store.advance(10)
        assert await revision_of(other) == 1_000
        assert await put(other, "/a", b"") == 1_001
        assert [event.revision for event in await take(store, "/", 1_001, 1)] == [1_001]
        with pytest.raises(ValueError, match="empty"):
            await store.advance(2_000)
        await store.close()
        await other.close()

    asyncio.run(main())


def test_znodes_of_another_program_are_not_taken_for_a_store(zookeeper: ZooKeeperEnsemble) -> None:
    client = KazooClient(zookeeper.members[0].endpoint, timeout=60)
    client.start(timeout=patient(LIMIT_S))
    client.create("/foreign/penstock/head", b"mine", makepath=True)
    for name in ("barrier", "log"):
        client.create(f"/foreign/penstock/{name}")
    client.stop()
    client.close()

    async def main() -> None:
        with pytest.raises(StoreCorrupt, match="another namespace"):
            await open_store(zookeeper.address("/foreign"))

    asyncio.run(main())


def test_an_address_opens_the_store(zookeeper: ZooKeeperEnsemble) -> None:
    async def main() -> None:
        threads = Threads(2)
        address = str(zookeeper.address("/opened"))
        store = await opening.open_store(address, SystemClock(), SystemRandom(), threads)
        assert isinstance(store, ZooKeeperStore)
        assert await put(store, "/a", b"") == 1
        await store.close()
        threads.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_timeout_s": 0.0},
        {"attempt_timeout_s": -1.0},
        {"session_timeout_s": 0.0},
        {"trust_s": -0.1},
        {"snapshot_revisions": 0},
        {"snapshot_bytes": 0},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    """When they are configured, not when they are first used."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ZooKeeperConfig(**wrong)
