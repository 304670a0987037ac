"""Tests the producer with a scripted fake broker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from client.fake_broker import SILENCE, FakeBroker
from client.producing.open_producers import batches, producer_of, run, written
from penstock.client.errors import (
    BrokerError,
    Closed,
    DeadlineExceeded,
    OptionError,
    SerializationFailed,
    TopicNotFound,
    UnknownTopicYet,
)
from penstock.client.interceptors import ProducerInterceptor, ProducerRecord
from penstock.client.model import RecordMetadata
from penstock.client.producing.producer import Producer
from penstock.client.routers import RoutingError
from penstock.records.batch import read_header
from penstock.records.record import read_records
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

# -- normal operation ----------------------------------------------------------------------------


def test_a_delivery_reports_partition_offset_and_timestamp(fake: FakeBroker) -> None:
    """For each record of a batch."""
    fake.model.add_topic("pets", 3)

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=5) as producer:
            deliveries = [
                await producer.send("pets", b"cat %d" % n, partition=2, timestamp_ms=1000 + n)
                for n in range(3)
            ]
            assert not deliveries[0].done()
            assert await deliveries[1] == RecordMetadata("pets", 2, 1, 1001)
            assert deliveries[0].done()
            assert await deliveries[0] == RecordMetadata("pets", 2, 0, 1000)
            assert deliveries[2].outcome().offset == 2
            assert deliveries[2].error() is None

    run(main())
    assert written(fake, "pets", 2) == [b"cat 0", b"cat 1", b"cat 2"]


def test_leaving_the_block_delivers_everything(fake: FakeBroker) -> None:
    """Without a flush, in order, with as few requests as the linger allows."""

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=20_000) as producer:
            for n in range(500):
                await producer.send("pets", str(n).encode())

    run(main())
    assert written(fake, "pets") == [str(n).encode() for n in range(500)]
    assert len(fake.asked(ApiKey.PRODUCE)) == 1


def test_records_keep_key_headers_and_timestamp(fake: FakeBroker) -> None:
    """Null and empty values stay distinct."""

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            headers = [("a", b"1"), ("b", None), ("a", b"")]
            await producer.send("pets", b"", key=b"k", headers=headers, timestamp_ms=77)
            await producer.send("pets", None, key=None)

    run(main())
    first, second = fake.model.topics["pets"].logs[0].records()
    assert (first.key, first.value, first.timestamp) == (b"k", b"", 77)
    assert first.headers == (("a", b"1"), ("b", None), ("a", b""))
    assert (second.key, second.value, second.headers) == (None, None, ())


def test_serializers_apply_to_keys_and_values(fake: FakeBroker) -> None:
    """Plain functions can be used. They are never called with None."""

    async def main() -> None:
        def digits(number: int) -> bytes:
            return b"%d" % number

        producer = Producer(fake.address, key_serializer=str.encode, value_serializer=digits)
        async with producer:
            await producer.send("pets", 42, key="answer")
            await producer.send("pets", None, key="gone")
            with pytest.raises(SerializationFailed, match="value of a record for topic pets"):
                await producer.send("pets", "x", key="bad")  # type: ignore[arg-type]

    run(main())
    records = fake.model.topics["pets"].logs[0].records()
    assert [(record.key, record.value) for record in records] == [
        (b"answer", b"42"),
        (b"gone", None),
    ]


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"value": "text"}, "value is str, not bytes.*value_serializer"),
        ({"key": 5}, "key is int"),
        ({"headers": [("name", 5)]}, "header name is int"),
        ({"headers": [(5, b"")]}, "name must be a string"),
    ],
)
def test_values_that_are_not_bytes_are_refused_at_once(
    fake: FakeBroker, record: dict[str, Any], complaint: str
) -> None:
    """The error says how to fix it."""

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            with pytest.raises(SerializationFailed, match=complaint):
                await producer.send("pets", **record)

    run(main())


def test_bytes_like_values_are_copied_when_sent(fake: FakeBroker) -> None:
    """Reusing a buffer does not change records that were already sent."""

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=20_000) as producer:
            buffer = bytearray(b"one")
            await producer.send("pets", buffer)
            buffer[:] = b"two"
            await producer.send("pets", memoryview(buffer))

    run(main())
    assert written(fake, "pets") == [b"one", b"two"]


def test_callbacks_run_in_order_and_may_fail(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in a callback is logged and has no further effect."""
    told: list[Any] = []

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=5) as producer:

            def broken(metadata: object, error: object) -> None:
                raise ZeroDivisionError

            for n in range(3):
                delivery = await producer.send(
                    "pets",
                    str(n).encode(),
                    on_delivery=lambda metadata, error: told.append(
                        (metadata and metadata.offset, error)
                    ),
                )
                delivery.add_callback(broken)
            await producer.flush()
            delivery.add_callback(lambda metadata, error: told.append("late"))
            assert told == [(0, None), (1, None), (2, None), "late"]

    with caplog.at_level(logging.ERROR):
        run(main())
    assert caplog.text.count("a delivery callback failed") == 3


