"""AlterReplicaLogDirs, versions 1 and 2: moves replicas between log directories of this broker.

A broker has one log directory, so a move to it changes nothing and succeeds; any other directory is
LOG_DIR_NOT_FOUND. The versions differ in their encoding only.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext, Services
from penstock.broker.cooperative_yield import Steps
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.handlers.large_requests import answered
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse


def handle(
    request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse | asyncio.Future[AlterReplicaLogDirsResponse]:
    context.require_cluster(AclOperation.ALTER)
    count = sum(len(topic.partitions) for each in request.dirs for topic in each.topics)
    return answered(context, _answers(request, context.services), count)


def _answers(
    request: AlterReplicaLogDirsRequest, services: Services
) -> Steps[AlterReplicaLogDirsResponse]:
    response = AlterReplicaLogDirsResponse()
    for directory in request.dirs:
        for topic in directory.topics:
            answer = AlterReplicaLogDirsResponse.Topic(topic.name)
            response.results.append(answer)
            for index in topic.partitions:
                code = _moved(services, directory.path, topic.name, index)
                answer.partitions.append(AlterReplicaLogDirsResponse.Partition(index, code))
                yield
    return response


def _moved(services: Services, path: str, topic: str, index: int) -> ErrorCode:
    if path.rstrip("/") != services.directory.root.rstrip("/"):
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        services.replicas.require(topic, index)
    except EXPECTED_ERRORS as error:
        return code_of(error)
    return ErrorCode.NONE


def refuse(
    request: AlterReplicaLogDirsRequest, version: int, code: ErrorCode
) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.Topic(
                topic.name,
                [AlterReplicaLogDirsResponse.Partition(index, code) for index in topic.partitions],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )
