"""When a log fails, another replica leads its partition; the log is opened again and catches up."""

from __future__ import annotations

from errno import EIO

import pytest

from broker.replication.test_replication import on_three
from broker.three_brokers import ThreeBrokers
from penstock.broker.repair.failed_logs import REOPEN_MAX_S, _Failed
from penstock.sim.disk.faults import DiskFaults
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.repair.failed_logs.LOOK_S", 0.02)
    monkeypatch.setattr("penstock.broker.repair.failed_logs.REOPEN_FIRST_S", 0.02)


def other_than(broker_id: int) -> int:
    return next(each for each in (0, 1, 2) if each != broker_id)


def fail(cluster: ThreeBrokers, broker_id: int, operation: str, path: str, times: int = 1) -> None:
    cluster.nodes[broker_id].disk.fail_next(operation, EIO, path_contains=path, times=times)


def proved_since(cluster: ThreeBrokers, broker_id: int) -> int:
    """Returns `lossless_since` of the durability proof on the broker's disk."""
    held = cluster.broker(broker_id)._record._read()
    assert held is not None
    return held.lossless_since


@on_three()
async def test_a_leader_that_cannot_sync_is_replaced_and_becomes_a_follower(
    cluster: ThreeBrokers,
) -> None:
    """Its producer can retry at the new leader at once. The log is opened again without a
    restart.
    """
    await cluster.create(min_insync_replicas="2")
    await cluster.produce(b"before")
    failing = cluster.partition().leader
    before = cluster.partition()
    broken = cluster.hosted(failing).log
    fail(cluster, failing, "fsync", "/t-0/")
    await cluster.produce(b"meanwhile")
    assert cluster.partition().leader != failing
    assert cluster.partition().leader_epoch > before.leader_epoch
    await cluster.until(lambda: failing in cluster.partition().isr)
    assert cluster.hosted(failing).log is not broken
    await cluster.produce(b"after")
    held = await cluster.all_equal()
    assert (held[0], held[-1]) == (b"before", b"after")
    assert set(held) == {b"before", b"meanwhile", b"after"}
    assert not cluster.broker(failing).replicas.offline


@on_three()
async def test_a_leader_that_cannot_write_is_replaced(cluster: ThreeBrokers) -> None:
    """Nothing is flushed in this case, so the failed append itself must report the failure."""
    await cluster.create(durability="replicated", min_insync_replicas="2")
    await cluster.produce(b"before")
    failing = cluster.partition().leader
    fail(cluster, failing, "pwrite", "/t-0/")
    await cluster.produce(b"meanwhile")
    assert cluster.partition().leader != failing
    await cluster.until(lambda: failing in cluster.partition().isr)
    assert await cluster.all_equal() == [b"before", b"meanwhile"]


@on_three()
async def test_a_follower_that_cannot_write_leaves_the_isr(cluster: ThreeBrokers) -> None:
    """The partition gets a new leader epoch. The follower comes back with everything it missed."""
    await cluster.create(min_insync_replicas="2")
    leader = cluster.partition().leader
    epoch = cluster.partition().leader_epoch
    failing = other_than(leader)
    fail(cluster, failing, "pwrite", "/t-0/")
    await cluster.produce(b"meanwhile")
    await cluster.until(lambda: cluster.partition().leader_epoch > epoch)
    await cluster.until(lambda: failing in cluster.partition().isr)
    assert cluster.partition().leader == leader
    assert await cluster.all_equal() == [b"meanwhile"]


@on_three()
async def test_only_the_failed_partition_gets_another_leader(cluster: ThreeBrokers) -> None:
    """The broker keeps its other partitions. Its durability proof for written records is revoked,
    on disk too, because a failed fsync may have dropped data.
    """
    await cluster.create("t")
    await cluster.create("u")
    failing = cluster.partition("t").leader
    before = cluster.partition("u")
    fail(cluster, failing, "fsync", "/t-0/")
    await cluster.produce(b"meanwhile")
    assert cluster.partition("t").leader != failing
    assert cluster.partition("u") == before
    assert cluster.broker(failing)._record.again().lossless_since == -1
    assert proved_since(cluster, failing) == -1


@on_three()
async def test_a_disk_that_fails_every_write_does_not_block_the_other_replicas(
    cluster: ThreeBrokers,
) -> None:
    """While every call fails, the log stays offline, with a reason. Once the disk works again, the
    broker's proof is revoked and the log is opened.
    """
    await cluster.create(min_insync_replicas="2")
    await cluster.produce(b"before")
    failing = cluster.partition().leader
    broker = cluster.broker(failing)
    disk = cluster.nodes[failing].disk
    disk.set_faults(DiskFaults(fsync_eio=1, sync_directory_eio=1, write_eio=1))
    await cluster.produce(b"meanwhile")
    assert cluster.partition().leader != failing
    await cluster.until(lambda: failing not in cluster.partition().isr)
    assert "a write failed" in broker.replicas.offline[TopicPartition("t", 0)]
    assert proved_since(cluster, failing) >= 0
    disk.heal()
    await cluster.until(lambda: failing in cluster.partition().isr)
    assert proved_since(cluster, failing) == -1
    assert await cluster.all_equal() == [b"before", b"meanwhile"]


