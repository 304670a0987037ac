"""A cluster of three brokers loses no acknowledged record, whichever broker stops and however."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from broker.three_brokers import SESSION_S, ThreeBrokers, three_brokers
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)

TOPIC = 2
"""The resource type of topics in AlterConfigs."""
LAG_MS = int(patient(8_000))
"""Longer than the pauses of a busy machine. Otherwise all followers would leave the ISR in a pause,
and no other replica could lead when a test then kills the leader.
"""
SHORT_LAG_MS = int(patient(1_000))
"""For tests that wait until a follower counts as lagging."""
QUICK = {"replica.lag.time.max.ms": str(LAG_MS), "replica.fetch.backoff.ms": "100"}
POLL_S = 20
"""For how long a leader holds a fetch of a follower, in a test that measures time."""
Play = Callable[[ThreeBrokers], Coroutine[Any, Any, None]]


def on_three(**kafka: str) -> Callable[[Play], Callable[[Path], None]]:
    settings = {**QUICK, **{name.replace("_", "."): value for name, value in kafka.items()}}

    def wrap(run_case: Play) -> Callable[[Path], None]:
        async def run(directory: Path) -> None:
            async with asyncio.timeout(patient(120)), three_brokers(directory, settings) as cluster:
                await run_case(cluster)

        def test(tmp_path: Path) -> None:
            asyncio.run(run(tmp_path))

        test.__name__, test.__doc__ = run_case.__name__, run_case.__doc__
        return test

    return wrap


async def all_in_sync(cluster: ThreeBrokers) -> None:
    """Waits until any replica may lead. On a busy machine a follower may have lagged."""
    await cluster.until(lambda: set(cluster.partition().isr) == {0, 1, 2})


@on_three()
async def test_every_replica_has_the_produced_records(cluster: ThreeBrokers) -> None:
    """The high watermark reaches the followers too."""
    await cluster.create()
    for number in range(20):
        await cluster.produce(b"%d" % number, b"%d more" % number)
    found = await cluster.all_equal()
    assert found == [each for number in range(20) for each in (b"%d" % number, b"%d more" % number)]
    await all_in_sync(cluster)


@on_three()
async def test_every_replica_describes_the_producers_of_its_log(cluster: ThreeBrokers) -> None:
    """A tool that looks for hanging transactions can ask any broker with a replica."""
    await cluster.create()
    await cluster.produce(b"x", producer_id=7, producer_epoch=3, base_sequence=0)
    await cluster.all_equal()
    request = DescribeProducersRequest([DescribeProducersRequest.Topic("t", [0])])
    for node in cluster.nodes:
        answer = (await node.ask(request, 0, DescribeProducersResponse)).topics[0].partitions[0]
        assert answer.error_code == 0, answer.error_message
        assert [(each.producer_id, each.producer_epoch) for each in answer.active_producers] == [
            (7, 3)
        ]


@on_three(
    replica_fetch_wait_max_ms=str(1_000 * POLL_S), replica_lag_time_max_ms=str(10_000 * POLL_S)
)
async def test_acks_all_on_an_idle_cluster_does_not_wait_for_the_long_poll(
    cluster: ThreeBrokers,
) -> None:
    """It costs round trips, not the time for which a leader holds a follower's fetch, which is long
    here. With many partitions too.
    """
    await cluster.create(partitions=8)
    for index in range(8):
        await cluster.produce(b"warm", index=index)
    loop = asyncio.get_running_loop()
    took = []
    for number in range(24):
        begun = loop.time()
        await cluster.produce(b"x", index=number % 8)
        took.append(loop.time() - begun)
        await asyncio.sleep(0.02)
    assert sorted(took)[len(took) // 2] < POLL_S / 4
    # For each partition the second of three measurements, because one may be late on a busy
    # machine.
    assert max(sorted(took[index::8])[1] for index in range(8)) < POLL_S / 2


@on_three()
async def test_a_killed_follower_leaves_the_isr_and_rejoins(cluster: ThreeBrokers) -> None:
    """The others go on meanwhile. When it is back, it fetches everything it missed."""
    await cluster.create(min_insync_replicas="2")
    await cluster.produce(b"before")
    follower = next(each for each in (0, 1, 2) if each != cluster.partition().leader)
    await cluster.nodes[follower].kill()
    await cluster.until(lambda: follower not in cluster.partition().isr)
    for number in range(10):
        await cluster.produce(b"without %d" % number)
    await cluster.start(follower)
    await cluster.until(lambda: follower in cluster.partition().isr)
    await cluster.produce(b"after")
    assert await cluster.all_equal() == [
        b"before",
        *(b"without %d" % number for number in range(10)),
        b"after",
    ]


@on_three()
async def test_another_replica_leads_when_the_leader_loses_power(cluster: ThreeBrokers) -> None:
    """No acknowledged record is lost, and the old leader follows when it is back."""
    await cluster.create(min_insync_replicas="2")
    acknowledged = []
    for number in range(10):
        await cluster.produce(b"%d" % number)
        acknowledged.append(b"%d" % number)
    await all_in_sync(cluster)
    old = cluster.partition().leader
    epoch = cluster.partition().leader_epoch
    await cluster.nodes[old].kill(power_loss=True)
    await cluster.until(lambda: cluster.partition().leader not in (-1, old))
    assert cluster.partition().leader_epoch > epoch
    for number in range(10, 20):
        await cluster.produce(b"%d" % number)
        acknowledged.append(b"%d" % number)
    await cluster.start(old)
    await cluster.until(lambda: old in cluster.partition().isr)
    assert await cluster.all_equal() == acknowledged


@on_three()
async def test_a_clean_stop_hands_over_leadership_first(cluster: ThreeBrokers) -> None:
    """Producers find the next leader without waiting for a lease to expire."""
    await cluster.create(min_insync_replicas="2")
    await cluster.produce(b"a")
    await all_in_sync(cluster)
    old = cluster.partition().leader
    stopping = asyncio.create_task(cluster.nodes[old].stop())
    try:
        await cluster.until(lambda: cluster.partition().leader not in (-1, old), SESSION_S / 2)
        await cluster.produce(b"b")
    finally:
        await stopping
    await cluster.start(old)
    await cluster.until(lambda: old in cluster.partition().isr)
    assert await cluster.all_equal() == [b"a", b"b"]


@on_three()
async def test_records_that_only_the_old_leader_had_are_truncated(cluster: ThreeBrokers) -> None:
    """Exactly the records that were never committed are gone when it follows."""
    await cluster.create(min_insync_replicas="1")
    await cluster.produce(b"kept")
    await cluster.all_equal()
    await all_in_sync(cluster)
    old = cluster.partition().leader
    hosted = cluster.hosted(old)
    leadership = hosted.leadership
    assert leadership is not None
    # Appended without the followers' knowledge, as if they had been cut off just before.
    for number in range(3):
        batch = build_batch([Record(0, 1, b"k", b"lost %d" % number)])
        hosted.log.append(batch, leadership.epoch, 1)
    hosted.log.flush()
    await cluster.nodes[old].kill()
    await cluster.until(lambda: cluster.partition().leader not in (-1, old))
    await cluster.produce(b"new")
    await cluster.start(old)
    assert await cluster.all_equal() == [b"kept", b"new"]


@on_three(replica_lag_time_max_ms=str(SHORT_LAG_MS))
async def test_a_halted_follower_goes_on_when_the_topic_allows_the_loss(
    cluster: ThreeBrokers,
) -> None:
    """As the message of the halt says, without a new election or a restart."""
    await cluster.create(min_insync_replicas="1")
    await cluster.produce(b"before")
    await cluster.all_equal()
    leader = cluster.partition().leader
    halted = next(each for each in range(3) if each != leader)
    follower = cluster.hosted(halted).follower
    assert follower is not None
    follower.halted = "the leader lacks committed records"
    await cluster.produce(b"first")
    await cluster.produce(b"second")
    await cluster.until(lambda: halted not in cluster.partition().isr)
    setting = AlterConfigsRequest.Config("unclean.leader.election.enable", "true")
    resource = AlterConfigsRequest.Resource(TOPIC, "t", [setting])
    request = AlterConfigsRequest([resource])
    answer = await cluster.nodes[leader].ask(request, 2, AlterConfigsResponse)
    assert answer.responses[0].error_code == 0
    await cluster.until(lambda: halted in cluster.partition().isr)
    assert await cluster.all_equal() == [b"before", b"first", b"second"]


@on_three()
async def test_idempotent_producers_are_known_to_the_next_leader(cluster: ThreeBrokers) -> None:
    """A batch that is sent again after a failover is a duplicate and gets its old offset."""
    await cluster.create(min_insync_replicas="2")
    for sequence in range(3):
        await cluster.produce(
            b"%d" % sequence, producer_id=5, producer_epoch=0, base_sequence=sequence
        )
    await all_in_sync(cluster)
    old = cluster.partition().leader
    await cluster.nodes[old].kill()
    await cluster.until(lambda: cluster.partition().leader not in (-1, old))
    again = await cluster.produce(b"2", producer_id=5, producer_epoch=0, base_sequence=2)
    assert again == 2
    assert await cluster.produce(b"3", producer_id=5, producer_epoch=0, base_sequence=3) == 3
    assert await cluster.all_equal() == [b"0", b"1", b"2", b"3"]


@on_three(log_cleaner_backoff_ms="50")
async def test_a_replica_of_a_compacted_topic_is_rebuilt_on_an_empty_disk(
    cluster: ThreeBrokers,
) -> None:
    """The broker gets the leader's log including its gaps, and can restart with it."""
    await cluster.create(
        cleanup_policy="compact",
        min_insync_replicas="1",
        segment_bytes="1000",
        min_cleanable_dirty_ratio="0.01",
    )
    for number in range(40):
        await cluster.produce(b"%d" % number + b"." * 100)
    leader = cluster.partition().leader
    log = cluster.hosted(leader).log
    await cluster.until(lambda: log.cleaned_offset > 20)
    follower = next(each for each in (0, 1, 2) if each != leader)
    await cluster.nodes[follower].kill()
    cluster.nodes[follower].lose_disk()
    await cluster.until(lambda: follower not in cluster.partition().isr)
    await cluster.start(follower)
    await cluster.produce(b"after")
    await cluster.until(lambda: follower in cluster.partition().isr)
    built = cluster.hosted(follower).log
    assert built.end_offset == log.end_offset == 41
    assert cluster.values(follower)[-1] == b"after"
    assert len(cluster.values(follower)) < 30
    assert built.damage == []
    await cluster.nodes[follower].kill()
    await cluster.start(follower)
    await cluster.until(lambda: follower in cluster.partition().isr)
    assert cluster.hosted(follower).log.end_offset == 41
    assert cluster.hosted(follower).log.damage == []


