"""Tests fetching from a faulty broker: no loss, no duplicates, no endless waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from client.consuming.open_consumers import batch_of, consumer_of, drain, run
from client.fake_broker import DROP, GARBAGE, SILENCE, FakeBroker
from penstock.client.consuming import positions
from penstock.client.consuming.fetcher import Fetcher
from penstock.client.consuming.positions import EpochEnd
from penstock.client.consuming.subscription import Need
from penstock.client.consuming.tables import PARTITION_BYTES
from penstock.client.environment import default_environment
from penstock.client.errors import BrokerError, NoOffset, NotKafka
from penstock.client.model import OffsetAndMetadata
from penstock.records.batch import read_header, stamp
from penstock.records.record import ControlMarker, ControlType, control_batch
from penstock.runtime import SystemRandom
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

TOPIC_PARTITION = TopicPartition("t", 0)


def fill(fake: FakeBroker, batches: int = 3, per: int = 4) -> None:
    log = fake.model.add_topic("t").logs[0]
    for first in range(0, batches * per, per):
        log.append(batch_of([b"%d" % number for number in range(first, first + per)]))


def one_part(part: FetchResponse.Partition) -> FetchResponse:
    return FetchResponse(responses=[FetchResponse.Topic("t", partitions=[part])])


@pytest.mark.parametrize(
    "step",
    [
        DROP,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        FetchResponse(error_code=ErrorCode.REQUEST_TIMED_OUT),
    ],
    ids=str,
)
def test_reading_continues_after_a_failed_fetch(fake: FakeBroker, step: Any) -> None:
    """After two failures of any kind, every record is still returned once and in order."""
    fill(fake)
    fake.next(ApiKey.FETCH, step, step)

    async def work() -> list[bytes]:
        async with consumer_of(fake.address) as consumer:
            consumer.assign([TOPIC_PARTITION])
            return [record.value for record in await drain(consumer, 12)]

    assert run(work) == [b"%d" % number for number in range(12)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, PARTITION_BYTES),
        ({"queued_bytes_max": 2 << 20}, 2 << 20),
        ({"max_partition_fetch_bytes": 100_000}, 100_000),
    ],
)
def test_tables_are_fetched_in_large_responses(
    fake: FakeBroker, options: dict[str, int], wanted: int
) -> None:
    """Unless the caller sets the size, and never more than `queued_bytes_max`."""
    fill(fake)

    async def work() -> int:
        async with consumer_of(fake.address, **options) as consumer:
            consumer.assign([TOPIC_PARTITION])
            return len(await consumer.poll_table(60_000))

    assert run(work) == 12
    first = fake.asked(ApiKey.FETCH)[0]
    assert first.topics[0].partitions[0].partition_max_bytes == wanted


def test_a_response_that_is_not_kafka_is_an_error_each_time(fake: FakeBroker) -> None:
    """The cause may be a proxy's temporary fault, so each further poll tries a new connection."""
    fill(fake)
    fake.next(ApiKey.FETCH, GARBAGE, GARBAGE)

    async def work() -> None:
        async with consumer_of(fake.address) as consumer:
            consumer.assign([TOPIC_PARTITION])
            for _ in range(2):
                with pytest.raises(NotKafka):
                    await consumer.poll(timeout_ms=60_000)
            await drain(consumer, 12)

    run(work)


def test_the_consumer_gives_up_a_broker_that_never_answers(fake: FakeBroker) -> None:
    """Polls return in time throughout. After the request timeout, another connection is tried."""
    fill(fake)
    fake.next(ApiKey.FETCH, SILENCE)

    async def work() -> None:
        async with consumer_of(fake.address, request_timeout_ms=round(patient(500))) as consumer:
            consumer.assign([TOPIC_PARTITION])
            assert await consumer.poll(timeout_ms=50) == []
            assert len(await drain(consumer, 12)) == 12

    run(work)
    assert len(fake.asked(ApiKey.FETCH)) >= 2


def test_a_position_before_the_log_start_is_reset_by_policy(fake: FakeBroker) -> None:
    """To the earliest offset; all remaining records are returned."""
    fill(fake)
    fake.model.topics["t"].logs[0].start = 8

    async def work() -> list[int]:
        async with consumer_of(fake.address) as consumer:
            consumer.assign([TOPIC_PARTITION])
            consumer.seek(TOPIC_PARTITION, 3)
            offsets = [record.offset for record in await drain(consumer, 4)]
            assert consumer.metrics().resets >= 1
            return offsets

    assert run(work) == [8, 9, 10, 11]


