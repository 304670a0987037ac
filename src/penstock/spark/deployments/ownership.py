"""Which pipelines this worker owns, and until when: a worker as a member of the workers' group.

`GroupMember` joins the group, sends heartbeats and applies assignments. This shell adds the lease
(`lease`), the rule for unclaimed pipelines (`claims`), and the worker's answers to what changes.

    take      the group has assigned a pipeline to this worker
    give_up   the group wants it back; the worker leaves it to others once nothing of it runs
    lose      the lease has ended, or the group has removed this worker: kill it now

A worker that cannot renew its lease keeps its pipelines until the lease ends. Then it kills them,
and joins the group again without them. A worker that the group has removed kills its pipelines, and
joins again when nothing of them runs.

Example:
    ownership = Ownership(cluster, eligible=..., existing=..., owner=worker)
    await ownership.run()
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.client.membership.autocommit import Offsets
from penstock.client.membership.listener import Listener
from penstock.client.membership.member import GroupMember
from penstock.client.membership.protocol import NO_GENERATION
from penstock.client.membership.settings import MembershipOptions
from penstock.runtime import boot_time
from penstock.spark.deployments.claims import PipelineAssignor
from penstock.spark.deployments.lease import NEVER, Lease, Renewal
from penstock.spark.deployments.topics import DEFINITIONS, WORKERS_GROUP, WORKERS_PROTOCOL
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)

_log = logging.getLogger(__name__)
_PURPOSE: Final = "lease"
_FAR_MS: Final = 2**31 - 1
"""The group never removes a worker because it takes long to give up a pipeline."""
_PAUSE_S: Final = 1.0
_PASSING: Final = (
    ErrorCode.NONE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""Errors of commits that pass by themselves, or after joining again."""
_LEAVE_S: Final = 5.0


class Owner(Protocol):
    """The worker. Its methods are called on the event loop, and must not block."""

    def take(self, name: str) -> None:
        """The pipeline belongs to this worker. Start it as soon as `lease_until` is in the
        future."""

    async def give_up(self, name: str) -> None:
        """Stops the pipeline. Returns when nothing of it runs any more. Heartbeats go on meanwhile.

        Also called after `lose`, and for a pipeline that was never started. `lose` may be called
        while this waits.
        """

    def lose(self, name: str) -> None:
        """Kills the pipeline now. `give_up` is called, or still waits, to learn when it is over."""

    def renew(self, until: float) -> None:
        """The lease lasts until this time. Tell the drivers of all pipelines, except those that
        were lost."""


@dataclass(frozen=True, slots=True)
class OwnershipOptions:
    session_timeout_ms: int = 20_000
    """How long a worker that does not answer keeps its pipelines. Their lease is 10 % shorter.

    It is longer than a broker's session (9 s) with the election and the load of a coordinator that
    follow: the crash of a broker must not end the leases of all workers."""
    heartbeat_interval_ms: int = 1_000
    rebalance_timeout_ms: int = 60_000
    """How long the group waits for a worker that gives up pipelines."""
    stop_timeout_s: float = 60.0
    """A pipeline that takes longer to stop is killed."""
    group_id: str = WORKERS_GROUP
    commit_to: TopicPartition = TopicPartition(DEFINITIONS, 0)  # noqa: RUF009 - a tuple
    """Renewals commit an offset of this partition, which must exist. The offset has no meaning."""

    def membership(self, assignor: PipelineAssignor) -> MembershipOptions:
        return MembershipOptions(
            self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            max_poll_interval_ms=_FAR_MS,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            assignors=(assignor,),
            enable_auto_commit=False,
            # The leader counts deployments as often as this.
            metadata_max_age_ms=self.heartbeat_interval_ms,
            request_timeout_ms=self.session_timeout_ms // 2,
            protocol_type=WORKERS_PROTOCOL,
        )


