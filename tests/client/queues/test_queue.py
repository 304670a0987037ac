"""Queues on a real broker: share groups, locks, restarts, worker pools, replies.

One broker serves all tests of this file, except those that restart it. The tests in `CHOSEN` also
run on Apache Kafka (`tests/compat`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Admin, Job, Producer, Queue, aio, serializers
from penstock.cli.app import run
from penstock.client.admin.operations import ResourceType, alter_configs
from penstock.client.sharing import share_consumer
from penstock.client.sharing.leases import LeaseState
from penstock.errors import ApiNotServed, ClientError, LockLost, RequestTimedOut
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = patient(120.0)
LOCK_MS = min(15_000, int(patient(1_000.0)))
"""For locks whose end a test waits for."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


async def take_all(queue: aio.Queue[bytes], count: int) -> list[aio.Job[bytes]]:
    jobs: list[aio.Job[bytes]] = []
    async with asyncio.timeout(LIMIT_S):
        while len(jobs) < count:
            job = await queue.take()
            assert job is not None
            jobs.append(job)
    return jobs


def test_prefetch_can_be_changed(broker: Broker) -> None:
    """With 0 nothing is fetched. Jobs that were taken count until they are settled."""
    topic = broker.new_topic(1)
    with Queue(broker.bootstrap, topic, prefetch=1) as queue:
        queue.put_all([b"1", b"2", b"3"])
        first = queue.take(LIMIT_S)
        assert first is not None
        assert queue.take(0.5) is None
        queue.set_prefetch(2)
        second = queue.take(LIMIT_S)
        assert second is not None
        queue.set_prefetch(0)
        first.done()
        second.done()
        assert queue.take(0.5) is None
        queue.set_prefetch(1)
        third = queue.take(LIMIT_S)
        assert third is not None
        assert third.value == b"3"
        with pytest.raises(ClientError, match="prefetch is -1"):
            queue.set_prefetch(-1)


def test_each_job_is_done_once_by_two_members(broker: Broker) -> None:
    topic = broker.new_topic(3)
    seen: Counter[bytes | None] = Counter()

    async def work(stop: asyncio.Event) -> None:
        async def handle(job: aio.Job[bytes]) -> None:
            seen[job.value] += 1
            if len(seen) == 3_000:
                stop.set()

        async with aio.Queue(broker.bootstrap, topic) as queue:
            await queue.run(handle, workers=5, stop=stop, signals=False)

    async def main() -> int:
        async with aio.Queue(broker.bootstrap, topic, compression_type="zstd") as queue:
            await queue.put_all([b"%d" % number for number in range(3_000)])
            stop = asyncio.Event()
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(work(stop), work(stop))
            return (await queue.stats()).depth

    assert asyncio.run(main()) == 0
    assert set(seen.values()) == {1}


def test_retry_reject_and_done(broker: Broker) -> None:
    """A job that is given back comes again with a higher count; one that is rejected does not."""
    topic = broker.new_topic(1)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            await queue.put_all([b"again", b"never", b"done"])
            jobs = {job.value: job for job in await take_all(queue, 3)}
            await asyncio.gather(
                jobs[b"again"].retry(), jobs[b"never"].reject(), jobs[b"done"].done()
            )
            with pytest.raises(ClientError, match="settled already"):
                await jobs[b"done"].done()
            (second,) = await take_all(queue, 1)
            assert (second.value, second.attempt) == (b"again", 2)
            await second.done()
            assert (await queue.stats()).depth == 0
            assert await queue.take(timeout_s=0.5) is None

    asyncio.run(main())


def test_jobs_of_a_closed_queue_are_delivered_to_others_at_once(broker: Broker) -> None:
    topic = broker.new_topic(1)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            await queue.put_all([b"%d" % number for number in range(50)])
            held = await take_all(queue, 10)
        with pytest.raises(LockLost):
            await held[0].done()
        async with aio.Queue(broker.bootstrap, topic) as other:
            jobs = await take_all(other, 50)
            assert {job.value for job in jobs} == {b"%d" % number for number in range(50)}
            assert {job.attempt for job in jobs} == {2}

    asyncio.run(main())