def test_a_reset_to_the_latest_offset_skips_existing_records(fake: FakeBroker) -> None:
    fill(fake)

    async def work() -> list[bytes]:
        async with consumer_of(fake.address, auto_offset_reset="latest") as consumer:
            consumer.assign([TOPIC_PARTITION])
            assert await consumer.position(TOPIC_PARTITION) == 12
            fake.model.topics["t"].logs[0].append(batch_of([b"new"]))
            return [record.value for record in await drain(consumer, 1)]

    assert run(work) == [b"new"]


def test_without_a_reset_policy_a_lost_position_is_an_error_until_a_seek(
    fake: FakeBroker,
) -> None:
    fill(fake)

    async def work() -> None:
        async with consumer_of(fake.address, auto_offset_reset="none") as consumer:
            consumer.assign([TOPIC_PARTITION])
            for _ in range(2):
                with pytest.raises(NoOffset, match="auto_offset_reset is none"):
                    await consumer.poll(timeout_ms=60_000)
            with pytest.raises(NoOffset):
                await consumer.position(TOPIC_PARTITION)
            consumer.seek(TOPIC_PARTITION, 99)
            with pytest.raises(NoOffset, match="does not hold offset 99"):
                await consumer.poll(timeout_ms=60_000)
            consumer.seek(TOPIC_PARTITION, 10)
            assert [record.offset for record in await drain(consumer, 2)] == [10, 11]

    run(work)


def test_a_non_retriable_error_is_raised_and_retried_later(fake: FakeBroker) -> None:
    """Permissions may be granted while the consumer runs."""
    fill(fake)
    fake.next(ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def work() -> None:
        async with consumer_of(fake.address) as consumer:
            consumer.assign([TOPIC_PARTITION])
            with pytest.raises(BrokerError) as why:
                await consumer.poll(timeout_ms=60_000)
            assert why.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await drain(consumer, 12)

    run(work)


def test_a_corrupt_batch_raises_an_error_and_is_fetched_again(fake: FakeBroker) -> None:
    fill(fake)

    def damage(request: FetchRequest) -> FetchResponse:
        data = bytearray(fake.model.topics["t"].logs[0].read(0))
        data[-1] ^= 1
        return one_part(FetchResponse.Partition(0, high_watermark=12, records=bytes(data)))

    fake.next(ApiKey.FETCH, damage)

    async def work() -> list[int]:
        async with consumer_of(fake.address) as consumer:
            consumer.assign([TOPIC_PARTITION])
            offsets = [record.offset for record in await consumer.poll(timeout_ms=60_000)]
            with pytest.raises(BrokerError, match="is corrupt"):
                await consumer.poll(timeout_ms=60_000)
            return offsets + [record.offset for record in await drain(consumer, 4)]

    assert run(work) == list(range(12))


def test_after_truncation_reading_continues_where_the_logs_diverge(fake: FakeBroker) -> None:
    """The position has a leader epoch. The leader is asked about it, and answers
    that the epoch ended earlier."""
    fill(fake)

    def ended_at_6(request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        assert request.topics[0].partitions[0].leader_epoch == 2
        assert request.topics[0].partitions[0].current_leader_epoch == 3
        part = OffsetForLeaderEpochResponse.Partition(0, 0, 2, 6)
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderEpochResponse.Topic("t", [part])]
        )

    refused = OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.Topic(
                "t", [OffsetForLeaderEpochResponse.Partition(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)]
            )
        ]
    )
    fake.next(ApiKey.OFFSET_FOR_LEADER_EPOCH, refused, ended_at_6)

    async def work() -> list[int]:
        async with consumer_of(fake.address) as consumer:
            consumer.assign([TOPIC_PARTITION])
            consumer.seek(TOPIC_PARTITION, OffsetAndMetadata(9, leader_epoch=2))
            return [record.offset for record in await drain(consumer, 6)]

    assert run(work) == [6, 7, 8, 9, 10, 11]


