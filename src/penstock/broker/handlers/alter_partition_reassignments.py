"""AlterPartitionReassignments, versions 0 and 1: starts or cancels (null replicas) reassignments.

Version 1 can forbid a change of the replication factor. A reassignment is answered when it has
begun; ListPartitionReassignments or the metadata show when it has ended. For a partition that is
being reassigned already, the new target replaces the old one. Each partition is accepted or refused
on its own; one that is named twice is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.broker.context import RequestContext
from penstock.broker.handlers.admin_requests import error_of, repeated
from penstock.broker.handlers.partition_requests import decide_by_topic
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.reassignment import Move, MoveAnswer, reassign
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> asyncio.Future[AlterPartitionReassignmentsResponse]:
    context.require_cluster(AclOperation.ALTER)
    return context.spawn(_run(request, context))


async def _run(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    asked: dict[str, list[Move]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, []).extend(
            Move(
                topic.name,
                part.partition_index,
                None if part.replicas is None else tuple(part.replicas),
            )
            for part in topic.partitions
        )
    twice = repeated((move.topic, move.index) for moves in asked.values() for move in moves)
    static = context.services.controller.static

    def make(moves: Sequence[Move], image: ClusterImage) -> Decision[tuple[MoveAnswer, ...]]:
        return reassign(
            image,
            [each for each in moves if (each.topic, each.index) not in twice],
            allow_replication_factor_change=request.allow_replication_factor_change,
            static=static,
        )

    decided = await decide_by_topic(context, asked, make)
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    for topic_name, moves in asked.items():
        answers = _answers(moves, decided[topic_name])
        response.responses.append(AlterPartitionReassignmentsResponse.Topic(topic_name, answers))
    return response


def _answers(
    moves: Sequence[Move], outcome: tuple[MoveAnswer, ...] | Exception
) -> list[AlterPartitionReassignmentsResponse.Partition]:
    failed = ErrorCode.INVALID_REQUEST, "The request names the partition more than once."
    answered: dict[int, tuple[ErrorCode, str | None]] = {}
    if isinstance(outcome, Exception):
        failed = error_of(outcome)
    else:
        answered = {each.index: _worded(each) for each in outcome}
    return [
        AlterPartitionReassignmentsResponse.Partition(index, *answered.get(index, failed))
        for index in dict.fromkeys(move.index for move in moves)
    ]


def _worded(answer: MoveAnswer) -> tuple[ErrorCode, str | None]:
    if answer.error == ErrorCode.NONE:
        return answer.error, None
    return answer.error, answer.message or answer.error.message
