"""Brokers that use a ZooKeeper as their store: `store = "zk://..."`, and move to another store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import Admin, Consumer, Producer
from penstock.broker.config import BrokerConfig, ConfigError, load_config
from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.main import open_store as open_configured
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.testing.slowness import patient

from .broker_processes import PATIENCE_S, PROGRAM, broker, topics_of, write_config
from .etcd_server import EtcdCluster
from .zk_server import ZooKeeperEnsemble, open_store

SESSION_S = 3
"""Short, so that tests need not wait for long until it has ended."""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(1)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.close()


def test_a_topic_survives_its_broker(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """It is created on a broker that is killed, and found with the same record after a restart,
    and after a clean stop again. None of its metadata is in a file of the broker."""
    config = write_config(tmp_path, str(zookeeper.address("/survives")))
    with broker(config) as (bootstrap, process):
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 3)
        with Producer(bootstrap) as producer:
            producer.send("orders", b"one").result(patient(PATIENCE_S))
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


def test_a_broker_keeps_serving_while_zookeeper_has_no_majority(tmp_path: Path) -> None:
    """For longer than the time limit of a call. Afterwards it creates topics again."""
    zookeeper = ZooKeeperEnsemble(3)
    try:
        zookeeper.start()
        config = write_config(tmp_path, str(zookeeper.address("/minority")))
        with broker(config) as (bootstrap, process), Producer(bootstrap) as producer:
            with Admin(bootstrap) as admin:
                admin.create_topic("orders", 1)
            # The producer gets its id now, because ids are allocated in the store.
            assert producer.send("orders", b"one").result(patient(PATIENCE_S)).offset == 0
            for member in zookeeper.members[1:]:
                member.kill()
            assert process.stderr is not None
            assert any("could not renew this broker's lease" in line for line in process.stderr)
            assert producer.send("orders", b"two").result(patient(PATIENCE_S)).offset == 1
            zookeeper.start()
            with Admin(bootstrap) as admin:
                admin.create_topic("later", 1)
            assert topics_of(bootstrap) == {"orders": 1, "later": 1}
    finally:
        zookeeper.close()


def test_a_frozen_broker_comes_back_by_itself(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """Its session has ended meanwhile. It registers again, with its data."""
    config = write_config(tmp_path, str(zookeeper.address("/frozen")), session_timeout_s=SESSION_S)
    with broker(config) as (bootstrap, process), Producer(bootstrap) as producer:
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 1)
        assert producer.send("orders", b"one").result(patient(PATIENCE_S)).offset == 0
        process.send_signal(signal.SIGSTOP)
        asyncio.run(until_gone(zookeeper.address("/frozen"), broker_id=0))
        process.send_signal(signal.SIGCONT)
        assert process.stderr is not None
        assert any("registered again" in line for line in process.stderr)
        assert producer.send("orders", b"two").result(patient(PATIENCE_S)).offset == 1
    assert process.returncode == 0


async def until_gone(address: ZooKeeperAddress, broker_id: int) -> None:
    """Waits until the broker's lease has ended."""
    store = await open_store(address)
    view = ClusterView(store)
    try:
        async with asyncio.timeout(patient(PATIENCE_S)):
            await view.load()
            async with asyncio.TaskGroup() as tasks:
                gone = asyncio.Event()
                view.listen(lambda _: None if broker_id in view.image.brokers else gone.set())
                following = tasks.create_task(view.follow())
                await gone.wait()
                following.cancel()
    finally:
        await store.close()


