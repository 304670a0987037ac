"""Commits offsets for a group and reads committed offsets.

Commits are made one after the other, in the order in which they were requested, whether or not
anything waits for them. A commit that overtook an earlier one would be overwritten by it.

A commit is signed with the generation in which its positions were read. If the group has rebalanced
in the meantime, the coordinator refuses it. It is signed with the new generation only if this
member has owned the partitions without interruption (`held_since`). Otherwise another member may
have read further, and the commit fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import (
    BrokerError,
    ClientError,
    Closed,
    CommitFailed,
    DeadlineExceeded,
    Fenced,
    RequestTimedOut,
    TopicNotFound,
    check,
)
from penstock.client.membership.autocommit import Offsets
from penstock.client.membership.protocol import NO_GENERATION, by_topic
from penstock.client.membership.steps import NOBODY, Identity
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

T = TypeVar("T")
OnCommit = Callable[[Offsets, ClientError | None], None]

_log = logging.getLogger(__name__)
_GROUPS_SINCE: Final = 8
"""The first version of OffsetFetch in which one request can name several groups."""
_STABLE_SINCE: Final = 7


class Signer(Protocol):
    """The group member that commits."""

    @property
    def identity(self) -> Identity: ...

    def held_since(self, topic_partition: TopicPartition, generation: int) -> bool: ...


class Commits:
    """Without a signer it serves a consumer with manually assigned partitions, in a group without
    members."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        *,
        signer: Signer | None = None,
        require_stable: bool = False,
        timeout_s: float = 60.0,
        on_committed: Callable[[Offsets], None] | None = None,
    ) -> None:
        self.commits = 0
        self.commits_failed = 0
        self._cluster = cluster
        self._group = group_id
        self._signer = signer
        self._require_stable = require_stable
        self._timeout_s = timeout_s
        self._on_committed = on_committed
        self._last_turn: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # -- committing -----------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, *, timeout_s: float | None = None) -> None:
        """Commits offsets and waits for the answer.

        Raises `CommitFailed` if the group has rebalanced, `Fenced`, `DeadlineExceeded`, or the
        coordinator's error.
        """
        if self._closed:
            raise Closed("this consumer has been closed: make a new one")
        if not offsets:
            await self._earlier(self._last_turn, self._limit_s(timeout_s))
            return
        await self._commit(dict(offsets), self._identity(), self._turn(), self._limit_s(timeout_s))

    def commit_nowait(self, offsets: Offsets, callback: OnCommit | None = None) -> None:
        """Commits offsets without waiting.

        The callback receives the outcome, on the event loop. Without a callback a failure is
        logged.
        """
        if self._closed:
            raise Closed("this consumer has been closed: make a new one")
        work = self._commit_and_tell(dict(offsets), self._identity(), self._turn(), callback)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout_s: float) -> None:
        """Waits for commits that are in progress, and cancels those that take longer than the
        timeout."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        pending = list(self._tasks)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    def _identity(self) -> Identity:
        return NOBODY if self._signer is None else self._signer.identity

    def _turn(self) -> tuple[asyncio.Future[None] | None, asyncio.Future[None]]:
        """Returns futures for the end of the previous commit and for the end of this one."""
        before, mine = self._last_turn, asyncio.get_running_loop().create_future()
        self._last_turn = mine
        return before, mine

    async def _earlier(self, before: asyncio.Future[None] | None, limit_s: float) -> None:
        if before is None or before.done():
            return
        await asyncio.wait([before], timeout=limit_s)
        if not before.done():
            late = RequestTimedOut("an earlier commit is still in progress")
            raise DeadlineExceeded(f"commit for group {self._group}", limit_s, late)

    async def _commit(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        identity: Identity,
        turn: tuple[asyncio.Future[None] | None, asyncio.Future[None]],
        limit_s: float,
    ) -> None:
        before, mine = turn
        end = self._cluster.clock.monotonic() + limit_s
        try:
            await self._earlier(before, limit_s)
            left_s = max(end - self._cluster.clock.monotonic(), 0.0)
            await self._write(offsets, identity, left_s)
        except ClientError:
            self.commits_failed += 1
            raise
        finally:
            # The next commit must wait for all earlier ones, even if this one did not.
            if before is None or before.done():
                mine.set_result(None)
            else:
                before.add_done_callback(lambda _: mine.set_result(None))
        self.commits += 1
        if self._on_committed is not None:
            self._on_committed(offsets)

    async def _commit_and_tell(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        identity: Identity,
        turn: tuple[asyncio.Future[None] | None, asyncio.Future[None]],
        callback: OnCommit | None,
    ) -> None:
        tell = callback or self._log_failure
        try:
            await self._commit(offsets, identity, turn, self._timeout_s)
        except ClientError as failure:
            _tell(tell, offsets, failure)
        except asyncio.CancelledError:
            _tell(tell, offsets, Closed("the consumer was closed before the commit completed"))
            raise
        else:
            _tell(tell, offsets, None)

    def _log_failure(self, offsets: Offsets, error: ClientError | None) -> None:
        if error is not None:
            _log.warning("a commit for group %s failed: %s", self._group, error)

    async def _write(self, offsets: Offsets, identity: Identity, limit_s: float) -> None:
        left = dict(offsets)

        async def attempt(fresh: bool) -> None:
            signature = self._sign(left, identity)
            connection = await self._cluster.coordinator(self._group, fresh=fresh)
            request = _commit_request(self._group, left, signature)
            answer = await connection.call(request, OffsetCommitResponse)
            for topic in answer.topics:
                for partition in topic.partitions:
                    topic_partition = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code == ErrorCode.NONE:
                        left.pop(topic_partition, None)
                    else:
                        self._refuse(topic_partition, partition.error_code, fresh)

        await self._retry("commit", attempt, limit_s)

    async def _retry(self, what: str, attempt: Callable[[bool], Awaitable[T]], limit_s: float) -> T:
        """Retries, and applies the time limit also to a coordinator that does not answer at all."""
        subject = f"{what} for group {self._group}"
        try:
            async with asyncio.timeout(limit_s):
                return await self._cluster.retry(subject, attempt, deadline_s=limit_s)
        except TimeoutError:
            silent = RequestTimedOut("the group coordinator has not answered")
            raise DeadlineExceeded(subject, limit_s, silent) from None

    def _sign(self, offsets: Offsets, identity: Identity) -> Identity:
        if self._signer is None:
            return identity
        now = self._signer.identity
        if NO_GENERATION in (identity.generation, now.generation):
            raise CommitFailed(
                f"this consumer is not a member of group {self._group} at the moment, and other "
                "members may own its partitions: poll to join again"
            )
        if now.generation != identity.generation and not all(
            self._signer.held_since(topic_partition, identity.generation)
            for topic_partition in offsets
        ):
            raise self._moved_on()
        return now

    def _moved_on(self) -> CommitFailed:
        return CommitFailed(
            f"group {self._group} has rebalanced since these records were read: other members own "
            "their partitions now and will read them again; if processing takes long, raise "
            "max_poll_interval_ms or lower max_poll_records"
        )

    def _refuse(self, topic_partition: TopicPartition, code: int, fresh: bool) -> None:
        subject = f"commit for group {self._group}, {topic_partition}"
        match code:
            case (
                ErrorCode.ILLEGAL_GENERATION
                | ErrorCode.UNKNOWN_MEMBER_ID
                | ErrorCode.FENCED_MEMBER_EPOCH
            ):
                raise self._moved_on()
            case ErrorCode.FENCED_INSTANCE_ID:
                raise Fenced(
                    f"another member of group {self._group} has joined with the same "
                    "group_instance_id: give each member its own"
                )
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if fresh:
                raise TopicNotFound(*topic_partition)
        error = BrokerError(code, subject=subject)
        if code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH):
            # A member may not commit between joining and its new assignment, nor before a
            # heartbeat has told it its new epoch. It may soon afterwards.
            error.retriable = True
        raise error

    # -- reading committed offsets --------------------------------------------------------------

    async def committed(
        self, topic_partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the committed offset of each partition, or None if there is none."""
        wanted = list(dict.fromkeys(topic_partitions))
        if not wanted:
            return {}

        async def attempt(fresh: bool) -> dict[TopicPartition, OffsetAndMetadata]:
            connection = await self._cluster.coordinator(self._group, fresh=fresh)
            version = connection.version_of(OffsetFetchRequest)
            request = self._fetch_request(by_topic(wanted), version)
            return self._found(await connection.call(request, OffsetFetchResponse))

        found = await self._retry("committed offsets", attempt, self._limit_s(timeout_s))
        return {topic_partition: found.get(topic_partition) for topic_partition in wanted}

    def _fetch_request(self, topics: Mapping[str, list[int]], version: int) -> OffsetFetchRequest:
        stable = self._require_stable and version >= _STABLE_SINCE
        if version >= _GROUPS_SINCE:
            group_topics = [
                OffsetFetchRequest.GroupTopic(topic, partition_indexes=partitions)
                for topic, partitions in topics.items()
            ]
            group = OffsetFetchRequest.Group(self._group, topics=group_topics)
            return OffsetFetchRequest(groups=[group], require_stable=stable)
        plain = [
            OffsetFetchRequest.Topic(topic, partitions) for topic, partitions in topics.items()
        ]
        return OffsetFetchRequest(self._group, plain, require_stable=stable)

    def _found(self, answer: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
        subject = f"group {self._group}"
        check(answer.error_code, subject=subject)
        topics: list[OffsetFetchResponse.Topic] | list[OffsetFetchResponse.GroupTopic]
        topics = answer.topics
        for group in answer.groups:
            check(group.error_code, subject=subject)
            topics = group.topics
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    check(partition.error_code, subject=f"{subject}, {topic_partition}")
                if partition.committed_offset >= 0:
                    found[topic_partition] = OffsetAndMetadata(
                        partition.committed_offset,
                        partition.metadata or "",
                        partition.committed_leader_epoch,
                    )
        return found


def _tell(callback: OnCommit, offsets: Offsets, error: ClientError | None) -> None:
    try:
        callback(offsets, error)
    except Exception:  # noqa: BLE001 -- a user's error can only be logged
        _log.exception("a commit_nowait callback failed")


def _commit_request(group: str, offsets: Offsets, signature: Identity) -> OffsetCommitRequest:
    topics = [
        OffsetCommitRequest.Topic(
            topic,
            partitions=[
                OffsetCommitRequest.Partition(
                    partition,
                    offsets[TopicPartition(topic, partition)].offset,
                    offsets[TopicPartition(topic, partition)].leader_epoch,
                    offsets[TopicPartition(topic, partition)].metadata,
                )
                for partition in partitions
            ],
        )
        for topic, partitions in by_topic(offsets).items()
    ]
    return OffsetCommitRequest(
        group, signature.generation, signature.member_id, signature.instance_id, topics=topics
    )
