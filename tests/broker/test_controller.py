"""The broker's membership: its lease, and what losing it means."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.metadata.decisions import Change, Decision
from penstock.metadata.keys import NO_CONFIGS, encode_topic, topic_key
from penstock.metadata.model import NO_LEADER, Partition, Topic

from .stage import TIMEOUT_S, Stage, on_stage, staged, staged_with


async def keep_alive_for(stage: Stage, seconds: float) -> None:
    """Renew the lease much more often than a broker does, for a while."""
    controller = stage.broker.controller
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "_session_timeout_s", 0.003)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await controller.keep_alive()


@staged
async def test_a_lease_is_kept_by_renewing_it(stage: Stage) -> None:
    """As long as nobody takes it away."""
    await keep_alive_for(stage, 0.05)


def test_a_lost_lease_ends_the_broker(tmp_path: Path) -> None:
    """It may have been replaced by now, and must not act as if it had not; it says why it ends,
    whether the missing lease or the missing registration is noticed first."""

    async def play() -> None:
        async with asyncio.timeout(TIMEOUT_S), on_stage(tmp_path) as stage:
            controller = stage.broker.controller
            await controller._env.store.revoke_lease(controller._lease)
            with pytest.raises(RuntimeError, match="lease expired"):
                await keep_alive_for(stage, 5)
            await stage.until(lambda: stage.broker._tasks is None)

    with pytest.raises(RuntimeError, match="lease expired"):
        asyncio.run(play())


@staged
async def test_a_lease_given_back_is_not_lost(stage: Stage) -> None:
    """A broker that stops gives its lease back first and answers who waits next: a renewal that
    falls between the two finds no lease, and is no failure."""
    await stage.broker.controller.leave()
    await keep_alive_for(stage, 0.05)


async def put_topic(stage: Stage, name: str, broker_id: int) -> Partition:
    """A topic for an incarnation of a broker that is gone; its partition after an election."""
    led = Partition((broker_id,), (broker_id,), (), broker_id, 0, 0, leader_broker_epoch=12345)
    topic = Topic(name, name.encode().ljust(16), (led,), NO_CONFIGS)
    decision = Decision((Change(topic_key(name), encode_topic(topic), 0),), None)
    await stage.broker.controller.commit_own(lambda _: decision)
    topics = stage.broker.cluster.image.topics
    await stage.until(lambda: topics[name].partitions[0].leader_epoch == 1)
    return topics[name].partitions[0]


@staged_with(brokers=2)
async def test_a_topic_made_for_a_broker_that_died_gets_a_leader(stage: Stage) -> None:
    """Whoever placed it may not have known yet: the controller looks again when it comes."""
    assert (await put_topic(stage, "restarted", 1)).leader == 1
    assert (await put_topic(stage, "gone", 7)).leader == NO_LEADER