def test_no_more_jobs_are_held_than_prefetch_allows(broker: Broker) -> None:
    topic = broker.new_topic(2)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic, prefetch=7) as queue:
            await queue.put_all([b"x"] * 100)
            jobs = await take_all(queue, 7)
            assert await queue.take(timeout_s=1) is None
            await jobs[0].done()
            await take_all(queue, 1)
            assert await queue.take(timeout_s=0.5) is None

    asyncio.run(main())


def test_locks_end_without_extension_and_last_with_it(
    broker: Broker, lock_ms: int = LOCK_MS
) -> None:
    """On a slow machine an answer may arrive after the end of the locks in it, and the record comes
    once more. So the second lock is longer, and the attempt is not checked to be the second."""
    topic = broker.new_topic(1)

    async def set_lock(queue: aio.Queue[bytes], lock_ms: int) -> None:
        config = {"share.record.lock.duration.ms": str(lock_ms)}
        await alter_configs(queue._cluster, ResourceType.GROUP, topic, set_values=config)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic, prefetch=1, lock_extend=False) as short:
            await short._cluster.partitions(topic)
            await set_lock(short, lock_ms)
            await short.put(b"slow")
            (first,) = await take_all(short, 1)
            short.set_prefetch(0)
            await set_lock(short, max(lock_ms, min(60_000, int(patient(8.0) * 1000))))
            async with aio.Queue(broker.bootstrap, topic) as long:
                (second,) = await take_all(long, 1)
                assert second.attempt > first.attempt
                with pytest.raises(LockLost):
                    await first.done()
                link = next(iter(long._consumer._links.values())) if long._consumer else None
                assert link is not None
                before = link.renewed_at
                async with asyncio.timeout(LIMIT_S):
                    while link.renewed_at == before:
                        link.changed.clear()
                        await link.changed.wait()
                await second.extend()
                await second.done()

    asyncio.run(main())


