"""A follower against a scripted leader: what it fetches, when, and how it handles the responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.leader_script import (
    BROKER_EPOCH,
    BROKER_ID,
    Harness,
    batch,
    bounds,
    given,
    merged,
)
from penstock.broker.replication import leader_link
from penstock.records.batch import iter_batches
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchResponse

Case = Callable[[Harness], Coroutine[Any, Any, None]]


def with_follower(**kafka: str) -> Callable[[Case], Callable[[], None]]:
    def wrap(case: Case) -> Callable[[], None]:
        async def run() -> None:
            harness = Harness(**kafka)
            async with harness.running():
                await case(harness)

        def test() -> None:
            asyncio.run(run())

        test.__name__, test.__doc__ = case.__name__, case.__doc__
        return test

    return wrap


def values(harness: Harness, topic: str = "t", index: int = 0) -> list[int]:
    """Returns the base offsets of the batches in a log."""
    log = harness.roles.hosted[topic, index].log
    found, offset = [], log.log_start_offset
    while (piece := log.read(offset, 1 << 20)) is not None:
        for _, header in iter_batches(piece.data):
            found.append(header.base_offset)
            offset = header.next_offset
    return found


@with_follower()
async def test_a_follower_fetches_appends_and_fetches_the_next_offset(harness: Harness) -> None:
    """With version 17. The request has the broker id and epoch, the leader epoch, the fetch offset,
    and the epoch of the last record.
    """
    hosted = harness.follow("t")
    asked = await harness.leader(7).asked()
    assert asked.version == 17
    state = asked.fetch.replica_state
    assert state is not None
    assert (state.replica_id, state.replica_epoch) == (BROKER_ID, BROKER_EPOCH)
    assert (asked.fetch.max_wait_ms, asked.fetch.min_bytes) == (500, 1)
    assert asked.fetch.max_bytes == 10 << 20
    part = asked.partitions["t", 0]
    assert (part.current_leader_epoch, part.fetch_offset, part.last_fetched_epoch) == (1, 0, -1)
    assert part.partition_max_bytes == 1 << 20
    records = batch(0, b"a", b"b") + batch(2, b"c")
    asked.answer(given("t", 0, records, high_watermark=2))
    asked = await harness.leader(7).asked()
    part = asked.partitions["t", 0]
    assert (part.fetch_offset, part.last_fetched_epoch, part.log_start_offset) == (3, 1, 0)
    assert values(harness) == [0, 2]
    assert (hosted.log.recovery_point, hosted.high_watermark) == (3, 2)
    asked.answer(given("t", 0, high_watermark=3))
    await harness.leader(7).asked()
    assert hosted.high_watermark == 3


@with_follower()
async def test_a_follower_fetches_more_only_after_its_records_are_synced(harness: Harness) -> None:
    """The leader treats the fetch offset as what is safe on the follower."""
    hosted = harness.follow("t")
    asked = await harness.leader(7).asked()
    harness.flushes.gate = asyncio.Event()
    asked.answer(given("t", 0, batch(0)))
    await harness.until(lambda: hosted.log.end_offset == 1)
    await asyncio.sleep(0.03)
    assert harness.leader(7).queue.empty()
    harness.flushes.gate.set()
    assert (await harness.leader(7).asked()).partitions["t", 0].fetch_offset == 1
    assert hosted.log.recovery_point == 1


@with_follower()
async def test_with_replicated_durability_a_follower_fetches_before_the_sync(
    harness: Harness,
) -> None:
    """With durability=replicated, written records count."""
    hosted = harness.follow("t", durability="replicated")
    asked = await harness.leader(7).asked()
    harness.flushes.gate = asyncio.Event()
    asked.answer(given("t", 0, batch(0)))
    assert (await harness.leader(7).asked()).partitions["t", 0].fetch_offset == 1
    assert hosted.log.recovery_point == 0
    harness.flushes.gate.set()


@with_follower()
async def test_all_partitions_of_a_leader_share_a_request(harness: Harness) -> None:
    """Partitions whose flush is quick are together again in the next one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader_link, "GATHER_S", 10)  # How quick a flush is depends on the machine.
        harness.follow("t", 0)
        harness.follow("t", 1)
        harness.follow("u", 0)
        asked = await harness.leader(7).asked()
        assert set(asked.partitions) == {("t", 0), ("t", 1), ("u", 0)}
        asked.answer(merged(given("t", 0, batch(0)), given("t", 1), given("u", 0)))
        asked = await harness.leader(7).asked()
        assert set(asked.partitions) == {("t", 0), ("t", 1), ("u", 0)}
        assert asked.partitions["t", 0].fetch_offset == 1
        assert len(harness.leader(7).lines) == 1


