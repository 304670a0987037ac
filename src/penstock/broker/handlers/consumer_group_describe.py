"""ConsumerGroupDescribe, versions 0 and 1: returns the state and members of consumer groups.

The client needs DESCRIBE on the group and on every topic that members are assigned: otherwise the
group has TOPIC_AUTHORIZATION_FAILED and no members. A classic group is GROUP_ID_NOT_FOUND: clients
then ask with DescribeGroups. Version 1 added the protocol of each member. The API is served
unless `group.coordinator.rebalance.protocols` leaves out `consumer`.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.group_requests import forbidden_topics
from penstock.broker.handlers.large_requests import answered
from penstock.groups.error_responses import refuse
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

__all__ = ["handle", "refuse"]


def handle(
    request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse | asyncio.Future[ConsumerGroupDescribeResponse]:
    return answered(context, _described(request, context), len(request.group_ids))


def _described(
    request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Steps[ConsumerGroupDescribeResponse]:
    response = ConsumerGroupDescribeResponse()
    for group_id in dict.fromkeys(request.group_ids):
        yield
        try:
            context.require_group(AclOperation.DESCRIBE, group_id)
            shard = context.services.groups.require(group_id).shard
        except KafkaError as error:
            response.groups.append(
                ConsumerGroupDescribeResponse.Group(error.code, error.message, group_id)
            )
            continue
        group = _visible(shard.describe_consumer_group(group_id), context)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = context.operations(ResourceType.GROUP, group_id)
        response.groups.append(group)
    return response


def _visible(
    group: ConsumerGroupDescribeResponse.Group, context: RequestContext
) -> ConsumerGroupDescribeResponse.Group:
    """Hides the members if the client may not describe all topics that they are assigned."""
    names = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    if not forbidden_topics(context, AclOperation.DESCRIBE, names):
        return group
    return ConsumerGroupDescribeResponse.Group(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "The group reads topics that the client may not describe.",
        group.group_id,
    )
