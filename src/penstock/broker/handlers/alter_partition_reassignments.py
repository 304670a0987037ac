"""AlterPartitionReassignments, versions 0 and 1: starts or cancels (null replicas) reassignments.

Version 1 can forbid a change of the replication factor. A reassignment is answered when it has
begun; ListPartitionReassignments or the metadata show when it has ended. For a partition that is
being reassigned already, the new target replaces the old one. Each partition is accepted or refused
on its own; one that is named twice is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps, in_slices
from penstock.broker.handlers.admin_requests import error_of
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
    slices = context.slices()
    asked, twice = await in_slices(_asked(request), slices)
    static = context.services.controller.static
    count = sum(len(moves) for moves in asked.values())
    context.is_large = context.is_large or count > context.slicing.elements

    def make(moves: Sequence[Move], image: ClusterImage) -> Decision[tuple[MoveAnswer, ...]]:
        return reassign(
            image,
            [each for each in moves if (each.topic, each.index) not in twice],
            allow_replication_factor_change=request.allow_replication_factor_change,
            static=static,
        )

    decided = await decide_by_topic(context, asked, lambda move: move.index, make)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=await in_slices(_answers(asked, decided), slices),
    )


def _asked(
    request: AlterPartitionReassignmentsRequest,
) -> Steps[tuple[dict[str, list[Move]], set[tuple[str, int]]]]:
    """Returns the moves by topic, and the partitions that are named more than once."""
    asked: dict[str, list[Move]] = {}
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        moves = asked.setdefault(topic.name, [])
        for part in topic.partitions:
            replicas = None if part.replicas is None else tuple(part.replicas)
            move = Move(topic.name, part.partition_index, replicas)
            identity = (move.topic, move.index)
            if identity in seen:
                twice.add(identity)
            seen.add(identity)
            moves.append(move)
            yield
    return asked, twice


def _answers(
    asked: Mapping[str, Sequence[Move]],
    decided: Sequence[tuple[Sequence[Move], tuple[MoveAnswer, ...] | Exception]],
) -> Steps[list[AlterPartitionReassignmentsResponse.Topic]]:
    """Answers each partition once, in the order of the request."""
    repeated = ErrorCode.INVALID_REQUEST, "The request names the partition more than once."
    codes: dict[tuple[str, int], tuple[ErrorCode, str | None]] = {}
    for group, outcome in decided:
        if isinstance(outcome, Exception):
            for move in group:
                codes[move.topic, move.index] = error_of(outcome)
                yield
        else:
            for each in outcome:
                codes[each.topic, each.index] = _worded(each)
                yield
    answers = []
    for topic, moves in asked.items():
        parts: dict[int, AlterPartitionReassignmentsResponse.Partition] = {}
        for move in moves:
            code, words = codes.get((topic, move.index), repeated)
            parts[move.index] = AlterPartitionReassignmentsResponse.Partition(
                move.index, code, words
            )
            yield
        answers.append(AlterPartitionReassignmentsResponse.Topic(topic, [*parts.values()]))
    return answers


def _worded(answer: MoveAnswer) -> tuple[ErrorCode, str | None]:
    if answer.error == ErrorCode.NONE:
        return answer.error, None
    return answer.error, answer.message or answer.error.message
