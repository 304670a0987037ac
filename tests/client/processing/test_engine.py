"""Tests runs with an in-memory consumer: order, limits, failures, rebalances while handling."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from client.processing.fake_consumer import LIMIT_S, FakeConsumer, Text, log_of, until
from penstock.client.errors import CommitFailed, ConnectionLost, OptionError
from penstock.client.model import RecordMetadata
from penstock.client.processing import dead_letter_headers
from penstock.client.processing.contracts import ErrorAction, Handler, RunSummary
from penstock.client.processing.run import run
from penstock.client.processing.run_options import RunOptions
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)
QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "commit_interval_ms": 5}


class Letters:
    """A producer for dead letters that stores them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, Any, dict[str, bytes | None]]] = []
        self.refuse: Exception | None = None

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[RecordMetadata]:
        delivery = asyncio.get_running_loop().create_future()
        if self.refuse is not None:
            delivery.set_exception(self.refuse)
        else:
            self.sent.append((topic, key, value, dict(headers)))
            delivery.set_result(RecordMetadata(topic, 0, 0, 0))
        return delivery


async def finish_all(
    consumer: FakeConsumer,
    handler: Handler[str, str],
    *,
    producer: Letters | None = None,
    stop: asyncio.Event | None = None,
    **options: Any,
) -> RunSummary:
    """Runs until everything is committed, or `stop` is set."""
    end = stop or asyncio.Event()
    wanted = {
        topic_partition: log[-1].offset + 1 for topic_partition, log in consumer.logs.items() if log
    }

    async def watch() -> None:
        await until(lambda: end.is_set() or consumer.committed == wanted)
        end.set()

    async with asyncio.timeout(patient(LIMIT_S)):
        watcher = asyncio.ensure_future(watch())
        try:
            return await run(
                consumer, handler, RunOptions(stop=end, **(QUICK | options)), producer=producer
            )
        finally:
            watcher.cancel()


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("plain", [False, True], ids=["async", "threads"])
def test_partitions_keep_their_order(concurrency: int, plain: bool) -> None:
    """The records of each partition are handled once, one at a time, in log order."""
    seen: dict[int, list[int]] = defaultdict(list)
    inside: set[int] = set()

    def begin(record: Text) -> None:
        assert record.partition not in inside
        inside.add(record.partition)

    def end(record: Text) -> None:
        seen[record.partition].append(record.offset)
        inside.discard(record.partition)

    async def handle(record: Text) -> None:
        begin(record)
        await asyncio.sleep(0)
        end(record)

    def handle_plainly(record: Text) -> None:
        assert threading.current_thread() is not threading.main_thread()
        begin(record)
        end(record)

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 50), B: log_of(B, 30)})
        summary = await finish_all(
            consumer, handle_plainly if plain else handle, concurrency=concurrency
        )
        assert seen == {0: list(range(50)), 1: list(range(30))}
        assert summary == RunSummary(processed=80, committed={A: 50, B: 30})
        assert consumer.held == 0
        assert consumer.listeners == []

    asyncio.run(main())


def test_keys_keep_their_order_and_run_concurrently() -> None:
    """With ordering by key, a slow key delays only itself."""
    seen: dict[str, list[int]] = defaultdict(list)

    async def main() -> None:
        others_done = asyncio.Event()

        async def handle(record: Text) -> None:
            if record.key == "slow" and record.offset < 4:
                await others_done.wait()
            seen[record.key].append(record.offset)
            if len(seen["quick"]) == 10:
                others_done.set()

        consumer = FakeConsumer({A: log_of(A, 20, ("slow", "quick"))})
        await finish_all(consumer, handle, ordering="key", concurrency=2)
        assert seen["quick"] == list(range(0, 20, 2))
        assert seen["slow"] == list(range(1, 20, 2))

    asyncio.run(main())


def test_an_unfinished_record_holds_back_the_commit() -> None:
    """No offset from the unfinished record on is committed, however many later records are done."""

    async def main() -> None:
        stuck, stop = asyncio.Event(), asyncio.Event()
        done = 0

        async def handle(record: Text) -> None:
            nonlocal done
            if record.offset == 3:
                await stuck.wait()
            done += 1
            if done == 49:
                # All other records are done. Leave time for a wrong commit to happen.
                await asyncio.sleep(0.03)
                stop.set()

        consumer = FakeConsumer({A: log_of(A, 50)})
        summary = await finish_all(
            consumer, handle, ordering="none", concurrency=3, stop=stop, drain_timeout_ms=20
        )
        assert summary.processed == 49
        assert consumer.committed == {A: 3}
        assert consumer.positions[A] == 3

    asyncio.run(main())


