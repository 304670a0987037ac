"""Records into a topic: where they land, in which order, how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from client.fake_broker import DROP, DROP_AFTER, SILENCE, FakeBroker
from client.rig import with_cluster
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, DeadlineExceeded
from penstock.client.partitioner import partition_of
from penstock.client.sender import Sender, SenderConfig, SenderStats
from penstock.records.batch import NO_PRODUCER_ID, Codec, read_header
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse

NOW = 1_700_000_000_000


def send(
    fake: FakeBroker,
    work: Callable[[Sender], None],
    config: SenderConfig | None = None,
    **waits: Any,
) -> SenderStats:
    async def main(cluster: Cluster) -> SenderStats:
        async with Sender(cluster, "orders", config) as sender:
            work(sender)
            await sender.drain()
        return sender.stats

    return with_cluster(fake, main, **waits)


def values(fake: FakeBroker, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in fake.model.topics["orders"].logs[partition].records()]


def numbered(count: int) -> Callable[[Sender], None]:
    def work(sender: Sender) -> None:
        sender.append_values([b"%d" % number for number in range(count)], NOW)

    return work


def test_records_arrive_whole(fake: FakeBroker) -> None:
    """Key, value, headers and timestamp, nulls among them."""
    fake.model.add_topic("orders")

    def work(sender: Sender) -> None:
        sender.append(b"k", b"v", NOW, headers=(("h", b"x"), ("n", None)))
        sender.append(None, None, NOW + 1)

    stats = send(fake, work)
    first, second = fake.model.topics["orders"].logs[0].records()
    assert first[1:] == (NOW, b"k", b"v", (("h", b"x"), ("n", None)))
    assert second[1:] == (NOW + 1, None, None, ())
    assert (stats.records, stats.payload_bytes) == (2, 5)
    assert stats.partitions == {0: (0, 2)}


def test_keys_choose_partitions_as_java_does(fake: FakeBroker) -> None:
    """All records of a key are in one place, in their order."""
    fake.model.add_topic("orders", 4)

    def work(sender: Sender) -> None:
        for number in range(100):
            sender.append(b"key%d" % (number % 10), b"%d" % number, NOW)

    send(fake, work)
    for partition in range(4):
        for record in fake.model.topics["orders"].logs[partition].records():
            assert partition_of(record.key, 4) == partition
        numbers = [int(value or b"") for value in values(fake, partition)]
        assert numbers == sorted(numbers)


def test_records_without_key_fill_batches_on_all_partitions(fake: FakeBroker) -> None:
    """One partition at a time, so that batches are large, and every partition in turn."""
    fake.model.add_topic("orders", 3)
    stats = send(fake, numbered(300), SenderConfig(batch_bytes=1024))
    counts = [len(values(fake, partition)) for partition in range(3)]
    assert sum(counts) == 300
    assert min(counts) > 50
    assert stats.batches < 30


def test_a_partition_may_be_chosen(fake: FakeBroker) -> None:
    """Whatever the key says; one that is not there is refused."""
    fake.model.add_topic("orders", 3)
    send(fake, lambda sender: sender.append(b"k", b"v", NOW, partition=2))
    assert values(fake, 2) == [b"v"]
    with pytest.raises(BrokerError, match="has no partition 3: it has 0 to 2"):
        send(fake, lambda sender: sender.append(b"k", b"v", NOW, partition=3))


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_compressed_as_asked(fake: FakeBroker, codec: Codec) -> None:
    """And read back the same."""
    fake.model.add_topic("orders")
    send(fake, numbered(1000), SenderConfig(codec=codec))
    log = fake.model.topics["orders"].logs[0]
    assert {read_header(batch).codec for batch in log.batches} == {codec}
    assert values(fake) == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("step", [DROP, DROP_AFTER, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_nothing_is_lost_or_doubled_when_an_answer_is(fake: FakeBroker, step: Any) -> None:
    """Whether or not the batch had been written when the connection broke."""
    fake.model.add_topic("orders")
    fake.next(ApiKey.PRODUCE, step, step)
    stats = send(fake, numbered(500), SenderConfig(batch_bytes=2048))
    assert values(fake) == [b"%d" % number for number in range(500)]
    assert stats.records == 500
    assert stats.batches < len(fake.asked(ApiKey.PRODUCE))


def test_sequences_count_on_within_a_partition(fake: FakeBroker) -> None:
    """So that the broker can tell a repeated batch from a new one."""
    fake.model.add_topic("orders")
    send(fake, numbered(300), SenderConfig(batch_bytes=1024))
    headers = [read_header(batch) for batch in fake.model.topics["orders"].logs[0].batches]
    expected = 0
    for header in headers:
        assert header.producer_id == headers[0].producer_id != NO_PRODUCER_ID
        assert header.base_sequence == expected
        expected += header.record_count


def test_a_batch_that_the_broker_had_already_counts_as_sent(fake: FakeBroker) -> None:
    """DUPLICATE_SEQUENCE_NUMBER is a late success."""
    fake.model.add_topic("orders")
    fake.next(ApiKey.PRODUCE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert send(fake, numbered(3)).records == 3


@pytest.mark.parametrize(("acks", "idempotent"), [(0, False), (1, False), (-1, True)])
def test_acks_are_asked_for_as_given(fake: FakeBroker, acks: int, idempotent: bool) -> None:
    """Only acks=all goes with sequences; acks=0 has no answer to wait for."""
    fake.model.add_topic("orders")
    stats = send(fake, numbered(10), SenderConfig(acks=acks))
    assert stats.records == 10
    assert bool(stats.partitions) == (acks != 0)
    assert values(fake) == [b"%d" % number for number in range(10)]
    requests: list[ProduceRequest] = fake.asked(ApiKey.PRODUCE)
    assert {request.acks for request in requests} == {acks}
    assert bool(fake.asked(ApiKey.INIT_PRODUCER_ID)) == idempotent


def test_batches_that_are_too_large_are_split(fake: FakeBroker) -> None:
    """A topic may take less than a batch holds; the order stays, and the sequences."""
    fake.model.add_topic("orders")
    limit = 400

    def answer(request: ProduceRequest) -> ProduceResponse:
        part = request.topic_data[0].partition_data[0]
        size = len(part.records or b"")
        code = ErrorCode.MESSAGE_TOO_LARGE if size > limit else ErrorCode.NONE
        base = fake.model.topics["orders"].logs[0].append(part.records) if not code else -1
        result = ProduceResponse.Partition(part.index, code, base)
        return ProduceResponse([ProduceResponse.Topic("orders", partition_responses=[result])])

    fake.next(ApiKey.PRODUCE, *[answer] * 100)
    stats = send(fake, numbered(200))
    assert values(fake) == [b"%d" % number for number in range(200)]
    assert stats.records == 200
    headers = [read_header(batch) for batch in fake.model.topics["orders"].logs[0].batches]
    assert [header.base_sequence for header in headers] == [h.base_offset for h in headers]


def test_one_record_that_is_too_large_is_refused(fake: FakeBroker) -> None:
    """There is nothing to split."""
    fake.model.add_topic("orders")
    fake.next(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
    with pytest.raises(BrokerError, match=r"orders-0: .*max\.message\.bytes"):
        send(fake, numbered(1))


def test_a_refusal_ends_the_sender(fake: FakeBroker) -> None:
    """With the broker's reason, and without waiting for other lanes."""
    fake.model.add_topic("orders", 2)
    fake.next(ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, SILENCE)

    def work(sender: Sender) -> None:
        for partition in (0, 1):
            sender.append(None, b"v", NOW, partition=partition)

    with pytest.raises(BrokerError, match="not allowed on this topic"):
        send(fake, work, request_timeout_s=1000.0)


