"""Tests commits and reading them back: order, member identity, errors, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from client.fake_broker import SILENCE, FakeBroker
from client.membership.machine_driver import topic_partitions
from client.open_clusters import cluster_of
from penstock.client.errors import (
    BrokerError,
    ClientError,
    Closed,
    CommitFailed,
    DeadlineExceeded,
    Fenced,
    TopicNotFound,
)
from penstock.client.membership.autocommit import Offsets
from penstock.client.membership.commits import Commits
from penstock.client.membership.steps import Identity
from penstock.client.model import OffsetAndMetadata
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchResponse

A, B = topic_partitions(0, 1)


LONG_S = 60.0
"""How long a commit may take where a test gives a shorter limit to another one."""


class Signer:
    """A member whose generation and partitions the test changes."""

    def __init__(self, generation: int = 3) -> None:
        self.identity = Identity(generation, "me", "i")
        self.held: set[TopicPartition] = {A, B}

    def held_since(self, topic_partition: TopicPartition, generation: int) -> bool:
        return topic_partition in self.held


def run(fake: FakeBroker, work: Callable[[Commits], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with cluster_of(fake.address, deadline_s=patient(30.0)) as cluster:
            commits = Commits(cluster, "g", **options)
            try:
                await work(commits)
            finally:
                await commits.close(2.0)

    fake.model.add_topic("t", 2)
    asyncio.run(main())


def at(offset: int, note: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, note, 1)


def codes(*given: int) -> Callable[[OffsetCommitRequest], OffsetCommitResponse]:
    """Returns an answer function that gives the requested partitions these error codes."""

    def answer(request: OffsetCommitRequest) -> OffsetCommitResponse:
        left = list(given)
        return OffsetCommitResponse(
            0,
            [
                OffsetCommitResponse.Topic(
                    topic.name,
                    partitions=[
                        OffsetCommitResponse.Partition(part.partition_index, left.pop(0))
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    return answer


def test_a_commit_carries_its_members_identity(fake: FakeBroker) -> None:
    """The request has generation, member id and instance id, and the leader epochs
    and metadata of its offsets."""

    async def work(commits: Commits) -> None:
        await commits.commit({B: at(7, "note"), A: at(5)})

    run(fake, work, signer=Signer())
    (request,) = fake.asked(ApiKey.OFFSET_COMMIT)
    assert request.generation_id_or_member_epoch == 3
    assert (request.member_id, request.group_instance_id) == ("me", "i")
    first, second = request.topics[0].partitions
    assert (first.partition_index, first.committed_offset) == (0, 5)
    assert (second.committed_metadata, second.committed_leader_epoch) == ("note", 1)


def test_a_commit_without_a_member_carries_no_identity(fake: FakeBroker) -> None:
    """A consumer with manually assigned partitions commits to a group without members."""

    async def work(commits: Commits) -> None:
        await commits.commit({A: at(5)})
        assert await commits.committed([A, B]) == {A: OffsetAndMetadata(5), B: None}

    run(fake, work)
    (request,) = fake.asked(ApiKey.OFFSET_COMMIT)
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")


def test_commits_keep_their_order(fake: FakeBroker) -> None:
    """With and without a waiting caller; a slow first commit is not overtaken."""
    fake.next(ApiKey.OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR, codes(16), codes(16))
    told: list[int] = []

    async def work(commits: Commits) -> None:
        for offset in (1, 2):
            commits.commit_nowait(
                {A: at(offset)}, lambda offsets, error: told.append(offsets[A].offset)
            )
        await commits.commit({A: at(3)})
        assert told == [1, 2]

    run(fake, work)
    offsets = [r.topics[0].partitions[0].committed_offset for r in fake.asked(ApiKey.OFFSET_COMMIT)]
    assert offsets == [1, 1, 1, 1, 2, 3]


def test_only_failed_partitions_are_committed_again(fake: FakeBroker) -> None:
    fake.next(ApiKey.OFFSET_COMMIT, codes(0, 14))

    async def work(commits: Commits) -> None:
        await commits.commit({A: at(1), B: at(2)})

    run(fake, work)
    again = fake.asked(ApiKey.OFFSET_COMMIT)[1]
    assert [part.partition_index for part in again.topics[0].partitions] == [1]


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_commit_of_an_old_generation_is_refused(fake: FakeBroker, code: ErrorCode) -> None:
    """Raises `CommitFailed` at once, with advice."""
    fake.next(ApiKey.OFFSET_COMMIT, codes(code))

    async def work(commits: Commits) -> None:
        with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
            await commits.commit({A: at(1)})
        assert (commits.commits, commits.commits_failed) == (0, 1)

    run(fake, work, signer=Signer())


def test_other_errors_are_distinguished(fake: FakeBroker) -> None:
    """A fenced member, a deleted topic, metadata that is too long."""
    fake.next(ApiKey.OFFSET_COMMIT, codes(82), codes(3), codes(3), codes(12))

    async def work(commits: Commits) -> None:
        with pytest.raises(Fenced):
            await commits.commit({A: at(1)})
        with pytest.raises(TopicNotFound):
            await commits.commit({A: at(1)})
        with pytest.raises(BrokerError, match="too long"):
            await commits.commit({A: at(1, "x")})

    run(fake, work, signer=Signer())


def test_a_member_that_left_the_group_does_not_commit(fake: FakeBroker) -> None:
    """No request is sent: without an identity, the coordinator would accept
    it as an administrator's."""

    async def work(commits: Commits) -> None:
        with pytest.raises(CommitFailed, match="not a member of group"):
            await commits.commit({A: at(1)})

    run(fake, work, signer=Signer(generation=-1))
    assert not fake.asked(ApiKey.OFFSET_COMMIT)


