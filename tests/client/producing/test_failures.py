"""Tests the producer when brokers refuse, vanish, move or do not answer, and with a full buffer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client.fake_broker import DROP, DROP_AFTER, SILENCE, FakeBroker
from client.producing.open_producers import (
    all_of,
    batches,
    producer_of,
    run,
    strict,
    until,
    written,
)
from penstock.client.errors import (
    ApiNotServed,
    BrokerError,
    BufferExhausted,
    Closed,
    ConnectFailed,
    DeliveryTimedOut,
    Fenced,
    RecordTooLarge,
)
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Response

# -- failing brokers -----------------------------------------------------------------------------


def test_an_unreachable_broker_fails_at_once(fake: FakeBroker) -> None:
    """So a mistyped address is noticed immediately."""

    async def main() -> None:
        with pytest.raises(ConnectFailed):
            await producer_of("127.0.0.1:1").start()

    run(main())


@pytest.mark.parametrize(
    "failure",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        DROP,
        DROP_AFTER,
    ],
)
def test_retriable_failures_are_retried_with_the_same_sequences(
    fake: FakeBroker, failure: Any
) -> None:
    """So the broker recognizes duplicates; nothing is lost, duplicated or reordered."""
    fake.model.add_topic("pets")
    strict(fake)

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            await (await producer.send("pets", b"0"))
            fake.next(ApiKey.PRODUCE, failure, failure)
            deliveries = []
            for n in range(1, 30):
                deliveries.append(await producer.send("pets", b"%d" % n))
                await asyncio.sleep(0.001)
            outcomes = await all_of(deliveries)
            assert [outcome.offset for outcome in outcomes] == list(range(1, 30))
            assert producer.metrics().retries > 0

    run(main())
    assert written(fake, "pets") == [b"%d" % n for n in range(30)]
    sequences = [(header.base_sequence, header.record_count) for header in batches(fake)]
    assert len(set(sequences)) < len(sequences)
    assert {header.producer_epoch for header in batches(fake)} == {0}


def test_a_broker_that_never_answers_fails_records_at_the_delivery_timeout(
    fake: FakeBroker,
) -> None:
    """The error describes the last state of the request."""
    fake.model.add_topic("pets")

    async def main() -> None:
        fake.next(ApiKey.PRODUCE, *[SILENCE] * 20)
        limit_s = patient(3.0)
        options = {
            "request_timeout_ms": int(limit_s * 1_000 / 6),
            "delivery_timeout_ms": int(limit_s * 1_000),
        }
        async with producer_of(fake.address, **options) as producer:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            delivery = await producer.send("pets", b"x")
            with pytest.raises(DeliveryTimedOut, match="did not answer Produce"):
                await delivery
            assert 0.96 * limit_s < loop.time() - begun < patient(15)
            assert producer.metrics().failed_records == 1

    run(main())
    assert len(fake.asked(ApiKey.PRODUCE)) > 1


def test_a_dead_broker_fails_records_at_the_delivery_timeout(fake: FakeBroker) -> None:
    """The producer reconnects until then, and no longer."""

    async def main() -> None:
        with FakeBroker() as doomed:
            options = {
                "request_timeout_ms": int(patient(2_000)),
                "delivery_timeout_ms": int(patient(5_000)),
            }
            producer = producer_of(doomed.address, **options)
            await producer.start()
            await (await producer.send("pets", b"x"))
        delivery = await producer.send("pets", b"y")
        with pytest.raises(DeliveryTimedOut):
            await delivery
        await producer.close()
        assert producer.metrics().buffered_bytes == 0

    run(main())


def test_a_broker_that_returns_gets_all_records(fake: FakeBroker) -> None:
    """At the same address; nothing is lost or duplicated."""

    async def main() -> None:
        with FakeBroker() as first:
            first.model.add_topic("pets")
            port = int(first.address.split(":")[1])
            producer = producer_of(first.address)
            await producer.start()
            await (await producer.send("pets", b"0"))
        deliveries = [await producer.send("pets", b"%d" % n) for n in range(1, 20)]
        await asyncio.sleep(0.1)
        with FakeBroker(port=port) as second:
            second.model = first.model
            await producer.flush()
            await producer.close()
        assert written(second, "pets") == [b"%d" % n for n in range(20)]
        assert all(delivery.error() is None for delivery in deliveries)

    run(main())


def test_a_refused_batch_fails_only_its_own_records(fake: FakeBroker) -> None:
    """With the broker's error; later records are sent."""
    fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            await (await producer.send("pets", b"0"))
            fake.next(ApiKey.PRODUCE, ErrorCode.INVALID_TIMESTAMP)
            refused = await producer.send("pets", b"1")
            with pytest.raises(BrokerError) as caught:
                await refused
            assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
            assert (await (await producer.send("pets", b"2"))).offset == 1

    run(main())