def test_a_callback_may_send(fake: FakeBroker) -> None:
    """So chains of records need no task."""

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            done = asyncio.Event()

            def again(metadata: RecordMetadata | None, error: object) -> None:
                if metadata is not None and metadata.offset < 5:
                    producer.send_nowait("pets", b"next", on_delivery=again)
                else:
                    done.set()

            await producer.send("pets", b"first", on_delivery=again)
            await done.wait()

    run(main())
    assert len(written(fake, "pets")) == 6


def test_acks_0_completes_when_written_and_flush_waits_for_the_broker(fake: FakeBroker) -> None:
    """Offsets are unknown. After a flush, the broker has read everything."""

    async def main() -> None:
        async with producer_of(fake.address, acks=0) as producer:
            deliveries = [await producer.send("pets", b"%d" % n) for n in range(50)]
            await producer.flush()
            assert len(written(fake, "pets")) == 50
            assert (await deliveries[7]).offset == -1

    run(main())
    assert written(fake, "pets") == [b"%d" % n for n in range(50)]
    assert not fake.asked(ApiKey.INIT_PRODUCER_ID)


def test_acks_1_needs_no_producer_id(fake: FakeBroker) -> None:
    """Only acks=all uses idempotence."""

    async def main() -> None:
        async with producer_of(fake.address, acks=1) as producer:
            assert (await (await producer.send("pets", b"x"))).offset == 0

    run(main())
    assert not fake.asked(ApiKey.INIT_PRODUCER_ID)
    assert fake.asked(ApiKey.PRODUCE)[0].acks == 1
    assert not batches(fake)[0].has_producer


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(fake: FakeBroker, codec: Any) -> None:
    """The compressed size counts on the wire."""

    async def main() -> None:
        async with producer_of(fake.address, compression_type=codec, linger_ms=5) as producer:
            for _ in range(100):
                await producer.send("pets", b"the same " * 10)
            await producer.flush()
            metrics = producer.metrics()
            assert metrics.wire_bytes < metrics.record_bytes / 3

    run(main())
    assert written(fake, "pets") == [b"the same " * 10] * 100
    assert batches(fake)[0].codec.name.lower() == codec


def test_batches_of_one_leader_share_a_request(fake: FakeBroker) -> None:
    """A request has one batch for each partition."""
    fake.model.add_topic("pets", 8)
    fake.model.add_topic("zoo", 2)

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=20_000) as producer:
            for n in range(8):
                await producer.send("pets", b"x", partition=n)
            await producer.send("zoo", b"x", partition=1)

    run(main())
    assert len(fake.asked(ApiKey.PRODUCE)) == 1
    assert len(batches(fake)) == 9


def test_interceptors_see_records_and_their_outcomes(fake: FakeBroker) -> None:
    """They may change a record. They also receive failures that occur before a record is
    buffered."""
    seen: list[Any] = []

    class Marking(ProducerInterceptor):
        def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            record.headers = (*record.headers, ("seen", b"yes"))
            return record

        def on_acknowledgement(self, record: Any, metadata: Any, error: Any) -> None:
            seen.append((record.value, metadata and metadata.offset, type(error)))

    async def main() -> None:
        async with producer_of(fake.address, interceptors=[Marking()]) as producer:
            await producer.send("pets", b"good")
            await producer.flush()
            producer.send_nowait("pets", b"quick")
            with pytest.raises(SerializationFailed):
                await producer.send("pets", "bad")

    run(main())
    records = fake.model.topics["pets"].logs[0].records()
    assert [record.headers for record in records] == [(("seen", b"yes"),)] * 2
    none = type(None)
    assert sorted(seen, key=str) == sorted(
        [(b"good", 0, none), (b"quick", 1, none), ("bad", None, SerializationFailed)], key=str
    )


def test_metrics_count_records_batches_and_requests(fake: FakeBroker) -> None:
    fake.model.add_topic("pets", 2)

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=20_000) as producer:
            for _ in range(10):
                await producer.send("pets", bytes(50), partition=0)
            assert producer.metrics().buffered_records == 10
            assert producer.metrics().buffered_bytes > 500
            await producer.flush()
            metrics = producer.metrics()
            assert (metrics.records, metrics.batches, metrics.requests) == (10, 1, 1)
            assert (metrics.buffered_bytes, metrics.requests_in_flight) == (0, 0)
            assert metrics.distribution["pets"].counts == {0: 10, 1: 0}
            assert metrics.distribution["pets"].skew == 2.0

    run(main())


# -- topics --------------------------------------------------------------------------------------


