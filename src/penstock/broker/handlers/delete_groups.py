"""DeleteGroups, versions 0 to 2: deletes groups without members, with their offsets.

The group with the empty name can be deleted like any other: members cannot join it, but offsets can
be committed to it.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import info_of
from penstock.coordination.effects import Now, Token
from penstock.groups.effects import Effect
from penstock.groups.error_responses import refuse
from penstock.groups.shard import GroupShard
from penstock.security.acls import AclOperation
from penstock.wire.errors import KafkaError
from penstock.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse

__all__ = ["handle", "refuse"]


def handle(
    request: DeleteGroupsRequest, context: RequestContext
) -> asyncio.Future[DeleteGroupsResponse]:
    return context.spawn(_delete(request, context))


async def _delete(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    response = DeleteGroupsResponse()
    context.is_large = context.is_large or len(request.groups_names) > context.slicing.elements
    slices = context.slices()
    for group_id in dict.fromkeys(request.groups_names):
        try:
            context.require_group(AclOperation.DELETE, group_id)
            answer = await _delete_one(group_id, context)
        except KafkaError as error:
            response.results.append(DeleteGroupsResponse.Group(group_id, error.code))
        else:
            response.results.extend(answer.results)
        # A group that does not exist is answered without any wait, so yield here.
        await slices.give_way()
    return response


async def _delete_one(group_id: str, context: RequestContext) -> DeleteGroupsResponse:
    info = info_of(context)

    def step(shard: GroupShard, token: Token, now: Now) -> list[Effect]:
        return shard.delete_groups(DeleteGroupsRequest([group_id]), info, token, now)

    answer = await context.services.groups.ask(group_id, step)
    if not isinstance(answer, DeleteGroupsResponse):
        raise TypeError(f"the shard answered with {type(answer).__name__}")
    return answer
