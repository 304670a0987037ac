"""Tests sending Arrow tables with the producer."""

from __future__ import annotations

import asyncio
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from client.fake_broker import DROP_AFTER, SILENCE, FakeBroker
from client.producing.open_producers import producer_of, run, strict, until, written
from penstock.client.errors import (
    BrokerError,
    BufferExhausted,
    Closed,
    OptionError,
    RecordTooLarge,
    SerializationFailed,
)
from penstock.client.producing import tables
from penstock.client.producing.tables import OffsetRange, TableMetadata, slices
from penstock.client.routers import RoutingError
from penstock.records.hashing import partition_of
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse


def values_of(count: int, size: int = 10) -> list[bytes]:
    return [str(n).encode().rjust(size, b"0") for n in range(count)]


def test_a_table_is_written_and_its_offsets_reported(fake: FakeBroker) -> None:
    """Rows keep their order within each partition. Counts and offsets are reported by partition."""
    fake.model.add_topic("pets", 3)
    values = values_of(1000)
    table = pa.table({"value": values, "partition": [n % 3 for n in range(1000)]})

    async def main() -> TableMetadata:
        async with producer_of(fake.address) as producer:
            delivery = await producer.send_table("pets", table)
            with pytest.raises(RuntimeError, match="on their way"):
                delivery.outcome()
            metadata = await delivery
            assert delivery.done()
            assert delivery.outcome() == metadata
            assert producer.metrics().records == 1000
            return metadata

    metadata = run(main())
    assert (metadata.topic, metadata.records) == ("pets", 1000)
    assert metadata.counts == {0: 334, 1: 333, 2: 333}
    assert metadata.ranges[2] == (OffsetRange(0, 332),)
    for partition in range(3):
        assert written(fake, "pets", partition) == values[partition::3]


def test_columns_become_keys_headers_and_timestamps(fake: FakeBroker) -> None:
    """Missing columns are null. Keys are routed as in Java."""
    fake.model.add_topic("pets", 4)
    headers = pa.array(
        [[{"key": "a", "value": b"1"}], [], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    table = pa.table(
        {
            "key": [b"x", b"y", b"z"],
            "value": [b"1", None, b""],
            "headers": headers,
            "timestamp": pa.array([5, 6, 7], pa.timestamp("ms")),
        }
    )

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            await (await producer.send_table("pets", table))

    run(main())
    found = {
        record.key: (partition, record.value, record.timestamp, record.headers)
        for partition, log in enumerate(fake.model.topics["pets"].logs)
        for record in log.records()
    }
    assert found == {
        b"x": (partition_of(b"x", 4), b"1", 5, (("a", b"1"),)),
        b"y": (partition_of(b"y", 4), None, 6, ()),
        b"z": (partition_of(b"z", 4), b"", 7, ()),
    }


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.RecordBatch.from_pydict])
def test_anything_with_the_arrow_protocols_can_be_sent(fake: FakeBroker, make: Any) -> None:
    """For example pandas, polars, and a single record batch."""

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            metadata = await (await producer.send_table("pets", make({"value": ["a", "b"]})))
            assert metadata.records == 2

    run(main())
    assert written(fake, "pets") == [b"a", b"b"]


@pytest.mark.parametrize(
    ("table", "error", "complaint"),
    [
        (pa.table({"value": ["x"], "colour": ["red"]}), OptionError, "colour"),
        (pa.table({"key": ["x"]}), OptionError, "only value"),
        ([1, 2], OptionError, "list is not a table"),
        (pa.table({"value": [1.5]}), SerializationFailed, "double"),
        (pa.table({"value": ["x"], "partition": [9]}), RoutingError, "partition 9"),
        (pa.table({"value": [bytes(20_000)]}), RecordTooLarge, "max_request_size"),
    ],
)
def test_an_invalid_table_is_refused_at_once(
    fake: FakeBroker, table: Any, error: type[Exception], complaint: str
) -> None:
    """With the reason."""

    async def main() -> None:
        async with producer_of(fake.address, max_request_size=10_000) as producer:
            with pytest.raises(error, match=complaint):
                await producer.send_table("pets", table)

    run(main())
    assert written(fake, "pets") == []


def test_an_empty_table_completes_at_once(fake: FakeBroker) -> None:
    told: list[Any] = []

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            delivery = await producer.send_table("pets", pa.table({"value": pa.array([], "utf8")}))
            delivery.add_callback(lambda metadata, error: told.append(metadata))
            assert (await delivery).records == 0

    run(main())
    assert told[0].ranges == {}


