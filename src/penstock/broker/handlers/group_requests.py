"""Shared by the handlers of group requests: passes a request to its group's shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

from penstock.broker.context import RequestContext
from penstock.broker.handlers.transaction_requests import then
from penstock.coordination.effects import Now, Token
from penstock.groups.effects import Effect, RequestInfo
from penstock.groups.error_responses import refuse
from penstock.groups.shard import GroupShard
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Request, Response


def info_of(context: RequestContext) -> RequestInfo:
    return RequestInfo(context.client_id, f"/{context.host}", context.version)


def forbidden_topics(
    context: RequestContext, operation: AclOperation, names: Iterable[str]
) -> Set[str]:
    """Returns the topics on which the client may not perform the operation."""
    if not context.has_authorizer:
        return frozenset()
    return {name for name in set(names) if not context.may_topic(operation, name)}


def absent_code(topic: str, forbidden: Set[str]) -> ErrorCode:
    """Returns the error of a partition that was left out of a request to a shard."""
    if topic in forbidden:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def ask(
    context: RequestContext,
    group_id: str,
    request: Request,
    method: Callable[[GroupShard], Callable[..., list[Effect]]],
    *,
    needs: AclOperation = AclOperation.READ,
    nameless: bool = False,
) -> Any:
    """Passes a request for one group to its shard, if the client may perform `needs` on the group.

    The right is checked again when a request has waited, for example for a rebalance: the answer
    tells a member about the others.

    A group whose coordinator is another broker, or that is still loading, is refused. So is the
    group with the empty name, unless `nameless` is set: it may have offsets, but no members.
    """
    info = info_of(context)

    def step(shard: GroupShard, token: Token, now: Now) -> list[Effect]:
        return method(shard)(request, info, token, now)

    if not context.may_group(needs, group_id):
        return refuse(request, context.version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not group_id and not nameless:
        return refuse(request, context.version, ErrorCode.INVALID_GROUP_ID)
    try:
        reply = context.services.groups.ask(group_id, step)
    except KafkaError as error:
        return refuse(request, context.version, error.code)
    if reply.done():
        return reply.result()
    if not context.has_authorizer:
        return reply

    def checked(answer: Response) -> Response:
        if context.may_group(needs, group_id):
            return answer
        return refuse(request, context.version, ErrorCode.GROUP_AUTHORIZATION_FAILED)

    return then(reply, checked)
