"""Records with far due times on a broker: they pass the window, and come when they are due.

A record is far if it is due more than a minute after its timestamp. These records have timestamps
in the past, so that tests need not wait for a minute.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from broker.handlers.test_read_committed import Writers
from broker.harness import BrokerHarness, soon
from broker.shares.share_client import GROUP, Member, settings, share_groups, values, with_state
from broker.shares.test_dead_letters import (
    ALLOWED,
    LETTERS,
    TOPIC,
    begin_leadership_again,
    letters,
    offsets,
)
from penstock.broker.schedules.bucket_index import DIRECTORY, BucketDueIndex
from penstock.broker.shares.occupancy import OccupancyTable
from penstock.metadata.config_changes import ConfigOperation, ResourceType
from penstock.records.record import Record, build_batch
from penstock.schedule.cursor import DueEntry
from penstock.shares.judged import Judged
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.share_schedule import FAR_MS
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType, RecordState
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from shares.fake_state import FakeShareState

TIMED = {"penstock.timed.records": "true"}
ACCEPT, RELEASE, REJECT = int(AckType.ACCEPT), int(AckType.RELEASE), int(AckType.REJECT)
HOUR_MS = 3_600_000
WAIT_S = 60.0


async def far_queue(
    harness: BrokerHarness,
    given: ShareSettings | None = None,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> tuple[FakeShareState, bytes]:
    topic_id = await harness.create("orders", 1, {**TIMED, **configs})
    state = with_state(harness)
    state.begin(SharePartitionId(GROUP, topic_id, 0), 0)
    settings(harness, given or ShareSettings(in_flight_max=10))
    return state, topic_id


async def put(
    harness: BrokerHarness, *delays: int | None, ttl_ms: int | None = None, dedup: bytes = b""
) -> None:
    """Appends a batch with one record for each delay, in milliseconds from now on. Those with a
    delay are far."""
    now = harness.services.wall_ms()
    hosted = harness.hosted("orders")
    records = []
    for at, delay in enumerate(delays):
        headers: list[tuple[str, bytes | None]] = []
        if delay is not None:
            headers.append(("penstock-deliver-at", b"%d" % (now + delay)))
            if ttl_ms is not None:
                headers.append(("penstock-expires-at", b"%d" % (now + delay + ttl_ms)))
        if dedup:
            headers.append(("penstock-dedup-id", dedup))
        name = b"now" if delay is None else b"after %d" % delay
        records.append(Record(at, now - 2 * FAR_MS, None, name, tuple(headers)))
    written = hosted.append(memoryview(build_batch(records)), now)
    await harness.until(lambda: hosted.high_watermark >= written.end_offset)


def share_partition(harness: BrokerHarness) -> SharePartition:
    (led,) = harness.broker.shares
    return led.partition(GROUP)


async def take(member: Member, count: int) -> list[bytes]:
    """Takes jobs and accepts them."""
    got: list[bytes] = []
    while len(got) < count:
        found = await member.fetch()
        got += values(found)
        acks = [(each.first_offset, each.last_offset, ACCEPT) for each in found.acquired_records]
        if acks:
            assert await member.acknowledge(*acks) is ErrorCode.NONE
    return got


@share_groups
async def test_more_far_records_than_the_window_holds_do_not_block_the_queue(
    harness: BrokerHarness,
) -> None:
    state, topic_id = await far_queue(harness)
    for _ in range(5):
        await put(harness, *[HOUR_MS] * 10)
    await put(harness, None)
    anna = Member(harness, topic_id)
    assert await take(anna, 1) == [b"now"]
    assert share_partition(harness).start_offset == 51
    (led,) = harness.broker.shares
    await harness.until(lambda: led.schedules.scheduled(GROUP) == 50)
    assert led.schedules.entries == 50
    table = OccupancyTable()
    table.add(led)
    (found,) = table.largest(1, "(other)")
    assert (found.scheduled, found.backlog, found.full_windows) == (50, 0, 0)
    assert state.images[SharePartitionId(GROUP, topic_id, 0)].start_offset >= 50


@share_groups
async def test_far_records_come_in_order_of_their_due_times(harness: BrokerHarness) -> None:
    """Records that are promoted together come in the order of their offsets. Here each is promoted
    alone, and none is due before the window has passed it."""
    _, topic_id = await far_queue(harness, ShareSettings(in_flight_max=1))
    soon_ms = soon(2_500.0)
    before = harness.services.wall_ms()
    await put(harness, 3 * soon_ms, None, soon_ms, HOUR_MS, 2 * soon_ms)
    anna = Member(harness, topic_id)
    expected = [b"after %d" % (times * soon_ms) for times in (1, 2, 3)]
    assert await take(anna, 4) == [b"now", *expected]
    assert harness.services.wall_ms() >= before + 3 * soon_ms
    await harness.until(lambda: not share_partition(harness).promoted)


@share_groups
async def test_a_crowd_comes_in_pieces_and_each_record_once(harness: BrokerHarness) -> None:
    _, topic_id = await far_queue(harness, ShareSettings(in_flight_max=7))
    for _ in range(4):
        await put(harness, *[-5] * 10)
    anna = Member(harness, topic_id)
    assert len(await take(anna, 40)) == 40
    await put(harness, None)
    assert await take(anna, 1) == [b"now"]
    assert harness.broker.shares.far.promoted == 40


@share_groups
async def test_a_new_leader_goes_on_with_the_schedule(harness: BrokerHarness) -> None:
    """Promoted records are delivered again, done ones are not, and scheduled ones come later."""
    state, topic_id = await far_queue(harness)
    await put(harness, -3, -2, 1500, None)
    anna = Member(harness, topic_id)
    got: list[bytes] = []
    while b"after -2" not in got:
        got += values(await anna.fetch())
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    await begin_leadership_again(harness)
    ben = Member(harness, topic_id, "ben")
    assert sorted(await take(ben, 3)) == [b"after -2", b"after 1500", b"now"]
    image = state.images[SharePartitionId(GROUP, topic_id, 0)]
    await harness.until(lambda: not image.promoted)
    assert image.schedule.cursor.floor == 0
    await put(harness, None)
    assert await take(ben, 1) == [b"now"]


async def gets_nothing(member: Member) -> bool:
    request = member.fetch_request()
    request.max_wait_ms = 1
    found = await member.ask_fetch(request)
    return not any(part.acquired_records for each in found.responses for part in each.partitions)


async def configure(harness: BrokerHarness, name: str, value: str) -> None:
    """Changes a setting of the topic, and waits until it takes effect."""
    config = IncrementalAlterConfigsRequest.Config(name, ConfigOperation.SET, value)
    resource = IncrementalAlterConfigsRequest.Resource(ResourceType.TOPIC, "orders", [config])
    request = IncrementalAlterConfigsRequest([resource])
    response = await harness.ask(request, 1, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == 0
    hosted, field = harness.hosted("orders"), name.replace(".", "_")
    await harness.until(lambda: str(getattr(hosted.settings, field)).lower() == value)


async def until_passed(harness: BrokerHarness, member: Member, state: FakeShareState) -> None:
    """Waits until the window has passed all records, and this is stored."""
    image = state.images[SharePartitionId(GROUP, harness.hosted("orders").topic_id, 0)]
    async with asyncio.timeout(patient(WAIT_S)):
        while image.schedule.cursor.end < harness.hosted("orders").high_watermark:
            assert await gets_nothing(member)


@pytest.mark.parametrize("leaves", [begin_leadership_again, None], ids=["failover", "idle"])
def test_scheduled_records_stay_scheduled_after_the_setting_is_switched_off(
    leaves: Callable[[BrokerHarness], Awaitable[None]] | None, tmp_path: Path
) -> None:
    """Nothing was promoted yet. The next leader, or the next load, must know the schedule."""

    @share_groups
    async def scenario(harness: BrokerHarness) -> None:
        state, topic_id = await far_queue(harness)
        await put(harness, *[72 * HOUR_MS] * 5)
        anna = Member(harness, topic_id)
        await until_passed(harness, anna, state)
        if leaves is None:
            anna.disconnect()
            await harness.until(lambda: not [*harness.broker.shares])
        await configure(harness, "penstock.timed.records", "false")
        if leaves is not None:
            await leaves(harness)
        await put(harness, 72 * HOUR_MS)
        ben = Member(harness, topic_id, "ben")
        assert await take(ben, 1) == [b"after %d" % (72 * HOUR_MS)]
        assert share_partition(harness).start_offset == 6
        assert share_partition(harness).schedule.ceiling == 5

    scenario(tmp_path)


@share_groups
async def test_windows_without_far_records_store_nothing(harness: BrokerHarness) -> None:
    """Also while others are scheduled: the cursor is stored when it passes far records only."""
    state, topic_id = await far_queue(harness)
    await put(harness, HOUR_MS)
    anna = Member(harness, topic_id)
    await until_passed(harness, anna, state)
    (led,) = harness.broker.shares
    for end in range(2, 6):
        await put(harness, None)
        state.calls.clear()
        assert await take(anna, 1) == [b"now"]
        async with asyncio.timeout(patient(WAIT_S)):
            while led.partition(GROUP).schedule.cursor.end != end:
                assert await gets_nothing(anna)
        assert [name for name, _ in state.calls] == ["write"]


@share_groups
async def test_nothing_is_delivered_until_the_promotion_is_stored(harness: BrokerHarness) -> None:
    state, topic_id = await far_queue(harness)
    state.may_write.clear()
    await put(harness, -1)
    anna = Member(harness, topic_id)
    async with asyncio.timeout(patient(WAIT_S)):
        while ("write", SharePartitionId(GROUP, topic_id, 0)) not in state.calls:
            assert await gets_nothing(anna)
    assert await gets_nothing(anna)
    state.may_write.set()
    assert await take(anna, 1) == [b"after -1"]
    assert state.images[SharePartitionId(GROUP, topic_id, 0)].schedule.cursor.end == 1


@share_groups
async def test_a_failed_promotion_is_repeated(harness: BrokerHarness) -> None:
    """The share coordinator is not available for a while."""
    state, topic_id = await far_queue(harness)
    soon_ms = soon(3_000.0)
    await put(harness, None, soon_ms)
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"now"]
    state.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    await harness.until(lambda: harness.broker.shares.counters.writes_failed > 1)
    assert not share_partition(harness).promoted
    state.error = None
    assert values(await anna.fetch()) == [b"after %d" % soon_ms]


@share_groups
async def test_a_promoted_record_that_is_released_comes_again(harness: BrokerHarness) -> None:
    _, topic_id = await far_queue(harness)
    await put(harness, -1)
    anna = Member(harness, topic_id)
    found = await anna.fetch()
    assert [each.delivery_count for each in found.acquired_records] == [1]
    assert await anna.acknowledge((0, 0, RELEASE)) is ErrorCode.NONE
    found = await anna.fetch()
    assert [each.delivery_count for each in found.acquired_records] == [2]
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE


@share_groups
async def test_a_promoted_record_that_is_rejected_becomes_a_dead_letter(
    harness: BrokerHarness,
) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    _, topic_id = await far_queue(harness, LETTERS)
    await put(harness, None, -1)
    anna = Member(harness, topic_id)
    assert await take(anna, 1) == [b"now"]
    assert values(await anna.fetch()) == [b"after -1"]
    assert await anna.acknowledge((1, 1, REJECT)) is ErrorCode.NONE
    await harness.until(lambda: not share_partition(harness).promoted)
    assert offsets(letters(harness)) == [1]


@share_groups
async def test_a_promoted_record_that_has_expired_becomes_a_dead_letter(
    harness: BrokerHarness,
) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    _, topic_id = await far_queue(harness, LETTERS)
    await put(harness, -1000, ttl_ms=500)
    await put(harness, -900, ttl_ms=HOUR_MS)
    anna = Member(harness, topic_id)
    assert await take(anna, 1) == [b"after -900"]
    await harness.until(lambda: not share_partition(harness).promoted)
    assert offsets(letters(harness)) == [0]


@share_groups
async def test_duplicates_are_not_scheduled(harness: BrokerHarness) -> None:
    _, topic_id = await far_queue(harness, configs={"penstock.dedup.window.ms": "60000"})
    await put(harness, -5, dedup=b"same")
    await put(harness, -4, dedup=b"same")
    await put(harness, -3, dedup=b"other")
    anna = Member(harness, topic_id)
    assert await take(anna, 2) == [b"after -5", b"after -3"]
    assert share_partition(harness).start_offset == 3
    assert harness.broker.shares.far.promoted == 2


@share_groups
async def test_duplicates_are_not_scheduled_by_a_new_leader(harness: BrokerHarness) -> None:
    state, topic_id = await far_queue(harness, configs={"penstock.dedup.window.ms": "60000"})
    soon_ms = soon(3_000.0)
    await put(harness, soon_ms, dedup=b"same")
    await put(harness, soon_ms + 1, dedup=b"same")
    await until_passed(harness, Member(harness, topic_id), state)
    await begin_leadership_again(harness)
    await put(harness, soon_ms, dedup=b"other")
    ben = Member(harness, topic_id, "ben")
    assert len(await take(ben, 2)) == 2
    assert share_partition(harness).start_offset == 3
    assert harness.broker.shares.far.promoted == 2


@share_groups
async def test_an_aborted_record_does_not_make_its_repetition_a_duplicate(
    harness: BrokerHarness,
) -> None:
    """For a group that reads committed records. For another group the first one is a record."""
    _, topic_id = await far_queue(
        harness,
        ShareSettings(in_flight_max=10, read_committed=True),
        {"penstock.dedup.window.ms": "60000"},
    )
    now, hosted = harness.services.wall_ms(), harness.hosted("orders")
    first = Record(0, now - 2 * FAR_MS, None, b"aborted", (("penstock-dedup-id", b"same"),))
    aborted = build_batch(
        [first], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    hosted.append_own(aborted, now)
    Writers(hosted).end(1, commit=False)
    await put(harness, -5, dedup=b"same")
    await put(harness, -4, dedup=b"same")
    await put(harness, None, dedup=b"other")
    anna = Member(harness, topic_id)
    assert sorted(await take(anna, 2)) == [b"after -5", b"now"]
    assert harness.broker.shares.far.promoted == 1


@pytest.mark.parametrize("when", ["at once", "idle", "failover first", "failover later"])
def test_scheduled_records_do_not_become_duplicates_when_deduplication_is_switched_on(
    when: str, tmp_path: Path
) -> None:
    """They had passed the window as no duplicates. Those that follow are checked."""

    @share_groups
    async def scenario(harness: BrokerHarness) -> None:
        state, topic_id = await far_queue(harness)
        soon_ms = soon(3_000.0)
        await put(harness, soon_ms, dedup=b"same")
        await put(harness, soon_ms + 1, dedup=b"same")
        anna = Member(harness, topic_id)
        await until_passed(harness, anna, state)
        if when == "idle":
            anna.disconnect()
            await harness.until(lambda: not [*harness.broker.shares])
        await configure(harness, "penstock.dedup.window.ms", "600000")
        await put(harness, soon_ms, dedup=b"same")
        await put(harness, None, dedup=b"other")
        if when == "failover first":
            await begin_leadership_again(harness)
        got = await take(Member(harness, topic_id, "ben"), 1)
        if when == "failover later":
            share = SharePartitionId(GROUP, topic_id, 0)
            stored = Judged(600_000, 2, 0).encode()
            await harness.until(lambda: state.images[share].attachment == stored)
            await begin_leadership_again(harness)
        got += await take(Member(harness, topic_id, "carl"), 2)
        assert sorted(got) == [b"after %d" % soon_ms, b"after %d" % (soon_ms + 1), b"now"]
        assert share_partition(harness).start_offset == 4
        assert harness.broker.shares.far.promoted == 2

    scenario(tmp_path)


@share_groups
async def test_a_full_disk_delays_far_records_only(harness: BrokerHarness) -> None:
    _, topic_id = await far_queue(harness)

    def full(self: BucketDueIndex, entries: Iterable[DueEntry], end: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketDueIndex, "add", full)
        await put(harness, -1, None)
        anna = Member(harness, topic_id)
        assert await take(anna, 1) == [b"now"]
        await harness.until(lambda: harness.broker.shares.far.failed > 0)
    assert await take(anna, 1) == [b"after -1"]


@share_groups
async def test_an_index_that_was_deleted_is_built_again(harness: BrokerHarness) -> None:
    _, topic_id = await far_queue(harness)
    await put(harness, HOUR_MS, None)
    anna = Member(harness, topic_id)
    assert await take(anna, 1) == [b"now"]
    (led,) = harness.broker.shares
    await harness.until(lambda: led.schedules.entries == 1)
    log = harness.hosted("orders").log
    root = f"{log.directory.rpartition('/')[0]}/{DIRECTORY}"
    disk = harness.broker._env.disk
    for index in disk.listdir(root):
        for name in disk.listdir(f"{root}/{index}"):
            disk.unlink(f"{root}/{index}/{name}")
    await put(harness, HOUR_MS, -1)
    assert await take(anna, 1) == [b"after -1"]
    await harness.until(lambda: led.schedules.entries == 3)


@share_groups
async def test_the_files_of_an_index_go_with_the_leadership(harness: BrokerHarness) -> None:
    _, topic_id = await far_queue(harness)
    await put(harness, HOUR_MS, None)
    assert await take(Member(harness, topic_id), 1) == [b"now"]
    (led,) = harness.broker.shares
    await harness.until(lambda: led.schedules.entries == 1)
    root = f"{harness.hosted('orders').log.directory.rpartition('/')[0]}/{DIRECTORY}"
    disk = harness.broker._env.disk
    assert len(disk.listdir(root)) == 1
    await begin_leadership_again(harness)
    await harness.until(lambda: disk.listdir(root) == [])


@share_groups
async def test_the_oldest_records_are_dropped_and_scheduled_ones_stay(
    harness: BrokerHarness,
) -> None:
    limits = {"penstock.queue.length.max": "2", "penstock.queue.length.policy": "drop-oldest"}
    _, topic_id = await far_queue(harness, configs=limits)
    soon_ms = soon(3_000.0)
    await put(harness, None, soon_ms, None, None, None, None)
    anna = Member(harness, topic_id)
    got = await take(anna, 3)
    assert got == [b"now", b"now", b"after %d" % soon_ms]
    assert harness.broker.shares.counters.lengths.dropped >= 3


@share_groups
async def test_promoted_records_are_locked_and_counted(harness: BrokerHarness) -> None:
    _, topic_id = await far_queue(harness)
    await put(harness, -1)
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"after -1"]
    (span,) = share_partition(harness).promoted
    assert span.state is RecordState.ACQUIRED
    assert share_partition(harness).occupancy() == (0, 1, 0, 0, 1)
    ben = Member(harness, topic_id, "ben")
    assert values(await ben.fetch(max_wait_ms=1)) == []
    anna.disconnect()
    assert values(await ben.fetch()) == [b"after -1"]


@share_groups
async def test_an_index_reaches_the_end_of_a_log_whose_records_are_deleted(
    harness: BrokerHarness,
) -> None:
    await far_queue(harness)
    await put(harness, -5, HOUR_MS)
    anna = Member(harness, harness.hosted("orders").topic_id)
    assert await take(anna, 1) == [b"after -5"]
    await put(harness, None, None)
    part = DeleteRecordsRequest.Partition(0, 4)
    topics = [DeleteRecordsRequest.Topic("orders", [part])]
    await harness.ask(DeleteRecordsRequest(topics, 10_000), 2, DeleteRecordsResponse)
    request = anna.fetch_request()
    request.max_wait_ms = 100
    await anna.ask_fetch(request)
    await harness.until(lambda: share_partition(harness).schedule.cursor.end == 4)
    assert harness.broker.shares.far.failed == 0