@with_follower()
async def test_a_partition_with_a_slow_flush_is_fetched_on_the_express_lane(
    harness: Harness,
) -> None:
    """The other partitions are fetched meanwhile. The late one does not wait for their long
    poll.
    """
    harness.follow("t", 0)
    harness.follow("t", 1)
    asked = await harness.leader(7).asked()
    harness.flushes.gate = asyncio.Event()
    asked.answer(merged(given("t", 0, batch(0)), given("t", 1)))
    others = await harness.leader(7).asked()
    assert set(others.partitions) == {("t", 1)}
    assert others.fetch.max_wait_ms == 500
    harness.flushes.gate.set()
    late = await harness.leader(7).asked()
    assert set(late.partitions) == {("t", 0)}
    assert late.partitions["t", 0].fetch_offset == 1
    assert late.line is not others.line
    assert late.fetch.max_wait_ms < 100
    late.answer_empty()
    again = await harness.leader(7).asked()
    assert (set(again.partitions), again.line) == ({("t", 0)}, late.line)
    others.answer_empty()
    again.answer_empty()
    assert set((await harness.leader(7).asked()).partitions) == {("t", 0), ("t", 1)}


@with_follower()
async def test_a_new_partition_does_not_wait_for_a_long_poll_in_progress(harness: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise the main lane goes on alone after 40 ms, which a busy machine may take.
        patch.setattr(leader_link, "EXPRESS_WAIT_MS", 60_000)
        harness.follow("t", 0)
        first = await harness.leader(7).asked()
        harness.follow("t", 1)
        second = await harness.leader(7).asked()
        assert set(second.partitions) == {("t", 1)}
        # When the main lane returns without data, it waits for the express lane and takes over its
        # partitions.
        first.answer_empty()
        await asyncio.sleep(0.005)
        assert harness.leader(7).queue.empty()
        second.answer_empty()
        third = await harness.leader(7).asked()
        assert (set(third.partitions), third.line) == ({("t", 0), ("t", 1)}, first.line)


@with_follower()
async def test_partitions_that_got_no_records_are_fetched_first_next_time(harness: Harness) -> None:
    """The leader fills a response in the order of the request, up to a limit in bytes."""
    for index in range(3):
        harness.follow("t", index, durability="replicated")
    asked = await harness.leader(7).asked()
    first, *rest = list(asked.partitions)
    asked.answer(merged(given(*first, batch(0)), *(given(*key) for key in rest)))
    assert list((await harness.leader(7).asked()).partitions) == [*rest, first]


@with_follower()
async def test_a_diverging_log_is_truncated_and_fetching_continues(harness: Harness) -> None:
    """The leader's response says where the logs diverge."""
    hosted = harness.host("t")
    hosted.log.append_replica(batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2), 0)
    harness.follow("t", epoch=3)
    asked = await harness.leader(7).asked()
    part = asked.partitions["t", 0]
    assert (part.fetch_offset, part.last_fetched_epoch) == (2, 2)
    asked.answer(given("t", 0, diverging=(1, 1)))
    asked = await harness.leader(7).asked()
    part = asked.partitions["t", 0]
    assert (part.fetch_offset, part.last_fetched_epoch) == (1, 1)
    asked.answer(given("t", 0, batch(1, b"c", epoch=3)))
    await harness.leader(7).asked()
    assert [entry.epoch for entry in hosted.log.epochs.entries] == [1, 3]