def test_tables_and_records_keep_their_order_in_a_partition(fake: FakeBroker) -> None:
    """Also when requests are lost."""
    fake.model.add_topic("pets")
    strict(fake)
    values = values_of(30)

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=1) as producer:
            await (await producer.send("pets", b"first"))
            fake.next(ApiKey.PRODUCE, DROP_AFTER, ErrorCode.NOT_ENOUGH_REPLICAS)
            for start in range(0, 30, 10):
                for value in values[start : start + 5]:
                    await producer.send("pets", value)
                await producer.send_table(
                    "pets", pa.table({"value": values[start + 5 : start + 10]})
                )

    run(main())
    assert written(fake, "pets") == [b"first", *values]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_table_larger_than_the_buffer_passes_through_it(fake: FakeBroker, codec: Any) -> None:
    """It is cut into slices that wait for buffer memory: memory stays limited, rows stay in
    order."""
    fake.model.add_topic("pets")
    values = values_of(20_000, 100)
    peaks: list[int] = []

    async def main() -> None:
        options = {"buffer_memory": 300_000, "compression_type": codec, "max_request_size": 50_000}
        async with producer_of(fake.address, **options) as producer:

            async def watch() -> None:
                while True:
                    peaks.append(producer.metrics().buffered_bytes)
                    await asyncio.sleep(0)

            watcher = asyncio.ensure_future(watch())
            metadata = await (await producer.send_table("pets", pa.table({"value": values})))
            watcher.cancel()
            assert metadata.ranges == {0: (OffsetRange(0, 19_999),)}
            assert producer.metrics().buffered_bytes == 0

    run(main())
    assert 50_000 < max(peaks) <= 300_000
    assert written(fake, "pets") == values


def test_a_table_waits_for_buffer_memory_for_max_block_ms(fake: FakeBroker) -> None:
    """If the broker accepts nothing, it fails with `BufferExhausted`."""
    fake.model.add_topic("pets")

    async def main() -> None:
        options = {"buffer_memory": 300_000, "max_block_ms": int(patient(3_000))}
        async with producer_of(fake.address, **options) as producer:
            await producer.partitions_for("pets")
            fake.next(ApiKey.PRODUCE, *[SILENCE] * 100)
            with pytest.raises(BufferExhausted):
                await producer.send_table("pets", pa.table({"value": values_of(10_000, 100)}))
            await producer.close(0)

    run(main())


def test_batches_of_a_table_that_are_too_large_are_split(fake: FakeBroker) -> None:
    """The next table is cut into smaller batches from the start."""
    fake.model.add_topic("pets")
    values = values_of(2_000, 100)
    refusals: list[int] = []

    def refuse_large(request: ProduceRequest) -> ProduceResponse:
        size = len(request.topic_data[0].partition_data[0].records or b"")
        if size > 60_000:
            refusals.append(size)
            answer = ProduceResponse.Partition(0, ErrorCode.MESSAGE_TOO_LARGE, -1)
            return ProduceResponse([ProduceResponse.Topic("pets", partition_responses=[answer])])
        response = fake.model.answer(ApiKey.PRODUCE, 9, request)
        assert isinstance(response, ProduceResponse)
        return response

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            fake.next(ApiKey.PRODUCE, *[refuse_large] * 50)
            table = pa.table({"value": values})
            metadata = await (await producer.send_table("pets", table))
            assert metadata.ranges == {0: (OffsetRange(0, 1_999),)}
            first_time = len(refusals)
            assert first_time > 0
            await (await producer.send_table("pets", table))
            assert len(refusals) == first_time

    run(main())
    assert written(fake, "pets") == values * 2


def test_a_failed_table_reports_the_first_error(fake: FakeBroker) -> None:
    """To the caller that awaits it and to callbacks."""
    fake.model.add_topic("pets")
    told: list[Any] = []

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            fake.next(ApiKey.PRODUCE, ErrorCode.INVALID_RECORD)
            delivery = await producer.send_table("pets", pa.table({"value": ["x"]}))
            delivery.add_callback(lambda metadata, error: told.append((metadata, error)))
            with pytest.raises(BrokerError):
                await delivery
            assert delivery.error() is told[0][1]
            assert told[0][0] is None
            fake.next(ApiKey.PRODUCE, *[SILENCE] * 9)
            stuck = await producer.send_table("pets", pa.table({"value": ["x"]}))
            await until(lambda: producer.metrics().requests_in_flight > 0, "it is on its way")
            await producer.close(0)
            with pytest.raises(Closed):
                await stuck

    run(main())


def test_slices_have_about_the_requested_size() -> None:
    """They contain all rows in order, whatever their sizes."""
    values = values_of(500, 20) + [bytes(5_000)] * 3 + values_of(500, 20)
    batch = pa.record_batch({"value": values})
    found = list(slices(iter([batch, batch.slice(0, 0)]), 4_000))
    assert [value for rows, _ in found for value in rows.column("value").to_pylist()] == values
    for rows, bytes_max in found:
        assert bytes_max >= sum(len(value) for value in rows.column("value").to_pylist())
        assert bytes_max <= 8_000 or len(rows) == 1
    assert tables.SLICE_BYTES_MAX < 32 << 20
