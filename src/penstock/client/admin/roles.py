"""Roles of a cluster, and what a principal may do, through an admin client.

These requests are Penstock's own. A Kafka cluster does not have them, and the calls raise
`ApiNotServed` there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.client.cluster import Cluster
from penstock.client.errors import OptionError, check
from penstock.security.acls import AclOperation, PatternType, ResourcePattern
from penstock.security.role_edits import DefineRole, DeleteRole, GrantRole, RevokeRole, RoleEdit
from penstock.security.role_messages import read_assignment, read_grant, wire_grant
from penstock.security.roles import Role, RoleAssignment, RoleRefused, check_role
from penstock.wire.messages import (
    AlterRolesRequest,
    AlterRolesResponse,
    CheckAccessRequest,
    CheckAccessResponse,
    DescribeRolesRequest,
    DescribeRolesResponse,
)

_DEFINE, _DELETE, _GRANT, _REVOKE = range(4)


@dataclass(frozen=True, slots=True)
class RoleListing:
    """The roles of a cluster, and who has them."""

    roles: Mapping[str, Role]
    """By name: the built-in ones, then the others, sorted."""
    built_in: frozenset[str]
    assignments: Sequence[RoleAssignment]
    """Sorted by principal and role."""


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """Whether access is allowed, and why."""

    allowed: bool
    reason: str
    """The rule that decides, such as `allowed: ALLOW READ on TOPIC 'orders' for 'User:alice' from
    any host`."""
    roles: tuple[str, ...]
    """The roles that the rule comes from; none if it was made by hand."""


async def describe_roles(cluster: Cluster, principal: str | None) -> RoleListing:
    answer = await cluster.ask_any(DescribeRolesRequest(principal), DescribeRolesResponse)
    check(answer.error_code, answer.error_message, "the roles")
    return RoleListing(
        {each.name: Role(each.name, tuple(map(read_grant, each.grants))) for each in answer.roles},
        frozenset(each.name for each in answer.roles if each.built_in),
        [read_assignment(each) for each in answer.assignments],
    )


async def alter_roles(cluster: Cluster, edits: Sequence[RoleEdit]) -> None:
    try:
        for edit in edits:
            if isinstance(edit, DefineRole):
                check_role(edit.role)
    except RoleRefused as error:
        raise OptionError(str(error)) from None
    # Revoking and deleting something twice is an error, so a lost answer is not asked for again.
    idempotent = all(isinstance(edit, DefineRole | GrantRole) for edit in edits)
    answer = await cluster.ask_controller(
        AlterRolesRequest([_change(edit) for edit in edits]),
        AlterRolesResponse,
        lambda answer: [answer.error_code],
        idempotent=idempotent,
    )
    check(answer.error_code, answer.error_message, "the roles")


async def check_access(
    cluster: Cluster,
    principal: str,
    operation: AclOperation,
    resource: ResourcePattern,
    host: str,
) -> AccessAnswer:
    if resource.pattern_type != PatternType.LITERAL:
        raise OptionError("access is checked for one resource: give its name, not a prefix")
    request = CheckAccessRequest(principal, host, operation, resource.resource_type, resource.name)
    answer = await cluster.ask_any(request, CheckAccessResponse)
    check(answer.error_code, answer.error_message, "the access")
    return AccessAnswer(answer.allowed, answer.reason, tuple(answer.roles))


def _change(edit: RoleEdit) -> AlterRolesRequest.Change:
    match edit:
        case DefineRole(role):
            grants = [wire_grant(AlterRolesRequest.Grant, each) for each in role.grants]
            return AlterRolesRequest.Change(_DEFINE, role.name, grants)
        case DeleteRole(name):
            return AlterRolesRequest.Change(_DELETE, name)
        case GrantRole(assignment):
            return _assigned(_GRANT, assignment)
        case RevokeRole(assignment):
            return _assigned(_REVOKE, assignment)


def _assigned(action: int, given: RoleAssignment) -> AlterRolesRequest.Change:
    change = AlterRolesRequest.Change(
        action, given.role, principal=given.principal, host=given.host
    )
    if (resource := given.resource) is not None:
        change.resource_type = resource.resource_type
        change.pattern_type = resource.pattern_type
        change.resource_name = resource.name
    return change
