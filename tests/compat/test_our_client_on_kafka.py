"""Our client on a real Apache Kafka: what it promises on our broker must hold there too.

A selection of the client's own tests runs here again, on Kafka. The other tests need a real Kafka:
transactions of other clients, aborted and open, its way of restarting, groups with its Java client
and with its new protocol. One Kafka serves all tests of this file.
"""

from __future__ import annotations

import asyncio
import base64
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pytest

from client.membership.mixed_group import CONFLUENT, OURS, PARTITIONS, MixedGroup
from compat.apache_kafka import ApacheKafka
from compat.clients.base import CODECS, DEADLINE_S, wait_until
from compat.java_build import VERSIONS, compiled
from compat.librdkafka_producer import Transactional, settings
from compat.shared_client_tests import CHOSEN, Chosen, shown
from compat.test_java_groups import JavaMember
from compat.toolchain import RUN_S
from penstock import Admin, Consumer, NewTopic, Producer, Record, TopicPartition, aio
from penstock.client.connection import VERSION_MAX
from penstock.errors import BrokerError, ClientError, TopicNotFound
from penstock.testing import Faults
from penstock.testing.ask import ask
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schema import message_schema

LIMIT_S = 150.0
JAVA = "java"
MIB = 1 << 20
Bytes = bytes | None
Raw = Record[Bytes, Bytes]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka() as started:
        yield started


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(VERSIONS[-1], tmp_path_factory.mktemp("java"), "Member", "Keys")


@pytest.mark.parametrize("chosen", CHOSEN, ids=shown)
def test_a_selected_test_of_the_client_passes_on_kafka(kafka: ApacheKafka, chosen: Chosen) -> None:
    """The docstring of the selected test says what it checks."""
    chosen(kafka)


def reader(kafka: ApacheKafka, *topics: str, **options: Any) -> Consumer[Bytes, Bytes]:
    return Consumer(kafka.bootstrap, topics=topics, auto_offset_reset="earliest", **options)


def read(source: Consumer[Bytes, Bytes], count: int) -> list[Raw]:
    """Reads that many records, and checks that no more arrive."""
    found: list[Raw] = []
    while len(found) < count:
        records = source.poll(60_000)
        assert records, f"only {len(found)} of {count} records came"
        found += records
    found += source.poll(50)
    assert len(found) == count
    return found


def eventually(condition: Callable[[], bool]) -> None:
    """Waits: Kafka's brokers learn of a change after the request for it was answered."""
    assert wait_until(condition), "it did not come true in time"


# -- records ------------------------------------------------------------------------------------


def content(codec: str) -> list[tuple[Bytes, Bytes, tuple[tuple[str, Bytes], ...]]]:
    pairs = (("again", b"first"), ("null", None), ("again", b"second"), ("empty", b""))
    large = random.Random(codec).randbytes(MIB - 1_000)
    return [
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"tombstone", None, ()),
        (b"", b"", ()),
        (b"headers", b"h", pairs),
        *((b"%d" % n, b"compressible " * n, ()) for n in range(50)),
        (b"large", large, pairs),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_kind_and_codec(kafka: ApacheKafka, codec: Any) -> None:
    """Sent by our sync and async producers, read by our client and by librdkafka: the bytes are the
    same, at the acknowledged offsets and timestamps."""
    topic = kafka.new_topic(configs={"max.message.bytes": str(2 * MIB)})
    options: Any = {"compression_type": codec, "linger_ms": 5, "max_request_size": 2 * MIB}
    with Producer(kafka.bootstrap, **options) as sending:
        sent = [
            sending.send(topic, value, key=key, headers=headers, timestamp_ms=1_000 + n)
            for n, (key, value, headers) in enumerate(content(codec))
        ]
    promised = [delivery.result(LIMIT_S) for delivery in sent]

    async def again() -> None:
        async with aio.Producer(kafka.bootstrap, **options) as sending:
            for key, value, headers in content(codec):
                await (await sending.send(topic, value, key=key, headers=headers))

    asyncio.run(again())
    expected = content(codec) * 2
    with reader(kafka, topic) as reading:
        found = read(reading, len(expected))
    assert [(r.key, r.value, r.headers) for r in found] == expected
    assert [(m.offset, m.timestamp) for m in promised] == [
        (r.offset, r.timestamp) for r in found[: len(promised)]
    ]
    theirs = ck.Consumer(settings(kafka, group_id="none", enable_auto_commit=False))
    theirs.assign([ck.TopicPartition(topic, 0, 0)])
    messages = theirs.consume(len(expected), DEADLINE_S)
    theirs.close()
    assert [(m.key(), m.value(), tuple(m.headers() or ())) for m in messages] == expected


