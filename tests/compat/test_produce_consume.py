"""Every client reads what any client wrote: bytes, headers, timestamps, order, codecs."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest

from compat.clients.base import (
    CODECS,
    HOUR_AGO_MS,
    Client,
    Code,
    Consumer,
    ConsumerOptions,
    ProducerOptions,
    Received,
    Record,
    Refused,
)
from compat.conftest import CLIENTS, TopicFactory

Keep = Callable[[Consumer], Consumer]
SAMPLES = (
    Record(b"plain", key=b"key", timestamp_ms=HOUR_AGO_MS),
    Record(b"no key", timestamp_ms=HOUR_AGO_MS + 1),
    Record(None, key=b"tombstone", timestamp_ms=HOUR_AGO_MS + 2),
    Record(b"", key=b"empty value", timestamp_ms=HOUR_AGO_MS + 3),
    Record(b"empty key", key=b"", timestamp_ms=HOUR_AGO_MS + 4),
    Record(b"older than the one before", key=b"t", timestamp_ms=HOUR_AGO_MS - 5000),
    Record(b"header", key=b"h", headers=(("one", b"1"),), timestamp_ms=HOUR_AGO_MS + 5),
    Record(
        b"headers",
        key=b"hh",
        headers=(
            ("again", b"first"),
            ("null", None),
            ("again", b"second"),
            ("empty", b""),
            ("again", b"first"),
            ("näme", bytes(range(256))),
        ),
        timestamp_ms=HOUR_AGO_MS + 6,
    ),
    Record("ünïcode 語".encode(), key="clé".encode(), timestamp_ms=HOUR_AGO_MS + 7),
    *(
        Record(b"compressible " * (i + 1), key=b"%d" % i, timestamp_ms=HOUR_AGO_MS + 10 + i)
        for i in range(60)
    ),
)


def samples(client: Client) -> list[Record]:
    """Returns all samples, adapted to what the client can send."""
    if client.sends_null_headers:
        return list(SAMPLES)
    return [
        replace(record, headers=tuple((name, value or b"") for name, value in record.headers))
        for record in SAMPLES
    ]


def as_record(received: Received) -> Record:
    return Record(
        value=received.value,
        key=received.key,
        headers=received.headers,
        timestamp_ms=received.timestamp_ms,
    )


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_any_client_wrote(
    client: Client,
    clients: Callable[[str], Client],
    topic: TopicFactory,
    keep: Keep,
    codec: str,
) -> None:
    """Nulls, empty values, repeated headers and timestamps survive with every codec."""
    client.check_codec(codec)
    name, records = topic(), samples(client)
    placed = client.produce(name, records, ProducerOptions(codec=codec))
    assert [p.offset for p in placed] == list(range(len(records)))
    readers = 0
    for other in map(clients, CLIENTS):
        try:
            other.check_codec(codec)
        except pytest.skip.Exception:
            continue
        reader = keep(other.reader(name))
        got = reader.read(len(records))
        assert [r.offset for r in got] == list(range(len(records))), other.name
        assert [as_record(r) for r in got] == records, other.name
        assert {(r.topic, r.partition) for r in got} == {(name, 0)}
        readers += 1
    assert readers >= 2


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_record_of_one_mebibyte(
    client: Client, topic: TopicFactory, keep: Keep, codec: str
) -> None:
    """Large records between small ones are accepted if the topic allows them."""
    client.check_codec(codec)
    name = topic(max_message_bytes="2097152")
    large = os.urandom(1024 * 1024)
    values = [b"before", large, b"between", large[::-1], b"after"]
    options = ProducerOptions(codec=codec, request_bytes_max=2_000_000)
    client.produce(name, [Record(value) for value in values], options)
    assert [r.value for r in keep(client.reader(name)).read(len(values))] == values


def test_a_record_above_the_limit_of_its_topic_is_refused(
    client: Client, topic: TopicFactory
) -> None:
    """max.message.bytes is enforced, and records that fit are still accepted afterwards."""
    name = topic(max_message_bytes="10000")
    options = ProducerOptions(request_bytes_max=1_000_000)
    with pytest.raises(Refused) as refused:
        client.produce(name, [Record(os.urandom(20_000))], options)
    assert refused.value.code == client.sees(Code.MESSAGE_TOO_LARGE)
    assert client.produce(name, [Record(b"small")], options)[0].offset == 0


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_records_arrive_with_every_acks_setting(
    client: Client, topic: TopicFactory, keep: Keep, acks: int
) -> None:
    name = topic()
    values = [b"%d" % i for i in range(100)]
    options = ProducerOptions(acks=acks)  # type: ignore[arg-type]
    client.produce(name, [Record(value) for value in values], options)
    assert [r.value for r in keep(client.reader(name)).read(100)] == values


def test_an_idempotent_producer_keeps_order_without_gaps_or_duplicates(
    client: Client, topic: TopicFactory, keep: Keep
) -> None:
    """Many batches to several partitions with acks=all: no gap, no duplicate, in order."""
    name = topic(3)
    records = [Record(b"%04d" % i, partition=i % 3) for i in range(1500)]
    options = ProducerOptions(idempotent=True, batch_bytes=1000, linger_ms=0)
    placed = client.produce(name, records, options)
    next_offsets = [0, 0, 0]
    for record, written in zip(records, placed, strict=True):
        assert written.partition == record.partition
        assert written.offset == next_offsets[written.partition]
        next_offsets[written.partition] += 1
    got = keep(client.reader(name, (0, 1, 2))).read(1500)
    for partition in range(3):
        mine = [r for r in got if r.partition == partition]
        assert [r.offset for r in mine] == list(range(500))
        assert [r.value for r in mine] == [r.value for r in records if r.partition == partition]


def test_a_key_always_lands_in_the_same_partition(
    client: Client, topic: TopicFactory, keep: Keep
) -> None:
    """Keys are spread over all partitions, and each producer of the client chooses the same one."""
    name = topic(5)
    keys = [b"key-%d" % i for i in range(40)]
    homes: dict[bytes, set[int]] = defaultdict(set)
    for _ in range(2):
        placed = client.produce(name, [Record(b"v", key=key) for key in keys])
        for key, written in zip(keys, placed, strict=True):
            homes[key].add(written.partition)
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert set.union(*homes.values()) == set(range(5))
    for record in keep(client.reader(name, range(5))).read(80):
        assert record.key is not None
        assert homes[record.key] == {record.partition}


def test_all_clients_choose_the_same_partition_for_a_key(
    clients: Callable[[str], Client], topic: TopicFactory
) -> None:
    """With the same partitioner and partition count, clients choose the same partitions."""
    name = topic(7)
    keys = [b"key-%d" % i for i in range(50)]
    choices = [
        [p.partition for p in clients(c).produce(name, [Record(b"v", key=k) for k in keys])]
        for c in CLIENTS
    ]
    assert choices[0] == choices[1] == choices[2]


def test_order_holds_over_many_batches(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """Ten thousand records in hundreds of batches are read in the order in which they were sent."""
    name = topic()
    records = [Record(b"%06d" % i) for i in range(10_000)]
    client.produce(name, records, ProducerOptions(batch_bytes=2000, codec="gzip"))
    got = keep(client.reader(name)).read(len(records))
    assert [r.value for r in got] == [r.value for r in records]
    assert [r.offset for r in got] == list(range(len(records)))


def test_a_waiting_consumer_gets_a_record_at_once(
    client: Client, topic: TopicFactory, keep: Keep
) -> None:
    """A fetch that may wait for up to a minute is answered as soon as a record arrives."""
    name = topic()
    reader = keep(client.reader(name, options=ConsumerOptions(wait_ms_max=60_000)))
    client.produce(name, [Record(b"warm up")])
    assert reader.read(1)
    assert reader.read_nothing(0.5) == []
    for round_ in range(3):
        sent = time.monotonic()
        client.produce(name, [Record(b"%d" % round_)])
        (got,) = reader.read(1, within_s=120)
        assert got.value == b"%d" % round_
        assert time.monotonic() - sent < 50


def test_a_fetch_with_too_few_bytes_is_answered_after_the_maximum_wait(
    client: Client, topic: TopicFactory, keep: Keep
) -> None:
    """fetch.min.bytes delays the response, fetch.max.wait.ms limits the delay."""
    name = topic()
    client.produce(name, [Record(b"lonely")])
    options = ConsumerOptions(bytes_min=100_000, wait_ms_max=700)
    started = time.monotonic()
    (got,) = keep(client.reader(name, options=options)).read(1, within_s=120)
    assert got.value == b"lonely"
    assert time.monotonic() - started > 0.5


def test_read_committed_without_transactions_reads_everything(
    client: Client, topic: TopicFactory, keep: Keep
) -> None:
    """Without transactions the isolation level makes no difference."""
    name, records = topic(), samples(client)
    client.produce(name, records)
    reader = keep(client.reader(name, options=ConsumerOptions(isolation="read_committed")))
    assert [as_record(r) for r in reader.read(len(records))] == records


def test_a_topic_is_created_by_the_first_record(
    client: Client, name: Callable[[], str], keep: Keep
) -> None:
    """auto.create.topics.enable is on by default, as in Kafka."""
    made = name()
    assert client.produce(made, [Record(b"first", partition=0)])[0].offset == 0
    assert made in client.list_topics()
    assert [r.value for r in keep(client.reader(made)).read(1)] == [b"first"]


def test_log_append_time(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """With message.timestamp.type=LogAppendTime the broker's clock counts."""
    name = topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000) - 1000
    client.produce(name, [Record(b"old", timestamp_ms=HOUR_AGO_MS)])
    (got,) = keep(client.reader(name)).read(1)
    assert before_ms <= got.timestamp_ms <= int(time.time() * 1000) + 1000


def test_a_compacted_topic_requires_keys(client: Client, topic: TopicFactory) -> None:
    """A record without a key is refused, because compaction could never replace it."""
    name = topic(cleanup_policy="compact")
    with pytest.raises(Refused) as refused:
        client.produce(name, [Record(b"no key")])
    assert refused.value.code == client.sees(Code.INVALID_RECORD)
    assert client.produce(name, [Record(b"keyed", key=b"k")])[0].offset == 0
