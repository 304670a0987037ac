"""AlterRoles, version 0: defines, deletes, grants and revokes roles.

This is Penstock's own API; Kafka has no roles. All changes of a request are made in order and in
one commit with the ACLs that they add and remove, or none is made. The request is answered when
every live broker decides by the new ACLs, as CreateAcls is. It needs ALTER on the cluster.

An action is 0 to define a role with its grants, 1 to delete it, 2 to grant it to a principal, 3 to
revoke it. A grant without a resource has the resource type 0.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.acl_requests import change_acls, confirm, require_authorizer
from penstock.metadata.role_plans import CHANGES_MAX, plan_roles
from penstock.security.acls import AclOperation, AclRefused
from penstock.security.role_edits import DefineRole, DeleteRole, GrantRole, RevokeRole, RoleEdit
from penstock.security.role_messages import read_assignment, read_grant
from penstock.security.roles import Role
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import AlterRolesRequest, AlterRolesResponse


def handle(
    request: AlterRolesRequest, context: RequestContext
) -> AlterRolesResponse | asyncio.Future[AlterRolesResponse]:
    context.require_cluster(AclOperation.ALTER)
    require_authorizer(context)
    if len(request.changes) > CHANGES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The request has {len(request.changes)} changes: use {CHANGES_MAX} or fewer.",
        )
    if not request.changes:
        return AlterRolesResponse()
    return context.spawn(_run([_edit(each) for each in request.changes], context))


async def _run(edits: list[RoleEdit], context: RequestContext) -> AlterRolesResponse:
    await change_acls(context, partial(plan_roles, edits=edits), len(edits))
    if (late := await confirm(context)) is not None:
        raise late
    return AlterRolesResponse()


def _edit(change: AlterRolesRequest.Change) -> RoleEdit:
    try:
        match change.action:
            case 0:
                return DefineRole(Role(change.role, tuple(map(read_grant, change.grants))))
            case 1:
                return DeleteRole(change.role)
            case 2:
                return GrantRole(read_assignment(change))
            case 3:
                return RevokeRole(read_assignment(change))
    except AclRefused as refused:
        raise KafkaError(refused.code, str(refused)) from refused
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"The action {change.action} is unknown: use 0 to define, 1 to delete, 2 to grant and 3 to "
        "revoke a role.",
    )
