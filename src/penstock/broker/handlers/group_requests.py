"""Shared by the handlers of group requests: passes a request to its group's shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.context import RequestContext
from penstock.coordination.effects import Now, Token
from penstock.groups.effects import Effect, RequestInfo
from penstock.groups.error_responses import refuse
from penstock.groups.shard import GroupShard
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Request


def info_of(context: RequestContext) -> RequestInfo:
    return RequestInfo(context.client_id, f"/{context.host}", context.version)


def ask(
    context: RequestContext,
    group_id: str,
    request: Request,
    method: Callable[[GroupShard], Callable[..., list[Effect]]],
    *,
    nameless: bool = False,
) -> Any:
    """Passes a request for one group to its shard.

    A group whose coordinator is another broker, or that is still loading, is refused. So is the
    group with the empty name, unless `nameless` is set: it may have offsets, but no members.
    """
    info = info_of(context)

    def step(shard: GroupShard, token: Token, now: Now) -> list[Effect]:
        return method(shard)(request, info, token, now)

    if not group_id and not nameless:
        return refuse(request, context.version, ErrorCode.INVALID_GROUP_ID)
    try:
        reply = context.services.groups.ask(group_id, step)
    except KafkaError as error:
        return refuse(request, context.version, error.code)
    if reply.done():
        return reply.result()
    return reply
