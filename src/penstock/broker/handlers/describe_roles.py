"""DescribeRoles, version 0: returns the roles of the cluster, and who has them.

This is Penstock's own API; Kafka has no roles. With a principal, only its assignments are returned,
and all roles. It needs DESCRIBE on the cluster, as DescribeAcls does.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.acl_requests import require_authorizer
from penstock.metadata.acls import role_book
from penstock.security.acls import AclOperation
from penstock.security.role_messages import wire_grant
from penstock.security.roles import BUILT_IN_ROLES, Role, RoleAssignment, RoleBook
from penstock.wire.messages import DescribeRolesRequest, DescribeRolesResponse


def handle(
    request: DescribeRolesRequest, context: RequestContext
) -> asyncio.Future[DescribeRolesResponse]:
    context.require_cluster(AclOperation.DESCRIBE)
    require_authorizer(context)
    return context.spawn(_run(request, context))


async def _run(request: DescribeRolesRequest, context: RequestContext) -> DescribeRolesResponse:
    # Ten thousand assignments take long to decode and to sort.
    stored = context.services.image.stored_roles
    answer = await context.services.env.executor.run(partial(_answer, stored, request.principal))
    context.is_large = context.is_large or len(answer.assignments) > context.slicing.elements
    return answer


def _answer(stored: bytes | None, principal: str | None) -> DescribeRolesResponse:
    book = role_book(stored)
    held = book.assignments if principal is None else book.assignments_of(principal)
    return DescribeRolesResponse(
        roles=[_role(role) for role in _all_roles(book)],
        assignments=sorted(map(_assignment, held), key=_order),
    )


def _all_roles(book: RoleBook) -> list[Role]:
    custom = sorted(book.custom_roles.values(), key=lambda role: role.name)
    return [*BUILT_IN_ROLES.values(), *custom]


def _role(role: Role) -> DescribeRolesResponse.Role:
    grants = [wire_grant(DescribeRolesResponse.Grant, grant) for grant in role.grants]
    return DescribeRolesResponse.Role(role.name, role.name in BUILT_IN_ROLES, grants)


def _assignment(held: RoleAssignment) -> DescribeRolesResponse.Assignment:
    row = DescribeRolesResponse.Assignment(held.role, held.principal, held.host)
    if (resource := held.resource) is not None:
        row.resource_type = int(resource.resource_type)
        row.pattern_type = int(resource.pattern_type)
        row.resource_name = resource.name
    return row


def _order(row: DescribeRolesResponse.Assignment) -> tuple[str, str, int, str, str]:
    return row.principal, row.role, row.resource_type, row.resource_name, row.host