@on_three()
async def test_a_follower_far_behind_starts_at_the_leaders_log_start_offset(
    cluster: ThreeBrokers,
) -> None:
    """It does not need records that the leader has deleted meanwhile."""
    await cluster.create(min_insync_replicas="1", segment_bytes="1000")
    await cluster.produce(b"old")
    leader = cluster.partition().leader
    follower = next(each for each in (0, 1, 2) if each != leader)
    await cluster.nodes[follower].kill()
    await cluster.until(lambda: follower not in cluster.partition().isr)
    for number in range(30):
        await cluster.produce(b"%d" % number + b"." * 100)
    deleted = DeleteRecordsRequest.Topic("t", [DeleteRecordsRequest.Partition(0, 20)])
    answer = await cluster.nodes[leader].ask(
        DeleteRecordsRequest([deleted], 5_000), 2, DeleteRecordsResponse
    )
    assert answer.topics[0].partitions[0].error_code == 0
    await cluster.start(follower)
    await cluster.until(lambda: follower in cluster.partition().isr)
    await cluster.until(
        lambda: all(cluster.hosted(each).log.log_start_offset == 20 for each in (0, 1, 2))
    )
    found = cluster.values(follower)
    assert found == cluster.values(leader)
    assert found[-1].startswith(b"29")
