"""A group member: runs a state machine with a network, a clock and a consumer.

The machine is that of `machine.py`, or for the new protocol that of `consumer_machine.py`.

One background task carries out the machine's steps. The first `subscribe` starts it, the member
owns it, and `close` ends it. It has its own connection to the coordinator, because a JoinGroup is
answered only when the whole group has joined. Commits and LeaveGroup use another connection.
Everything that affects the user happens inside `poll`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.client.cluster import Cluster
from penstock.client.errors import ApiNotServed, ClientError, Closed
from penstock.client.membership.assignors import Assignor
from penstock.client.membership.autocommit import AutoCommit, Offsets
from penstock.client.membership.commits import Commits, OnCommit
from penstock.client.membership.consumer_machine import ConsumerMembership
from penstock.client.membership.listener import Listener
from penstock.client.membership.machine import Membership
from penstock.client.membership.phases import Phase
from penstock.client.membership.protocol import NO_GENERATION
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import (
    Ask,
    Assigned,
    Count,
    Failed,
    Goodbye,
    GroupRequest,
    GroupResponse,
    Identity,
    Lost,
    News,
    Revoked,
    Wait,
)
from penstock.client.model import OffsetAndMetadata
from penstock.client.option_values import CONSUMER
from penstock.ports import Random
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MetadataRequest,
    MetadataResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

__all__ = ["Assignor", "CountTopics", "GroupMember", "Host", "MemberStats", "MembershipOptions"]

CountTopics = Callable[[tuple[str, ...]], Awaitable[Mapping[str, int]]]
"""Returns the number of partitions of each of these topics; topics that do not exist are
missing."""

_log = logging.getLogger(__name__)
_PURPOSE: Final = "group"
_LEAVE_MEMBERS_SINCE: Final = 3
"""The first version of LeaveGroup in which one request can name several members."""
_ANSWERS: Final[dict[type[GroupRequest], type[GroupResponse]]] = {
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
    MetadataRequest: MetadataResponse,
}


class Host(Protocol):
    """The consumer that a member belongs to. Its methods are called on the event loop only."""

    def consumed(self) -> Offsets:
        """Returns for every assigned partition with a position the offset to be returned next."""

    def add(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Starts to read these partitions. The user's listener is called afterwards."""

    def drop(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Stops reading these partitions and drops what is buffered. The listener was called
        before."""

    def wake(self) -> None:
        """Ends a wait for records, so that `GroupMember.poll` is called again."""

    def committed(self, offsets: Offsets) -> None:
        """Called when a commit has succeeded, whether it was automatic or requested."""


@dataclass(frozen=True, slots=True)
class MemberStats:
    generation: int
    member_id: str
    phase: str
    is_leader: bool
    assigned: int
    rebalances: int
    last_rebalance_s: float
    heartbeats: int
    commits: int
    commits_failed: int


class GroupMember:
    """A member of a consumer group. See the module's docstring."""

    def __init__(
        self,
        cluster: Cluster,
        options: MembershipOptions,
        host: Host,
        count: CountTopics | None = None,
    ) -> None:
        """`count` is for groups that divide something other than topics. None: asks the brokers."""
        self.options = options
        self._cluster = cluster
        self._clock = cluster.clock
        self._host = host
        self._count = count or self._count_partitions
        self._machine = _machine(options, cluster.random)
        self._listener = Listener()
        self._poke = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._heartbeats = 0
        self._auto: AutoCommit | None = None
        if options.enable_auto_commit:
            self._auto = AutoCommit(
                options.auto_commit_interval_ms, options.retry_backoff_ms, self._clock.monotonic()
            )
        self._commits = Commits(
            cluster,
            options.group_id,
            signer=self._machine,
            require_stable=options.require_stable,
            timeout_s=options.default_api_timeout_ms / 1000,
            on_committed=self._on_committed,
        )

    # -- state ----------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the host was last told to read."""
        return frozenset(self._machine.owned)

    @property
    def generation(self) -> int:
        return self._machine.generation

    @property
    def identity(self) -> Identity:
        """The member id and generation with which it signs requests."""
        return self._machine.identity

    def renewed(self, identity: Identity) -> Identity:
        """Returns what to sign with for records that were read under this identity."""
        return self._machine.renewed(identity)

    @property
    def member_id(self) -> str:
        return self._machine.member_id

    @property
    def is_stable(self) -> bool:
        """Whether it has its assignment and knows of no rebalance."""
        return self._machine.phase is Phase.STABLE

    @property
    def knows_assignment(self) -> bool:
        """Whether it has received its assignment in its current generation."""
        return self._machine.knows_assignment

    @property
    def has_news(self) -> bool:
        return self._machine.needs_poll(self._clock.monotonic())

    def stats(self) -> MemberStats:
        machine = self._machine
        return MemberStats(
            machine.generation,
            machine.member_id,
            machine.phase.name.lower(),
            machine.is_leader,
            len(machine.owned),
            machine.rebalances,
            machine.last_rebalance_s,
            self._heartbeats,
            self._commits.commits,
            self._commits.commits_failed,
        )

    # -- joining and leaving --------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str], listener: Listener | None = None, *, regex: str | None = None
    ) -> None:
        """Subscribes to these topics. The group learns of it through the next polls.

        `regex` is for the coordinator to resolve, which only the new protocol has.
        """
        if self._closed:
            raise Closed("this consumer has been closed: make a new one")
        if listener is not None:
            self._listener = listener
        now = self._clock.monotonic()
        if isinstance(self._machine, ConsumerMembership):
            self._machine.subscribe(frozenset(topics), now, regex)
        else:
            self._machine.subscribe(frozenset(topics), now)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._work(), name=f"group {self.options.group_id}"
            )
        self._poke.set()

    async def unsubscribe(self, timeout_s: float | None = None) -> None:
        """Gives up all partitions and leaves the group, like `close`. `subscribe` may follow."""
        limit_s = self.options.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s
        await self._depart(limit_s, "unsubscribed", leave=self.options.leaves)

    def request_rejoin(self, reason: str) -> None:
        self._machine.rejoin(reason)
        self._host.wake()

    def disown(self, topic_partitions: Collection[TopicPartition], reason: str) -> None:
        """Gives up these partitions at once and joins again. The listener is not called."""
        gone = tuple(sorted(self.assignment.intersection(topic_partitions)))
        self._drop(gone)
        self._machine.told(Lost(gone), self._clock.monotonic())
        self._machine.rejoin(reason)
        self._host.wake()

    async def close(self, timeout_s: float = 30.0, *, leave: bool | None = None) -> None:
        """Commits, gives up all partitions and leaves the group.

        Waits for an unavailable coordinator no longer than the timeout. An error of the user's
        listener is raised after everything else is done.
        """
        if self._closed:
            return
        self._closed = True
        end = self._clock.monotonic() + timeout_s
        try:
            leaves = self.options.leaves if leave is None else leave
            await self._depart(timeout_s, "closed", leave=leaves)
        finally:
            await self._commits.close(max(end - self._clock.monotonic(), 0.0))

    async def poll(self) -> None:
        """Tells the user what has changed, and auto-commits if it is due.

        Never waits for the group: only for listeners and, when partitions are revoked, for the
        commit of what was read from them. Raises errors of listeners, and errors that keep this
        member out of the group.
        """
        if self._task is not None and self._task.done():
            self._task.result()
        machine = self._machine
        before = machine.phase
        while (news := machine.poll(self._clock.monotonic())) is not None:
            try:
                await self._tell(news)
            finally:
                self._poke.set()
        if machine.phase is not before:
            self._poke.set()
        self._auto_commit()

    async def _tell(self, news: News) -> None:
        now = self._clock.monotonic
        match news:
            case Failed(error):
                self._machine.told(news, now())
                raise error
            case Assigned(topic_partitions):
                self._host.add(topic_partitions)
                self._machine.told(news, now())
                await self._listener.assigned(topic_partitions)
            case Revoked(topic_partitions) | Lost(topic_partitions):
                try:
                    if isinstance(news, Revoked):
                        end = now() + self.options.rebalance_ms / 2000
                        await self._commit_consumed(end - now())
                        await self._listener.revoked(topic_partitions)
                        await self._wait_for_commits(end - now())
                    else:
                        await self._listener.lost(topic_partitions)
                finally:
                    self._drop(topic_partitions)
                    self._machine.told(news, now())

    def _drop(self, topic_partitions: Collection[TopicPartition]) -> None:
        self._host.drop(topic_partitions)
        if self._auto is not None:
            self._auto.forget(topic_partitions)

    async def _depart(self, timeout_s: float, reason: str, *, leave: bool) -> None:
        end = self._clock.monotonic() + timeout_s
        topic_partitions = sorted(self._machine.owned)
        try:
            # Heartbeats continue meanwhile: the listener may take a while.
            if topic_partitions and self._machine.generation != NO_GENERATION:
                await self._commit_consumed(timeout_s)
                await self._listener.revoked(topic_partitions)
            elif topic_partitions:
                await self._listener.lost(topic_partitions)
        finally:
            self._drop(topic_partitions)
            await self._wait_for_commits(end - self._clock.monotonic())
            await self._stop_working()
            is_member = self._machine.generation != NO_GENERATION
            request = self._machine.leave(reason, for_good=leave)
            if request is not None:
                left_s = end - self._clock.monotonic()
                await self._say_goodbye(request, max(left_s, 0.0), is_member=is_member)

    async def _stop_working(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            task, self._task = self._task, None
            if not task.cancelled():
                task.result()

    async def _say_goodbye(self, request: Goodbye, timeout_s: float, *, is_member: bool) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                # A join that is under way must not arrive after the leave.
                await self._ask(Ask(request, timeout_s, find=False), in_turn=not is_member)
        except (ClientError, TimeoutError) as error:
            _log.info(
                "cannot leave group %s; it will remove this member after the session timeout: %s",
                self.options.group_id,
                error or "no answer in time",
            )

    # -- the background task --------------------------------------------------------------------

    async def _work(self) -> None:
        machine = self._machine
        while True:
            match machine.step(self._clock.monotonic()):
                case Wait(until):
                    await self._rest(until)
                case Ask() as step:
                    try:
                        answer = await self._ask(step)
                    except ClientError as error:
                        self._note(error)
                        machine.on_failure(error, self._clock.monotonic())
                    else:
                        self._heartbeats += isinstance(
                            answer, HeartbeatResponse | ConsumerGroupHeartbeatResponse
                        )
                        machine.on_answer(answer, self._clock.monotonic())
                case Count(topics):
                    assert isinstance(machine, Membership)
                    try:
                        counts = await self._count(topics)
                    except ClientError as error:
                        self._note(error)
                        machine.on_failure(error, self._clock.monotonic())
                    else:
                        machine.on_counts(counts, self._clock.monotonic())
            if machine.needs_poll(self._clock.monotonic()):
                self._host.wake()

    async def _rest(self, until: float | None) -> None:
        try:
            delay_s = None if until is None else max(until - self._clock.monotonic(), 0.0)
            async with asyncio.timeout(delay_s):
                await self._poke.wait()
        except TimeoutError:
            pass
        self._poke.clear()

    async def _ask(self, step: Ask, *, in_turn: bool = False) -> GroupResponse:
        """Leaves go where commits go, so that they overtake none. With `in_turn`, a heartbeat that
        leaves goes where the other heartbeats go."""
        request = step.request
        goodbye = isinstance(request, LeaveGroupRequest)
        if isinstance(request, ConsumerGroupHeartbeatRequest) and not in_turn:
            goodbye = request.member_epoch < 0
        connection = await self._cluster.coordinator(
            self.options.group_id, purpose="" if goodbye else _PURPOSE, fresh=step.find
        )
        if isinstance(request, LeaveGroupRequest):
            version = connection.version_of(LeaveGroupRequest)
            if version < _LEAVE_MEMBERS_SINCE:
                member_id = request.members[0].member_id
                request = LeaveGroupRequest(request.group_id, member_id)
        try:
            return await connection.call(request, _ANSWERS[type(request)], timeout_s=step.timeout_s)
        except ProtocolError as error:
            raise ApiNotServed(
                f"the broker at {connection.address} is too old for this member of group "
                f"{self.options.group_id}: {error}"
            ) from error

    async def _count_partitions(self, topics: tuple[str, ...]) -> dict[str, int]:
        # Never creates topics: a topic that was deleted while the group reads it must stay deleted.
        await self._cluster.refresh(topics)
        counts = {topic: self._cluster.known_partitions(topic) for topic in topics}
        return {topic: count for topic, count in counts.items() if count}

    def _note(self, error: ClientError) -> None:
        _log.debug("group %s: %s", self.options.group_id, error)

    # -- committing -----------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, *, timeout_s: float | None = None) -> None:
        """Commits after all earlier commits. Raises `CommitFailed` if the group has rebalanced."""
        await self._commits.commit(offsets, timeout_s=timeout_s)

    def commit_nowait(self, offsets: Offsets, callback: OnCommit | None = None) -> None:
        """Commits in order with all other commits. The callback receives the outcome."""
        self._commits.commit_nowait(offsets, callback)

    async def committed(
        self, topic_partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._commits.committed(topic_partitions, timeout_s=timeout_s)

    def _on_committed(self, offsets: Offsets) -> None:
        if self._auto is not None:
            self._auto.on_committed(offsets)
        self._host.committed(offsets)

    def _auto_commit(self) -> None:
        auto, now = self._auto, self._clock.monotonic()
        if auto is None or not auto.is_due(now) or self._machine.generation == NO_GENERATION:
            return
        offsets = auto.begin(self._host.consumed(), now)
        if offsets:
            self._commits.commit_nowait(offsets, self._on_auto_commit(auto))

    def _on_auto_commit(self, auto: AutoCommit) -> OnCommit:
        def on_end(offsets: Offsets, error: ClientError | None) -> None:
            auto.on_end(
                retriable=error is not None and error.retriable, now=self._clock.monotonic()
            )
            if error is not None:
                _log.warning("an auto-commit for group %s failed: %s", self.options.group_id, error)

        return on_end

    async def _commit_consumed(self, limit_s: float) -> None:
        """Commits before partitions are revoked: records that were returned count as processed."""
        if self._auto is None:
            await self._wait_for_commits(limit_s)
            return
        offsets = self._auto.moved(self._host.consumed())
        limit_s = min(limit_s, self.options.default_api_timeout_ms / 1000)
        try:
            await self._commits.commit(offsets, timeout_s=limit_s)
        except ClientError as error:
            _log.warning(
                "group %s: cannot commit before partitions are revoked; the records read since the "
                "last commit will be read again: %s",
                self.options.group_id,
                error,
            )

    async def _wait_for_commits(self, limit_s: float) -> None:
        """Waits for commits that nobody waits for. Those that come after a leave are refused."""
        try:
            await self._commits.commit({}, timeout_s=max(limit_s, 0.0))
        except ClientError as error:
            _log.warning(
                "group %s: the coordinator did not answer the last commits: %s",
                self.options.group_id,
                error,
            )


def _machine(options: MembershipOptions, random: Random) -> Membership | ConsumerMembership:
    if options.group_protocol == CONSUMER:
        return ConsumerMembership(options, random.uniform, _new_member_id(random))
    return Membership(options, random.uniform)


def _new_member_id(random: Random) -> str:
    """Returns an id in the form in which Kafka writes them."""
    return base64.urlsafe_b64encode(random.bytes(16)).decode().rstrip("=").replace("-", "_")
