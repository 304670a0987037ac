"""Administrators who give a right to the guest and take it again, at any broker.

Each has one right to change. A right is taken by deleting its ALLOW, or by a DENY, and given by the
reverse. A request without a response may still arrive at a broker, long after the next one. So that
this does not undo a later revocation, no ACL is created twice: each has another prefix of the
resource's name. And while an ALLOW may still arrive, the right is taken by a DENY, which prevails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.sim.access_plan import GUEST, RIGHTS
from penstock.sim.actors.sends import with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import INFO, OK, RightChange
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

ADMIN_TIMEOUT_MS: Final = 30_000
"""How long to wait for all brokers. They wait for each other for less."""
_PAUSE_MEAN_S: Final = 1.5
_GUEST: Final = f"User:{GUEST}"


class NotDone(Exception):
    """A change may not be made, or not be in force everywhere."""


class NotSent(NotDone):
    """A change was not even requested."""


def note_change(actor: Actor, right: str, begun_ms: float, error: str, *, granted: bool) -> None:
    """Adds a change to the history. Wakes the guest after a revocation."""
    shared, name = actor.shared, "granted" if granted else "revoked"
    shared.count(f"rights_not_{name}" if error else f"rights_{name}")
    shared.history.add(
        RightChange(
            process=actor.name,
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            right=right,
            granted=granted,
        )
    )
    if not error and not granted:
        shared.on_revoked()


@dataclass(frozen=True, slots=True)
class AclChanges:
    """Creates and deletes ACLs, each time at another broker. Raises `ClientError` or `NotDone`."""

    actor: Actor

    async def create(self, cluster: Cluster, acl: AclBinding) -> None:
        creation = CreateAclsRequest.Creation(
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission,
        )
        connection = await self._connection(cluster)
        answer = await connection.call(CreateAclsRequest([creation]), CreateAclsResponse)
        _require(answer.results[0].error_code)

    async def delete(self, cluster: Cluster, acls: Iterable[AclBinding]) -> None:
        await self._delete(
            cluster,
            [
                DeleteAclsRequest.Filter(
                    acl.resource_type,
                    acl.resource_name,
                    acl.pattern_type,
                    acl.principal,
                    acl.host,
                    acl.operation,
                    acl.permission,
                )
                for acl in acls
            ],
        )

    async def delete_denies(self, cluster: Cluster) -> None:
        """Deletes everything that is denied to the guest."""
        any_type, any_pattern, any_operation = (
            ResourceType.ANY,
            PatternType.ANY,
            AclOperation.ANY,
        )
        denies = DeleteAclsRequest.Filter(
            any_type, None, any_pattern, _GUEST, None, any_operation, PermissionType.DENY
        )
        await self._delete(cluster, [denies])

    async def _delete(self, cluster: Cluster, filters: list[DeleteAclsRequest.Filter]) -> None:
        connection = await self._connection(cluster)
        answer = await connection.call(DeleteAclsRequest(filters), DeleteAclsResponse)
        for each in answer.filter_results:
            _require(each.error_code)

    async def _connection(self, cluster: Cluster) -> Connection:
        try:
            return await cluster.connection(self.actor.draws.choice(sorted(cluster.brokers)))
        except ClientError as error:
            raise NotSent(str(error)) from error


def _require(code: int) -> None:
    if code:
        raise NotDone(ErrorCode(code).name)


@dataclass(slots=True)
class RightsAdmin:
    """Changes one right. Knows which ACLs of the right may exist."""

    actor: Actor
    right: str
    allows: list[AclBinding] = field(default_factory=list)
    denies: list[AclBinding] = field(default_factory=list)
    made: dict[PermissionType, int] = field(default_factory=dict)
    is_given: bool = False
    may_arrive: bool = False
    """An ALLOW was requested, and its result is unknown."""

    async def run(self, cluster: Cluster) -> None:
        """Changes the right until the load is over."""
        shared, draws = self.actor.shared, self.actor.draws
        while not shared.over.is_set():
            await self.change(cluster, grant=not self.is_given)
            await shared.rest(min(draws.expovariate(1 / _PAUSE_MEAN_S), 6.0))

    async def change(self, cluster: Cluster, *, grant: bool) -> None:
        """Gives the right, or takes it."""
        changes, error = AclChanges(self.actor), ""
        begun_ms = self.actor.shared.now_ms()
        try:
            await (self._give(changes, cluster) if grant else self._take(changes, cluster))
            self.is_given = grant
        except (ClientError, NotDone) as failed:
            error = str(failed)
        note_change(self.actor, self.right, begun_ms, error, granted=grant)

    async def _give(self, changes: AclChanges, cluster: Cluster) -> None:
        if self.denies:
            await changes.delete(cluster, self.denies)
            self.denies = []
        if not self.allows:
            self.allows = [self._next(PermissionType.ALLOW)]
        try:
            await changes.create(cluster, self.allows[0])
        except NotSent:
            raise
        except (ClientError, NotDone):
            self.may_arrive = True
            raise

    async def _take(self, changes: AclChanges, cluster: Cluster) -> None:
        if self.denies:  # Not acknowledged the last time.
            await changes.create(cluster, self.denies[0])
        elif self.may_arrive or self.actor.draws.random() < 0.5:
            self.denies = [self._next(PermissionType.DENY)]
            await changes.create(cluster, self.denies[0])
        else:
            await changes.delete(cluster, self.allows)
            self.allows = []

    def _next(self, permission: PermissionType) -> AclBinding:
        """Returns an ACL that was never created before."""
        resource_type, name, operation = RIGHTS[self.right]
        number = self.made[permission] = self.made.get(permission, -1) + 1
        return AclBinding(
            resource_type,
            PatternType.PREFIXED,
            name[: len(name) - number % len(name)],
            _GUEST,
            "*",
            operation,
            permission,
        )


async def run_rights_admin(actor: Actor, *, right: str) -> None:
    cluster = await with_cluster(actor, ADMIN_TIMEOUT_MS)
    if cluster is None:
        return
    try:
        await RightsAdmin(actor, right).run(cluster)
    finally:
        cluster.close()