def test_a_new_leader_is_asked_whether_it_has_the_records_read(fake: FakeBroker) -> None:
    """It has them, so reading continues at the position. This must also work if the leader change
    arrives before the postponed fetch is due (hence the fixed random number)."""
    fill(fake)
    log = fake.model.topics["t"].logs[0]
    for batch in log.batches:
        stamp(batch, 0, read_header(batch).base_offset, 3)
    plain: Callable[..., Any] = fake.model.metadata

    def newly_led(request: Any, version: int) -> Any:
        answer = plain(request, version)
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_epoch = 4
        return answer

    class Late(SystemRandom):
        def uniform(self) -> float:
            return 0.99

    env = replace(default_environment(), random=Late())
    part = OffsetForLeaderEpochResponse.Partition(0, 0, 3, 12)
    has_it_all = OffsetForLeaderEpochResponse(
        topics=[OffsetForLeaderEpochResponse.Topic("t", [part])]
    )

    async def work() -> None:
        async with consumer_of(fake.address, env=env, retry_backoff_ms=50) as consumer:
            consumer.assign([TOPIC_PARTITION])
            await drain(consumer, 12)
            fake.model.metadata = newly_led  # type: ignore[method-assign]
            fake.next(ApiKey.OFFSET_FOR_LEADER_EPOCH, has_it_all)
            fake.next(ApiKey.FETCH, ErrorCode.FENCED_LEADER_EPOCH)
            while not fake.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH):
                assert await consumer.poll(timeout_ms=50) == []
            log.append(batch_of([b"new"]))
            assert [record.value for record in await drain(consumer, 1)] == [b"new"]

    run(work)
    (asked,) = fake.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    assert asked.topics[0].partitions[0].leader_epoch == 3
    assert asked.topics[0].partitions[0].current_leader_epoch == 4


def test_aborted_records_and_markers_are_skipped(fake: FakeBroker) -> None:
    """With `read_committed`. The position moves past them, so that no lag remains."""
    log = fake.model.add_topic("t").logs[0]
    how: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    log.append(batch_of([b"gone", b"gone"], transactional=True, **how))
    log.append(batch_of([b"kept"]))
    marker = ControlMarker(ControlType.ABORT, 0)
    log.append(control_batch(marker, producer_id=5, producer_epoch=0, timestamp=1))

    def answer(request: FetchRequest) -> FetchResponse:
        assert request.isolation_level == 1
        part = FetchResponse.Partition(
            0,
            high_watermark=4,
            last_stable_offset=4,
            aborted_transactions=[FetchResponse.AbortedTransaction(5, 0)],
            records=log.read(0),
        )
        return one_part(part)

    fake.next(ApiKey.FETCH, answer)

    async def work() -> None:
        async with consumer_of(fake.address, isolation_level="read_committed") as consumer:
            consumer.assign([TOPIC_PARTITION])
            assert [record.value for record in await drain(consumer, 1)] == [b"kept"]
            assert await consumer.position(TOPIC_PARTITION) == 4
            assert consumer.lag(TOPIC_PARTITION) == 0

    run(work)


def test_the_preferred_read_replica_is_read_from(fake: FakeBroker) -> None:
    """KIP-392. If the replica fails, the consumer reads from the leader again."""
    fill(fake)
    with FakeBroker() as follower:
        fill(follower)

        def with_follower(plain: Callable[..., Any]) -> Callable[..., Any]:
            def metadata(request: Any, version: int) -> Any:
                answer = plain(request, version)
                answer.brokers.append(MetadataResponse.Broker(1, "127.0.0.1", follower.model.port))
                return answer

            return metadata

        fake.model.metadata = with_follower(fake.model.metadata)  # type: ignore[method-assign]

        def elsewhere(request: FetchRequest) -> FetchResponse:
            assert request.rack_id == "here"
            return one_part(FetchResponse.Partition(0, high_watermark=12, preferred_read_replica=1))

        fake.next(ApiKey.FETCH, elsewhere)
        follower.next(ApiKey.FETCH, follower.model._fetch)
        follower.next(ApiKey.FETCH, ErrorCode.OFFSET_OUT_OF_RANGE)

        async def work() -> None:
            async with consumer_of(fake.address, client_rack="here") as consumer:
                consumer.assign([TOPIC_PARTITION])
                await drain(consumer, 12)
                assert len(follower.asked(ApiKey.FETCH)) >= 1
                fake.model.topics["t"].logs[0].append(batch_of([b"more"]))
                assert [record.value for record in await drain(consumer, 1)] == [b"more"]
                assert consumer.metrics().resets == 1

        run(work)


