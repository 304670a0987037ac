"""Plans of several batches for a target on another broker: each record is copied once, in order.

The leader of the target checks large batches on a thread, and refuses some batches.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from broker.delay.delay_client import Sent, batch_of
from broker.delay.test_delay_failover import (
    LATER,
    SETTINGS,
    TIMEOUT_S,
    copied,
    finish,
    now_ms,
    run,
    send,
    set_up,
)
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock import aio
from penstock.broker.delay.delayed_partition import DelayedPartition
from penstock.records.batch import Codec
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

pytestmark = pytest.mark.filterwarnings("ignore:coroutine '_(serve|run)' was never awaited")


def delayed(cluster: ThreeBrokers) -> DelayedPartition:
    services = cluster.broker(cluster.partition(LATER).leader).services
    assert services is not None
    (found,) = services.delays
    return found


@pytest.mark.parametrize("kind", ["timed target", "gzip records"])
def test_a_batch_that_is_checked_on_a_thread_comes_before_the_next_one(
    kind: str, tmp_path: Path
) -> None:
    """The first batch of the plan is large, and the second is not."""

    async def scenario(cluster: ThreeBrokers) -> None:
        is_timed = kind == "timed target"
        more = {"penstock_timed_records": "true"} if is_timed else {}
        target = await set_up(cluster, more)
        random, due = Random(1), now_ms()
        sent = [Sent(b"%04d" % number + random.randbytes(250), due) for number in range(600)]
        data = bytes(batch_of(sent, codec=Codec.NONE if is_timed else Codec.GZIP))
        code, _ = await cluster._produce(cluster.partition(LATER).leader, LATER, 0, data, -1)
        assert code == ErrorCode.NONE
        await finish(cluster, target, [each.value for each in sent])
        copying = delayed(cluster)._copying
        assert copying is not None
        assert copying.state.producer_epoch == 0, "a batch came too early, and was refused"

    run(tmp_path, scenario)


def test_batches_after_one_that_is_refused_wait_for_it(tmp_path: Path) -> None:
    async def scenario(cluster: ThreeBrokers) -> None:
        target = await set_up(cluster, {"max_message_bytes": "500"})
        due = now_ms()
        sent = [Sent(bytes(2_000), due), Sent(b"b", due + 1), Sent(b"c", due + 2)]
        await send(cluster, *sent)
        services = cluster.broker(cluster.partition(LATER).leader).services
        assert services is not None
        counters = services.delays.counters
        await cluster.until(lambda: counters.failures > 2)
        assert copied(cluster, target) == []
        bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in cluster.running)
        async with aio.Admin(bootstrap) as admin:
            await admin.alter_configs(topic=target, set_values={"max.message.bytes": "100000"})
        await finish(cluster, target, [each.value for each in sent])

    run(tmp_path, scenario)


def test_a_plan_may_be_larger_than_a_request(tmp_path: Path) -> None:
    """The records come one by one, but are due together."""
    settings = {**SETTINGS, "socket.request.max.bytes": "300000"}

    async def main() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, settings) as cluster,
        ):
            target = await set_up(cluster)
            due = now_ms() + 500
            sent = [Sent(b"%d" % number + bytes(200_000), due) for number in range(5)]
            for each in sent:
                await send(cluster, each)
            await finish(cluster, target, [each.value for each in sent])

    asyncio.run(main())
