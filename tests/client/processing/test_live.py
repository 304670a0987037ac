"""Tests runs and loops on a real broker: dead letters, rebalances, killed processes."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from client.processing.fake_consumer import until
from penstock import Admin, Consumer, Producer, Record, RunSummary, TopicPartition, aio, serializers
from penstock.client.processing import dead_letter_headers
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = 150.0
Raw = Record[bytes | None, bytes | None]


def fill(broker: Broker, values: list[bytes], partitions: int = 1) -> str:
    topic = broker.new_topic(partitions=partitions)
    with Producer(broker.bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, key=b"k%d" % (number % 7), partition=number % partitions)
    return topic


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def read(broker: Broker, topic: str, count: int) -> list[Raw]:
    found: list[Raw] = []
    with Consumer(broker.bootstrap, topics=[topic], auto_offset_reset="earliest") as consumer:
        while len(found) < count:
            found += consumer.poll(60_000)
    return found


def committed(broker: Broker, group: str) -> dict[TopicPartition, int]:
    with Admin(broker.bootstrap) as admin:
        return {
            topic_partition: each.offset
            for topic_partition, each in admin.group_offsets(group).items()
        }


def options(broker: Broker, topic: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "topics": [topic],
        "group_id": group,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 200,
    }


def test_dead_letters_hold_the_original_bytes(live_broker: Broker) -> None:
    """A record that cannot be handled, or not even be deserialized, is forwarded unchanged."""
    bad = b'{"id":    7, "spaces": "kept"}'
    values = [b'{"id": 1}', bad, b"not json", b'{"id": 3}']
    topic = fill(live_broker, values)
    dead = live_broker.new_topic()
    group = live_broker.new_name("group")
    handled: list[int] = []

    async def main() -> RunSummary:
        stop = asyncio.Event()

        async def handle(record: Record[bytes | None, Any]) -> None:
            if record.value["id"] == 7:
                raise LookupError("no such customer")
            handled.append(record.value["id"])
            if record.value["id"] == 3:
                stop.set()

        async with aio.Consumer(
            **options(live_broker, topic, group), value_deserializer=serializers.json
        ) as consumer:
            async with asyncio.timeout(patient(LIMIT_S)):
                return await consumer.run(
                    handle,
                    retries=1,
                    retry_backoff_ms=1,
                    dead_letter_topic=dead,
                    stop=stop,
                )

    summary = asyncio.run(main())
    assert handled == [1, 3]
    assert (summary.processed, summary.retried, summary.dead_lettered) == (2, 1, 2)
    letters = {letter.value: letter for letter in read(live_broker, dead, 2)}
    assert letters.keys() == {bad, b"not json"}
    first = letters[bad]
    assert first.key == b"k1"
    assert first.header(dead_letter_headers.TOPIC) == topic.encode()
    assert first.header(dead_letter_headers.OFFSET) == b"1"
    assert first.header(dead_letter_headers.ERROR) == b"LookupError: no such customer"
    assert first.header(dead_letter_headers.ATTEMPTS) == b"2"
    assert b"JSON" in (letters[b"not json"].header(dead_letter_headers.ERROR) or b"")
    assert committed(live_broker, group) == {TopicPartition(topic, 0): 4}


def test_dead_letters_may_use_the_users_producer(live_broker: Broker) -> None:
    """A sync run sends them through the given sync producer, with the key and value
    that the handler received."""
    topic = fill(live_broker, [b'{"id": 1}', b'{"id": 2}'])
    dead = live_broker.new_topic()
    stop = threading.Event()

    def handle(record: Record[bytes | None, Any]) -> None:
        if record.value["id"] == 1:
            raise LookupError("no such customer")
        stop.set()

    with (
        Producer(live_broker.bootstrap, value_serializer=serializers.json) as producer,
        Consumer(
            **options(live_broker, topic, live_broker.new_name("group")),
            value_deserializer=serializers.json,
        ) as consumer,
    ):
        summary = consumer.run(
            handle, retries=0, dead_letter_topic=dead, producer=producer, stop=stop
        )
    assert summary.dead_lettered == 1
    (letter,) = read(live_broker, dead, 1)
    assert json.loads(letter.value or b"") == {"id": 1}


def test_the_handler_runs_on_the_calling_thread_or_on_a_pool(live_broker: Broker) -> None:
    """With a concurrency of 1 on the calling thread, otherwise on a thread pool."""
    topic = fill(live_broker, numbers(200), partitions=2)
    for concurrency in (1, 4):
        threads: set[int] = set()
        stop = threading.Event()
        seen: dict[int, list[int]] = defaultdict(list)
        group = live_broker.new_name("group")

        def handle(
            record: Raw,
            threads: set[int] = threads,
            seen: dict[int, list[int]] = seen,
            stop: threading.Event = stop,
        ) -> None:
            threads.add(threading.get_ident())
            seen[record.partition].append(record.offset)
            if len(seen[0]) == len(seen[1]) == 100:
                stop.set()

        with Consumer(**options(live_broker, topic, group)) as consumer:
            summary = consumer.run(handle, concurrency=concurrency, stop=stop)
        assert (threading.get_ident() in threads) is (concurrency == 1)
        assert seen == {0: list(range(100)), 1: list(range(100))}
        assert summary.processed == 200
        assert set(committed(live_broker, group).values()) == {100}


def test_a_sync_run_raises_the_handlers_error(live_broker: Broker) -> None:
    """Without a dead-letter topic, the handler's error ends the run. The position
    stays at the failed record."""
    topic = fill(live_broker, numbers(20))
    group = live_broker.new_name("group")

    def handle(record: Raw) -> None:
        if record.offset == 7:
            raise LookupError("no such customer")

    with Consumer(**options(live_broker, topic, group)) as consumer:
        with pytest.raises(LookupError) as caught:
            consumer.run(handle, retries=1, retry_backoff_ms=1)
        assert caught.value.__notes__ == [f"while handling offset 7 of {topic}-0, after 2 attempts"]
        assert consumer.position(TopicPartition(topic, 0)) == 7
    assert committed(live_broker, group) == {TopicPartition(topic, 0): 7}


def test_ctrl_c_in_a_handler_ends_the_run(live_broker: Broker) -> None:
    """`run` raises the interrupt. Finished records are committed, the current one is not."""
    topic = fill(live_broker, numbers(20))
    group = live_broker.new_name("group")

    def handle(record: Raw) -> None:
        if record.offset == 7:
            raise KeyboardInterrupt

    consumer: Consumer[bytes | None, bytes | None] = Consumer(**options(live_broker, topic, group))
    with consumer, pytest.raises(KeyboardInterrupt):
        consumer.run(handle)
    assert committed(live_broker, group) == {TopicPartition(topic, 0): 7}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_join_and_leave_during_a_run(live_broker: Broker, strategy: str) -> None:
    """Every record is handled, one at a time within each lane, and no
    unfinished record is committed."""
    count = 1_500
    topic = fill(live_broker, numbers(count), partitions=6)
    group = live_broker.new_name("group")
    handled: dict[TopicPartition, set[int]] = defaultdict(set)
    running: set[tuple[TopicPartition, bytes | None]] = set()

    async def handle(record: Raw) -> None:
        lane = record.topic_partition, record.key
        assert lane not in running, "two at once in one lane"
        running.add(lane)
        try:
            await asyncio.sleep(0.002)
            handled[record.topic_partition].add(record.offset)
        finally:
            running.discard(lane)

    async def one(stop: asyncio.Event) -> RunSummary:
        consumer: aio.Consumer[bytes | None, bytes | None] = aio.Consumer(
            **options(live_broker, topic, group), partition_assignment_strategy=strategy
        )
        async with consumer:
            return await consumer.run(
                handle, ordering="key", concurrency=8, commit_interval_ms=20, stop=stop
            )

    async def main() -> list[RunSummary]:
        stops = [asyncio.Event() for _ in range(3)]
        async with asyncio.timeout(patient(LIMIT_S)):
            first = asyncio.ensure_future(one(stops[0]))
            await until(lambda: sum(map(len, handled.values())) > 100)
            second = asyncio.ensure_future(one(stops[1]))
            await until(lambda: sum(map(len, handled.values())) > 400)
            stops[0].set()
            third = asyncio.ensure_future(one(stops[2]))
            await until(lambda: sum(map(len, handled.values())) == count)
            stops[1].set()
            stops[2].set()
            return [await first, await second, await third]

    summaries = asyncio.run(main())
    first, *others = [summary.processed for summary in summaries]
    assert first
    assert any(others)
    assert committed(live_broker, group) == {
        TopicPartition(topic, number): count // 6 for number in range(6)
    }
    # Members that stop cleanly hand over without handling a record twice.
    assert sum(summary.processed for summary in summaries) == count


KILLED = """
import os, sys, threading
from penstock import Consumer
bootstrap, topic, group, journal = sys.argv[1:]
file = os.open(journal, os.O_WRONLY | os.O_APPEND)
failed = set()
handled = set(open(journal, "rb"))
enough = len(handled) + 1_000  # Then it waits to be killed.

