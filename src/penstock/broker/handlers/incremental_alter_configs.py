"""IncrementalAlterConfigs, versions 0 and 1: set, delete, append to and subtract from configs.

What the request does not name stays as it is. Appending and subtracting are for lists, and begin
with what holds now, inherited or not. Resources as in AlterConfigs: each is changed as a whole or
not at all, and the change is in force on this broker when the answer leaves. The versions differ
in their encoding only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.broker.context import RequestContext
from penstock.broker.handlers.config_requests import alter_each
from penstock.metadata.config_changes import ConfigEdit, incremental_alter_configs
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse


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
        edits = [
            ConfigEdit(config.name, config.config_operation, config.value)
            for config in resource.configs
        ]
        return incremental_alter_configs(
            image, resource.resource_type, resource.resource_name, edits, static
        )

    outcomes = await alter_each(
        context, request.resources, alter, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.Resource(
                code, words, resource.resource_type, resource.resource_name
            )
            for resource, (code, words) in zip(request.resources, outcomes, strict=True)
        ]
    )


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
