"""Priority, delay, time to live and deduplication of queues on a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from penstock import aio
from penstock.errors import ClientError
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = patient(60.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


async def take(queue: aio.Queue[bytes]) -> aio.Job[bytes]:
    async with asyncio.timeout(LIMIT_S):
        job = await queue.take()
    assert job is not None
    return job


def test_jobs_of_a_higher_priority_come_first(broker: Broker) -> None:
    """The first response may come before all partitions are loaded, and have the lowest level
    only. So the average counts."""
    topic = broker.new_topic(3, configs={"penstock.priority.levels": "3"})

    async def main() -> list[bytes | None]:
        async with aio.Queue(
            broker.bootstrap, topic, prefetch=20, acquire_mode="record_limit"
        ) as queue:
            levels = [level for _ in range(120) for level in range(3)]
            await asyncio.gather(*(queue.put(b"%d" % each, priority=each) for each in levels))
            with pytest.raises(ClientError, match="levels 0 to 2"):
                await queue.put(b"none", priority=3)
            jobs = []
            for _ in range(360):
                job = await take(queue)
                jobs.append(job.value)
                await job.done(wait=False)
            await queue.flush()
            return jobs

    taken = asyncio.run(main())
    assert all(taken.count(b"%d" % level) == 120 for level in range(3))
    places: dict[bytes | None, int] = dict.fromkeys(taken, 0)
    for place, value in enumerate(taken):
        places[value] += place
    assert places[b"2"] < places[b"1"] < places[b"0"], "on average"


def test_a_delayed_job_comes_when_it_is_due_and_others_before_it(broker: Broker) -> None:
    topic = broker.new_topic(1, configs={"penstock.timed.records": "true"})

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic, compression_type="zstd") as queue:
            await queue.put(b"warm up")
            await (await take(queue)).done()
            delay_s = patient(8.0)
            before_ms = time.time() * 1000
            await queue.put(b"later", delay=delay_s)
            await queue.put(b"now")
            first = await take(queue)
            assert first.value == b"now"
            await first.done()
            second = await take(queue)
            assert (second.value, second.attempt) == (b"later", 1)
            assert time.time() * 1000 >= before_ms + 1000 * delay_s
            await second.done()
            assert (await queue.stats()).depth == 0

    asyncio.run(main())


def test_more_far_jobs_than_a_window_holds_do_not_block_the_queue(broker: Broker) -> None:
    """A window holds 2000 jobs. A job with a timestamp in the past is far, and due soon."""
    topic = broker.new_topic(1, configs={"penstock.timed.records": "true"})

    async def main() -> None:
        async with (
            aio.Queue(broker.bootstrap, topic) as queue,
            aio.Producer(broker.bootstrap) as producer,
        ):
            await queue.put(b"warm up")
            await (await take(queue)).done()
            await asyncio.gather(*(queue.put(b"tomorrow", delay=86_400) for _ in range(2100)))
            now_ms = int(time.time() * 1000)
            due_ms = now_ms + int(patient(8_000.0))
            await producer.send(
                topic,
                b"soon",
                timestamp_ms=now_ms - 120_000,
                headers=[("penstock-deliver-at", b"%d" % due_ms)],
            )
            await queue.put(b"now")
            job = await take(queue)
            assert job.value == b"now"
            await job.done()
            job = await take(queue)
            assert job.value == b"soon"
            assert time.time() * 1000 >= due_ms
            await job.done()
            async with asyncio.timeout(LIMIT_S):
                while (await queue.stats()).scheduled != 2100:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (await queue.stats()).depth == 0

    asyncio.run(main())


def test_a_job_that_has_expired_is_not_delivered(broker: Broker) -> None:
    topic = broker.new_topic(1, configs={"penstock.timed.records": "true"})

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            await queue.put(b"too late", ttl=0.001)
            await queue.put(b"in time", ttl=3600)
            job = await take(queue)
            assert job.value == b"in time"
            await job.done()
            assert (await queue.stats()).depth == 0

    asyncio.run(main())


def test_a_due_time_beyond_the_retention_is_refused(broker: Broker) -> None:
    configs = {"penstock.timed.records": "true", "retention.ms": "60000"}
    topic = broker.new_topic(1, configs=configs)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            with pytest.raises(ClientError, match=r"INVALID_TIMESTAMP|retention\.ms"):
                await queue.put(b"never", delay=3600)

    asyncio.run(main())


def test_a_duplicate_is_not_delivered_also_after_a_restart(broker: Broker) -> None:
    """The broker finds the ids in its log again."""
    topic = broker.new_topic(1, configs={"penstock.dedup.window.ms": "3600000"})

    async def first() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            await queue.put(b"a", dedup="order 1")
            await queue.put(b"a again", dedup="order 1")
            await queue.put(b"b", dedup="order 2")
            for expected in (b"a", b"b"):
                job = await take(queue)
                assert job.value == expected
                await job.done()
            assert (await queue.stats()).depth == 0

    async def second() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            await queue.put(b"a once more", dedup="order 1")
            await queue.put(b"c", dedup="order 3")
            job = await take(queue)
            assert job.value == b"c"
            await job.done()
            assert (await queue.stats()).depth == 0

    asyncio.run(first())
    broker.kill()
    broker.start()
    asyncio.run(second())


def test_what_the_topic_does_not_do_is_refused(broker: Broker) -> None:
    topic = broker.new_topic(1)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            with pytest.raises(ClientError, match=r"penstock\.timed\.records.*topic alter"):
                await queue.put(b"later", delay=1)

    asyncio.run(main())