def test_records_in_progress_are_limited() -> None:
    """A full window pauses its partition. Polling continues, and other partitions are served."""

    async def main() -> None:
        gate, stop = asyncio.Event(), asyncio.Event()
        begun = 0
        from_b = 0

        async def handle(record: Text) -> None:
            nonlocal begun, from_b
            begun += 1
            if record.partition == 0:
                await gate.wait()
            else:
                from_b += 1

        consumer = FakeConsumer({A: log_of(A, 200), B: log_of(B, 60)})
        running = asyncio.ensure_future(
            finish_all(consumer, handle, ordering="none", concurrency=30, in_progress_max=20)
        )
        await until(lambda: from_b == 60)
        polls = consumer.polls
        await until(lambda: consumer.polls >= polls + 5)
        assert A in consumer.paused()
        assert consumer.positions[A] <= 20
        gate.set()
        assert (await running).processed == 260
        assert consumer.paused() == frozenset()
        assert not stop.is_set()

    asyncio.run(main())


def test_partitions_paused_by_the_user_stay_paused() -> None:
    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 40), B: log_of(B, 10)})
        consumer.pause(B)
        stop = asyncio.Event()

        async def handle(record: Text) -> None:
            assert record.partition == 0
            if record.offset == 39:
                stop.set()

        await finish_all(consumer, handle, stop=stop, in_progress_max=2)
        assert consumer.paused() == {B}

    asyncio.run(main())


@pytest.mark.parametrize("plain", [False, True], ids=["async", "threads"])
def test_retries_keep_the_order(plain: bool) -> None:
    """A failed record is retried before the next record of its lane starts."""
    seen: list[int] = []
    failures = defaultdict[int, int](int)

    def handle(record: Text) -> None:
        if record.offset % 5 == 0 and failures[record.offset] < 2:
            failures[record.offset] += 1
            raise ConnectionError("not now")
        seen.append(record.offset)

    async def handle_async(record: Text) -> None:
        handle(record)

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        summary = await finish_all(consumer, handle if plain else handle_async, concurrency=3)
        assert seen == list(range(20))
        assert (summary.processed, summary.retried) == (20, 8)

    asyncio.run(main())


def test_a_failed_record_is_sent_to_the_dead_letter_topic() -> None:
    """After its retries, with the reason in its headers."""

    async def main() -> None:
        attempts = 0

        async def handle(record: Text) -> None:
            nonlocal attempts
            if record.offset == 4:
                attempts += 1
                raise ValueError("cannot read this")

        consumer = FakeConsumer({A: log_of(A, 10)})
        letters = Letters()
        summary = await finish_all(
            consumer, handle, producer=letters, retries=2, dead_letter_topic="dead"
        )
        assert attempts == 3
        assert (summary.processed, summary.retried, summary.dead_lettered) == (9, 2, 1)
        ((topic, key, value, headers),) = letters.sent
        assert (topic, key, value) == ("dead", "k", "t-0:4")
        assert headers == {
            dead_letter_headers.TOPIC: b"t",
            dead_letter_headers.PARTITION: b"0",
            dead_letter_headers.OFFSET: b"4",
            dead_letter_headers.TIMESTAMP: b"1004",
            dead_letter_headers.ERROR: b"ValueError: cannot read this",
            dead_letter_headers.ATTEMPTS: b"3",
        }
        assert consumer.committed == {A: 10}

    asyncio.run(main())


def test_a_failed_dead_letter_ends_the_run() -> None:
    """A record is done only when its dead letter is acknowledged. It is not committed before."""

    async def main() -> None:
        async def handle(record: Text) -> None:
            if record.offset == 4:
                raise ValueError("cannot read this")

        consumer = FakeConsumer({A: log_of(A, 10)})
        letters = Letters()
        letters.refuse = ConnectionLost("gone")
        with pytest.raises(ConnectionLost) as caught:
            await finish_all(
                consumer, handle, producer=letters, retries=0, dead_letter_topic="dead"
            )
        assert isinstance(caught.value.__cause__, ValueError)
        assert consumer.committed == {A: 4}

    asyncio.run(main())


@pytest.mark.parametrize("plain", [False, True], ids=["async", "threads"])
def test_without_a_dead_letter_topic_the_run_fails(plain: bool) -> None:
    """The run raises the handler's own error. Finished records are committed, the others are
    not."""

    def handle(record: Text) -> None:
        if record.offset == 6:
            raise ValueError("cannot read this")

    async def handle_async(record: Text) -> None:
        handle(record)

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 10)})
        with pytest.raises(ValueError, match="cannot read this") as caught:
            await finish_all(consumer, handle if plain else handle_async, retries=1)
        assert caught.value.__notes__ == ["while handling offset 6 of t-0, after 2 attempts"]
        assert consumer.committed == {A: 6}
        assert consumer.positions[A] == 6
        assert consumer.held == 0

    asyncio.run(main())


