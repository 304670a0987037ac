"""Brokers that use an etcd as their store: `store = "etcd://..."`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock import Admin, BrokerError, Consumer, Producer
from penstock.broker.config import BrokerConfig, ConfigError, load_config
from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.main import open_store as open_configured
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.sqlite import SqliteStore
from penstock.testing.slowness import patient

from .broker_processes import PATIENCE_S, PROGRAM, broker, topics_of, write_config
from .etcd_server import EtcdCluster, open_store
from .store_bench import put


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(1, ["--heartbeat-interval=10", "--election-timeout=100"])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def test_a_topic_survives_its_broker(etcd: EtcdCluster, tmp_path: Path) -> None:
    """It is created on a broker that is killed, and found with the same record after a restart,
    and after a clean stop again. None of its metadata is in a file of the broker."""
    config = write_config(tmp_path, str(etcd.address("/survives")))
    with broker(config) as (bootstrap, process):
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 3)
        with Producer(bootstrap) as producer:
            producer.send("orders", b"one").result(PATIENCE_S)
        process.kill()
        process.wait(timeout=patient(PATIENCE_S))
    for _ in range(2):
        with broker(config) as (bootstrap, process):
            assert topics_of(bootstrap) == {"orders": 3}
            with Consumer(
                bootstrap, topics=["orders"], group_id=None, auto_offset_reset="earliest"
            ) as consumer:
                assert next(iter(consumer)).value == b"one"
        assert process.returncode == 0
    assert not (tmp_path / "data" / "metadata.db").exists()


def test_brokers_of_two_namespaces_are_two_clusters(etcd: EtcdCluster, tmp_path: Path) -> None:
    """In one etcd. Neither has the topics of the other."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    configs = [write_config(folder, str(etcd.address(f"/two-{folder.name}"))) for folder in folders]
    with broker(configs[0]) as (first, _), broker(configs[1]) as (second, _):
        with Admin(first) as admin:
            admin.create_topic("orders", 1)
        assert topics_of(first) == {"orders": 1}
        assert topics_of(second) == {}


def test_a_broker_survives_the_death_of_etcds_leader(tmp_path: Path) -> None:
    """It keeps its lease, knows its topics, and creates new ones."""
    etcd = EtcdCluster(3, ["--heartbeat-interval=50", "--election-timeout=500"])
    try:
        etcd.start()
        config = write_config(tmp_path, str(etcd.address("/leaderless")))
        with broker(config) as (bootstrap, process):
            with Admin(bootstrap) as admin:
                admin.create_topic("before", 1)
                asyncio.run(etcd.leader()).kill()
                # A commit in progress at that moment has an unknown outcome, and so does the
                # request.
                for _ in range(20):
                    with suppress(BrokerError):
                        admin.create_topic("after", 1)
                    if "after" in topics_of(bootstrap):
                        break
            assert topics_of(bootstrap) == {"before": 1, "after": 1}
            assert process.poll() is None
        assert process.returncode == 0
    finally:
        etcd.close()


def test_a_broker_keeps_serving_while_etcd_has_no_majority(tmp_path: Path) -> None:
    """For longer than the time limit of a call. Afterwards it creates topics again."""
    etcd = EtcdCluster(3, ["--heartbeat-interval=50", "--election-timeout=500"])
    try:
        etcd.start()
        config = write_config(tmp_path, str(etcd.address("/minority")))
        with broker(config) as (bootstrap, process), Producer(bootstrap) as producer:
            with Admin(bootstrap) as admin:
                admin.create_topic("orders", 1)
            # The producer gets its id now, because ids are allocated in the store.
            assert producer.send("orders", b"one").result(PATIENCE_S).offset == 0
            for member in etcd.members[1:]:
                member.kill()
            assert process.stderr is not None
            assert any("could not renew this broker's lease" in line for line in process.stderr)
            assert producer.send("orders", b"two").result(PATIENCE_S).offset == 1
            etcd.start()
            with Admin(bootstrap) as admin:
                admin.create_topic("later", 1)
            assert topics_of(bootstrap) == {"orders": 1, "later": 1}
    finally:
        etcd.close()


def test_a_frozen_broker_comes_back_by_itself(etcd: EtcdCluster, tmp_path: Path) -> None:
    """Its session has ended meanwhile. It registers again, with its data."""
    config = write_config(tmp_path, str(etcd.address("/frozen")), session_timeout_s=1)
    with broker(config) as (bootstrap, process), Producer(bootstrap) as producer:
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 1)
        assert producer.send("orders", b"one").result(PATIENCE_S).offset == 0
        process.send_signal(signal.SIGSTOP)
        asyncio.run(until_gone(etcd.address("/frozen"), broker_id=0))
        process.send_signal(signal.SIGCONT)
        assert process.stderr is not None
        assert any("registered again" in line for line in process.stderr)
        assert producer.send("orders", b"two").result(PATIENCE_S).offset == 1
    assert process.returncode == 0