def test_log_append_time_is_returned_in_deliveries_and_records(kafka: ApacheKafka) -> None:
    """If the topic uses the broker's time, deliveries and records have that timestamp."""
    topic = kafka.new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    with Producer(kafka.bootstrap) as sending:
        metadata = sending.send(topic, b"v", timestamp_ms=1_000).result(LIMIT_S)
    with reader(kafka, topic) as reading:
        (record,) = read(reading, 1)
    assert record.timestamp == metadata.timestamp
    assert abs(record.timestamp - time.time() * 1000) < 60_000


def test_a_topic_is_created_by_sending_to_it(kafka: ApacheKafka) -> None:
    """Kafka first answers that it does not know the topic, then that it has no leader."""
    topic = kafka.new_name("unheard-of")
    with Producer(kafka.bootstrap) as sending:
        assert sending.send(topic, b"v").result(LIMIT_S).offset == 0
        sending.send_table(topic, pa.table({"value": [b"w", b"x"]})).result(LIMIT_S)
    with reader(kafka, topic) as reading:
        assert [record.value for record in read(reading, 3)] == [b"v", b"w", b"x"]


def test_keys_go_to_the_same_partitions_as_in_java(kafka: ApacheKafka, java: str) -> None:
    """Ten thousand keys of all lengths, starting with an empty one; one by one and in tables."""
    dice = random.Random(4)
    keys = [dice.randbytes(n % 67) for n in range(10_000)]
    partitions = 13
    topic = kafka.new_topic(partitions)
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", java]
    result = subprocess.run(
        ["java", *flags, "Keys", kafka.bootstrap, topic],
        input=b"".join(base64.b64encode(key) + b"\n" for key in keys),
        capture_output=True,
        check=False,
        timeout=patient(RUN_S),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    theirs = list(map(int, result.stdout.split()))
    with Producer(kafka.bootstrap, linger_ms=20) as sending:
        deliveries = [sending.send(topic, None, key=key) for key in keys]
        table = pa.table({"key": keys, "value": keys})
        counts = sending.send_table(topic, table).result(LIMIT_S).counts
    assert [delivery.result(LIMIT_S).partition for delivery in deliveries] == theirs
    assert counts == {n: theirs.count(n) for n in range(partitions)}
    assert set(theirs) == set(range(partitions))


# -- transactions -------------------------------------------------------------------------------


def both_ways(kafka: ApacheKafka, topic: str, isolation: Any, count: int) -> list[int]:
    """Returns what polls return, alternately as records and as tables."""
    numbers: list[int] = []
    options: Any = {"isolation_level": isolation, "max_partition_fetch_bytes": 400}
    with reader(kafka, topic, **options) as reading:
        while len(numbers) < count:
            records = reading.poll(5_000, max_records=3)
            table = reading.poll_table(0 if records else 5_000, max_rows=4)
            assert records or table.num_rows, numbers
            numbers += [int(record.value or b"-1") for record in records]
            numbers += map(int, table.column("value").to_pylist())
        assert reading.poll(100) == []
    return numbers


def ranged(kafka: ApacheKafka, topic: str, isolation: Any) -> list[int]:
    with Consumer(kafka.bootstrap, isolation_level=isolation) as reading:
        return list(map(int, reading.read_table(topic).column("value").to_pylist()))


def test_transactions_of_other_clients_are_read_correctly(kafka: ApacheKafka) -> None:
    """Two transactions that interleave, one of them aborted, with plain records between; then one
    that stays open. A read_committed consumer gets nothing aborted and nothing after the start of
    the open one; as records, as tables, as ranges. The admin client shows where the open one
    starts, and when it ends the rest is delivered."""
    topic = kafka.new_topic()
    topic_partition = TopicPartition(topic, 0)
    keeps, drops, open_one = (Transactional(kafka, topic) for _ in range(3))
    kept: list[int] = []
    number = 0
    with Producer(kafka.bootstrap, linger_ms=0) as plain:
        for _ in range(5):
            keeps.own.begin_transaction()
            drops.own.begin_transaction()
            for _ in range(3):
                keeps.write(number, number + 1)
                drops.write(number + 2, number + 3)
                plain.send(topic, b"%d" % (number + 4)).result(LIMIT_S)
                kept += [number, number + 1, number + 4]
                number += 5
            keeps.own.commit_transaction(DEADLINE_S)
            drops.own.abort_transaction(DEADLINE_S)
    assert both_ways(kafka, topic, "read_committed", len(kept)) == kept
    assert ranged(kafka, topic, "read_committed") == kept
    assert both_ways(kafka, topic, "read_uncommitted", number) == list(range(number))
    assert ranged(kafka, topic, "read_uncommitted") == list(range(number))

    with Admin(kafka.bootstrap) as admin:
        latest = admin.list_offsets({topic_partition: "latest"})[topic_partition]
        assert latest is not None
        open_one.own.begin_transaction()
        open_one.write(number)
        open_ones = [
            found.transaction_start_offset
            for found in admin.describe_producers([topic_partition])[topic_partition]
            if found.transaction_start_offset >= 0
        ]
        assert open_ones == [latest.offset]
    with Producer(kafka.bootstrap) as plain:
        plain.send(topic, b"%d" % (number + 1)).result(LIMIT_S)
    assert ranged(kafka, topic, "read_committed") == kept
    with reader(kafka, topic, isolation_level="read_committed") as reading:
        assert [int(r.value or b"-1") for r in read(reading, len(kept))] == kept
        assert reading.lag(topic_partition) == 0
        open_one.own.commit_transaction(DEADLINE_S)
        assert [int(r.value or b"-1") for r in read(reading, 2)] == [number, number + 1]


def test_offsets_committed_by_a_transaction_are_visible_when_it_ends(kafka: ApacheKafka) -> None:
    """While it is open, a read_committed consumer waits for the offsets; then they count."""
    topic, group = kafka.new_topic(), kafka.new_name("group")
    topic_partition = TopicPartition(topic, 0)
    with Producer(kafka.bootstrap) as sending:
        for number in range(10):
            sending.send(topic, b"%d" % number)
    theirs = ck.Consumer(settings(kafka, group_id=group, enable_auto_commit=False))
    theirs.assign([ck.TopicPartition(topic, 0, 0)])
    transaction = Transactional(kafka, topic)
    transaction.own.begin_transaction()
    transaction.own.send_offsets_to_transaction(
        [ck.TopicPartition(topic, 0, 7)], theirs.consumer_group_metadata(), DEADLINE_S
    )
    ending = threading.Timer(0.5, transaction.own.commit_transaction, [DEADLINE_S])
    options: Any = {"group_id": group, "isolation_level": "read_committed"}
    with reader(kafka, **options) as reading:
        ending.start()
        reading.assign([topic_partition])
        assert [record.offset for record in read(reading, 3)] == [7, 8, 9]
    ending.join(LIMIT_S)
    theirs.close()


# -- groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "cast"),
    [("range", (OURS, JAVA, CONFLUENT)), ("cooperative-sticky", (JAVA, OURS, CONFLUENT))],
    ids=["range", "cooperative-sticky"],
)
def test_a_group_with_members_of_different_libraries(
    kafka: ApacheKafka, java: str, strategy: str, cast: tuple[str, ...]
) -> None:
    """Members join one by one, then leave in the same order: no record is lost or duplicated."""
    topic, group = kafka.new_topic(PARTITIONS), kafka.new_name("group")
    company = MixedGroup(kafka.bootstrap, group, topic, strategy)
    try:
        for kind in cast:
            if kind == JAVA:
                company.admit(JavaMember(java, kafka.bootstrap, group, topic, strategy))
            else:
                company.enter(kind)
            company.check()
        while len(company.members) > 1:
            company.leave(company.members[0])
            company.check()
    finally:
        company.close()


