"""ElectLeaders, versions 0 to 2: elects the preferred replica, or any live one, as leader.

Version 1 added the type of election. Preferred (0): the first replica of the assignment becomes
leader, if it is in sync. Unclean (1): if there is no leader, the best live replica becomes leader,
and records that it lacks are lost. The request itself asks for that, so the setting
unclean.leader.election.enable is not consulted. Null partitions stand for all; then those that need
no election are left out of the answer.

The answer is sent when the cluster's metadata has the new leaders. The timeout is ignored, since
that takes milliseconds, or is bounded by the store's own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.handlers.admin_requests import error_of
from penstock.broker.handlers.partition_requests import decide_by_topic
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.preferred import Election, elect
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ElectLeadersRequest, ElectLeadersResponse

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


def handle(
    request: ElectLeadersRequest, context: RequestContext
) -> asyncio.Future[ElectLeadersResponse]:
    context.require_cluster(AclOperation.ALTER)
    return context.spawn(_run(request, context))


async def _run(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Election type {request.election_type} is unknown: use 0 (preferred) or 1 (unclean).",
        )
    unclean = request.election_type == _UNCLEAN
    static = context.services.controller.static

    def make(
        topic_partitions: Sequence[TopicPartition], image: ClusterImage
    ) -> Decision[tuple[Election, ...]]:
        return elect(
            image, topic_partitions, unclean=unclean, stopping=image.stopping, static=static
        )

    wanted = _wanted(request, context.services.image)
    decided = await decide_by_topic(context, wanted, make)
    response = ElectLeadersResponse()
    for topic, outcome in decided.items():
        if isinstance(outcome, Exception):
            code, words = error_of(outcome)
            results = [_result(index, code, words) for _, index in wanted[topic]]
        else:
            results = [
                _result(each.index, each.error, each.message)
                for each in outcome
                if request.topic_partitions is not None
                or each.error != ErrorCode.ELECTION_NOT_NEEDED
            ]
        if results:
            response.replica_election_results.append(ElectLeadersResponse.Topic(topic, results))
    return response


def _wanted(request: ElectLeadersRequest, image: ClusterImage) -> dict[str, list[TopicPartition]]:
    if request.topic_partitions is None:
        return {
            topic.name: [
                TopicPartition(topic.name, index) for index in range(len(topic.partitions))
            ]
            for topic in image.topics.values()
        }
    wanted: dict[str, dict[TopicPartition, None]] = {}
    for topic in request.topic_partitions:
        topic_partitions = wanted.setdefault(topic.topic, {})
        topic_partitions.update(
            dict.fromkeys(TopicPartition(topic.topic, index) for index in topic.partitions)
        )
    return {topic: [*topic_partitions] for topic, topic_partitions in wanted.items()}


def _result(index: int, code: ErrorCode, words: str | None) -> ElectLeadersResponse.Partition:
    if code == ErrorCode.NONE:
        return ElectLeadersResponse.Partition(index, code, None)
    return ElectLeadersResponse.Partition(index, code, words or code.message)


def refuse(request: ElectLeadersRequest, version: int, code: ErrorCode) -> ElectLeadersResponse:
    """Answers every partition with the code. Version 0 has no code for the whole response."""
    return ElectLeadersResponse(
        error_code=code if version > 0 else ErrorCode.NONE,
        replica_election_results=[
            ElectLeadersResponse.Topic(
                topic.topic, [_result(index, code, None) for index in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )
