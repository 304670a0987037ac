"""Whole simulated clusters: real brokers and clients with simulated clock, disk and network."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.aio import Admin, Consumer, Producer
from penstock.client.environment import ClientEnv
from penstock.client.errors import ClientError
from penstock.sim.faults.cluster_faults import ClusterFaults
from penstock.sim.node import BrokerNode
from penstock.sim.world import Unexpected, World, run_world
from penstock.sim.world_config import WorldConfig
from penstock.stores.errors import StoreUnreachable
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

TOPIC = "t"
TOPIC_PARTITIONS = [TopicPartition(TOPIC, index) for index in range(3)]


def run_case(
    scenario: Callable[[World], Awaitable[Any]], seed: int = 1, *, brokers: int = 1
) -> Any:
    """Returns the result of a scenario, or raises its error with the event log attached."""
    outcome = run_world(seed, scenario, WorldConfig(brokers=brokers, virtual_s_max=600))
    if outcome.error is not None:
        outcome.error.add_note("\n".join(outcome.trace_lines))
        raise outcome.error
    return outcome.value


async def create(env: ClientEnv, world: World) -> None:
    async with Admin(world.bootstrap, env=env) as admin:
        await admin.create_topic(TOPIC, partitions=3, replication_factor=1)


async def produce(env: ClientEnv, world: World, values: list[bytes]) -> None:
    async with Producer(world.bootstrap, env=env) as producer:
        for value in values:
            await (await producer.send(TOPIC, value, key=value))


async def drain(env: ClientEnv, world: World) -> list[bytes]:
    found: list[bytes] = []
    async with Consumer(world.bootstrap, env=env, auto_offset_reset="earliest") as consumer:
        consumer.assign(TOPIC_PARTITIONS)
        while records := await consumer.poll(timeout_ms=3000):
            found += [record.value for record in records if record.value is not None]
    return sorted(found)


VALUES = [b"%03d" % number for number in range(20)]


def test_produced_records_are_consumed() -> None:
    """One broker, one client, no faults; then everything stops cleanly."""

    async def scenario(world: World) -> list[bytes]:
        await world.start_brokers()
        client = world.client("client")
        await client.spawn(create(client.env, world))
        await client.spawn(produce(client.env, world, VALUES))
        found = await client.spawn(drain(client.env, world))
        await world.stop_brokers()
        assert not world.brokers[0].is_up
        assert world.brokers[0].disk.open_paths() == []
        return found

    assert run_case(scenario) == VALUES


Fault = Callable[[World, BrokerNode], Awaitable[None]]


async def restart(world: World, broker: BrokerNode) -> None:
    await broker.restart()


async def kill(world: World, broker: BrokerNode) -> None:
    ClusterFaults(world).kill(broker.name)
    await world.sleep(1)
    broker.start()


async def power_loss(world: World, broker: BrokerNode) -> None:
    ClusterFaults(world).power_loss(broker.name)
    await world.sleep(1)
    broker.start()


async def freeze(world: World, broker: BrokerNode) -> None:
    ClusterFaults(world).freeze(broker.name)
    await world.sleep(20)
    ClusterFaults(world).resume(broker.name)


async def partition(world: World, broker: BrokerNode) -> None:
    ClusterFaults(world).isolate(broker.name)
    await world.sleep(20)
    ClusterFaults(world).heal()


async def cut_from_store(world: World, broker: BrokerNode) -> None:
    ClusterFaults(world).cut_store(broker.name)
    await world.sleep(20)
    ClusterFaults(world).heal()


async def outage_of_the_store(world: World, broker: BrokerNode) -> None:
    ClusterFaults(world).store_outage()
    await world.sleep(20)
    ClusterFaults(world).heal()


async def resets(world: World, broker: BrokerNode) -> None:
    for _ in range(5):
        ClusterFaults(world).reset_connections(broker.name, "client")
        await world.sleep(0.3)


async def stalls(world: World, broker: BrokerNode) -> None:
    ClusterFaults(world).stall_connections("client", broker.name, 10.0)
    ClusterFaults(world).stall_disk(broker.name, 5.0)
    await world.sleep(20)


@pytest.mark.parametrize(
    "fault",
    [
        restart,
        kill,
        power_loss,
        freeze,
        partition,
        cut_from_store,
        outage_of_the_store,
        resets,
        stalls,
    ],
    ids=lambda fault: fault.__name__,
)
def test_acknowledged_records_survive_faults(fault: Fault) -> None:
    """Unreplicated, with fsync: each fault under load, then all acknowledged records are read."""

    async def scenario(world: World) -> None:
        await world.start_brokers()
        client = world.client("client")
        await client.spawn(create(client.env, world))
        acknowledged: list[bytes] = []
        over = False

        async def load() -> None:
            async with Producer(world.bootstrap, env=client.env) as producer:
                number = 0
                while not over:
                    number += 1
                    value = b"%06d" % number
                    try:
                        await (await producer.send(TOPIC, value, key=value))
                        acknowledged.append(value)
                    except ClientError:
                        continue
                    await asyncio.sleep(0.05)

        task = client.spawn(load())
        await world.sleep(2)
        before = len(acknowledged)
        for broker in world.brokers:
            await fault(world, broker)
        await world.until(lambda: all(b.state == "ready" for b in world.brokers), 60)
        await world.sleep(15)
        assert before > 10
        assert len(acknowledged) > before + 10
        over = True
        await task
        found = await client.spawn(drain(client.env, world))
        assert set(acknowledged) <= set(found)
        await world.stop_brokers()

    run_case(scenario, brokers=2)


def test_a_broker_that_exits_by_itself_is_restarted() -> None:
    """A supervisor would do this. Here the broker cannot reach the store until that is back."""

    async def scenario(world: World) -> list[bytes]:
        await world.start_brokers()
        client, broker = world.client("client"), world.brokers[0]
        await client.spawn(create(client.env, world))
        await client.spawn(produce(client.env, world, VALUES))
        ClusterFaults(world).kill(broker.name)
        ClusterFaults(world).cut_store(broker.name)
        broker.start()
        await world.until(lambda: len(broker.ends) == 2, 60)
        assert isinstance(broker.ends[0].error, StoreUnreachable)
        ClusterFaults(world).heal()
        await broker.ready()
        assert broker.life >= 3
        return await client.spawn(drain(client.env, world))

    assert run_case(scenario) == VALUES


def _left(world: World, at_s: tuple[float, ...]) -> Callable[[], int]:
    """Counts down: one less at each of these times."""
    began_s = world.now
    return lambda: sum(world.now < began_s + each for each in at_s)


def test_slow_work_is_waited_for_as_long_as_it_advances() -> None:
    async def scenario(world: World) -> float:
        began_s = world.now
        left = _left(world, (8.0, 16.0, 24.0, 32.0))
        await world.until_none_left(left, timeout_s=10.0, patience_s=10.0)
        return world.now - began_s

    assert run_case(scenario) == pytest.approx(32.0, abs=0.5)


def test_work_that_no_longer_advances_is_not_waited_for() -> None:
    async def scenario(world: World) -> float:
        began_s = world.now
        with pytest.raises(TimeoutError, match="2 are left"):
            left = _left(world, (8.0, 16.0, 30.0, 31.0))
            await world.until_none_left(left, timeout_s=10.0, patience_s=10.0)
        return world.now - began_s

    assert run_case(scenario) == pytest.approx(26.0, abs=0.5)


def test_clocks_of_nodes_can_differ() -> None:
    """Only wall clocks differ; durations are the same everywhere."""

    async def scenario(world: World) -> None:
        one, two = world.client("one").env.clock, world.client("two").env.clock
        assert one.wall_ms() == two.wall_ms()
        ClusterFaults(world).skew("two", 5000)
        await world.sleep(1)
        assert two.wall_ms() == one.wall_ms() + 5000
        assert two.monotonic() == one.monotonic()

    run_case(scenario, brokers=0)


def test_the_world_knows_what_a_clock_has_shown() -> None:
    """Between two moments, also if the clock was set meanwhile."""

    async def scenario(world: World) -> None:
        node, begin_ms = world.client("one"), world.client("two").wall_ms()
        await world.sleep(1)
        ClusterFaults(world).skew("one", 5000)
        await world.sleep(1)
        ClusterFaults(world).skew("one", -500)
        await world.sleep(1)
        for begun_ms, ended_ms, low_ms, high_ms in (
            (0, 500, 0, 500),
            (500, 1_500, 500, 6_500),
            (1_200, 1_500, 6_200, 6_500),
            (1_500, 2_500, 1_500, 7_000),
            (2_200, 3_000, 1_700, 2_500),
        ):
            shown = node.wall_range(begun_ms, ended_ms)
            expected = (begin_ms + low_ms, begin_ms + high_ms)
            assert shown == pytest.approx(expected, abs=2), (begun_ms, ended_ms)

    run_case(scenario, brokers=0)


def test_a_killed_client_is_not_waited_for() -> None:
    """`join` reports that its work will never finish; a new process can start."""

    async def scenario(world: World) -> None:
        client = world.client("client")
        task = client.spawn(asyncio.sleep(1000))
        world.loop.call_later(5, client.kill)
        assert not await client.join(task)
        assert world.now == 5
        with pytest.raises(RuntimeError, match="down"):
            client.spawn(asyncio.sleep(1))
        client.start()
        assert await client.join(client.spawn(asyncio.sleep(1)))

    run_case(scenario, brokers=0)


def test_failures_inside_a_run_become_its_outcome() -> None:
    """An exception in the scenario, a violation between steps, an exception never retrieved."""

    async def fails(world: World) -> None:
        raise ValueError("mine")

    async def violates(world: World) -> None:
        def look() -> None:
            if world.now > 3:
                raise AssertionError("violated")

        world.on_step(look)
        for _ in range(10):
            await world.sleep(1)

    async def unseen(world: World) -> None:
        async def work() -> None:
            raise ValueError("unseen")

        world.client("client").spawn(work())
        await world.sleep(1)

    assert isinstance(run_world(1, fails, WorldConfig(brokers=0)).error, ValueError)
    assert "violated" in str(run_world(1, violates, WorldConfig(brokers=0)).error)
    outcome = run_world(1, unseen, WorldConfig(brokers=0))
    assert isinstance(outcome.error, Unexpected)
    assert "unseen" in str(outcome.error)


FRESH = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_world import chaotic
from penstock.sim.faults.cluster_faults import ClusterFaults
from penstock.sim.world import run_world
from penstock.sim.world_config import WorldConfig
runs = [run_world(seed, chaotic, WorldConfig(brokers=3)) for seed in (5, 6)]
print(json.dumps([[run.trace_hash, run.steps, repr(run.error), run.hashes_fixed] for run in runs]))
"""