def test_a_forgotten_job_does_not_take_the_room_of_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its lock is over, the queue fetches again, and gets the job once more. On a slow machine
    the answer with the first delivery may arrive too late, so the counts may be higher."""
    monkeypatch.setattr(share_consumer, "_GRACE_S", 0.2)
    topic = broker.new_topic(1)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic, prefetch=1, lock_extend=False) as queue:
            await queue._cluster.partitions(topic)
            config = {"share.record.lock.duration.ms": str(LOCK_MS)}
            await alter_configs(queue._cluster, ResourceType.GROUP, topic, set_values=config)
            await queue.put(b"forgotten")
            (first,) = await take_all(queue, 1)
            (second,) = await take_all(queue, 1)
            assert second.attempt > first.attempt
            with pytest.raises(LockLost):
                await first.done()

    asyncio.run(main())


def test_one_lost_lock_does_not_spoil_the_acknowledgements_of_others(broker: Broker) -> None:
    """The leader refuses all acknowledgements of a partition together: they are sent again."""
    topic = broker.new_topic(1)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic) as queue:
            await queue.put_all([b"%d" % number for number in range(20)])
            jobs = await take_all(queue, 20)
            await jobs[13].done()
            jobs[13]._lease.state = LeaseState.HELD
            outcomes = await asyncio.gather(
                *(job.done() for job in jobs[1:]), return_exceptions=True
            )
            # While the first job is held, the start offset does not pass the others.
            assert [type(each) for each in outcomes if each is not None] == [LockLost]
            assert isinstance(outcomes[12], LockLost)
            await jobs[0].done()
            assert (await queue.stats()).depth == 0

    asyncio.run(main())


def test_records_of_transactions_and_of_other_producers_are_jobs(broker: Broker) -> None:
    """The markers of transactions are no jobs. They are acknowledged as gaps, so the queue ends
    empty."""
    topic = broker.new_topic(1)
    with Producer(broker.bootstrap, transactional_id=broker.new_name("txn")) as producer:
        for value in (b"one", b"two"):
            with producer.transaction():
                producer.send(topic, value, key=b"k", headers=[("h", b"1")])
    with Queue(broker.bootstrap, topic) as queue:
        jobs = [queue.take(LIMIT_S), queue.take(LIMIT_S)]
        assert [job and job.value for job in jobs] == [b"one", b"two"]
        for job in jobs:
            assert job is not None
            assert (job.key, job.header("h")) == (b"k", b"1")
            job.done()
        for _ in range(100):
            if queue.stats().depth == 0:
                break
            assert queue.take(timeout_s=0.5) is None
        assert queue.stats().depth == 0


def test_a_queue_survives_a_restart_of_its_broker() -> None:
    with Broker() as broker:
        survive_a_restart(broker)


def survive_a_restart(broker: Broker) -> None:
    """Sessions, leaders and the coordinator are lost. Jobs that were held come again."""
    topic = broker.new_topic(2)
    with Queue(broker.bootstrap, topic) as queue:
        queue.put_all([b"%d" % number for number in range(40)])
        done: set[bytes | None] = set()
        held = queue.take(LIMIT_S)
        assert held is not None
        broker.kill()
        broker.start()
        while len(done) < 40:
            job = queue.take(LIMIT_S)
            assert job is not None, f"only {len(done)} jobs came"
            try:
                job.done()
            except LockLost:
                continue
            done.add(job.value)
        with pytest.raises(LockLost):
            held.done()


def test_an_exact_reply_reaches_the_client_that_asked(broker: Broker) -> None:
    topic = broker.new_topic(1)

    async def main() -> None:
        async with aio.Queue(broker.bootstrap, topic, serializer=serializers.json) as queue:
            with pytest.raises(RequestTimedOut):
                await queue.ask({"n": 0}, timeout_s=0.1)

            async def work() -> None:
                async for job in queue:
                    assert job.wants_reply
                    assert isinstance(job.value, dict)
                    await job.reply(job.value["n"] * 2)
                    await job.done()

            worker = asyncio.create_task(work())
            found = await asyncio.gather(
                *(queue.ask({"n": number}, timeout_s=LIMIT_S) for number in range(20))
            )
            assert found == [number * 2 for number in range(20)]
            worker.cancel()
            await queue.put({"n": 1})

        async with aio.Queue(broker.bootstrap, topic, serializer=serializers.json) as plain:
            job = await plain.take(LIMIT_S)
            assert job is not None
            with pytest.raises(ClientError, match="ask"):
                await job.reply(1)

    asyncio.run(main())


def test_settings_that_the_broker_does_not_have_are_named(broker: Broker) -> None:
    with Queue(broker.bootstrap, broker.new_topic(1)) as queue:
        for keyword, setting in (
            ({"delay": 5}, "penstock.timed.records"),
            ({"ttl": 5}, "penstock.timed.records"),
            ({"priority": 1}, "penstock.priority.levels"),
            ({"dedup": "x"}, "penstock.dedup.window.ms"),
        ):
            with pytest.raises(ClientError, match=setting):
                queue.put(b"x", **keyword)
        assert queue.stats().depth == 0


def test_a_value_that_cannot_be_read_can_be_rejected(broker: Broker) -> None:
    topic = broker.new_topic(1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"{no json").result()
    with Queue(broker.bootstrap, topic, serializer=serializers.json) as queue:
        job = queue.take(LIMIT_S)
        assert job is not None
        with pytest.raises(ClientError, match="cannot deserialize"):
            _ = job.value
        job.reject()
        assert queue.stats().depth == 0


def test_stats_peek_and_drain(broker: Broker) -> None:
    topic = broker.new_topic(2)
    with Queue(broker.bootstrap, topic) as queue:
        queue.put_all([b"%d" % number for number in range(30)])
        before = queue.stats()
        assert (before.depth, before.members, before.state) == (30, 0, "")
        assert len(queue.peek(5)) == 5
        assert len(queue.peek(100)) == 30
        assert queue.drain() == 30
        after = queue.stats()
        assert (after.depth, after.members, after.state) == (0, 1, "Stable")
        assert queue.peek() == []


def test_handlers_that_fail_give_their_jobs_back(broker: Broker) -> None:
    """Until the group's limit of deliveries, which is 5."""
    topic = broker.new_topic(1)
    attempts: list[int] = []
    stop = threading.Event()
    with Queue(broker.bootstrap, topic) as queue:

        def handle(job: object) -> None:
            attempts.append(getattr(job, "attempt", 0))
            if len(attempts) == 5:
                stop.set()
            raise ValueError("cannot do it")

        queue.put(b"x")
        summary = queue.run(handle, workers=2, stop=stop)
        assert (summary.failed, summary.done) == (5, 0)
        assert attempts == [1, 2, 3, 4, 5]


