"""Due times, expiry and duplicates: what a broker reads from records, also after a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn

import pytest

from broker.handlers.test_read_committed import Writers
from broker.harness import BrokerHarness, soon
from broker.shares.share_client import (
    GROUP,
    Member,
    ranges,
    settings,
    share_groups,
    values,
    with_state,
)
from penstock.broker.shares.occupancy import OccupancyTable
from penstock.partition.record_validation import RecordsRefused
from penstock.records.batch import Codec, CorruptBatch
from penstock.records.record import Record, build_batch
from penstock.shares.record_marks import MarkReader
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType
from penstock.wire.errors import ErrorCode

TIMED = {"penstock.timed.records": "true"}
DEDUP = {"penstock.dedup.window.ms": "60000"}
ACCEPT, RELEASE = int(AckType.ACCEPT), int(AckType.RELEASE)
Headers = tuple[tuple[str, bytes], ...]


async def topic(harness: BrokerHarness, configs: Mapping[str, str], start: int = 0) -> bytes:
    topic_id = await harness.create("orders", 1, configs)
    with_state(harness).begin(SharePartitionId(GROUP, topic_id, 0), start)
    return topic_id


async def put(
    harness: BrokerHarness,
    *jobs: tuple[bytes, Headers],
    key: bytes | None = None,
    codec: Codec = Codec.NONE,
) -> None:
    """Appends one batch."""
    now = harness.services.wall_ms()
    records = [Record(at, now, key, value, headers) for at, (value, headers) in enumerate(jobs)]
    hosted = harness.hosted("orders")
    written = hosted.append(memoryview(build_batch(records, codec=codec)), now)
    await harness.until(lambda: hosted.high_watermark >= written.end_offset)


def due(harness: BrokerHarness, after_ms: int) -> tuple[str, bytes]:
    return "penstock-deliver-at", b"%d" % (harness.services.wall_ms() + after_ms)


def expires(harness: BrokerHarness, after_ms: int) -> tuple[str, bytes]:
    return "penstock-expires-at", b"%d" % (harness.services.wall_ms() + after_ms)


def job_id(text: bytes) -> Headers:
    return (("penstock-dedup-id", text),)


@share_groups
async def test_a_record_is_delivered_when_it_is_due_and_others_before_it(
    harness: BrokerHarness,
) -> None:
    topic_id = await topic(harness, TIMED)
    later = due(harness, soon(3_000.0))
    await put(harness, (b"now", ()), (b"later", (later,)), codec=Codec.GZIP)
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"now"]
    assert values(await anna.fetch()) == [b"later"]
    assert harness.services.wall_ms() >= int(later[1])


@share_groups
async def test_a_due_time_holds_after_a_reload(harness: BrokerHarness) -> None:
    topic_id = await topic(harness, TIMED)
    await put(harness, (b"later", (due(harness, 55_000),)), (b"now", ()))
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"now"]
    assert await anna.acknowledge((1, 1, ACCEPT)) is ErrorCode.NONE
    anna.disconnect()
    await harness.until(lambda: not list(harness.broker.shares))
    ben = Member(harness, topic_id, "ben")
    waiting = asyncio.create_task(ben.fetch())
    await harness.until(lambda: harness.broker.shares.scans.scanned == 4)
    await put(harness, (b"next", ()))
    assert ranges(await waiting) == [(2, 2, 1)]


@share_groups
async def test_an_expired_record_is_given_up(harness: BrokerHarness) -> None:
    topic_id = await topic(harness, TIMED)
    await put(harness, (b"old", (expires(harness, -1),)))
    await put(harness, (b"new", (expires(harness, 3_600_000),)))
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"new"]
    (led,) = harness.broker.shares
    assert led.partition(GROUP).start_offset == 1


@share_groups
async def test_without_the_setting_headers_are_not_read(harness: BrokerHarness) -> None:
    topic_id = await topic(harness, {})
    await put(harness, (b"at once", (due(harness, 3_600_000),)))
    assert values(await Member(harness, topic_id).fetch()) == [b"at once"]
    assert harness.broker.shares.scans.scanned == 0


@share_groups
async def test_a_full_window_of_records_that_are_not_due_is_reported(
    harness: BrokerHarness,
) -> None:
    """Later records wait, too. A metric says so."""
    topic_id = await topic(harness, TIMED)
    settings(harness, ShareSettings(in_flight_max=10))
    later = due(harness, 55_000)
    await put(harness, *[(b"later", (later,))] * 10)
    await put(harness, (b"now", ()))
    request = (anna := Member(harness, topic_id)).fetch_request()
    request.max_wait_ms = 1
    while not harness.broker.shares.scans.scanned:
        await anna.ask_fetch(request)
        request = anna.fetch_request()
        request.max_wait_ms = 1
    await anna.ask_fetch(request)
    table = OccupancyTable()
    for led in harness.broker.shares:
        table.add(led)
    (found,) = table.largest(1, "(other)")
    assert (found.delayed, found.full_windows, found.backlog) == (10, 1, 11)


@share_groups
async def test_a_duplicate_is_delivered_once(harness: BrokerHarness) -> None:
    topic_id = await topic(harness, DEDUP)
    await put(harness, (b"a", job_id(b"1")), (b"again", job_id(b"1")), (b"b", job_id(b"2")))
    await put(harness, (b"a third time", job_id(b"1")), (b"c", ()), (b"d", ()))
    anna, got = Member(harness, topic_id), list[bytes]()
    while len(got) < 4:
        got += values(await anna.fetch())
    assert got == [b"a", b"b", b"c", b"d"]


@share_groups
async def test_without_the_header_the_key_is_the_id(harness: BrokerHarness) -> None:
    topic_id = await topic(harness, DEDUP)
    await put(harness, (b"a", ()), key=b"order 1")
    await put(harness, (b"again", ()), key=b"order 1")
    await put(harness, (b"b", ()), key=b"order 2")
    anna, got = Member(harness, topic_id), list[bytes]()
    while len(got) < 2:
        got += values(await anna.fetch())
    assert got == [b"a", b"b"]


@share_groups
async def test_a_duplicate_is_found_after_the_first_record_is_done_and_the_state_was_loaded_again(
    harness: BrokerHarness,
) -> None:
    topic_id = await topic(harness, DEDUP)
    await put(harness, (b"a", job_id(b"1")))
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"a"]
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    anna.disconnect()
    await harness.until(lambda: not list(harness.broker.shares))
    await put(harness, (b"again", job_id(b"1")), (b"b", job_id(b"2")))
    assert values(await Member(harness, topic_id, "ben").fetch()) == [b"b"]


@share_groups
async def test_a_record_that_is_released_is_no_duplicate_of_itself(
    harness: BrokerHarness,
) -> None:
    topic_id = await topic(harness, DEDUP)
    await put(harness, (b"a", job_id(b"1")))
    anna = Member(harness, topic_id)
    assert ranges(await anna.fetch()) == [(0, 0, 1)]
    assert await anna.acknowledge((0, 0, RELEASE)) is ErrorCode.NONE
    assert ranges(await anna.fetch()) == [(0, 0, 2)]


@share_groups
async def test_a_scan_that_fails_is_an_error_of_the_partition(harness: BrokerHarness) -> None:
    """The member gets the error, and its next fetch scans again."""
    topic_id = await topic(harness, TIMED)
    await put(harness, (b"a", (due(harness, 1),)))
    anna = Member(harness, topic_id)

    def fail(*_: object) -> NoReturn:
        raise CorruptBatch("planted")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MarkReader, "read", fail)
        assert (await anna.fetch()).error_code == ErrorCode.CORRUPT_MESSAGE
    assert harness.broker.shares.scans.failed == 1
    assert values(await anna.fetch()) == [b"a"]


@share_groups
async def test_the_broker_refuses_a_due_time_beyond_the_retention(harness: BrokerHarness) -> None:
    await topic(harness, {**TIMED, "retention.ms": "1000"})
    with pytest.raises(RecordsRefused) as caught:
        await put(harness, (b"never", (due(harness, 60_000),)))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


@share_groups
async def test_ids_of_aborted_records_do_not_count_after_a_switch_to_read_committed(
    harness: BrokerHarness,
) -> None:
    topic_id = await topic(harness, DEDUP)
    settings(harness, ShareSettings(read_committed=False))
    writers = Writers(harness.hosted("orders"))
    writers.write(1, b"aborted")
    anna = Member(harness, topic_id)
    assert values(await anna.fetch()) == [b"aborted"]
    writers.end(1, commit=False)
    settings(harness, ShareSettings(read_committed=True))
    for led in harness.broker.shares:
        led.refresh_settings()
    writers.plain(b"again")
    assert values(await anna.fetch()) == [b"again"]