@with_follower()
async def test_a_follower_that_is_out_of_range_restarts_at_the_leaders_log_start(
    harness: Harness,
) -> None:
    """It asks for the leader's log start and end. The leader's log starts after the follower's end,
    so none of its records can be used.
    """
    hosted = harness.host("t")
    hosted.log.append_replica(batch(0), 0)
    harness.follow("t")
    asked = await harness.leader(7).asked()
    asked.answer(given("t", 0, error=ErrorCode.OFFSET_OUT_OF_RANGE))
    for timestamp, offset in ((-2, 10), (-1, 20)):
        asked = await harness.leader(7).asked()
        assert asked.offsets.replica_id == BROKER_ID
        (part,) = asked.offsets.topics[0].partitions
        assert (part.timestamp, part.current_leader_epoch) == (timestamp, 1)
        asked.answer(bounds("t", 0, offset))
    asked = await harness.leader(7).asked()
    assert asked.partitions["t", 0].fetch_offset == 10
    assert hosted.log.log_start_offset == hosted.log.end_offset == 10


@with_follower()
async def test_the_log_start_offset_follows_the_leaders(harness: Harness) -> None:
    """What is deleted on the leader is deleted on the follower."""
    hosted = harness.follow("t")
    asked = await harness.leader(7).asked()
    records = b"".join(batch(at) for at in range(5))
    asked.answer(given("t", 0, records, high_watermark=5, start=3))
    asked = await harness.leader(7).asked()
    assert (asked.partitions["t", 0].fetch_offset, hosted.log.log_start_offset) == (5, 3)


@with_follower()
async def test_a_corrupt_batch_is_not_stored(harness: Harness) -> None:
    """The valid batches before it are stored, and the rest is fetched again."""
    harness.follow("t")
    asked = await harness.leader(7).asked()
    bad = bytearray(batch(1))
    bad[-1] ^= 1
    asked.answer(given("t", 0, batch(0) + bytes(bad)))
    await harness.until(lambda: values(harness) == [0])
    asked = await harness.leader(7).asked()
    assert asked.partitions["t", 0].fetch_offset == 1


@with_follower(**{"replica.fetch.backoff.ms": "60000"})
async def test_a_leader_that_does_not_know_its_leadership_yet_is_asked_again_soon(
    harness: Harness,
) -> None:
    """Without the backoff for other errors, because clients wait for this."""
    harness.follow("t")
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH):
        asked = await harness.leader(7).asked()
        asked.answer(given("t", 0, error=code))
    await harness.leader(7).asked()


@with_follower()
async def test_a_lost_connection_is_opened_again(harness: Harness) -> None:
    """The partition is fetched again when its backoff is over."""
    harness.follow("t")
    asked = await harness.leader(7).asked()
    asked.line.cut()
    again = await harness.leader(7).asked()
    assert again.line is not asked.line
    assert again.partitions["t", 0].fetch_offset == 0


@with_follower()
async def test_a_leader_that_registers_again_is_asked_at_once(harness: Harness) -> None:
    """The backoff grows, but a new registration ends it. A broker that is gone is not contacted."""
    harness.leader(7).refuses = True
    harness.follow("t")
    await harness.until(lambda: harness.leader(7).attempts >= 4)
    harness.register(7, gone=True)
    for _ in range(100):  # An attempt may have begun.
        await asyncio.sleep(0)
    tried = harness.leader(7).attempts
    harness.leader(7).refuses = False
    await asyncio.sleep(0.1)
    assert harness.leader(7).attempts == tried
    harness.register(7, epoch=2)
    await harness.leader(7).asked()


@with_follower()
async def test_a_new_leader_is_followed_at_once(harness: Harness) -> None:
    """A late response of the old leader is dropped."""
    hosted = harness.follow("t", leader=7, epoch=1)
    old = await harness.leader(7).asked()
    harness.follow("t", leader=8, epoch=2)
    new = await harness.leader(8).asked()
    assert new.partitions["t", 0].current_leader_epoch == 2
    old.answer(given("t", 0, batch(0), high_watermark=1))
    await asyncio.sleep(0.01)
    assert (hosted.log.end_offset, hosted.high_watermark) == (0, 0)
    new.answer(given("t", 0, batch(0, epoch=2)))
    await harness.leader(8).asked()
    assert hosted.log.epochs.latest == 2