async def chaotic(world: World) -> None:
    """A scenario with restarts, crashes, network faults and load."""
    await world.start_brokers()
    client, draws = world.client("client"), world.draws("chaos")
    await client.spawn(create(client.env, world))
    task = client.spawn(produce(client.env, world, VALUES * 5))
    for _ in range(6):
        broker = draws.choice(world.brokers)
        await draws.choice([restart, kill, power_loss, resets, partition, freeze])(world, broker)
        await world.until(lambda: all(b.state == "ready" for b in world.brokers), 60)
    await task
    await client.spawn(drain(client.env, world))


def test_a_seed_gives_the_same_run_again() -> None:
    """In the same process, where objects have other addresses the second time."""
    first = run_world(7, chaotic, WorldConfig(brokers=3, keep_steps=True))
    again = run_world(7, chaotic, WorldConfig(brokers=3, keep_steps=True))
    assert first.error is None
    for one, other in zip(first.step_list, again.step_list, strict=False):
        assert one == other, "the runs part here"
    assert again.trace_hash == first.trace_hash
    assert again.steps == first.steps == len(first.step_list)


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    """Two new processes agree on every step; another seed gives another run."""

    def fresh() -> list[list[Any]]:
        done = subprocess.run(
            [sys.executable, "-c", FRESH, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            timeout=patient(120),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    runs = fresh()
    assert fresh() == runs
    for _, steps, error, hashes_fixed in runs:
        assert steps > 1000
        assert (error, hashes_fixed) == ("None", True)
    assert runs[0][0] != runs[1][0]
