"""A member of a share group (KIP-932), with the library's parts but without its consumer.

Heartbeats are those of the library's membership. `share_holding` gets records and acknowledges
them. The member leaves now and then, mostly without ending its sessions, and comes back under
another id. Sometimes it sends a heartbeat with an epoch that it never had.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.client.admin.operations import ResourceType, alter_configs
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.sharing.membership import ShareMembership
from penstock.sim.actors.share_holding import MemberSharing
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import Entry
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

_WRONG_BY: Final = 1_000
"""A group does not reach such an epoch during a run."""
_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 1.0


async def prepare_share_groups(actor: Actor) -> None:
    """Sets the configs of all share groups. Retries until that is acknowledged."""
    plan = actor.shared.scenario.shares
    if plan is None:
        return
    async with await _connected(actor) as cluster:
        for name in plan.names:
            await _insist(cluster, name, plan.group_settings() | plan.letter_settings(name))


async def _insist(cluster: Cluster, group: str, values: dict[str, str]) -> None:
    while True:
        try:
            await alter_configs(cluster, ResourceType.GROUP, group, set_values=values)
        except ClientError:
            await asyncio.sleep(0.5)
        else:
            return


async def _connected(actor: Actor) -> Cluster:
    cluster = actor.cluster(actor.draws.choice((1_000, 3_000)))
    while True:
        try:
            return await cluster.__aenter__()
        except ClientError:
            await asyncio.sleep(0.5)


async def run_share_member(actor: Actor, *, group: str) -> None:
    """Takes part in a group until the end of the run."""
    cluster = await _connected(actor)
    member = _Member(actor, cluster, group)
    actor.shared.under_way[actor.name] = member.on_killed
    await member.start()
    work = asyncio.ensure_future(member.sharing.run())
    try:
        while not actor.shared.shares.done.is_set():
            await member.live()
            if work.done():
                work.result()
    finally:
        work.cancel()
        await asyncio.wait([work])
        with suppress(ClientError):
            await member.sharing.end_sessions()
        await member.leave()
        member.on_killed()
        cluster.close()


class _Member:
    def __init__(self, actor: Actor, cluster: Cluster, group: str) -> None:
        self._actor = actor
        self._shared = actor.shared
        self._cluster = cluster
        self._group = group
        self._membership = self._new_membership()
        self.sharing = MemberSharing(actor, cluster, group)

    def on_killed(self) -> list[Entry]:
        """The process ends. The group must remove its member, and release its records."""
        self._shared.shares.members.pop(self._actor.name, None)
        return []

    async def start(self) -> None:
        self._shared.shares.members[self._actor.name] = (self._group, self._membership.member_id)
        await self.sharing.start_as(self._membership)

    def _new_membership(self) -> ShareMembership:
        return ShareMembership(
            self._group,
            f"{self._actor.name}.{self._actor.draws.randbytes(4).hex()}",
            [topic.name for topic in self._shared.scenario.topics],
            backoff_s=_BACKOFF_S,
            backoff_max_s=_BACKOFF_MAX_S,
            uniform=self._actor.draws.random,
        )

    async def live(self) -> None:
        """Sends one heartbeat, and waits for the next."""
        await self._beat()
        clock = self._actor.env.clock
        await asyncio.sleep(max(0.02, self._membership.due - clock.monotonic()))
        if self._shared.over.is_set():
            return
        chance = self._actor.draws.random()
        if chance < 0.015:
            await self._leave_and_return()
        elif chance < 0.04:
            await self._send_wrong_epoch()

    async def _beat(self) -> None:
        membership, clock = self._membership, self._actor.env.clock
        joins = membership.joins
        try:
            answer = await self._call(membership.heartbeat(), fresh=membership.find_coordinator)
        except ClientError as error:
            membership.failed(error, clock.monotonic())
        else:
            membership.answered(answer, clock.monotonic())
            name = ErrorCode(answer.error_code).name.lower()
            self._shared.count(f"share_heartbeats_{name}")
        self._shared.count("share_joins", membership.joins - joins)
        if membership.error is not None:
            assert self._shared.shares.judge is not None
            text = f"{self._actor.name} was answered with {membership.error}"
            self._shared.shares.judge.fail("E41", text)
            self._membership = self._new_membership()
            await self.start()

    async def _call(
        self, request: ShareGroupHeartbeatRequest, *, fresh: bool = False
    ) -> ShareGroupHeartbeatResponse:
        connection = await self._cluster.coordinator(self._group, fresh=fresh)
        return await connection.call(request, ShareGroupHeartbeatResponse)

    async def leave(self) -> None:
        request = self._membership.leave()
        if request is not None:
            with suppress(ClientError):
                await self._call(request)

    async def _leave_and_return(self) -> None:
        if self._actor.draws.random() < 0.4:
            with suppress(ClientError):
                await self.sharing.end_sessions()
        await self.leave()
        self._shared.count("share_members_left")
        self._membership = self._new_membership()
        await self.start()
        await self._shared.rest(self._actor.draws.choice((0.1, 1.0, 4.0)))

    async def _send_wrong_epoch(self) -> None:
        """Sends a heartbeat with an epoch that the member never had. It must be refused."""
        membership = self._membership
        if not membership.is_member:
            return
        request = membership.heartbeat()
        request.member_epoch += _WRONG_BY
        with suppress(ClientError):
            answer = await self._call(request)
            self._shared.count("share_heartbeats_of_wrong_epochs")
            if not answer.error_code:
                assert self._shared.shares.judge is not None
                text = f"group {self._group}: epoch {request.member_epoch} of {self._actor.name}"
                self._shared.shares.judge.fail("E40", f"{text} was accepted")
