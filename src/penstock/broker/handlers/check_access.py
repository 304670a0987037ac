"""CheckAccess, version 0: says whether a principal may do something, and by which rule.

This is Penstock's own API. The answer is the one that this broker's authorizer gives, with the ACL
that decides and the roles of the principal that made it. The host `*` stands for an address that no
ACL names. It needs DESCRIBE on the cluster, as DescribeAcls does: the answer shows ACLs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.acl_requests import require_authorizer
from penstock.metadata.acls import role_book
from penstock.security.acls import AclBinding, AclOperation, ResourceType
from penstock.security.authorizer import AccessDecision
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import CheckAccessRequest, CheckAccessResponse


def handle(
    request: CheckAccessRequest, context: RequestContext
) -> CheckAccessResponse | asyncio.Future[CheckAccessResponse]:
    context.require_cluster(AclOperation.DESCRIBE)
    require_authorizer(context)
    operation = AclOperation(request.operation)
    resource_type = ResourceType(request.resource_type)
    if operation <= AclOperation.ANY or resource_type <= ResourceType.ANY:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "The operation or the type of the resource is unknown."
        )
    authorizer = context.services.authorization.current
    assert authorizer is not None
    decision = authorizer.decide(
        request.principal, request.host, operation, resource_type, request.resource_name
    )
    stored = context.services.image.stored_roles
    if decision.rule is None or stored is None:
        return _answer(decision, [])
    return context.spawn(_with_roles(decision, partial(_roles_of, decision.rule, stored), context))


async def _with_roles(
    decision: AccessDecision, find: Callable[[], list[str]], context: RequestContext
) -> CheckAccessResponse:
    # Ten thousand assignments take long to decode.
    return _answer(decision, await context.services.env.executor.run(find))


def _answer(decision: AccessDecision, roles: list[str]) -> CheckAccessResponse:
    return CheckAccessResponse(allowed=decision.allowed, reason=str(decision), roles=roles)


def _roles_of(rule: AclBinding, stored: bytes) -> list[str]:
    """Returns the roles by which the principal of an ACL has it, unless it was made by hand."""
    book = role_book(stored)
    if rule in book.made_by_hand:
        return []
    held = book.assignments_of(rule.principal)
    return sorted({each.role for each in held if rule in book.acls_of(each)})
