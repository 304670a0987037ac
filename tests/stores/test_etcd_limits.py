"""etcd's limits: the size of a commit and of its database. Both with a real etcd."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aetcd import rpc

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.control.membership import Endpoint, Membership, Proof
from penstock.broker.error_codes import code_of
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.topics import (
    TopicDefaults,
    TopicSpec,
    create_partitions,
    create_topic,
    delete_topic,
)
from penstock.runtime import SystemClock, SystemRandom
from penstock.stores.errors import StoreFull
from penstock.stores.etcd import EtcdStore
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

from .etcd_server import PATIENT, EtcdCluster, compact, open_store
from .store_bench import put

PARTITIONS = 10_500
PATIENCE_S = 300.0
TINY_QUOTA = 16 << 20
Node = SimpleNamespace


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(1, ["--heartbeat-interval=10", "--election-timeout=100"])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@asynccontextmanager
async def node(etcd: EtcdCluster, namespace: str, broker_id: int) -> AsyncIterator[Node]:
    """Runs the parts of a broker that make decisions, without logs."""
    store = await EtcdStore.open(etcd.address(namespace), SystemClock(), SystemRandom(), PATIENT)
    env: Any = SimpleNamespace(store=store, clock=SystemClock(), random=SystemRandom())
    view = ClusterView(store)
    commits = Commits(store, view)
    membership = Membership(env, view, commits, broker_id, patient(60.0), 2.0)
    controller = ControllerRuntime(
        env, view, commits, membership, broker_id, lambda: BrokerConfigs({}), {}
    )
    await view.load()

    async def start_over() -> None:
        raise AssertionError("the session ended")

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(view.follow())]
        await membership.register(Endpoint("host", 9092, None), Proof(-1, 0, 0))
        running.append(tasks.create_task(membership.keep(start_over)))
        await controller.begin()
        running.append(tasks.create_task(controller.watch_over()))
        yield Node(
            store=store, view=view, commits=commits, membership=membership, controller=controller
        )
        for task in running:
            task.cancel()
    await store.close()


async def until(holds: Any) -> None:
    async with asyncio.timeout(patient(PATIENCE_S)):
        while not holds():  # noqa: ASYNC110 - many things change it
            await asyncio.sleep(0.05)


def test_a_topic_with_many_partitions_works_on_etcd(etcd: EtcdCluster) -> None:
    """It is created, grows, loses a broker and is deleted, and the controller survives all of
    it."""

    async def main() -> None:
        async with node(etcd, "/large", 0) as one, node(etcd, "/large", 1) as two:
            async with node(etcd, "/large", 2) as three:
                await until(lambda: len(one.view.image.brokers) == 3)
                spec = TopicSpec("t", PARTITIONS, 3)
                topic = await one.controller.decide(
                    lambda image: create_topic(
                        image, spec, topic_id=b"large".ljust(16), defaults=TopicDefaults()
                    )
                )
                assert len(topic.partitions) == PARTITIONS
                await until(lambda: "t" in two.view.image.topics)
                assert two.view.image.topics["t"] == topic
                await two.controller.decide(
                    lambda image: create_partitions(image, "t", PARTITIONS + 600)
                )
                await until(lambda: len(one.view.image.topics["t"].partitions) == PARTITIONS + 600)
                await three.membership.leave()

            def nobody_needs(broker_id: int) -> bool:
                held = one.view.image.topics["t"].partitions
                return all(broker_id not in each.isr for each in held)

            await until(lambda: nobody_needs(2))
            assert {each.leader for each in one.view.image.topics["t"].partitions} == {0, 1}
            assert one.controller.term is not None
            assert one.controller.failing is None
            await one.controller.decide(lambda image: delete_topic(image, name="t"))
            await until(lambda: not one.view.image.topics and not two.view.image.topics)
            left = [entry.key for entry in (await one.store.range("/penstock/partitions/"))[0]]
            assert left == []

    asyncio.run(main())


def test_a_full_etcd_stops_only_changes() -> None:
    """Reads and leases continue. A change fails with a retriable error that says what to do. Once
    there is space and the alarm is cleared, changes work again without a restart."""
    etcd = EtcdCluster(
        1,
        [
            "--heartbeat-interval=10",
            "--election-timeout=100",
            f"--quota-backend-bytes={TINY_QUOTA}",
        ],
    )
    try:
        etcd.start()
        asyncio.run(_fill_and_free(etcd))
    finally:
        etcd.close()


async def _fill_and_free(etcd: EtcdCluster) -> None:
    def spec(name: str) -> Any:
        return lambda image: create_topic(
            image,
            TopicSpec(name, 1, 1),
            topic_id=name.encode().ljust(16),
            defaults=TopicDefaults(),
        )

    async with node(etcd, "/full", 0) as one:
        await until(lambda: one.controller.term is not None)
        await one.controller.decide(spec("before"))
        hog = await open_store(etcd.address("/hog"))
        with pytest.raises(StoreFull, match="defrag"):
            for _ in range(100):
                await put(hog, "/hog", os.urandom(1 << 20))
        with pytest.raises(StoreFull, match="alarm disarm") as caught:
            await one.controller.decide(spec("refused"))
        assert caught.value.retriable
        assert code_of(caught.value) is ErrorCode.REQUEST_TIMED_OUT
        assert one.store.full is not None
        # Leases, reads and leadership continue.
        assert await one.store.keep_alive(one.commits.lease)
        assert await one.store.get("/penstock/topics/before") is not None
        assert one.membership.is_registered
        assert one.controller.term is not None
        with pytest.raises(StoreFull):
            await one.store.grant_lease(10.0)
        await hog.close()
        await _make_room(etcd.members[0].endpoint, (await one.store.range("/"))[1])
        async with asyncio.timeout(patient(PATIENCE_S)):
            while True:
                try:
                    await one.controller.decide(spec("after"))
                    break
                except StoreFull:
                    await asyncio.sleep(0.1)
        assert one.store.full is None
        assert {"before", "after"} <= set(one.view.image.topics)


async def _make_room(endpoint: str, revision: int) -> None:
    """Frees space as an operator does who follows the error message."""
    await compact(endpoint, revision)
    async with rpc.insecure_channel(endpoint) as channel:
        stub = rpc.MaintenanceStub(channel)
        await stub.Defragment(rpc.DefragmentRequest(), timeout=120)
        actions = rpc.AlarmRequest
        listed = await stub.Alarm(actions(action=actions.GET), timeout=120)
        for raised in listed.alarms:
            disarm = actions(
                action=actions.DEACTIVATE, memberID=raised.memberID, alarm=raised.alarm
            )
            await stub.Alarm(disarm, timeout=120)