def test_a_group_with_a_member_that_uses_the_new_protocol(kafka: ApacheKafka) -> None:
    """One member uses the new group protocol (KIP-848), in which the broker assigns partitions.
    Ours joins it with the old protocol, they share the partitions, and ours gets all when the other
    leaves. The admin client describes the group."""
    topic, group = kafka.new_topic(4), kafka.new_name("group")
    theirs = ck.Consumer(
        settings(kafka, group_id=group, group_protocol="consumer", auto_offset_reset="earliest")
    )

    async def share(leave: ExitStack) -> None:
        options: Any = {"group_id": group, "heartbeat_interval_ms": 100, "topics": [topic]}
        async with (
            asyncio.timeout(patient(LIMIT_S)),
            aio.Consumer(kafka.bootstrap, **options) as ours,
        ):
            while not len(ours.assignment()) == len(theirs.assignment()) == 2:
                await ours.poll(timeout_ms=50)
                await asyncio.to_thread(theirs.poll, 0.05)
            await asyncio.to_thread(leave.close)
            while len(ours.assignment()) < 4:
                await ours.poll(timeout_ms=50)

    with ExitStack() as stack, Admin(kafka.bootstrap) as admin:
        stack.callback(theirs.close)
        theirs.subscribe([topic])
        eventually(lambda: theirs.poll(0.05) is None and len(theirs.assignment()) == 4)
        (listed,) = [found for found in admin.list_groups() if found.group == group]
        assert (listed.kind.lower(), listed.protocol_type) == ("consumer", "consumer")
        described = admin.describe_group(group)
        assert (described.state, described.protocol) == ("Stable", "uniform")
        (found,) = described.members
        assert set(found.assignment) == {TopicPartition(topic, n) for n in range(4)}
        asyncio.run(share(stack))


