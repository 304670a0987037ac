"""IncrementalAlterConfigs, versions 0 and 1: sets, deletes, appends to and subtracts from configs.

Settings that the request does not name stay as they are. Append and subtract are for lists, and
start from the value in force, inherited or not. Resources are named as in AlterConfigs: each is
changed as a whole or not at all, and the change is in force on this broker when the answer is sent.
The levels of a broker's loggers (`log_levels`) are changed by that broker alone, without the store.
The versions differ in their encoding only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.broker.context import RequestContext
from penstock.broker.handlers import log_levels
from penstock.broker.handlers.config_requests import (
    alter_each,
    require_configs,
    require_this_broker,
)
from penstock.metadata.config_changes import ConfigEdit, ResourceType, incremental_alter_configs
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

_LOGGER = ResourceType.BROKER_LOGGER


def handle(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> asyncio.Future[IncrementalAlterConfigsResponse]:
    return context.spawn(_run(request, context))


async def _run(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    static = dict(context.services.config.kafka)

    def alter(
        image: ClusterImage, resource: IncrementalAlterConfigsRequest.Resource
    ) -> Decision[Mapping[str, str]]:
        return incremental_alter_configs(
            image, resource.resource_type, resource.resource_name, _edits(resource), static
        )

    kept = [each for each in request.resources if each.resource_type != _LOGGER]
    outcomes = iter(await alter_each(context, kept, alter, validate_only=request.validate_only))
    response = IncrementalAlterConfigsResponse()
    slices = context.slices()
    for resource in request.resources:
        if resource.resource_type == _LOGGER:
            code, words = _alter_levels(context, resource, request.validate_only)
        else:
            code, words = next(outcomes)
        response.responses.append(
            IncrementalAlterConfigsResponse.Resource(
                code, words, resource.resource_type, resource.resource_name
            )
        )
        await slices.give_way()
    return response


def _edits(resource: IncrementalAlterConfigsRequest.Resource) -> list[ConfigEdit]:
    return [
        ConfigEdit(config.name, config.config_operation, config.value)
        for config in resource.configs
    ]


def _alter_levels(
    context: RequestContext, resource: IncrementalAlterConfigsRequest.Resource, validate_only: bool
) -> tuple[int, str | None]:
    try:
        require_configs(context, AclOperation.ALTER_CONFIGS, resource)
        require_this_broker(context.services, resource.resource_name)
        log_levels.alter(_edits(resource), validate_only=validate_only)
    except KafkaError as error:
        return error.code, error.message
    return ErrorCode.NONE, None


def refuse(
    request: IncrementalAlterConfigsRequest, version: int, code: ErrorCode
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.Resource(
                code, code.message, resource.resource_type, resource.resource_name
            )
            for resource in request.resources
        ]
    )
