"""Shared by CreateAcls, DeleteAcls and DescribeAcls.

A change of ACLs is answered when every live broker decides by it (`access.authorization`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from penstock.broker.context import RequestContext, Services
from penstock.metadata.acls import AclPlan, AclSnapshot, AclsOutdated, snapshot_of
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

NO_AUTHORIZER: Final = "This broker has no authorizer: set authorizer.class.name to use ACLs."
_ATTEMPTS: Final = 10
_AT_ONCE_MAX: Final = 500
"""With more work than this (ACLs times entries or filters), it is done on a thread."""


def require_authorizer(context: RequestContext) -> None:
    """Raises SECURITY_DISABLED if there is no authorizer, as Kafka does."""
    if not context.has_authorizer:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


async def compute(context: RequestContext, work: Callable[[], R], amount: int) -> R:
    """Returns the result of `work`, which runs on a thread if it may take long."""
    if amount <= _AT_ONCE_MAX:
        return work()
    return await context.services.env.executor.run(work)


async def know_current_acls(services: Services) -> None:
    """Waits until this broker knows all ACLs that were committed before.

    A plan that changes nothing is not committed, so the store does not refuse it if it was made of
    old ACLs: a revocation would be acknowledged although the right has been given since.
    """
    await services.cluster.catch_up_shared()


async def change_acls(
    context: RequestContext, plan: Callable[[AclSnapshot], AclPlan[R]], entries: int
) -> R:
    """Commits what `plan` makes of the stored ACLs. Returns the result of the plan."""
    services = context.services
    await know_current_acls(services)
    for _ in range(_ATTEMPTS):
        snapshot = snapshot_of(services.image)
        amount = entries * (1 + snapshot.count())
        planned = await compute(context, partial(plan, snapshot), amount)
        try:
            return await services.controller.decide(planned.decide)
        except AclsOutdated:
            continue
    raise AclsOutdated


async def confirm(context: RequestContext) -> KafkaError | None:
    """Waits until every live broker decides by the change that was just committed.

    Returns an error that names the brokers that have not confirmed it in time.
    """
    services = context.services
    late = await services.authorization.wait_confirmed(services.image.acl_revision)
    if not late:
        return None
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT,
        "The change is made, but these brokers have not confirmed it and may still decide by the "
        f"old ACLs: {', '.join(map(str, late))}. Repeat the request to wait for them, or stop "
        "them.",
    )