# -- failures -----------------------------------------------------------------------------------


def test_clients_survive_a_kill_and_restart_of_kafka(kafka: ApacheKafka) -> None:
    """An idempotent producer, a group member and an admin client: each record is stored once, in
    order, at its acknowledged offset. No client hangs while Kafka is down, and none has to be
    created again."""
    topic, group = kafka.new_topic(PARTITIONS), kafka.new_name("group")
    sent: list[Any] = []
    seen: list[Raw] = []
    stop = threading.Event()
    options: Any = {"delivery_timeout_ms": 90_000, "request_timeout_ms": 5_000, "linger_ms": 1}

    def send() -> None:
        while not stop.wait(0.01):
            for _ in range(PARTITIONS):
                n = len(sent)
                sent.append(sending.send(topic, b"%d" % n, partition=n % PARTITIONS))

    with (
        Admin(kafka.bootstrap, default_api_timeout_ms=int(patient(2_000))) as admin,
        Producer(kafka.bootstrap, **options) as sending,
        reader(kafka, topic, group_id=group, heartbeat_interval_ms=200) as reading,
    ):
        thread = threading.Thread(target=send)
        thread.start()
        try:
            while len(seen) < 10 * PARTITIONS:
                seen += reading.poll(5_000)
            kafka.kill()
            for _ in range(3):
                seen += reading.poll(100)
            began = time.monotonic()
            with pytest.raises(ClientError):
                admin.list_topics()
            assert time.monotonic() - began < patient(20)
            kafka.start()
        finally:
            kafka.start()
            stop.set()
            thread.join(LIMIT_S)
        sending.flush(LIMIT_S)
        deadline = time.monotonic() + patient(LIMIT_S)
        while len(seen) < len(sent) and time.monotonic() < deadline:
            seen += reading.poll(1_000)
        assert reading.poll(200) == []
        eventually(lambda: knows(admin, topic))
    for partition in range(PARTITIONS):
        values = [int(r.value or b"-1") for r in seen if r.partition == partition]
        assert values == list(range(partition, len(sent), PARTITIONS))
    topic_partitions = {int(r.value or b"-1"): (r.partition, r.offset) for r in seen}
    for number, delivery in enumerate(sent):
        metadata = delivery.result(LIMIT_S)
        assert topic_partitions[number] == (metadata.partition, metadata.offset)


def knows(admin: Admin, topic: str) -> bool:
    try:
        return topic in {found.name for found in admin.list_topics()}
    except ClientError:
        return False