class Ownership:
    """See the module's docstring. The cluster must be connected, and is not closed here."""

    def __init__(
        self,
        cluster: Cluster,
        options: OwnershipOptions | None = None,
        *,
        eligible: Callable[[], frozenset[str]],
        existing: Callable[[], frozenset[str]],
        settled: Callable[[], frozenset[str]],
        owner: Owner,
        boot_time: Callable[[], float] = boot_time,
    ) -> None:
        """`eligible` returns the deployments that this worker is able to run, `existing` all that
        there are, and `settled` those that may be moved to another worker for balance. `boot_time`
        is the clock of the lease, which drivers must have too."""
        self.options = options or OwnershipOptions()
        self._cluster = cluster
        self._eligible = eligible
        self._existing = existing
        self._settled = settled
        self._owner = owner
        self._boot_time = boot_time
        self._lease = Lease(
            self.options.session_timeout_ms / 1000, self.options.rebalance_timeout_ms / 1000
        )
        self._assignor = PipelineAssignor(
            lambda: self._member.generation, self._on_held_back, settled
        )
        self._member = GroupMember(
            cluster, self.options.membership(self._assignor), _Host(self), self._count
        )
        self._owned: set[str] = set()
        self._lost: set[str] = set()
        """Those of `_owned` that were killed and may not have ended yet."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Waits until nothing of a pipeline runs."""
        self._told_until = NEVER
        self._refusal = int(ErrorCode.NONE)
        """Why the last commit was refused."""
        self._news = asyncio.Event()
        self._renewed = asyncio.Event()
        self._closing = False

    @property
    def lease_until(self) -> float:
        """The boot time at which the lease ends. All drivers must be dead by then."""
        return self._lease.until

    @property
    def lease_age_s(self) -> float | None:
        """How long ago the lease was last renewed. None if there is none."""
        at = self._lease.renewed_at
        return None if at is None else self._boot_time() - at

    @property
    def owned(self) -> frozenset[str]:
        """The pipelines that this worker was told to take, and has not given up."""
        return frozenset(self._owned)

    @property
    def member_id(self) -> str:
        """The id of this worker in the group. Empty while it has none."""
        return self._member.member_id

    def refresh(self) -> None:
        """`eligible` or `existing` have changed."""
        if self._closing:
            return
        self._member.subscribe(self._eligible())
        self._news.set()

    def balance(self) -> None:
        """Lets the group rebalance if a pipeline may move now that could not before. Only the
        worker that made the last assignment knows of such pipelines."""
        if not self._closing and self._assignor.postponed & self._settled():
            self._assignor.postponed = frozenset()
            self._member.request_rejoin("pipelines may move to workers that have fewer")
            self._news.set()

    async def run(self) -> None:
        """Takes part in the group until cancelled. Then gives up all pipelines and leaves.

        Raises an error only for a bug; pipelines are killed first.
        """
        listener = Listener(self._on_assigned, self._on_revoked, self._on_lost)
        self._member.subscribe(self._eligible(), listener)
        follow = asyncio.ensure_future(self._follow())
        lease = [asyncio.ensure_future(self._renew()), asyncio.ensure_future(self._watch())]
        try:
            try:
                await asyncio.wait([follow, *lease], return_when=asyncio.FIRST_COMPLETED)
                for task in (follow, *lease):
                    if task.done():
                        task.result()
            finally:
                # A pipeline that is being given up must not count as given up too early.
                self._closing = True
                self._news.set()
                await asyncio.wait([follow])
                await self._member.close(_LEAVE_S)
        finally:
            for name in sorted(self._owned):
                self._owner.lose(name)
            tasks = [follow, *lease, *self._ending.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- the group ------------------------------------------------------------------------------

    def wake(self) -> None:
        """The group has news."""
        self._news.set()

    async def _follow(self) -> None:
        while not self._closing:
            try:
                await self._member.poll()
            except ClientError as error:
                _log.warning("this worker cannot join the worker group yet, retrying: %s", error)
                await self._cluster.clock.sleep(_PAUSE_S)
                self._news.set()
            await self._news.wait()
            self._news.clear()

    async def _count(self, names: tuple[str, ...]) -> Mapping[str, int]:
        existing = self._existing()
        return {name: 1 for name in names if name in existing}

    def _on_held_back(self, names: list[str]) -> None:
        self._member.request_rejoin(f"{len(names)} pipelines without an owner wait for all claims")

    def _on_assigned(self, pipelines: list[TopicPartition]) -> None:
        for name in _names(pipelines):
            self._owned.add(name)
            self._owner.take(name)

    async def _on_revoked(self, pipelines: list[TopicPartition]) -> None:
        await self._end(_names(pipelines))

    async def _on_lost(self, pipelines: list[TopicPartition]) -> None:
        """The group has removed this worker, or its coordinator has lost the generation."""
        self._lease.end()
        names = _names(pipelines)
        if names:
            _log.warning(
                "this worker is no longer a member of its group: killing its pipelines: %s",
                ", ".join(names),
            )
        self._kill(names)
        await self._end(names)

    # -- ending pipelines -----------------------------------------------------------------------

    def _kill(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._owned and name not in self._lost:
                self._lost.add(name)
                self._owner.lose(name)

    async def _end(self, names: Collection[str]) -> None:
        """Returns when nothing of the pipelines runs any more."""
        for name in names:
            if name in self._owned and name not in self._ending:
                self._ending[name] = asyncio.ensure_future(self._end_one(name))
        tasks = [self._ending[name] for name in names if name in self._ending]
        if tasks:
            # Not cancelled with the caller: others wait for the same.
            await asyncio.wait(tasks)

    async def _end_one(self, name: str) -> None:
        while not await self._has_ended(name):
            await self._cluster.clock.sleep(_PAUSE_S)
        self._ending.pop(name, None)

    async def _has_ended(self, name: str) -> bool:
        stop = asyncio.ensure_future(self._give_up(name))
        try:
            await asyncio.wait([stop], timeout=self.options.stop_timeout_s)
            if not stop.done():
                _log.warning("pipeline %s did not stop in time; killing it", name)
                self._kill([name])
                await asyncio.wait([stop])
            stop.result()
        except Exception:  # noqa: BLE001 - whatever it is, the pipeline may still run
            _log.exception("cannot stop pipeline %s; killing it and trying again", name)
            self._kill([name])
            return False
        finally:
            stop.cancel()
        return True

    async def _give_up(self, name: str) -> None:
        await self._owner.give_up(name)
        self._owned.discard(name)
        self._lost.discard(name)

    # -- the lease ------------------------------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        """How long to wait for one answer. A lease must survive a coordinator that fails."""
        return self.options.session_timeout_ms / 4000

    async def _renew(self) -> None:
        find = False
        while True:
            find = not await self._try_renewing(find=find)
            await self._cluster.clock.sleep(self.options.heartbeat_interval_ms / 1000)

    async def _try_renewing(self, *, find: bool) -> bool:
        """Tries to renew the lease once. Returns False if the coordinator must be looked up."""
        identity = self._member.identity
        if identity.generation == NO_GENERATION:
            return True
        try:
            async with asyncio.timeout(2 * self._patience_s):
                connection = await self._cluster.coordinator(
                    self.options.group_id, purpose=_PURPOSE, fresh=find
                )
                renewal = Renewal(identity, self._boot_time())
                code = await self._commit(connection, renewal)
                self._note_refusal(code)
                if self._lease.on_commit(renewal, self._member.identity, code):
                    self._announce()
                    await self._confirm(connection, renewal)
        except (ClientError, ProtocolError, TimeoutError) as error:
            _log.debug("cannot renew the lease: %s", error or "no answer in time")
            return False
        return code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _note_refusal(self, code: int) -> None:
        """Logs an error that does not pass by itself, once."""
        if code != self._refusal and code not in _PASSING:
            _log.warning(
                "the group coordinator refuses to renew this worker's lease (%s), and without a "
                "lease it cannot run pipelines: check that %s exists, and that this worker may "
                "read it and the group %s",
                ErrorCode(code).name,
                self.options.commit_to.topic,
                self.options.group_id,
            )
        self._refusal = code

    async def _commit(self, connection: Connection, renewal: Renewal) -> int:
        identity, (topic, index) = renewal.identity, self.options.commit_to
        request = OffsetCommitRequest(
            self.options.group_id,
            identity.generation,
            identity.member_id,
            topics=[
                OffsetCommitRequest.Topic(
                    topic, partitions=[OffsetCommitRequest.Partition(index, 0, -1, "")]
                )
            ],
        )
        answer = await connection.call(request, OffsetCommitResponse, timeout_s=self._patience_s)
        codes = [each.error_code for topic in answer.topics for each in topic.partitions]
        # Without an offset nothing was written, and the answer proves nothing.
        return codes[0] if codes else ErrorCode.UNKNOWN_SERVER_ERROR

    async def _confirm(self, connection: Connection, renewal: Renewal) -> None:
        """Sends the heartbeat to the broker that has stored the commit."""
        identity = renewal.identity
        request = HeartbeatRequest(
            self.options.group_id, identity.generation, identity.member_id, None
        )
        answer = await connection.call(request, HeartbeatResponse, timeout_s=self._patience_s)
        self._lease.on_heartbeat(
            renewal,
            self._member.identity,
            answer.error_code,
            knows_assignment=self._member.knows_assignment,
        )
        self._announce()

    def _announce(self) -> None:
        """Tells the owner that the lease lasts longer now."""
        until = self._lease.until
        if until > self._told_until:
            self._told_until = until
            self._owner.renew(until)
            self._renewed.set()

    async def _watch(self) -> None:
        """Kills all pipelines when the lease ends."""
        while True:
            until = self._lease.until
            left_s = until - self._boot_time()
            if until != NEVER and left_s <= 0:
                await self._on_lease_ended()
                continue
            try:
                async with asyncio.timeout(None if until == NEVER else left_s):
                    await self._renewed.wait()
            except TimeoutError:
                pass
            self._renewed.clear()

    async def _on_lease_ended(self) -> None:
        self._lease.end()
        names = sorted(self._owned)
        if not names:
            return
        _log.warning(
            "the lease of this worker expired because the group coordinator did not answer: "
            "killing %s",
            ", ".join(names),
        )
        self._kill(names)
        await self._end(names)
        # The group may have assigned one of them to this worker again in the meantime.
        gone = [TopicPartition(name, 0) for name in names if name not in self._owned]
        if not self._closing:
            self._member.disown(gone, "the lease ended")


class _Host:
    """What `GroupMember` needs of a consumer. A worker reads no records."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    def consumed(self) -> Offsets:
        return {}

    def add(self, topic_partitions: Collection[TopicPartition]) -> None: ...

    def drop(self, topic_partitions: Collection[TopicPartition]) -> None: ...

    def wake(self) -> None:
        self._ownership.wake()

    def committed(self, offsets: Offsets) -> None: ...


def _names(pipelines: Iterable[TopicPartition]) -> list[str]:
    return sorted(pipeline.topic for pipeline in pipelines)