def test_a_topic_that_does_not_exist_is_an_error(fake: FakeBroker) -> None:
    """If topics are not created automatically."""
    fake.model.auto_create = False

    async def main() -> None:
        options = {"allow_auto_create_topics": False}
        async with producer_of(fake.address, **options) as producer:
            with pytest.raises(TopicNotFound):
                await producer.send("nowhere", b"x")

    run(main())


def test_send_nowait_needs_a_known_topic(fake: FakeBroker) -> None:
    """The error says how to fetch its metadata."""
    fake.model.add_topic("pets", 4)

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            with pytest.raises(UnknownTopicYet, match="partitions_for"):
                producer.send_nowait("pets", b"x")
            assert await producer.partitions_for("pets") == 4
            assert (await producer.send_nowait("pets", b"x", partition=3)).partition == 3

    run(main())


def test_a_partition_added_later_is_found(fake: FakeBroker) -> None:
    """A partition that does not exist is refused."""
    topic = fake.model.add_topic("pets", 1)

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            await producer.send("pets", b"x", partition=0)
            with pytest.raises(TopicNotFound, match="partition 1 of pets"):
                await producer.send("pets", b"x", partition=1)
            topic.logs.append(type(topic.logs[0])())
            assert (await (await producer.send("pets", b"x", partition=1))).partition == 1
            with pytest.raises(TopicNotFound):
                await producer.send("pets", b"x", partition=-1)

    run(main())


def test_a_router_that_returns_an_invalid_partition_fails_the_send(fake: FakeBroker) -> None:
    """The producer continues to work."""

    async def main() -> None:
        async with producer_of(fake.address, router=lambda topic, key, count: count) as producer:
            with pytest.raises(RoutingError):
                await producer.send("pets", b"x")
            await (await producer.send("pets", b"x", partition=0))

    run(main())


def test_wrong_options_and_timestamps_are_refused(fake: FakeBroker) -> None:
    """At once; the error suggests the nearest valid option."""
    with pytest.raises(OptionError, match="linger_ms"):
        Producer(fake.address, lingers_ms=5)  # type: ignore[call-overload]

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            with pytest.raises(OptionError, match="timestamp_ms"):
                await producer.send("pets", b"x", timestamp_ms=-5)

    run(main())


# -- flush and close -----------------------------------------------------------------------------


def test_flush_does_not_wait_for_the_linger(fake: FakeBroker) -> None:
    """It waits for everything that was sent. Errors are reported by the deliveries."""
    fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=20_000) as producer:
            delivery = await producer.send("pets", b"x")
            await producer.flush(patient(15.0))
            assert delivery.done()
            fake.next(ApiKey.PRODUCE, ErrorCode.INVALID_RECORD)
            failed = await producer.send("pets", b"x")
            await producer.flush()
            assert isinstance(failed.error(), BrokerError)
            fake.next(ApiKey.PRODUCE, SILENCE)
            late = await producer.send("pets", b"x")
            with pytest.raises(DeadlineExceeded, match=r"flush: gave up after 0\.1 s"):
                await producer.flush(0.1)
            assert not late.done()
            with pytest.raises(RuntimeError, match="on its way"):
                late.outcome()
            await producer.close(0)
            assert isinstance(late.error(), Closed)

    run(main())


def test_close_is_final(fake: FakeBroker) -> None:
    """Before `start` and after `close` nothing can be sent. Closing twice is allowed."""

    async def main() -> None:
        producer = producer_of(fake.address)
        with pytest.raises(Closed, match="not started"):
            await producer.send("pets", b"x")
        await producer.start()
        with pytest.raises(RuntimeError, match="already been started"):
            await producer.start()
        await producer.send("pets", b"x")
        await producer.close()
        await producer.close()
        assert producer.is_closed
        with pytest.raises(Closed, match="is closed"):
            await producer.send("pets", b"x")
        with pytest.raises(Closed, match="is closed"):
            producer.send_nowait("pets", b"x")

    run(main())
    assert written(fake, "pets") == [b"x"]


def test_a_failing_block_still_delivers_earlier_records(fake: FakeBroker) -> None:
    """The block's own error is raised."""

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with producer_of(fake.address, linger_ms=20_000) as producer:
                await producer.send("pets", b"x")
                raise ZeroDivisionError

    run(main())
    assert written(fake, "pets") == [b"x"]


# -- from threads --------------------------------------------------------------------------------


def test_batches_on_the_wire_are_valid(fake: FakeBroker) -> None:
    """They have the right timestamps in their headers and records."""
    fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=20_000) as producer:
            for timestamp_ms in (50, 70, 60):
                await producer.send("pets", b"x", timestamp_ms=timestamp_ms)

    run(main())
    sent = fake.asked(ApiKey.PRODUCE)[0].topic_data[0].partition_data[0].records
    header = read_header(sent)
    assert (header.base_timestamp, header.max_timestamp) == (50, 70)
    assert [record.timestamp for record in read_records(sent)] == [50, 70, 60]
