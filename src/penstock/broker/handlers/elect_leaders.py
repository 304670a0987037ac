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
from penstock.broker.cooperative_yield import Steps, in_slices
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

    slices = context.slices()
    wanted = await in_slices(_wanted(request, context.services.image), slices)
    count = sum(len(each) for each in wanted.values())
    context.is_large = context.is_large or count > context.slicing.elements
    decided = await decide_by_topic(context, wanted, lambda each: each.partition, make)
    del wanted
    return await in_slices(_response(decided, is_for_all=request.topic_partitions is None), slices)


def _wanted(
    request: ElectLeadersRequest, image: ClusterImage
) -> Steps[dict[str, Sequence[TopicPartition]]]:
    """Returns the partitions by topic, each of them once."""
    wanted: dict[str, dict[TopicPartition, None]] = {}
    if request.topic_partitions is None:
        asked: list[tuple[str, Sequence[int]]] = [
            (topic.name, range(len(topic.partitions))) for topic in image.topics.values()
        ]
    else:
        asked = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    for name, indexes in asked:
        those = wanted.setdefault(name, {})
        for index in indexes:
            those[TopicPartition(name, index)] = None
            yield
    return {name: [*those] for name, those in wanted.items()}


def _response(
    decided: list[tuple[Sequence[TopicPartition], tuple[Election, ...] | Exception]],
    *,
    is_for_all: bool,
) -> Steps[ElectLeadersResponse]:
    """Takes the groups out of `decided`: freeing all of them at once would take long."""
    topics: dict[str, ElectLeadersResponse.Topic] = {}

    def add(topic: str, result: ElectLeadersResponse.Partition) -> None:
        answer = topics.get(topic)
        if answer is None:
            answer = topics[topic] = ElectLeadersResponse.Topic(topic)
        answer.partition_result.append(result)

    decided.reverse()
    while decided:
        group, outcome = decided.pop()
        if isinstance(outcome, Exception):
            code, words = error_of(outcome)
            for topic, index in group:
                add(topic, _result(index, code, words))
                yield
        else:
            for each in outcome:
                if not (is_for_all and each.error == ErrorCode.ELECTION_NOT_NEEDED):
                    add(each.topic, _result(each.index, each.error, each.message))
                yield
    return ElectLeadersResponse(replica_election_results=[*topics.values()])


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
