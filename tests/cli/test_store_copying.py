"""Copies of a stopped cluster's metadata, from each kind of store to another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.main import open_store as open_configured
from penstock.cli.store_copying import Copied, CopyRefused, copy_store
from penstock.metadata.keys import (
    BROKERS_PREFIX,
    CLUSTER_KEY,
    CONTROLLER_EPOCH_KEY,
    PREFIX,
    TOPICS_PREFIX,
    topic_key,
)
from penstock.metadata.relocation import self_contained
from penstock.ports import Delete, MetadataStore, Put
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores import opening
from penstock.stores.opening import MARK
from penstock.testing.slowness import patient
from stores.etcd_server import EtcdCluster
from stores.store_bench import put
from stores.zk_server import ZooKeeperEnsemble

TOPICS = 120
LIMIT_S = 150.0
CHANGED = b'{"v":1,"configs":{"durability":"fsync"},"synced_from":-1}'


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(1, ["--heartbeat-interval=10", "--election-timeout=100"])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(1)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.close()


def with_stores(
    addresses: list[str], work: Callable[[list[MetadataStore]], Awaitable[None]]
) -> None:
    async def main() -> None:
        threads = Threads(4)
        stores = [
            await opening.open_store(address, SystemClock(), SystemRandom(), threads)
            for address in addresses
        ]
        try:
            async with asyncio.timeout(patient(LIMIT_S)):
                await work(stores)
        finally:
            for store in stores:
                await store.close()
            threads.close()

    asyncio.run(main())


async def fill(store: MetadataStore) -> None:
    """Writes what a cluster may leave behind."""
    await put(store, CLUSTER_KEY, b'{"v":1,"id":"x"}')
    for number in range(TOPICS):
        await put(store, topic_key(f"topic-{number}"), b"%d " % number * 2_000)
        await put(store, CONTROLLER_EPOCH_KEY, b"%d" % number)
    await put(store, topic_key("switched"), CHANGED)
    await put(store, topic_key("gone"), b"")
    await store.commit((), [Delete(topic_key("gone"))])


async def copied(source: MetadataStore, target: MetadataStore, wait_s: float = 0.0) -> Copied:
    return await copy_store(source, target, SystemClock(), lease_wait_s=wait_s)


async def content(store: MetadataStore) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.range(PREFIX))[0]}


def test_a_cluster_moves_through_all_stores(
    etcd: EtcdCluster, zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """From SQLite to etcd to ZooKeeper to SQLite, and nothing is lost. The revisions only grow."""
    addresses = [
        str(tmp_path / "one.db"),
        str(etcd.address("/moves")),
        str(zookeeper.address("/moves")),
        str(tmp_path / "two.db"),
    ]

    async def work(stores: list[MetadataStore]) -> None:
        await fill(stores[0])
        entries, revision = await stores[0].range(PREFIX)
        switched_at = next(e.modify_revision for e in entries if e.key == topic_key("switched"))
        for source, target in pairwise(stores):
            made = await copied(source, target)
            assert made.keys == TOPICS + 3
            assert made.source_revision >= revision
            _, revision = await target.range(PREFIX)
            assert made.source_revision <= made.target_revision <= revision
        first, last = await content(stores[0]), await content(stores[-1])
        assert json.loads(last.pop(topic_key("switched")))["synced_from"] == switched_at
        del first[topic_key("switched")]
        assert last == first
        assert await put(stores[-1], TOPICS_PREFIX + "later", b"") > revision

    with_stores(addresses, work)


def test_a_running_cluster_is_not_copied(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """While a broker holds a lease. The error names the broker, and the target stays empty."""

    async def work(stores: list[MetadataStore]) -> None:
        source, target = stores
        await fill(source)
        lease = await source.grant_lease(600.0)
        await put(source, f"{BROKERS_PREFIX}7", b"", lease)
        with pytest.raises(CopyRefused, match="broker 7 holds a lease"):
            await copied(source, target)
        assert await content(target) == {}
        await source.revoke_lease(lease)
        assert (await copied(source, target)).keys == TOPICS + 3

    with_stores([str(tmp_path / "live.db"), str(zookeeper.address("/from-live"))], work)
    with_stores([str(zookeeper.address("/live")), str(tmp_path / "from-live.db")], work)


def test_the_leases_of_killed_brokers_are_waited_for(
    zookeeper: ZooKeeperEnsemble, etcd: EtcdCluster, tmp_path: Path
) -> None:
    async def work(stores: list[MetadataStore]) -> None:
        source, target = stores
        await fill(source)
        await put(source, f"{BROKERS_PREFIX}7", b"", await source.grant_lease(patient(4.0)))
        waited: list[str] = []
        await copy_store(
            source,
            target,
            SystemClock(),
            lease_wait_s=patient(LIMIT_S),
            progress=lambda what, _done, _total: waited.append(what),
        )
        assert "seconds waited for leases to end" in waited
        assert f"{BROKERS_PREFIX}7" not in await content(target)

    sources = [str(tmp_path / "killed.db"), str(zookeeper.address("/dead"))]
    for number, source in enumerate([*sources, str(etcd.address("/dead"))]):
        with_stores([source, str(tmp_path / f"from-killed-{number}.db")], work)


def test_a_target_with_metadata_is_refused(tmp_path: Path) -> None:
    """Also with a part of an earlier copy."""

    async def work(stores: list[MetadataStore]) -> None:
        source, target = stores
        await fill(source)
        await put(target, CONTROLLER_EPOCH_KEY, b"1")
        with pytest.raises(CopyRefused, match="not empty, it has 1 keys"):
            await copied(source, target)
        await put(target, MARK, b"")
        with pytest.raises(CopyRefused, match="holds an incomplete copy"):
            await copied(source, target)
        with pytest.raises(CopyRefused, match="no cluster"):
            await copied(target, source)
        assert set(await content(target)) == {CONTROLLER_EPOCH_KEY, MARK}

    with_stores([str(tmp_path / "source.db"), str(tmp_path / "target.db")], work)


async def none_can_start(target: MetadataStore) -> None:
    """Checks that what a copy has left is not a cluster, and is marked."""
    left = await content(target)
    assert MARK in left
    assert CLUSTER_KEY not in left


def test_no_broker_starts_with_a_part_of_a_copy(tmp_path: Path) -> None:
    """It would find no cluster, and found a new one. With the whole copy it starts."""
    path = str(tmp_path / "part.db")

    async def leave(stores: list[MetadataStore]) -> None:
        await put(stores[0], MARK, b"in progress")

    async def finish(stores: list[MetadataStore]) -> None:
        await stores[0].commit((), [Delete(MARK), Put(CLUSTER_KEY, b"")])

    async def start() -> None:
        threads = Threads(1)
        config = BrokerConfig(store=path)
        try:
            store = await open_configured(config, SystemClock(), SystemRandom(), threads)
            await store.close()
        finally:
            threads.close()

    with_stores([path], leave)
    with pytest.raises(ConfigError, match="holds an incomplete copy"):
        asyncio.run(start())
    with_stores([path], finish)
    asyncio.run(start())


def test_a_source_that_changes_is_noticed(tmp_path: Path) -> None:
    """For example, because a broker was started too early."""

    async def work(stores: list[MetadataStore]) -> None:
        source, target = stores
        await fill(source)
        changes: list[asyncio.Task[int]] = []

        def progress(what: str, _done: int, _total: int) -> None:
            if what == "copied keys" and not changes:
                changes.append(asyncio.create_task(put(source, topic_key("new"), b"")))

        with pytest.raises(CopyRefused, match="source has changed"):
            await copy_store(source, target, SystemClock(), lease_wait_s=0.0, progress=progress)
        await none_can_start(target)

    with_stores([str(tmp_path / "source.db"), str(tmp_path / "target.db")], work)


def test_a_target_that_others_write_to_is_noticed(tmp_path: Path) -> None:
    async def work(stores: list[MetadataStore]) -> None:
        source, target = stores
        await fill(source)
        changes: list[asyncio.Task[int]] = []

        def progress(what: str, _done: int, _total: int) -> None:
            if what == "copied keys" and not changes:
                changes.append(asyncio.create_task(put(target, topic_key("new"), b"")))

        with pytest.raises(CopyRefused, match="another program writes"):
            await copy_store(source, target, SystemClock(), lease_wait_s=0.0, progress=progress)
        await none_can_start(target)

    with_stores([str(tmp_path / "source.db"), str(tmp_path / "target.db")], work)


def test_only_references_to_the_own_revision_are_replaced() -> None:
    """Other values stay the same bytes."""
    key = topic_key("orders")
    assert json.loads(self_contained(key, CHANGED, 42)) == {
        "v": 1,
        "configs": {"durability": "fsync"},
        "synced_from": 42,
    }
    for same in (b'{"v": 1,"configs":{},"synced_from":7}', b'{"v":1,"configs":{}}', b"\xff"):
        assert self_contained(key, same, 42) is same
    assert self_contained(CLUSTER_KEY, CHANGED, 42) is CHANGED
