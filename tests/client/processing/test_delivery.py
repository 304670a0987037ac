"""Tests the delivery loops with an in-memory consumer: what is committed, what is redelivered."""

from __future__ import annotations

import asyncio

import pytest

from client.processing.fake_consumer import BlockingFakeConsumer, FakeConsumer, log_of
from penstock.client.blocking.delivery import AtMostOnce as BlockingAtMostOnce
from penstock.client.errors import CommitFailed, ConnectionLost, OptionError
from penstock.client.processing.delivery import AtLeastOnce, AtMostOnce
from penstock.topic_partition import TopicPartition

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)


def test_at_least_once_commits_after_the_loop_body() -> None:
    """While the body handles a record, neither this record nor a later one is committed. A
    normal end commits everything."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        async with AtLeastOnce(consumer, idle_timeout_ms=20, commit_interval_ms=0) as records:
            async for record in records:
                assert consumer.committed.get(A, 0) <= record.offset
        assert consumer.committed == {A: 20}
        # Every record requested the next one, so each was committed separately.
        assert len(consumer.commits) == 20
        assert consumer.held == 0

    asyncio.run(main())


def test_at_least_once_commits_before_it_waits() -> None:
    """With a long commit interval, a commit precedes each poll, but not each record."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        loop = AtLeastOnce(consumer, idle_timeout_ms=20, commit_interval_ms=60_000, max_records=5)
        async with loop as records:
            async for _ in records:
                pass
        assert consumer.commits == [{A: 5}, {A: 10}, {A: 15}, {A: 20}]

    asyncio.run(main())


def test_at_least_once_does_not_commit_the_current_record_when_the_body_raises() -> None:
    """The consumer's position is set back to it."""

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
    """Leaving the block normally commits the current record, and no later one."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        async with AtLeastOnce(consumer) as records:
            async for record in records:
                if record.offset == 3:
                    break
        assert consumer.committed == {A: 4}
        assert consumer.positions[A] == 4

    asyncio.run(main())


def test_at_least_once_drops_records_after_the_group_moved_on() -> None:
    """After `CommitFailed`, records that were polled earlier are not handed out."""

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


def test_at_least_once_raises_a_failed_commit() -> None:
    """The records whose commit failed are handed out again."""

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


def test_at_most_once_commits_before_the_loop_body() -> None:
    """A record is committed before the body receives it."""

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


def test_at_most_once_reverts_the_commit_of_records_not_handed_out() -> None:
    """This happens when the loop ends early."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20), B: log_of(B, 4)})
        with pytest.raises(ValueError, match="bad"):
            async with AtMostOnce(consumer, max_records=24) as records:
                async for record in records:
                    if record.offset == 4:
                        raise ValueError("bad")
        # Offset 4 had been handed out, so it is not delivered again, whatever happened to it.
        assert consumer.committed == {A: 5, B: 0}
        assert consumer.positions == {A: 5, B: 0}

    asyncio.run(main())


def test_at_most_once_leaves_alone_the_offsets_of_partitions_that_it_has_lost() -> None:
    """Their new owner commits for them. Nothing is left to commit."""

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 20)})
        async with AtMostOnce(consumer, max_records=6) as records:
            await anext(records)
            consumer.assigned.clear()
        assert consumer.commits == [{A: 6}]

    asyncio.run(main())


def test_blocking_at_most_once_leaves_alone_the_offsets_of_partitions_that_it_has_lost() -> None:
    consumer = BlockingFakeConsumer(FakeConsumer({A: log_of(A, 20)}))
    with BlockingAtMostOnce(consumer, max_records=6) as records:
        next(records)
        consumer.inner.assigned.clear()
    assert consumer.inner.commits == [{A: 6}]
    assert consumer.inner.held == 0


def test_at_most_once_hands_out_only_committed_records() -> None:
    """If the group has moved on, the records are dropped. After any other failure they are kept."""

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


def test_a_group_id_is_required() -> None:
    """Without a group there is nowhere to commit. The error says which option to give."""
    consumer = FakeConsumer({A: log_of(A, 1)}, group=None)
    with pytest.raises(OptionError, match="group_id"):
        AtLeastOnce(consumer)
    with pytest.raises(OptionError, match="group_id"):
        AtMostOnce(consumer)
