"""A log that cannot be opened for want of a key says nothing about the disk of its broker."""

from __future__ import annotations

import pytest

from broker.replication.test_replication import on_three
from broker.three_brokers import ThreeBrokers
from penstock.broker.repair.failed_logs import REOPEN_MAX_S, _Failed
from penstock.sim.crash.sealed_logs import SimKeys
from penstock.topic_partition import TopicPartition

LOCKED = TopicPartition("locked", 0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.repair.failed_logs.LOOK_S", 0.02)
    monkeypatch.setattr("penstock.broker.repair.failed_logs.REOPEN_FIRST_S", 0.02)


async def restart_without_keys(cluster: ThreeBrokers, *, power_loss: bool = False) -> SimKeys:
    """Restarts broker 1 while the key provider is down. Returns when the replica that it cannot
    open has left the ISR: the broker has noted the failure before."""
    keys = SimKeys()
    for broker_id in (0, 1, 2):
        cluster.nodes[broker_id].keys = keys
        await cluster.nodes[broker_id].stop()
        await cluster.start(broker_id)
    await cluster.create("t", min_insync_replicas="2")
    await cluster.create(LOCKED.topic, min_insync_replicas="2", encryption="the-key")
    for topic in ("t", LOCKED.topic):
        await cluster.produce(b"before", topic=topic)
        await cluster.all_equal(topic)
    await cluster.nodes[1].kill(power_loss=power_loss)
    keys.is_down = True
    await cluster.start(1)
    await cluster.until(lambda: LOCKED in cluster.broker(1).replicas.offline)
    await cluster.until(lambda: 1 not in cluster.partition(LOCKED.topic).isr)
    return keys


def intact(cluster: ThreeBrokers, directory: str) -> bool:
    return cluster.broker(1)._record.intact_caches()(directory)


@on_three()
async def test_a_missing_key_does_not_revoke_the_durability_proof(cluster: ThreeBrokers) -> None:
    """Rot in any log is taken for damage after the next kill, not for a torn tail. That is so for
    the log without a key too: nothing was written to it. It is opened when the key is back."""
    keys = await restart_without_keys(cluster)
    again = cluster.broker(1)._record.again()
    assert 0 <= again.lossless_since < cluster.broker(1).membership.broker_epoch
    registered = cluster.broker(0).cluster.image.brokers[1]
    assert registered.has_kept(again.lossless_since)
    assert intact(cluster, "t-0")
    assert intact(cluster, "locked-0")
    keys.is_down = False
    await cluster.until(lambda: 1 in cluster.partition(LOCKED.topic).isr)
    await cluster.produce(b"after", topic=LOCKED.topic)
    assert await cluster.all_equal(LOCKED.topic) == [b"before", b"after"]


def test_a_replica_that_lacks_a_key_hands_over_less_and_less_often() -> None:
    """It may be elected again, because it is eligible. If the disk fails too, it is withdrawn at
    once.
    """
    failed = _Failed(epoch=1, due_s=100.0, wait_s=1.0)
    failed.lacks_key = True
    gaps, now_s = [], 100.0
    for _ in range(20):
        assert failed.may_withdraw(now_s)
        failed.on_withdrawn(now_s)
        assert not failed.may_withdraw(failed.withdraw_s - 0.001)
        gaps.append(round(failed.withdraw_s - now_s, 3))
        now_s = failed.withdraw_s
    assert gaps == sorted(gaps)
    assert gaps[-1] == REOPEN_MAX_S
    failed.lacks_key = False
    assert failed.may_withdraw(now_s - 0.001)


@on_three()
async def test_after_a_power_loss_a_log_without_a_key_is_not_trusted(
    cluster: ThreeBrokers,
) -> None:
    """It may have a torn tail. That stays so if the broker is killed before the key is back, and
    ends when the log is opened."""
    keys = await restart_without_keys(cluster, power_loss=True)
    assert intact(cluster, "t-0")
    assert not intact(cluster, "locked-0")
    await cluster.nodes[1].kill()
    await cluster.start(1)
    assert not intact(cluster, "locked-0")
    keys.is_down = False
    await cluster.until(lambda: 1 in cluster.partition(LOCKED.topic).isr)
    await cluster.until(lambda: intact(cluster, "locked-0"))
    assert await cluster.all_equal(LOCKED.topic) == [b"before"]