def test_on_error_decides_what_happens_to_a_failed_record() -> None:
    """It may skip the record, retry beyond the limit, or leave the decision to the options. It
    is called for each attempt."""
    asked: list[tuple[int, str, int]] = []
    failures = defaultdict[int, int](int)

    async def handle(record: Text) -> None:
        if record.offset in (2, 5):
            failures[record.offset] += 1
            if record.offset == 2 or failures[5] < 4:
                raise ValueError(f"bad {record.offset}")

    async def decide(record: Text, error: Exception, attempts: int) -> ErrorAction | None:
        asked.append((record.offset, str(error), attempts))
        if record.offset == 5:
            return "retry"
        return "skip" if attempts == 2 else None

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 10)})
        summary = await finish_all(consumer, handle, retries=1, on_error=decide)
        assert (summary.processed, summary.retried, summary.skipped) == (9, 4, 1)
        assert asked[:2] == [(2, "bad 2", 1), (2, "bad 2", 2)]
        assert asked[2:] == [(5, "bad 5", 1), (5, "bad 5", 2), (5, "bad 5", 3)]

    asyncio.run(main())


def test_failed_commits_are_repeated() -> None:
    """Unless the group has moved on; then the commit is dropped."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 30)})
        consumer.refuse_commits = [ConnectionLost("gone"), CommitFailed("moved on")]

        async def handle(record: Text) -> None:
            await asyncio.sleep(0.001)

        summary = await finish_all(consumer, handle)
        assert consumer.refuse_commits == []
        assert summary.committed == {A: 30}

    asyncio.run(main())


def test_a_canceled_run_commits_finished_records() -> None:
    """Cancellation cancels the handler, commits the finished records and sets the
    position back to the others."""

    async def main() -> None:
        in_hand = asyncio.Event()

        async def handle(record: Text) -> None:
            if record.offset == 5:
                in_hand.set()
                await asyncio.Event().wait()

        consumer = FakeConsumer({A: log_of(A, 10)})
        options = RunOptions(commit_interval_ms=60_000)
        running = asyncio.ensure_future(run(consumer, handle, options))
        await in_hand.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert consumer.committed == {A: 5}
        assert consumer.positions[A] == 5
        assert consumer.held == 0

    asyncio.run(main())


def test_a_run_without_a_group_commits_nothing() -> None:
    async def main() -> None:
        stop = asyncio.Event()

        async def handle(record: Text) -> None:
            if record.offset == 9:
                stop.set()

        consumer = FakeConsumer({A: log_of(A, 10)}, group=None)
        summary = await finish_all(consumer, handle, stop=stop)
        assert summary == RunSummary(processed=10)

    asyncio.run(main())


def test_a_plain_function_that_returns_an_awaitable_is_refused() -> None:
    """It would never be awaited, and every record would count as handled."""

    async def later(record: Text) -> None:
        raise AssertionError

    def call(function: Handler[str, str], record: Text) -> object:
        return function(record)

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 10)})
        with pytest.raises(OptionError, match="async def"):
            await finish_all(consumer, partial(call, later))
        assert consumer.commits == []

    asyncio.run(main())


def test_unhashable_keys_are_refused() -> None:
    """Ordering by key needs hashable keys. The error says what to deserialize them to."""

    async def handle(record: Text) -> None:
        raise AssertionError

    async def main() -> None:
        log = log_of(A, 3)
        for record in log:
            record.key = ["not", "hashable"]  # type: ignore[assignment]
        with pytest.raises(OptionError, match="deserialize keys to"):
            await finish_all(FakeConsumer({A: log}), handle, ordering="key")

    asyncio.run(main())


def test_a_seek_back_during_a_run_handles_records_again() -> None:
    """The records from the new position on are handled again, in order."""
    handed: list[int] = []

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})

        async def handle(record: Text) -> None:
            handed.append(record.offset)
            if record.offset == 9 and handed.count(9) == 1:
                consumer.seek(A, 5)
                consumer.wakeup()
            await asyncio.sleep(0.002)

        await finish_all(consumer, handle, in_progress_max=4)
        again = handed[handed.index(9) + 1 :]
        assert again[again.index(5) :] == list(range(5, 20))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ordering": "topic"}, '"partition", "key" or "none"'),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        ({"retries": -1}, "retries must be a whole number of at least 0"),
        ({"in_progress_max": 0}, "in_progress_max"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], complaint: str) -> None:
    """A wrong option is refused before the first poll, and the error says what is allowed."""
    with pytest.raises(OptionError, match=complaint):
        RunOptions(**options)