async def until_gone(address: EtcdAddress, broker_id: int) -> None:
    """Waits until etcd has ended the broker's lease."""
    store = await open_store(address)
    view = ClusterView(store)
    try:
        async with asyncio.timeout(patient(PATIENCE_S)):
            await view.load()
            if broker_id not in view.image.brokers:
                return
            async with asyncio.TaskGroup() as tasks:
                gone = asyncio.Event()
                view.listen(lambda _: None if broker_id in view.image.brokers else gone.set())
                following = tasks.create_task(view.follow())
                await gone.wait()
                following.cancel()
    finally:
        await store.close()


def test_three_brokers_continue_without_their_controller(etcd: EtcdCluster, tmp_path: Path) -> None:
    """It is killed, another broker takes over, leaders are elected, and no acknowledged record is
    lost."""
    address = str(etcd.address("/three"))
    configs = [write_config(tmp_path / str(each), address, each) for each in range(3)]
    with ExitStack() as stack:
        running = [stack.enter_context(broker(config)) for config in configs]
        bootstrap = ",".join(each for each, _ in running)
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 3, replication_factor=3)
            controller = admin.describe_cluster().controller_id
        with Producer(bootstrap) as producer:
            for number in range(30):
                producer.send("orders", b"%d" % number, partition=number % 3).result(PATIENCE_S)
            running[controller][1].kill()
            for number in range(30, 60):
                producer.send("orders", b"%d" % number, partition=number % 3).result(PATIENCE_S)
        with Admin(bootstrap) as admin:
            # The broker that answers may learn of it later than the one that was elected.
            deadline_s = time.monotonic() + patient(PATIENCE_S)
            while admin.describe_cluster().controller_id == controller:
                assert time.monotonic() < deadline_s, "no other broker took over"
        with Consumer(
            bootstrap, topics=["orders"], group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            read = sorted(int(next(consumer).value or b"") for _ in range(60))
        assert read == list(range(60))


def test_a_broker_without_its_etcd_exits_with_an_error(tmp_path: Path) -> None:
    """Soon, without a traceback, and the error contains the address that does not answer."""
    config = write_config(tmp_path, "etcd://127.0.0.1:1/nowhere")
    ended = subprocess.run(
        [*PROGRAM, "broker", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=patient(PATIENCE_S),
        check=False,
        env={**os.environ, "COLUMNS": "400"},
    )
    assert ended.returncode != 0
    assert "etcd://127.0.0.1:1/nowhere did not answer" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_store_is_chosen_by_its_address(etcd: EtcdCluster, tmp_path: Path) -> None:
    """A path is a SQLite file, an address is an etcd. Anything else is refused when the config is
    read."""
    config = load_config(str(write_config(tmp_path, "etcd://a,b:1/prod")))
    assert config.etcd == EtcdAddress(("a:2379", "b:1"), "/prod")
    assert BrokerConfig().etcd is None
    for wrong in ("etcd://", "etcd://a?tls=1", "zookeeper://a:2181"):
        with pytest.raises(ConfigError, match="store"):
            BrokerConfig(store=wrong)

    async def main() -> None:
        threads = Threads(1)
        local = BrokerConfig(store=str(tmp_path / "metadata.db"))
        store = await open_configured(local, SystemClock(), SystemRandom(), threads)
        assert isinstance(store, SqliteStore)
        await store.close()
        shared = BrokerConfig(store=str(etcd.address("/chosen")))
        store = await open_configured(shared, SystemClock(), SystemRandom(), threads)
        assert await put(store, "/a", b"") > 0
        await store.close()
        threads.close()

    asyncio.run(main())


def test_a_missing_etcd_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the command that installs it, instead of a failed import."""
    monkeypatch.setitem(sys.modules, "penstock.stores.etcd", None)
    config = BrokerConfig(store="etcd://a")
    opening = open_configured(config, SystemClock(), SystemRandom(), Threads(1))
    with pytest.raises(ConfigError, match=r"penstock\[etcd\]"):
        asyncio.run(opening)


def test_the_image_skips_revisions_of_other_clusters(etcd: EtcdCluster) -> None:
    """A failed commit returns etcd's revision, which may be that of another cluster. Waiting for
    it must end although the watch never shows it, and later changes must still arrive."""

    async def main() -> None:
        store = await open_store(etcd.address("/image"))
        neighbour = await open_store(etcd.address("/neighbour"))
        view = ClusterView(store)
        await view.load()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(view.follow())
            theirs = await put(neighbour, "/penstock/a", b"")
            await view.wait_for(theirs, timeout_s=patient(20))
            assert view.image.revision >= theirs
            ours = await put(store, "/penstock/unknown", b"")
            await view.wait_for(ours, timeout_s=patient(20))
            assert view.image.revision >= ours
            following.cancel()
        await store.close()
        await neighbour.close()

    asyncio.run(main())