def handle(record):
    if record.offset % 50 == 0 and record.offset not in failed:
        failed.add(record.offset)
        raise ValueError("not yet")
    if len(handled) >= enough:
        threading.Event().wait()
    line = b"%d %d\\n" % (record.partition, record.offset)
    handled.add(line)
    os.write(file, line)

with Consumer(
    bootstrap, topics=[topic], group_id=group, group_instance_id="one",
    auto_offset_reset="earliest",
) as consumer:
    consumer.run(
        handle, ordering="none", concurrency=3, commit_interval_ms=5, retry_backoff_ms=5
    )
"""
"""A script that handles records, notes them in a file, and waits to be killed."""


def handled(journal: Path) -> dict[int, set[int]]:
    """Returns the offsets that are noted in the file, by partition."""
    found: dict[int, set[int]] = defaultdict(set)
    for line in journal.read_bytes().splitlines():
        partition, offset = line.split()
        found[int(partition)].add(int(offset))
    return found


def test_a_killed_run_loses_nothing(live_broker: Broker, tmp_path: Path) -> None:
    """At each kill, everything below the committed offsets had been handled.
    In the end everything is."""
    count = 3_000
    topic = fill(live_broker, numbers(count), partitions=3)
    group = live_broker.new_name("group")
    journal = tmp_path / "handled"
    journal.touch()
    command = [sys.executable, "-c", KILLED]
    chance = random.Random(3)
    pause = threading.Event()

    def total() -> int:
        return sum(map(len, handled(journal).values()))

    kills = 0
    while total() < count:
        assert kills < 30
        process = subprocess.Popen(
            [*command, live_broker.bootstrap, topic, group, str(journal)],
        )
        wanted = min(count, total() + chance.randrange(300, 900))
        for _ in range(int(LIMIT_S * 100)):
            if total() >= wanted or process.poll() is not None:
                break
            pause.wait(0.01)
        assert process.poll() is None, "the run ended by itself"
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        kills += 1
        done = handled(journal)
        for topic_partition, offset in committed(live_broker, group).items():
            assert done[topic_partition.partition] >= set(range(offset))
    assert kills >= 3
    assert handled(journal) == {number: set(range(count // 3)) for number in range(3)}


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_run_continues_after_the_broker_was_away(own_broker: Broker, how: str) -> None:
    """Nothing is lost."""
    count = 2_000
    topic = fill(own_broker, numbers(count), partitions=2)
    group = own_broker.new_name("group")
    handled: dict[int, set[int]] = defaultdict(set)
    timeout_s = patient(1.0)

    async def handle(record: Raw) -> None:
        handled[record.partition].add(record.offset)
        await asyncio.sleep(0.0005)

    def done() -> int:
        return sum(map(len, handled.values()))

    async def main() -> None:
        stop = asyncio.Event()
        consumer: aio.Consumer[bytes | None, bytes | None] = aio.Consumer(
            **options(own_broker, topic, group), request_timeout_ms=round(timeout_s * 1_000)
        )
        async with consumer:
            running = asyncio.ensure_future(
                consumer.run(handle, commit_interval_ms=20, in_progress_max=50, stop=stop)
            )
            await until(lambda: done() > 200)
            if how == "killed":
                await asyncio.to_thread(own_broker.kill)
                await asyncio.to_thread(own_broker.start)
            else:
                own_broker.freeze()
                await asyncio.sleep(1.5 * timeout_s)
                own_broker.thaw()
            await until(lambda: done() == count)
            stop.set()
            await running

    asyncio.run(main())
    assert set(committed(own_broker, group).values()) == {count // 2}


def test_delivery_loops_continue_where_the_last_one_stopped(live_broker: Broker) -> None:
    """Sync and async, at-least-once and at-most-once."""
    topic = fill(live_broker, numbers(50))
    group = live_broker.new_name("group")

    def member() -> Consumer[bytes | None, bytes | None]:
        return Consumer(**options(live_broker, topic, group))

    with (
        member() as consumer,
        pytest.raises(ZeroDivisionError),
        consumer.at_least_once() as once_or_more,
    ):
        for record in once_or_more:
            if record.offset == 9:
                raise ZeroDivisionError
    assert committed(live_broker, group) == {TopicPartition(topic, 0): 9}

    async def go_on() -> None:
        async with (
            aio.Consumer(**options(live_broker, topic, group)) as consumer,
            consumer.at_most_once(max_records=10) as records,
        ):
            async for record in records:
                if record.offset == 24:
                    break

    asyncio.run(go_on())
    assert committed(live_broker, group) == {TopicPartition(topic, 0): 25}
    rest: list[int] = []
    with member() as consumer:
        with consumer.at_most_once() as records:
            for record in records:
                rest.append(record.offset)
                if record.offset == 49:
                    break
        assert rest == list(range(25, 50))
        with consumer.at_most_once(idle_timeout_ms=500) as records:
            assert list(records) == []
    assert committed(live_broker, group) == {TopicPartition(topic, 0): 50}
