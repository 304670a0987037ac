"""Loops over a consumer in memory: what is committed when, and what is handed out again."""

from __future__ import annotations

import asyncio

import pytest

from client.processing.fake_consumer import FakeConsumer, log_of
from penstock.client.errors import CommitFailed, ConnectionLost, OptionError
from penstock.client.model import TopicPartition
from penstock.client.processing.delivery import AtLeastOnce, AtMostOnce

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)


def test_at_least_once_commits_after_the_body() -> None:
    """While the body has a record nothing from it on is committed; a normal end commits all."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        async with AtLeastOnce(consumer, idle_timeout_ms=20, commit_interval_ms=0) as records:
            async for record in records:
                assert consumer.committed.get(A, 0) <= record.offset
        assert consumer.committed == {A: 20}
        # Every record asked for the next, so every one was committed by itself.
        assert len(consumer.commits) == 20
        assert consumer.held == 0

    asyncio.run(main())


def test_at_least_once_commits_before_it_waits() -> None:
    """Between commits by time, a commit comes before each poll; not one for every record."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        loop = AtLeastOnce(consumer, idle_timeout_ms=20, commit_interval_ms=60_000, max_records=5)
        async with loop as records:
            async for _ in records:
                pass
        assert consumer.commits == [{A: 5}, {A: 10}, {A: 15}, {A: 20}]

    asyncio.run(main())


def test_at_least_once_leaves_the_record_in_hand_when_the_body_raises() -> None:
    """It is not committed, and the consumer stands on it again."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20), B: log_of(B, 3)})
        with pytest.raises(ValueError, match="bad"):
            async with AtLeastOnce(consumer, max_records=10) as records:
                async for record in records:
                    if record.offset == 4:
                        raise ValueError("bad")
        assert consumer.committed == {A: 4}
        assert consumer.positions[A] == 4
        async with AtLeastOnce(consumer, idle_timeout_ms=20) as records:
            again = [record.offset async for record in records if record.partition == 0]
        assert again == list(range(4, 20))
        assert consumer.committed == {A: 20, B: 3}

    asyncio.run(main())


def test_at_least_once_counts_a_break_as_done() -> None:
    """Leaving the block in good order finishes the record in hand, and no more."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        async with AtLeastOnce(consumer) as records:
            async for record in records:
                if record.offset == 3:
                    break
        assert consumer.committed == {A: 4}
        assert consumer.positions[A] == 4

    asyncio.run(main())


def test_at_least_once_drops_what_the_group_gave_to_others() -> None:
    """After a commit that came too late, what was polled before it is not handed out."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 12)})
        consumer.refuse_commits = [CommitFailed("moved on")]
        seen = []
        loop = AtLeastOnce(consumer, idle_timeout_ms=20, commit_interval_ms=0, max_records=6)
        async with loop as records:
            async for record in records:
                seen.append(record.offset)
        assert seen == [0, *range(6, 12)]

    asyncio.run(main())


def test_at_least_once_tells_of_a_commit_that_failed() -> None:
    """The error comes out of the loop, and what was done is handed out again."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 12)})
        consumer.refuse_commits = [ConnectionLost("gone"), ConnectionLost("gone")]
        with pytest.raises(ConnectionLost):
            async with AtLeastOnce(consumer, commit_interval_ms=0) as records:
                async for _ in records:
                    pass
        assert consumer.committed == {}
        assert consumer.held == 0

    asyncio.run(main())


def test_at_most_once_commits_before_the_body() -> None:
    """By the time the body has a record, it is committed."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        seen = []
        async with AtMostOnce(consumer, idle_timeout_ms=20, max_records=6) as records:
            async for record in records:
                assert consumer.committed[A] > record.offset
                seen.append(record.offset)
        assert seen == list(range(20))
        assert consumer.commits == [{A: 6}, {A: 12}, {A: 18}, {A: 20}]

    asyncio.run(main())


def test_at_most_once_takes_back_what_nobody_had() -> None:
    """A loop that is left gives back the commit of the records that were not handed out."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20), B: log_of(B, 4)})
        with pytest.raises(ValueError, match="bad"):
            async with AtMostOnce(consumer, max_records=24) as records:
                async for record in records:
                    if record.offset == 4:
                        raise ValueError("bad")
        # Offset 4 had been handed out: whatever became of it, it does not come again.
        assert consumer.committed == {A: 5, B: 0}
        assert consumer.positions == {A: 5, B: 0}

    asyncio.run(main())


def test_at_most_once_hands_out_nothing_that_is_not_committed() -> None:
    """When the group has moved on the records are dropped; on any other failure they are kept."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 18)})
        consumer.refuse_commits = [CommitFailed("moved on"), ConnectionLost("gone")]
        seen = []
        async with AtMostOnce(consumer, idle_timeout_ms=20, max_records=6) as records:
            with pytest.raises(ConnectionLost):
                async for record in records:
                    seen.append(record.offset)
            assert seen == []
            async for record in records:
                seen.append(record.offset)
        assert seen == list(range(6, 18))

    asyncio.run(main())


def test_a_group_is_needed() -> None:
    """There is nothing to commit to without one, and the message says what to give."""
    consumer = FakeConsumer({A: log_of(A, 1)}, group=None)
    with pytest.raises(OptionError, match="group_id"):
        AtLeastOnce(consumer)
    with pytest.raises(OptionError, match="group_id"):
        AtMostOnce(consumer)