def test_another_producer_with_the_same_id_fences_this_one(fake: FakeBroker) -> None:
    """All waiting records fail with `Fenced`, and so does every later send."""
    fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            await (await producer.send("pets", b"0"))
            fake.next(ApiKey.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH)
            with pytest.raises(Fenced):
                await (await producer.send("pets", b"1"))
            with pytest.raises(Fenced):
                await producer.send("pets", b"2")
            with pytest.raises(Fenced):
                producer.send_nowait("pets", b"2")

    run(main())
    assert written(fake, "pets") == [b"0"]


def test_out_of_order_sequence_begins_a_new_epoch(fake: FakeBroker) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER for the first unresolved batch: it is numbered
    from 0 in the next epoch."""
    fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            await (await producer.send("pets", b"0"))
            fake.next(ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            await (await producer.send("pets", b"1"))
            await (await producer.send("pets", b"2"))

    run(main())
    numbers = [(header.producer_epoch, header.base_sequence) for header in batches(fake)]
    assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(fake.asked(ApiKey.INIT_PRODUCER_ID)) == 1


def test_batches_too_large_for_the_topic_are_split(fake: FakeBroker) -> None:
    """Every record still gets its own offset, and its callback is called once."""
    fake.model.add_topic("pets")
    called: list[int] = []

    def refuse_large(request: ProduceRequest) -> ProduceResponse:
        if len(request.topic_data[0].partition_data[0].records or b"") > 1500:
            answer = ProduceResponse.Partition(0, ErrorCode.MESSAGE_TOO_LARGE, -1)
            return ProduceResponse([ProduceResponse.Topic("pets", partition_responses=[answer])])
        response = fake.model.answer(ApiKey.PRODUCE, 9, request)
        assert isinstance(response, ProduceResponse)
        return response

    async def main() -> None:
        async with producer_of(fake.address, linger_ms=5) as producer:
            fake.next(ApiKey.PRODUCE, *[refuse_large] * 50)
            deliveries = [
                await producer.send(
                    "pets", b"%03d" % n + bytes(97), on_delivery=lambda *_: called.append(1)
                )
                for n in range(100)
            ]
            outcomes = await all_of(deliveries)
            assert [outcome.offset for outcome in outcomes] == list(range(100))
            assert producer.metrics().splits > 1

    run(main())
    assert [value[:3] for value in written(fake, "pets")] == [b"%03d" % n for n in range(100)]
    assert len(called) == 100


def test_a_record_too_large_is_refused_by_producer_or_topic(fake: FakeBroker) -> None:
    """The error names the setting that is the limit."""
    fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address, max_request_size=10_000) as producer:
            with pytest.raises(RecordTooLarge, match="max_request_size"):
                await producer.send("pets", bytes(10_000))
            with pytest.raises(RecordTooLarge, match="max_request_size"):
                producer.send_nowait("pets", bytes(10_000))
            fake.next(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
            with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
                await (await producer.send("pets", bytes(1_000)))

    run(main())


def test_a_new_leader_is_found_by_the_hint_in_the_answer(fake: FakeBroker) -> None:
    """NOT_LEADER_OR_FOLLOWER that names the new leader and its address saves a metadata request."""
    fake.model.add_topic("pets")

    async def main() -> None:
        with FakeBroker() as other:
            other.model.topics = fake.model.topics
            port = int(other.address.split(":")[1])

            def moved(request: ProduceRequest) -> ProduceResponse:
                answer = ProduceResponse.Partition(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
                answer.current_leader = ProduceResponse.Leader(7, 9)
                return ProduceResponse(
                    [ProduceResponse.Topic("pets", partition_responses=[answer])],
                    node_endpoints=[ProduceResponse.NodeEndpoint(7, "127.0.0.1", port)],
                )

            async with producer_of(
                fake.address,
                retry_backoff_ms=30_000,
                retry_backoff_max_ms=30_000,
            ) as producer:
                await (await producer.send("pets", b"0"))
                asked = len(fake.asked(ApiKey.METADATA))
                fake.next(ApiKey.PRODUCE, moved)
                assert (await (await producer.send("pets", b"1"))).offset == 1
                assert len(other.asked(ApiKey.PRODUCE)) == 1
                assert len(fake.asked(ApiKey.METADATA)) == asked

    run(main())


def test_a_new_leader_is_found_by_a_metadata_request(fake: FakeBroker) -> None:
    """Without a hint, metadata is requested again, and waiting batches go to the new leader."""
    topic = fake.model.add_topic("pets")

    async def main() -> None:
        with FakeBroker() as other:
            other.model.topics = fake.model.topics
            port = int(other.address.split(":")[1])
            alone = fake.model.metadata

            def both(request: MetadataRequest, version: int) -> Response:
                answer = alone(request, version)
                assert isinstance(answer, MetadataResponse)
                answer.brokers.append(MetadataResponse.Broker(1, "127.0.0.1", port))
                return answer

            fake.model.metadata = both  # type: ignore[method-assign]
            async with producer_of(fake.address) as producer:
                await (await producer.send("pets", b"0"))
                topic.leader = 1
                # Repeated for every request, because a retry may be faster than the new metadata.
                for _ in range(1_000):
                    fake.next(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                deliveries = [await producer.send("pets", b"%d" % n) for n in range(1, 10)]
                outcomes = await all_of(deliveries)
                assert [outcome.offset for outcome in outcomes] == list(range(1, 10))
                assert other.asked(ApiKey.PRODUCE)

    run(main())


def test_records_to_a_deleted_topic_fail_with_the_reason(fake: FakeBroker) -> None:
    """After the delivery timeout, because a topic may be created again."""
    fake.model.add_topic("pets")

    async def main() -> None:
        options = {
            "request_timeout_ms": int(patient(2_000)),
            "delivery_timeout_ms": int(patient(5_000)),
        }
        async with producer_of(fake.address, **options) as producer:
            await (await producer.send("pets", b"0"))
            fake.model.topics.clear()
            delivery = await producer.send("pets", b"1")
            with pytest.raises(DeliveryTimedOut, match="does not know the topic"):
                await delivery

    run(main())


def test_metadata_is_refreshed_when_it_is_old(fake: FakeBroker) -> None:
    """Added partitions are found, and records without a key are sent there too."""
    topic = fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address, metadata_max_age_ms=30) as producer:
            assert await producer.partitions_for("pets") == 1
            topic.logs.append(type(topic.logs[0])())
            while await producer.partitions_for("pets") != 2:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.005)

    run(main())


def test_a_late_producer_id_delays_and_a_refused_one_fails_all_records(fake: FakeBroker) -> None:
    """Retriable errors are waited out; others fail every record."""
    fake.next(ApiKey.INIT_PRODUCER_ID, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def main() -> None:
        async with producer_of(fake.address) as producer:
            await (await producer.send("pets", b"0"))
        fake.next(ApiKey.INIT_PRODUCER_ID, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        async with producer_of(fake.address) as producer:
            with pytest.raises(BrokerError, match="not allowed"):
                await (await producer.send("pets", b"1"))

    run(main())


def test_a_broker_without_producer_ids_gets_a_clear_error() -> None:
    """The error says to turn idempotence off."""
    with FakeBroker() as old:
        del old.versions[ApiKey.INIT_PRODUCER_ID]

        async def main() -> None:
            async with producer_of(old.address) as producer:
                with pytest.raises(ApiNotServed, match="enable_idempotence=False"):
                    await (await producer.send("pets", b"1"))
            async with producer_of(old.address, enable_idempotence=False) as producer:
                await (await producer.send("pets", b"1"))

        run(main())


# -- the buffer ----------------------------------------------------------------------------------


def test_a_full_buffer_blocks_for_max_block_ms(fake: FakeBroker) -> None:
    """Then `send` raises `BufferExhausted`; `send_nowait` raises it at once."""
    fake.model.add_topic("pets")

    async def main() -> None:
        limit_ms = int(patient(3_000))
        options = {"buffer_memory": 50_000, "max_block_ms": limit_ms, "batch_size": 5_000}
        async with producer_of(fake.address, **options) as producer:
            await producer.partitions_for("pets")
            fake.next(ApiKey.PRODUCE, *[SILENCE] * 50)
            loop = asyncio.get_running_loop()
            sent = 0
            with pytest.raises(BufferExhausted, match=f"stayed full for {limit_ms / 1_000:g} s"):
                while True:
                    begun = loop.time()
                    await producer.send("pets", bytes(1000))
                    sent += 1
            assert 0.75 * limit_ms / 1_000 < loop.time() - begun < patient(15)
            assert 30 < sent < 50
            assert producer.metrics().buffered_bytes <= 50_000
            with pytest.raises(BufferExhausted, match="use send"):
                producer.send_nowait("pets", bytes(1000))
            await producer.close(0)

    run(main())


def test_waiting_senders_get_memory_in_order(fake: FakeBroker) -> None:
    """First come, first served."""
    fake.model.add_topic("pets")
    finished: list[int] = []

    async def main() -> None:
        options = {"buffer_memory": 20_000, "batch_size": 2_000}
        async with producer_of(fake.address, **options) as producer:
            await producer.partitions_for("pets")

            async def sender(number: int) -> None:
                for _ in range(20):
                    await producer.send("pets", bytes([number]) + bytes(1500))
                finished.append(number)

            async with asyncio.TaskGroup() as tasks:
                for number in range(5):
                    tasks.create_task(sender(number))
            assert producer.metrics().buffered_bytes <= 20_000

    run(main())
    assert len(finished) == 5
    assert len(written(fake, "pets")) == 100


def test_closing_fails_senders_that_wait_for_memory(fake: FakeBroker) -> None:
    """All of them, not only the first in line."""
    fake.model.add_topic("pets")

    async def main() -> None:
        producer = producer_of(fake.address, buffer_memory=20_000)
        await producer.start()
        await producer.partitions_for("pets")
        fake.next(ApiKey.PRODUCE, *[SILENCE] * 50)

        async def sender() -> None:
            while True:
                await producer.send("pets", bytes(1000))

        waiting = [asyncio.ensure_future(sender()) for _ in range(3)]
        await until(lambda: producer.metrics().buffered_bytes > 18_000, "the buffer is full")
        await asyncio.sleep(0.02)
        await producer.close(0.05)
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, Closed)

    run(main())
