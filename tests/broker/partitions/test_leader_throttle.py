"""The leader's throttle limits what it sends to followers that lag."""

from __future__ import annotations

import asyncio

from broker.followers import create_on, follow, produce, shown, under_way
from broker.harness import BrokerHarness, with_harness_of
from penstock.testing.slowness import patient
from penstock.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

with_three_brokers = with_harness_of(brokers=3)
LARGE = b"x" * 3000


async def set_rate(harness: BrokerHarness, bytes_per_s: int) -> None:
    change = IncrementalAlterConfigsRequest.Config(
        "leader.replication.throttled.rate", 0, str(bytes_per_s)
    )
    resource = IncrementalAlterConfigsRequest.Resource(4, "0", [change])
    answer = await harness.ask(
        IncrementalAlterConfigsRequest([resource]), 1, IncrementalAlterConfigsResponse
    )
    assert answer.responses[0].error_code == 0, answer
    await harness.until(
        lambda: (
            harness.broker.configs().int_value("leader.replication.throttled.rate") == bytes_per_s
        )
    )


def lag(harness: BrokerHarness) -> None:
    """Takes broker 1 out of the ISR, like a replica that is being added."""
    held = harness.hosted("orders").leadership
    assert held is not None
    held.isr = frozenset({0})


async def given(harness: BrokerHarness, wait_ms: int = 0) -> int:
    return len((await follow(harness, 1, 0, wait_ms=wait_ms)).records or b"")


@with_three_brokers
async def test_a_lagging_follower_gets_no_more_than_the_throttled_rate(
    harness: BrokerHarness,
) -> None:
    """Its fetch waits until the rate allows more. Records that are written meanwhile do not end the
    wait.
    """
    configs = {"leader.replication.throttled.replicas": "0:0", "durability": "replicated"}
    await create_on(harness, 0, 1, configs=configs)
    # The second fetch is too early even after a pause of seconds, and the third waits for seconds.
    await set_rate(harness, int(600 / min(5.0, patient(1.0))))
    assert (await produce(harness, [LARGE], acks=1))[0] == 0
    lag(harness)
    assert await given(harness) > 3000
    assert await given(harness) == 0
    begun = asyncio.get_running_loop().time()
    async with under_way(given(harness, wait_ms=90_000)) as waiting:
        assert (await produce(harness, [b"more"], acks=1))[0] == 0
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await waiting > 3000
    assert 0.1 < asyncio.get_running_loop().time() - begun < 90


@with_three_brokers
async def test_an_in_sync_follower_is_never_throttled(harness: BrokerHarness) -> None:
    """Otherwise acks=all would be slowed down."""
    configs = {"leader.replication.throttled.replicas": "*", "durability": "replicated"}
    await create_on(harness, 0, 1, configs=configs)
    await set_rate(harness, 1)
    assert (await produce(harness, [LARGE], acks=1))[0] == 0
    assert 1 in shown(harness).isr
    for _ in range(3):
        assert await given(harness) > 3000


@with_three_brokers
async def test_only_the_listed_replicas_are_throttled(harness: BrokerHarness) -> None:
    """By partition and by the broker that sends, which is this one."""
    configs = {"leader.replication.throttled.replicas": "0:1,1:0", "durability": "replicated"}
    await create_on(harness, 0, 1, configs=configs)
    await set_rate(harness, 0)
    assert (await produce(harness, [LARGE], acks=1))[0] == 0
    lag(harness)
    for _ in range(3):
        assert await given(harness) > 3000