def test_a_broker_that_is_gone_ends_the_sender_in_time(fake: FakeBroker) -> None:
    """Nothing is tried for longer than `delivery_timeout_s`."""
    fake.model.add_topic("orders")
    fake.next(ApiKey.PRODUCE, *[SILENCE] * 100)
    config = SenderConfig(delivery_timeout_s=0.2)
    with pytest.raises(DeadlineExceeded, match=r"produce to orders-0: gave up after 0\.2 s"):
        send(fake, numbered(1), config, request_timeout_s=0.05)


def test_memory_is_bounded(fake: FakeBroker) -> None:
    """`drain` waits while more is buffered than allowed."""
    fake.model.add_topic("orders")
    config = SenderConfig(batch_bytes=1024, buffer_bytes=4096)

    async def main(cluster: Cluster) -> None:
        async with Sender(cluster, "orders", config) as sender:
            appended = 0
            for _ in range(50):
                sender.append_values([b"x" * 100] * 5, NOW)
                appended += 5
                await sender.drain()
                assert (appended - sender.stats.records) * 116 <= config.buffer_bytes
        assert sender.stats.records == 250

    with_cluster(fake, main)


def test_a_topic_is_made_when_the_broker_allows_it(fake: FakeBroker) -> None:
    """As every Kafka producer does."""
    send(fake, numbered(1))
    assert values(fake) == [b"0"]


def test_wrong_acks_are_refused() -> None:
    """At once."""
    with pytest.raises(ValueError, match="give 0, 1 or -1"):
        SenderConfig(acks=2)
