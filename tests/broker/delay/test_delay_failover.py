"""Delay topics on three brokers: leaders are killed at each step, and the cluster is restarted.

Every record arrives in the target once. Those of one producer that are due at different times
arrive in order of their due times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.delay.delay_client import Sent, batch_of
from broker.three_brokers import Node, ThreeBrokers, three_brokers
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

pytestmark = pytest.mark.filterwarnings("ignore:coroutine '_(serve|run)' was never awaited")

SETTINGS = {"share.coordinator.state.topic.num.partitions": "1"}
TIMEOUT_S = 240.0
LATER, ORDERS = "later", "orders"
Scenario = Callable[[ThreeBrokers], Awaitable[None]]


def run(tmp_path: Path, scenario: Scenario) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, SETTINGS) as cluster,
        ):
            await scenario(cluster)

    asyncio.run(main())


def now_ms() -> int:
    return SystemClock().wall_ms()


async def send(cluster: ThreeBrokers, *sent: Sent) -> None:
    data = bytes(batch_of(sent))
    while True:
        leader = cluster.partition(LATER).leader
        if leader >= 0 and cluster.nodes[leader].is_running:
            code, _ = await cluster._produce(leader, LATER, 0, data, -1)
            if code == ErrorCode.NONE:
                return
        await asyncio.sleep(0.01)


async def set_up(cluster: ThreeBrokers, configs: Mapping[str, str] | None = None) -> str:
    """Creates a delay topic whose target has another leader, and these settings. Returns the
    target's name."""
    targets = 0
    while True:
        target = f"{ORDERS}{targets}"
        await cluster.create(target, 1, 3, **(configs or {}))
        if not targets:
            await cluster.create(LATER, 1, penstock_delay_target=target)
        if cluster.partition(target).leader != cluster.partition(LATER).leader:
            break
        targets += 1
    if targets:
        await cluster.create("later2", 1)
        await set_target(cluster, target)
    return target


async def set_target(cluster: ThreeBrokers, target: str) -> None:
    from penstock import aio

    bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in cluster.running)
    async with aio.Admin(bootstrap) as admin:
        await admin.alter_configs(topic=LATER, set_values={"penstock.delay.target": target})

    def has_target(node: Node) -> bool:
        found = cluster.broker(node.broker_id).cluster.image.topics[LATER]
        return dict(found.configs)["penstock.delay.target"] == target

    await cluster.until(lambda: all(map(has_target, cluster.running)))


def copied(cluster: ThreeBrokers, target: str) -> list[bytes]:
    """Returns the committed values of the target, as its leader has them."""
    leader = cluster.partition(target).leader
    if leader < 0 or not cluster.nodes[leader].is_running:
        return []
    hosted = cluster.broker(leader).replicas.get(target, 0)
    if hosted is None or hosted.leadership is None:
        return []
    return cluster.values(leader, target)


async def finish(cluster: ThreeBrokers, target: str, wanted: Sequence[bytes]) -> None:
    """Waits until all records have been copied and confirmed. Then each is there once."""
    await cluster.until(lambda: set(copied(cluster, target)) == {*wanted}, TIMEOUT_S)

    def is_idle() -> bool:
        leader = cluster.partition(LATER).leader
        if leader < 0 or not cluster.nodes[leader].is_running:
            return False
        services = cluster.broker(leader).services
        found = [] if services is None else [*services.delays]
        return bool(found) and all(each._copying is not None and not each.waiting for each in found)

    await cluster.until(is_idle, TIMEOUT_S)
    assert copied(cluster, target) == [*wanted]


def stop_at(cluster: ThreeBrokers, step: str) -> asyncio.Event:
    """Makes the leader of the delay topic hang at a step. Returns what is set then."""
    services = cluster.broker(cluster.partition(LATER).leader).services
    assert services is not None
    (delayed,) = services.delays
    sender, state = services.delays.sender, services.share_state
    reached = asyncio.Event()
    append, write = sender.append, state.write

    async def hang() -> Any:
        reached.set()
        await asyncio.Future()

    async def stopped_append(*args: Any) -> Any:
        if step == "after the copy":
            await append(*args)
        return await hang()

    async def stopped_write(*args: Any) -> Any:
        if step == "after the store":
            await write(*args)
        return await hang()

    if step.endswith("copy"):
        sender.append = stopped_append  # type: ignore[method-assign, assignment]
    else:
        state.write = stopped_write  # type: ignore[method-assign, assignment]
    assert delayed.hosted.leadership is not None
    return reached