@with_follower()
async def test_a_truncation_for_an_old_role_is_not_carried_out(harness: Harness) -> None:
    """It had to wait for a flush, and the broker no longer follows when the flush ends."""
    hosted = harness.host("t")
    hosted.log.append_replica(batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2), 0)
    harness.follow("t", epoch=3)
    asked = await harness.leader(7).asked()
    held = asyncio.Event()

    async def operation() -> None:
        async with harness.flusher.exclusive(hosted.log):
            await held.wait()

    other = asyncio.create_task(operation())
    await asyncio.sleep(0)
    asked.answer(given("t", 0, diverging=(1, 1)))
    await asyncio.sleep(0.01)
    harness.rest(hosted)
    held.set()
    await other
    await asyncio.sleep(0.01)
    assert hosted.log.end_offset == 2


@with_follower()
async def test_a_partition_that_is_no_longer_followed_is_not_fetched(harness: Harness) -> None:
    """The connections to a leader without followed partitions are closed."""
    hosted = harness.follow("t")
    asked = await harness.leader(7).asked()
    harness.rest(hosted)
    await harness.until(lambda: not asked.line.is_open)
    harness.follow("t", epoch=2)
    await harness.leader(7).asked()


def test_a_follower_that_would_truncate_committed_records_stops_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It keeps what may be the last copy, fetches no more, and logs one line."""

    @with_follower()
    async def case(harness: Harness) -> None:
        hosted = harness.host("t")
        hosted.log.append_replica(batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2), 0)
        harness.follow("t", epoch=2)
        asked = await harness.leader(7).asked()
        asked.answer(given("t", 0, high_watermark=2))
        await harness.leader(7).asked()
        harness.follow("t", epoch=3)
        asked = await harness.leader(7).asked()
        asked.answer(given("t", 0, diverging=(1, 1)))
        await harness.until(lambda: "stopped fetching" in caplog.text)
        await asyncio.sleep(0.05)
        assert harness.leader(7).queue.empty()
        assert hosted.log.end_offset == 2

    with caplog.at_level(logging.ERROR):
        case()
    assert sum("stopped fetching" in line.message for line in caplog.records) == 1


@with_follower()
async def test_a_follower_fetches_again_when_its_disk_has_space_again(harness: Harness) -> None:
    """Records that could not be stored do not count. They are fetched again when a test write, as
    `disk_full` does it, has found space.
    """
    hosted = harness.follow("t", durability="replicated")
    asked = await harness.leader(7).asked()
    used = sum(len(data) for data in harness.disk.files().values())
    harness.disk.capacity_bytes = used
    asked.answer(given("t", 0, batch(0, b"x" * 1000), high_watermark=1))
    await harness.until(lambda: hosted.log.lacks_space)
    assert (hosted.log.end_offset, hosted.high_watermark) == (0, 0)
    hosted.log.state.space.probe()
    assert hosted.log.lacks_space
    harness.disk.capacity_bytes = used + (8 << 20)
    hosted.log.state.space.probe()
    harness.fetchers.retry(hosted)
    asked = await harness.leader(7).asked()
    assert asked.partitions["t", 0].fetch_offset == 0
    asked.answer(given("t", 0, batch(0), high_watermark=1))
    await harness.leader(7).asked()
    assert (hosted.log.end_offset, hosted.high_watermark) == (1, 1)


@with_follower(follower_replication_throttled_rate="500")
async def test_a_lagging_replica_is_throttled_and_others_are_not(harness: Harness) -> None:
    """By the topic's list of replicas, and the broker's rate in bytes per second."""
    for index in range(2):
        harness.follow(
            "t",
            index,
            durability="replicated",
            follower_replication_throttled_replicas=f"0:{BROKER_ID}",
        )
    asked = await harness.leader(7).asked()
    large = b"x" * 3000
    begun = asyncio.get_running_loop().time()
    asked.answer(
        merged(
            given("t", 0, batch(0, large), high_watermark=9),
            given("t", 1, batch(0, large), high_watermark=9),
        )
    )
    asked = await harness.leader(7).asked()
    assert set(asked.partitions) == {("t", 1)}
    asked = await harness.leader(7).asked()
    assert set(asked.partitions) == {("t", 0)}
    assert asyncio.get_running_loop().time() - begun > 0.4


@with_follower()
async def test_a_fetch_in_a_session_names_only_changed_partitions(harness: Harness) -> None:
    """Partitions without changes are left out, and those that are no longer followed are removed
    from the session.
    """
    for index in range(3):
        harness.follow("t", index, durability="replicated")
    asked = await harness.leader(7).asked()
    assert (asked.fetch.session_id, asked.fetch.session_epoch) == (0, 0)
    answer = merged(*(given("t", index, high_watermark=0) for index in range(3)))
    answer.session_id = 77
    asked.answer(answer)
    asked = await harness.leader(7).asked()
    assert (asked.fetch.session_id, asked.fetch.session_epoch) == (77, 1)
    assert len(asked.partitions) == 3
    answer = given("t", 1, batch(0))
    answer.session_id = 77
    asked.answer(answer)
    asked = await harness.leader(7).asked()
    assert (asked.fetch.session_epoch, set(asked.partitions)) == (2, {("t", 1)})
    assert asked.fetch.forgotten_topics_data == []
    harness.rest(harness.roles.hosted["t", 0])
    asked.answer(FetchResponse(session_id=77))
    asked = await harness.leader(7).asked()
    assert (asked.fetch.session_epoch, asked.partitions) == (3, {})
    (forgotten,) = asked.fetch.forgotten_topics_data
    assert forgotten.partitions == [0]
    asked.answer(given("t", 2, batch(0)))
    await harness.until(lambda: values(harness, "t", 2) == [0])


@with_follower()
async def test_a_partition_on_the_express_lane_is_removed_from_the_session(
    harness: Harness,
) -> None:
    """Otherwise the leader would count its old offset and send the same records again."""
    harness.follow("t", 0)
    harness.follow("t", 1)
    asked = await harness.leader(7).asked()
    harness.flushes.gate = asyncio.Event()
    answer = merged(given("t", 0, batch(0)), given("t", 1))
    answer.session_id = 77
    asked.answer(answer)
    asked = await harness.leader(7).asked()
    assert set(asked.partitions) == {("t", 1)}
    assert asked.fetch.session_epoch == 1
    (forgotten,) = asked.fetch.forgotten_topics_data
    assert forgotten.partitions == [0]
    harness.flushes.gate.set()
    express = await harness.leader(7).asked()
    assert (express.fetch.session_epoch, set(express.partitions)) == (-1, {("t", 0)})


@with_follower()
async def test_a_session_that_the_leader_lost_is_begun_again(harness: Harness) -> None:
    """At once, with all partitions."""
    harness.follow("t", 0, durability="replicated")
    harness.follow("t", 1, durability="replicated")
    asked = await harness.leader(7).asked()
    answer = merged(given("t", 0, batch(0)), given("t", 1))
    answer.session_id = 77
    asked.answer(answer)
    asked = await harness.leader(7).asked()
    asked.answer(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    asked = await harness.leader(7).asked()
    assert (asked.fetch.session_id, asked.fetch.session_epoch) == (0, 0)
    assert asked.partitions["t", 0].fetch_offset == 1
    assert set(asked.partitions) == {("t", 0), ("t", 1)}


@with_follower()
async def test_an_error_of_the_whole_response_delays_all_partitions(harness: Harness) -> None:
    """Until the backoff is over."""
    harness.follow("t", 0)
    asked = await harness.leader(7).asked()
    asked.answer(FetchResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
    await asyncio.sleep(0.05)
    assert harness.leader(7).queue.empty()
    await harness.leader(7).asked()