def test_three_brokers_continue_without_their_controller(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """It is killed, another broker takes over, leaders are elected, and no acknowledged record is
    lost."""
    address = str(zookeeper.address("/three"))
    configs = [write_config(tmp_path / str(each), address, each, SESSION_S) for each in range(3)]
    with ExitStack() as stack:
        running = [stack.enter_context(broker(config)) for config in configs]
        bootstrap = ",".join(each for each, _ in running)
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", 3, replication_factor=3)
            controller = admin.describe_cluster().controller_id
        with Producer(bootstrap) as producer:
            for number in range(30):
                producer.send("orders", b"%d" % number, partition=number % 3).result(
                    patient(PATIENCE_S)
                )
            running[controller][1].kill()
            for number in range(30, 60):
                producer.send("orders", b"%d" % number, partition=number % 3).result(
                    patient(PATIENCE_S)
                )
        with Admin(bootstrap) as admin:
            end_s = time.monotonic() + patient(PATIENCE_S)
            # The broker that answers may hear of its successor a moment later.
            while admin.describe_cluster().controller_id == controller:
                assert time.monotonic() < end_s, "there is no other controller"
                time.sleep(0.1)
        with Consumer(
            bootstrap, topics=["orders"], group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            read = sorted(int(next(consumer).value or b"") for _ in range(60))
        assert read == list(range(60))


def test_a_broker_without_its_zookeeper_exits_with_an_error(tmp_path: Path) -> None:
    """Soon, without a traceback, and the error contains the address that does not answer."""
    config = write_config(tmp_path, "zk://127.0.0.1:1/nowhere")
    ended = subprocess.run(
        [*PROGRAM, "broker", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=patient(PATIENCE_S),
        check=False,
        env={**os.environ, "COLUMNS": "400"},
    )
    assert ended.returncode != 0
    assert "zk://127.0.0.1:1/nowhere did not answer" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_store_is_chosen_by_its_address(tmp_path: Path) -> None:
    """What is wrong with it is said when the config is read."""
    config = load_config(str(write_config(tmp_path, "zk://a,b:1/prod")))
    assert config.store_path == "zk://a,b:1/prod"
    assert config.etcd is None
    for wrong in ("zk://", "zk://a?tls=1", "zk://a/../b", "zookeeper://a:2181"):
        with pytest.raises(ConfigError, match="store"):
            BrokerConfig(store=wrong)


def test_a_missing_zookeeper_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, instead of a failed import."""
    monkeypatch.setitem(sys.modules, "penstock.stores.zookeeper", None)
    config = BrokerConfig(store="zk://a")
    opening = open_configured(config, SystemClock(), SystemRandom(), Threads(1))
    with pytest.raises(ConfigError, match=r"penstock\[zookeeper\]"):
        asyncio.run(opening)


def test_a_cluster_moves_from_store_to_store(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """SQLite, etcd, ZooKeeper and SQLite again. The broker keeps its data, its clients find their
    topics, and the records are those that were acknowledged."""
    etcd = EtcdCluster(1, ["--heartbeat-interval=10", "--election-timeout=100"])
    stores = [
        str(tmp_path / "one.db"),
        str(etcd.address("/moved")),
        str(zookeeper.address("/moved")),
        str(tmp_path / "two.db"),
    ]
    try:
        etcd.start()
        for number, store in enumerate(stores):
            if number:
                copy = [*PROGRAM, "store", "copy", stores[number - 1], store]
                subprocess.run(copy, check=True, timeout=patient(PATIENCE_S))
            with broker(write_config(tmp_path, store)) as (bootstrap, process):
                with Admin(bootstrap) as admin:
                    admin.create_topic(f"topic-{number}", 1)
                assert topics_of(bootstrap) == {f"topic-{each}": 1 for each in range(number + 1)}
                with Producer(bootstrap) as producer:
                    sent = producer.send("topic-0", b"%d" % number).result(patient(PATIENCE_S))
                assert sent.offset == number
                with Consumer(
                    bootstrap, topics=["topic-0"], group_id=None, auto_offset_reset="earliest"
                ) as consumer:
                    read = [next(consumer).value for _ in range(number + 1)]
                assert read == [b"%d" % each for each in range(number + 1)]
            assert process.returncode == 0
    finally:
        etcd.close()
