"""Consumers with read_committed: which records and which aborted transactions a broker returns.

The tests write transactions directly as batches and markers. One test also reads them with
Penstock's own clients.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.harness import NOW_MS, BrokerHarness, with_harness
from broker.three_brokers import three_brokers
from penstock import aio
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.records.aborted import AbortedProducers, AbortedTransaction
from penstock.records.batch import iter_batches
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_records,
)
from penstock.testing.slowness import patient
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

from .test_fetch_rules import fetch, only, partition_of


class Writers:
    """Transactional producers, as a partition sees them."""

    def __init__(self, hosted: HostedPartition) -> None:
        self.hosted = hosted
        self._sequences: dict[int, int] = {}

    def write(self, producer_id: int, *values: bytes) -> int:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(values)
        batch = build_batch(
            [Record(at, NOW_MS, b"k", value) for at, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        return self.hosted.append_own(batch, NOW_MS).base_offset

    def plain(self, value: bytes) -> int:
        batch = build_batch([Record(0, NOW_MS, b"k", value)])
        return self.hosted.append_own(batch, NOW_MS).base_offset

    def end(self, producer_id: int, *, commit: bool) -> int:
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        batch = control_batch(
            ControlMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp=NOW_MS
        )
        return self.hosted.append_own(batch, NOW_MS).base_offset


def values_of(answer: FetchResponse.Partition) -> list[bytes]:
    """Returns the values that a read_committed consumer accepts from a response."""
    given = answer.records or b""
    data = memoryview(b"".join(given) if isinstance(given, list) else given)
    listed = answer.aborted_transactions or []
    reader = AbortedProducers(
        [AbortedTransaction(each.producer_id, each.first_offset) for each in listed]
    )
    found: list[bytes] = []
    for position, header in iter_batches(data):
        batch = data[position : position + header.size]
        if reader.passes(batch, header, 1 << 20):
            found += [bytes(record.value or b"") for record in read_records(batch, header)]
    return found


def listed(answer: FetchResponse.Partition) -> list[tuple[int, int]]:
    assert answer.aborted_transactions is not None
    return [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]


async def latest(harness: BrokerHarness, isolation: int) -> int:
    asked = ListOffsetsRequest.Partition(0, -1, -1)
    request = ListOffsetsRequest(-1, isolation, [ListOffsetsRequest.Topic("orders", [asked])])
    answer = await harness.ask(request, 7, ListOffsetsResponse)
    return answer.topics[0].partitions[0].offset


@with_harness
async def test_read_committed_stops_at_the_first_open_transaction(harness: BrokerHarness) -> None:
    """Records of other producers after it are held back too, and ListOffsets returns its first
    offset as the end. Consumers with read_uncommitted are not affected.
    """
    await harness.create("orders")
    hosted = harness.hosted("orders")
    writers = Writers(hosted)
    writers.plain(b"before")
    writers.write(1, b"open")
    writers.plain(b"behind")
    await harness.until(lambda: hosted.high_watermark == 3)
    answer = only(await fetch(harness, partition_of(), isolation=1))
    assert values_of(answer) == [b"before"]
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
    assert await latest(harness, isolation=1) == 1
    assert await latest(harness, isolation=0) == 3
    plain = only(await fetch(harness, partition_of(), isolation=0))
    assert plain.aborted_transactions is None
    assert values_of(plain) == [b"before", b"open", b"behind"]
    assert (plain.high_watermark, plain.last_stable_offset) == (3, 1)
    writers.end(1, commit=True)
    await harness.until(lambda: hosted.high_watermark == 4)
    answer = only(await fetch(harness, partition_of(), isolation=1))
    assert values_of(answer) == [b"before", b"open", b"behind"]
    assert listed(answer) == []
    assert await latest(harness, isolation=1) == 4


@with_harness
async def test_a_response_lists_the_aborted_transactions_of_its_batches(
    harness: BrokerHarness,
) -> None:
    """It lists no others: a fetch of one batch names one transaction."""
    await harness.create("orders")
    hosted = harness.hosted("orders")
    writers = Writers(hosted)
    for number in range(1, 4):
        writers.write(number, b"no %d" % number)
        writers.plain(b"yes %d" % number)
        writers.end(number, commit=False)
    writers.write(1, b"at last")
    writers.end(1, commit=True)
    await harness.until(lambda: hosted.high_watermark == 11)
    answer = only(await fetch(harness, partition_of(), isolation=1))
    assert listed(answer) == [(1, 0), (2, 3), (3, 6)]
    assert values_of(answer) == [b"yes 1", b"yes 2", b"yes 3", b"at last"]
    answer = only(await fetch(harness, partition_of(offset=4, bytes_max=1), isolation=1))
    assert listed(answer) == [(2, 3)]
    assert values_of(answer) == [b"yes 2"]
    for version in (4, 11, 12):
        answer = only(await fetch(harness, partition_of(offset=9), version=version, isolation=1))
        assert (listed(answer), values_of(answer)) == ([], [b"at last"])


@with_harness
async def test_a_waiting_reader_is_woken_when_a_transaction_ends(harness: BrokerHarness) -> None:
    """Not by each batch of the transaction, which would cause useless requests."""
    await harness.create("orders")
    writers = Writers(harness.hosted("orders"))
    writers.write(1, b"first")
    asked = FetchRequest.Topic("orders", bytes(16), [partition_of()])
    request = FetchRequest(max_wait_ms=600_000, min_bytes=200, isolation_level=1, topics=[asked])
    waiting = asyncio.ensure_future(harness.ask(request, 11, FetchResponse))
    for _ in range(5):
        writers.write(1, b"x" * 300)
        for _ in range(5):
            await asyncio.sleep(0)
    await harness.until(lambda: harness.hosted("orders").high_watermark == 6)
    assert not waiting.done()
    writers.end(1, commit=True)
    answer = only(await waiting)
    assert values_of(answer) == [b"first", *[b"x" * 300] * 5]


def test_replicas_and_clients_agree_on_committed_records(tmp_path: Path) -> None:
    """Followers get all records and derive the same lists of aborted transactions. The consumer
    reads what was committed, by record and as columns, before and after a change of the leader.
    """

    async def run_case() -> None:
        settings = {"replica.lag.time.max.ms": str(round(patient(8_000)))}
        async with asyncio.timeout(patient(120.0)), three_brokers(tmp_path, settings) as three:
            await three.create(segment_bytes="1000")
            leader = three.partition().leader
            writers = Writers(three.hosted(leader))
            wanted: list[bytes] = []
            for number in range(30):
                commits = number % 3 == 0
                for producer_id in (1, 2):
                    writers.write(producer_id, b"%d of %d" % (number, producer_id))
                writers.plain(b"plain %d" % number)
                writers.end(1, commit=commits)
                writers.end(2, commit=not commits)
                kept = b"%d of %d" % (number, 1 if commits else 2)
                wanted += [kept, b"plain %d" % number]
            writers.write(1, b"open")
            await three.all_equal()
            logs = [three.hosted(each).log for each in range(3)]
            lists = [log.aborted_entries(0, log.end_offset) for log in logs]
            assert len(logs[0].segments) > 3
            assert len(lists[0]) == 30
            assert lists[0] == lists[1] == lists[2]
            await _check_clients(three.nodes[leader].port, wanted)
            await three.until(lambda: len(three.partition().isr) == 3)
            await three.nodes[leader].stop()
            await three.until(lambda: three.partition().leader not in (-1, leader))
            follower = three.partition().leader
            await three.until(lambda: three.hosted(follower).leadership is not None)
            await _check_clients(three.nodes[follower].port, wanted)

    asyncio.run(run_case())


async def _check_clients(port: int, wanted: list[bytes]) -> None:
    bootstrap = f"127.0.0.1:{port}"
    async with aio.Consumer(
        bootstrap, topics=["t"], auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        found: list[bytes] = []
        while len(found) < len(wanted):
            found += [bytes(record.value or b"") for record in await consumer.poll(500)]
        assert found == wanted
        columns: list[bytes] = []
        async for batch in consumer.read_batches("t"):
            columns += batch.column("value").to_pylist()
        assert columns == wanted