@pytest.mark.parametrize("queued_bytes_max", [64 << 20, 1 << 20])
def test_no_broker_starves_another_of_buffer_space(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, queued_bytes_max: int
) -> None:
    """Two fetches that are always in flight at one broker, and one at another, do not use up the
    space of a third. Where the limit allows only one fetch at a time, brokers take turns."""
    with FakeBroker() as second, FakeBroker() as third:
        others = [second, third]
        leaders = [fake, fake, second, third]
        for each in (fake, *others):
            each.model.add_topic("t", len(leaders))

        def with_others(plain: Callable[..., Any]) -> Callable[..., Any]:
            def metadata(request: Any, version: int) -> Any:
                answer = plain(request, version)
                for number, other in enumerate(others, 1):
                    answer.brokers.append(
                        MetadataResponse.Broker(number, "127.0.0.1", other.model.port)
                    )
                for topic in answer.topics:
                    for part in topic.partitions:
                        leader = leaders[part.partition_index]
                        part.leader_id = others.index(leader) + 1 if leader in others else 0
                return answer

            return metadata

        monkeypatch.setattr(fake.model, "metadata", with_others(fake.model.metadata))
        topic_partitions = [TopicPartition("t", number) for number in range(len(leaders))]

        async def work() -> list[bytes | None]:
            options = {"queued_bytes_max": queued_bytes_max, "fetch_max_wait_ms": 100}
            async with consumer_of(fake.address, **options) as consumer:
                consumer.assign(topic_partitions[:1])
                await consumer.poll(timeout_ms=50)
                # From here on, both fetch lanes of one broker always have partitions to ask for.
                consumer.assign(topic_partitions[:2])
                await consumer.poll(timeout_ms=150)
                consumer.assign(topic_partitions)
                await consumer.poll(timeout_ms=300)
                third.model.topics["t"].logs[3].append(batch_of([b"at last"]))
                return [record.value for record in await drain(consumer, 1)]

        assert run(work) == [b"at last"]


def test_old_brokers_without_fetch_sessions_or_leader_epochs_work(fake: FakeBroker) -> None:
    with FakeBroker(versions={ApiKey.FETCH: (4, 4), ApiKey.LIST_OFFSETS: (1, 1)}) as old:
        fill(old)

        async def work() -> None:
            async with consumer_of(old.address) as consumer:
                consumer.assign([TOPIC_PARTITION])
                await drain(consumer, 12)

        run(work)


def test_the_fetcher_does_not_spin_while_metadata_is_requested(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that takes long to answer a metadata request causes no CPU load meanwhile."""
    fill(fake)
    rounds = 0
    start = Fetcher._start_what_is_due

    def counted(fetcher: Fetcher, now: float) -> None:
        nonlocal rounds
        rounds += 1
        start(fetcher, now)

    async def work() -> int:
        async with consumer_of(fake.address, request_timeout_ms=round(patient(2_000))) as consumer:
            consumer.assign([TOPIC_PARTITION])
            await drain(consumer, 12)
            fake.next(ApiKey.METADATA, SILENCE)
            monkeypatch.setattr(Fetcher, "_start_what_is_due", counted)
            assert consumer._core._fetcher is not None
            consumer._core._fetcher.refresh_now()
            await asyncio.sleep(0.25)
            return rounds

    assert run(work) < 20


def test_an_epoch_answer_is_not_applied_to_records_fetched_since(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that was in flight when the leader was asked returns more records, of a later epoch.
    The end of the older epoch is then not a truncation."""
    fill(fake)

    async def work() -> None:
        async with consumer_of(fake.address, auto_offset_reset="none") as consumer:
            consumer.assign([TOPIC_PARTITION])
            consumer.seek(TOPIC_PARTITION, 0)
            await drain(consumer, 12)
            fetcher = consumer._core._fetcher
            assert fetcher is not None
            state = consumer._core.subscription.states[TOPIC_PARTITION]

            async def ask(*_: Any) -> dict[TopicPartition, EpochEnd]:
                state.fetch_offset, state.fetch_epoch = 92, 13
                return {TOPIC_PARTITION: EpochEnd(11, 84)}

            monkeypatch.setattr(positions, "ask_epoch_ends", ask)
            state.fetch_offset, state.fetch_epoch, state.need = 80, 11, Need.VALIDATION
            await fetcher._positions._resolve_epochs([state])
            assert (state.need, state.error, state.fetch_offset) == (Need.VALIDATION, None, 92)

    run(work)