STEPS = ["before the store", "after the store", "before the copy", "after the copy"]


@pytest.mark.parametrize("step", STEPS)
def test_the_leader_is_killed(step: str, tmp_path: Path) -> None:
    async def scenario(cluster: ThreeBrokers) -> None:
        target = await set_up(cluster)
        await send(cluster, Sent(b"first"))
        await cluster.until(lambda: copied(cluster, target) == [b"first"])
        reached = stop_at(cluster, step)
        now = now_ms()
        await send(cluster, Sent(b"b", now + 2), Sent(b"a", now + 1), Sent(b"c", now + 700))
        await reached.wait()
        await cluster.nodes[cluster.partition(LATER).leader].kill()
        await send(cluster, Sent(b"d", now_ms() + 900))
        await finish(cluster, target, [b"first", b"a", b"b", b"c", b"d"])

    run(tmp_path, scenario)


@pytest.mark.parametrize("victim", ["coordinator", "target"])
def test_another_leader_is_killed_in_the_middle(victim: str, tmp_path: Path) -> None:
    """The coordinator of the state, or the leader of the target. Records go on coming."""

    async def scenario(cluster: ThreeBrokers) -> None:
        target = await set_up(cluster)
        wanted: list[bytes] = []
        began = now_ms()

        async def send_some(first: int, count: int) -> None:
            for number in range(first, first + count):
                value = b"%04d" % number
                wanted.append(value)
                await send(cluster, Sent(value, began + number))

        await send_some(0, 20)
        await cluster.until(lambda: bool(copied(cluster, target)))
        topic = target if victim == "target" else SHARE_STATE_TOPIC
        killed = cluster.partition(topic).leader
        sending = asyncio.ensure_future(send_some(20, 40))
        await cluster.nodes[killed].kill()
        await sending
        await cluster.start(killed)
        await send_some(60, 20)
        await cluster.until(lambda: {*copied(cluster, target)} == {*wanted}, TIMEOUT_S)
        assert sorted(copied(cluster, target)) == wanted

    run(tmp_path, scenario)


def test_the_cluster_is_down_at_the_due_time(tmp_path: Path) -> None:
    """All brokers are killed, and start again when the records have been due for a while."""

    async def scenario(cluster: ThreeBrokers) -> None:
        target = await set_up(cluster)
        await send(cluster, Sent(b"first"))
        await cluster.until(lambda: copied(cluster, target) == [b"first"])
        due = now_ms() + 1_500
        await send(cluster, Sent(b"c", due + 2), Sent(b"a", due), Sent(b"b", due + 1))
        for node in cluster.nodes:
            await node.kill()
        while now_ms() <= due + 2:  # noqa: ASYNC110 - the wall clock has no event
            await asyncio.sleep(0.02)
        for node in cluster.nodes:
            await node.start(cluster._kafka)
        await finish(cluster, target, [b"first", b"a", b"b", b"c"])

    run(tmp_path, scenario)


def test_leaders_are_killed_again_and_again(tmp_path: Path) -> None:
    """Whoever leads the delay topic is killed, and starts again, while records are sent."""

    async def scenario(cluster: ThreeBrokers) -> None:
        target = await set_up(cluster)
        wanted: list[bytes] = []
        for turn in range(4):
            now = now_ms()
            numbers = range(25 * turn, 25 * turn + 25)
            sent = [Sent(b"%04d" % each, now + (each * 37) % 200) for each in numbers]
            values = {each.value for each in sent}
            wanted += sorted(values)
            await send(cluster, *sent)
            await cluster.until(lambda values=values: bool(values & {*copied(cluster, target)}))  # type: ignore[misc]
            leader = cluster.partition(LATER).leader
            await cluster.nodes[leader].kill()
            await cluster.until(lambda leader=leader: cluster.partition(LATER).leader != leader)  # type: ignore[misc]
            await cluster.start(leader)
        await cluster.until(lambda: {*copied(cluster, target)} == {*wanted}, TIMEOUT_S)
        assert sorted(copied(cluster, target)) == wanted

    run(tmp_path, scenario)