def test_calls_end_in_time_if_kafka_does_not_answer(kafka: ApacheKafka) -> None:
    """Kafka is frozen with its connections open. What was sent arrives when it continues."""
    topic = kafka.new_topic()
    with (
        Admin(kafka.bootstrap, default_api_timeout_ms=int(patient(2_000))) as admin,
        Producer(kafka.bootstrap, request_timeout_ms=round(patient(500))) as sending,
        reader(kafka, topic) as reading,
    ):
        sending.send(topic, b"0").result(LIMIT_S)
        read(reading, 1)
        kafka.freeze()
        try:
            began = time.monotonic()
            delivery = sending.send(topic, b"1")
            assert reading.poll(100) == []
            with pytest.raises(ClientError):
                admin.describe_cluster()
            with pytest.raises(ClientError):
                delivery.result(timeout_s=0.5)
            assert time.monotonic() - began < patient(20)
        finally:
            kafka.thaw()
        assert delivery.result(LIMIT_S).offset == 1
        assert [record.value for record in read(reading, 1)] == [b"1"]


# -- administration -----------------------------------------------------------------------------


def test_topics_and_their_configs(kafka: ApacheKafka) -> None:
    """From creation to deletion; errors have Kafka's own messages."""
    first, second = kafka.new_name(), kafka.new_name()
    with Admin(kafka.bootstrap) as admin:
        made = admin.create_topics([NewTopic(first, 2, 1), NewTopic(second, 1, 1), NewTopic("/")])
        assert isinstance(made["/"], BrokerError)
        eventually(lambda: {first, second} <= {topic.name for topic in admin.list_topics()})
        with pytest.raises(BrokerError, match="already exists"):
            admin.create_topic(first)
        with pytest.raises(BrokerError, match="replication factor"):
            admin.create_topic(kafka.new_name(), 1, 3)
        admin.create_partitions(second, 3)
        eventually(lambda: len(admin.describe_topic(second).partitions) == 3)
        admin.alter_configs(topic=first, set_values={"max.message.bytes": "5000"})

        def entry() -> Any:
            return admin.describe_configs(topic=first)["max.message.bytes"]

        eventually(lambda: (entry().value, entry().is_default) == ("5000", False))
        admin.alter_configs(topic=first, delete=["max.message.bytes"])
        eventually(lambda: bool(entry().is_default))
        with pytest.raises(BrokerError, match=r"retention\.ms"):
            admin.alter_configs(topic=first, set_values={"retention.ms": "soon"})
        assert admin.describe_configs(broker=0)["node.id"].value == "0"
        hidden = {topic.name for topic in admin.list_topics(internal=True) if topic.internal}
        assert "__consumer_offsets" in hidden
        admin.delete_topic(first)
        deleted = admin.delete_topics([second, first])
        assert deleted[second] is None
        assert isinstance(deleted[first], TopicNotFound)


def test_requests_use_the_newest_version_that_both_sides_know(kafka: ApacheKafka) -> None:
    """Every request uses the newest version that both sides know."""
    topic, group = kafka.new_topic(), kafka.new_name("group")
    with Faults(kafka.bootstrap) as faults:
        with Producer(faults.bootstrap) as sending:
            sending.send(topic, b"v").result(LIMIT_S)
        with Consumer(
            faults.bootstrap, topics=[topic], group_id=group, auto_offset_reset="earliest"
        ) as reading:
            read(reading, 1)
        used = {(request.api, request.version) for request in faults.requests}
    answer = ask(kafka.bootstrap, ApiVersionsRequest("k", "1"), ApiVersionsResponse, 3, LIMIT_S)
    newest = {entry.api_key: entry.max_version for entry in answer.api_keys}
    ours = {key.api_name: message_schema(f"{key.api_name}Request").versions.last for key in ApiKey}
    ours |= {ApiKey(key).api_name: version for key, version in VERSION_MAX.items()}
    assert used == {
        (key.api_name, min(newest[key], ours[key.api_name]))
        for key in ApiKey
        if key.api_name in {name for name, _ in used}
    }
    assert {"Produce", "Fetch", "InitProducerId", "JoinGroup", "OffsetCommit"} <= dict(used).keys()