@on_three()
async def test_a_log_is_not_reopened_before_its_failure_is_stored(cluster: ThreeBrokers) -> None:
    """Otherwise the broker would go on proving data that may be lost."""
    await cluster.create(min_insync_replicas="2")
    failing = cluster.partition().leader
    fail(cluster, failing, "pwrite", "/penstock-life", times=5)
    fail(cluster, failing, "fsync", "/t-0/")
    await cluster.produce(b"meanwhile")
    assert cluster.partition().leader != failing
    await cluster.until(lambda: failing in cluster.partition().isr)
    assert proved_since(cluster, failing) == -1


@on_three()
async def test_a_log_that_cannot_be_opened_stays_offline(cluster: ThreeBrokers) -> None:
    """With a reason. Opening it is retried until the disk works again."""
    await cluster.create(min_insync_replicas="2")
    failing = cluster.partition().leader
    replicas = cluster.broker(failing).replicas
    fail(cluster, failing, "fsync", "/t-0/", times=10_000)
    await cluster.produce(b"meanwhile")
    await cluster.until(
        lambda: "could not be recovered" in replicas.offline.get(TopicPartition("t", 0), "")
    )
    assert ("t", 0) in replicas.unopened
    assert failing not in cluster.partition().isr
    cluster.nodes[failing].disk.heal()
    await cluster.until(lambda: failing in cluster.partition().isr)


@on_three()
async def test_the_only_replica_stays_offline_until_a_restart(cluster: ThreeBrokers) -> None:
    """Clients get a retriable error, and the list of offline partitions has the reason. A restart
    recovers the log.
    """
    await cluster.create(replicas=1)
    await cluster.produce(b"before")
    failing = cluster.partition().leader
    replicas = cluster.broker(failing).replicas
    fail(cluster, failing, "fsync", "/t-0/")
    code, _ = await cluster.try_produce(failing, b"lost")
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    code, _ = await cluster.try_produce(failing, b"lost")
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "fsync failed" in replicas.offline[TopicPartition("t", 0)]
    assert cluster.partition().leader == failing
    await cluster.nodes[failing].kill()
    await cluster.start(failing)
    await cluster.produce(b"after")
    held = cluster.values(failing)
    assert (held[0], held[-1]) == (b"before", b"after")


@on_three()
async def test_an_eligible_leader_replica_takes_over_from_a_failed_log(
    cluster: ThreeBrokers,
) -> None:
    """No other replica is in sync, but below min.insync.replicas nothing was committed without
    it.
    """
    await cluster.create(min_insync_replicas="3")
    await cluster.produce(b"before")
    leader = cluster.partition().leader
    others = [each for each in (0, 1, 2) if each != leader]
    for each in others:
        await cluster.nodes[each].stop()
    await cluster.until(lambda: cluster.partition().isr == (leader,))
    fail(cluster, leader, "fsync", "/t-0/")
    cluster.broker(leader).replicas.flusher.request(cluster.hosted(leader).log)
    cluster.hosted(leader).log.note_epoch(1 << 20)
    await cluster.until(lambda: ("t", 0) in cluster.broker(leader).replicas.offline)
    for each in others:
        await cluster.start(each)
    await cluster.until(lambda: len(cluster.partition().isr) == 3)
    assert cluster.partition().leader != leader
    await cluster.produce(b"after")
    assert await cluster.all_equal() == [b"before", b"after"]


def test_a_log_that_soon_fails_again_is_reopened_later() -> None:
    """Each attempt costs a new leader epoch, so the wait from before is kept. After a long time
    without a failure it starts from the beginning.
    """
    first = _Failed(epoch=1, due_s=100.0, wait_s=8.0)
    again = first.again(2, now_s=97.0)
    assert (again.epoch, again.due_s, again.wait_s) == (2, 100.0, 8.0)
    assert first.again(2, now_s=110.0).due_s == 110.0
    later = first.again(2, now_s=100.0 + REOPEN_MAX_S + 1)
    assert later.wait_s < 8.0


@on_three()
async def test_a_log_that_fails_repeatedly_catches_up_in_the_end(cluster: ThreeBrokers) -> None:
    """Producers are not blocked meanwhile."""
    await cluster.create(min_insync_replicas="2")
    leader = cluster.partition().leader
    failing = other_than(leader)
    cluster.nodes[failing].disk.fail_next("pwrite", EIO, path_contains=".log", times=3)
    for number in range(20):
        await cluster.produce(b"%d" % number)
    assert len(await cluster.all_equal()) == 20