@pytest.mark.parametrize("kept", [True, False])
def test_a_commit_during_a_rebalance_waits_for_its_end(fake: FakeBroker, kept: bool) -> None:
    """If the partition stayed, the commit is sent again with the new generation. If it was
    revoked, the commit fails."""
    signer = Signer()

    def rebalance(request: OffsetCommitRequest) -> OffsetCommitResponse:
        signer.identity = Identity(4, "me", "i")
        signer.held = {A} if kept else set()
        return codes(ErrorCode.REBALANCE_IN_PROGRESS)(request)

    fake.next(ApiKey.OFFSET_COMMIT, rebalance)

    async def work(commits: Commits) -> None:
        if kept:
            await commits.commit({A: at(1)})
        else:
            with pytest.raises(CommitFailed):
                await commits.commit({A: at(1)})

    run(fake, work, signer=signer)
    generations = [r.generation_id_or_member_epoch for r in fake.asked(ApiKey.OFFSET_COMMIT)]
    assert generations == ([3, 4] if kept else [3])


def test_a_silent_coordinator_delays_a_commit_until_its_deadline_only(fake: FakeBroker) -> None:
    """A commit that waits behind another one times out at its own deadline."""
    fake.next(ApiKey.OFFSET_COMMIT, *[SILENCE] * 10)
    fake.next(ApiKey.OFFSET_FETCH, *[SILENCE] * 10)

    async def work(commits: Commits) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        commits.commit_nowait({A: at(1)})
        with pytest.raises(DeadlineExceeded, match="earlier commit"):
            await commits.commit({A: at(2)}, timeout_s=patient(1.0))
        with pytest.raises(DeadlineExceeded, match="not answered"):
            await commits.committed([A], timeout_s=patient(1.0))
        assert loop.time() - began < LONG_S
        await commits.close(0.1)

    run(fake, work, timeout_s=LONG_S)


def test_a_commit_in_flight_at_close_fails_with_closed(fake: FakeBroker) -> None:
    """Its callback is called, and later commits are refused."""
    fake.next(ApiKey.OFFSET_COMMIT, SILENCE)
    told: list[ClientError | None] = []

    async def work(commits: Commits) -> None:
        commits.commit_nowait({A: at(1)}, lambda offsets, error: told.append(error))
        await commits.close(0.05)
        with pytest.raises(Closed):
            await commits.commit({A: at(1)})
        with pytest.raises(Closed):
            commits.commit_nowait({A: at(1)})

    run(fake, work)
    assert [type(error) for error in told] == [Closed]


def test_an_exception_in_a_callback_does_not_affect_later_commits(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception is logged."""

    def bad(offsets: Offsets, error: ClientError | None) -> None:
        raise ZeroDivisionError

    async def work(commits: Commits) -> None:
        commits.commit_nowait({A: at(1)}, bad)
        await commits.commit({A: at(2)})

    run(fake, work)
    assert "ZeroDivisionError" in caplog.text


def test_a_failure_without_a_callback_is_logged(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """This applies to `commit_nowait`."""
    fake.next(ApiKey.OFFSET_COMMIT, codes(12))

    async def work(commits: Commits) -> None:
        commits.commit_nowait({A: at(1)})
        await commits.commit({})

    run(fake, work)
    assert "too long" in caplog.text


def test_pending_transactional_offsets_are_waited_for(fake: FakeBroker) -> None:
    """With `require_stable`, the request says so and is repeated until the transaction has
    ended."""

    def unstable(request: Any) -> OffsetFetchResponse:
        part = OffsetFetchResponse.GroupPartition(0, -1, error_code=88)
        topic = OffsetFetchResponse.GroupTopic("t", partitions=[part])
        return OffsetFetchResponse(groups=[OffsetFetchResponse.Group("g", [topic])])

    fake.next(ApiKey.OFFSET_FETCH, unstable)

    async def work(commits: Commits) -> None:
        await commits.commit({A: at(4)})
        assert await commits.committed([A]) == {A: OffsetAndMetadata(4)}

    run(fake, work, require_stable=True)
    assert [r.require_stable for r in fake.asked(ApiKey.OFFSET_FETCH)] == [True, True]


@pytest.mark.parametrize("version", [1, 5, 7, 9])
def test_old_brokers_get_requests_in_their_format(version: int) -> None:
    """Before version 8 a request holds one group. `require_stable` is sent only
    in versions that have it."""
    with FakeBroker(versions={ApiKey.OFFSET_FETCH: (version, version)}) as fake:

        async def work(commits: Commits) -> None:
            await commits.commit({A: at(4)})
            assert await commits.committed([A, B, A]) == {A: OffsetAndMetadata(4), B: None}
            assert await commits.committed([]) == {}

        run(fake, work, require_stable=True)


def test_an_error_of_the_whole_group_is_raised(fake: FakeBroker) -> None:
    """For example if reading the group is not authorized."""
    refusal = OffsetFetchResponse(
        groups=[OffsetFetchResponse.Group("g", [], ErrorCode.GROUP_AUTHORIZATION_FAILED)]
    )
    fake.next(ApiKey.OFFSET_FETCH, refusal)

    async def work(commits: Commits) -> None:
        with pytest.raises(BrokerError) as caught:
            await commits.committed([A])
        assert caught.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED

    run(fake, work)