WORKER = """
import sys, time, threading
from penstock import Queue
bootstrap, topic = sys.argv[1:]

def handle(job):
    print("begun", flush=True)
    time.sleep(1)

with Queue(bootstrap, topic) as queue:
    print(queue.run(handle, workers=2), flush=True)
"""


def test_a_worker_that_gets_sigterm_finishes_its_jobs_and_releases_the_rest(
    broker: Broker, tmp_path: Path
) -> None:
    topic = broker.new_topic(1)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with Queue(broker.bootstrap, topic) as queue:
        queue.put_all([b"%d" % number for number in range(20)])
        command = [sys.executable, str(script), broker.bootstrap, topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert [worker.stdout.readline() for _ in range(2)] == ["begun\n", "begun\n"]
            os.kill(worker.pid, signal.SIGTERM)
            rest = worker.stdout.read()
            assert worker.wait(LIMIT_S) == 0
        finished = rest.count("begun") + 2
        assert f"WorkSummary(done={finished}, failed=0, released=0, lost=0)" in rest
        jobs: list[Job[bytes]] = []
        while len(jobs) < 20 - finished:
            jobs += queue.take_many(20, LIMIT_S)
        assert len({job.offset for job in jobs}) == 20 - finished
        assert {job.attempt for job in jobs} <= {1, 2}


def test_a_broker_without_share_groups_says_so() -> None:
    with (
        Broker({"group.share.enable": "false"}) as broker,
        Queue(broker.bootstrap, broker.new_topic(1)) as queue,
    ):
        queue.put(b"x")
        with pytest.raises(ApiNotServed, match="share groups need"):
            queue.take(LIMIT_S)
        with Admin(broker.bootstrap) as admin:
            assert admin.list_groups() == []


def test_the_commands_of_queues(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    topic = broker.new_topic(1)

    def said(*arguments: str, code: int = 0) -> str:
        command, *rest = arguments
        assert run(["queue", command, topic, *rest, "-b", broker.bootstrap]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    assert (
        said("put", "cat", "dog", "--key", "k", "--header", "a=b") == f"put 2 jobs into {topic}\n"
    )
    assert "penstock.timed.records" in said("put", "cow", "--delay", "5", code=2)
    assert said("peek") == "cat\ndog\n"
    taken = json.loads(said("take", "--json", "--timeout", f"{LIMIT_S:g}"))
    assert (taken["value"], taken["key"], taken["attempt"]) == ("cat", "k", 1)
    assert taken["headers"] == {"a": "b"}
    assert said("take", "--release", "--timeout", f"{LIMIT_S:g}") == "dog\n"
    assert json.loads(said("stats", "--json"))["depth"] == 1
    assert f"{topic}: 1 job, group {topic} (Empty, 0 members)" in said("stats")
    assert "--yes" in said("drain", code=2)
    assert said("drain", "--yes") == f"drained 1 job from {topic}\n"
    assert said("peek") == f"{topic} has no jobs\n"
    assert "no job arrived" in said("take", "--timeout", "0.5", code=1)


CHOSEN = [
    test_each_job_is_done_once_by_two_members,
    test_retry_reject_and_done,
    test_jobs_of_a_closed_queue_are_delivered_to_others_at_once,
    test_no_more_jobs_are_held_than_prefetch_allows,
    test_one_lost_lock_does_not_spoil_the_acknowledgements_of_others,
    test_records_of_transactions_and_of_other_producers_are_jobs,
    test_an_exact_reply_reaches_the_client_that_asked,
    test_settings_that_the_broker_does_not_have_are_named,
    test_a_value_that_cannot_be_read_can_be_rejected,
    test_stats_peek_and_drain,
    test_handlers_that_fail_give_their_jobs_back,
]
"""Those that also run on Apache Kafka."""
