"""AlterConfigs, versions 0 to 2: replaces all overrides of topics or brokers.

A setting that the request does not name goes back to its default. That is why
IncrementalAlterConfigs was introduced; older tools still send this request. A broker is named by
its id, and the empty name stands for all brokers. Each resource is changed as a whole or, with its
own error, not at all; one that is named twice is refused. The change is in force on this broker
when the answer is sent. The versions differ in their encoding only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.config_requests import alter_each
from penstock.broker.handlers.large_requests import one_by_one
from penstock.metadata.config_changes import alter_configs
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AlterConfigsRequest, AlterConfigsResponse


def handle(
    request: AlterConfigsRequest, context: RequestContext
) -> asyncio.Future[AlterConfigsResponse]:
    return context.spawn(_run(request, context))


async def _run(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    alter = partial(_alter, dict(context.services.config.kafka))
    outcomes = await alter_each(
        context, request.resources, alter, validate_only=request.validate_only
    )
    pairs = zip(request.resources, outcomes, strict=True)
    responses = await one_by_one(lambda pair: _answer(*pair), pairs, context.slices())
    return AlterConfigsResponse(responses=responses)


def _answer(
    resource: AlterConfigsRequest.Resource, outcome: tuple[int, str | None]
) -> AlterConfigsResponse.Resource:
    return AlterConfigsResponse.Resource(*outcome, resource.resource_type, resource.resource_name)


def _alter(
    static: Mapping[str, str], image: ClusterImage, resource: AlterConfigsRequest.Resource
) -> Decision[Mapping[str, str]]:
    return alter_configs(
        image,
        resource.resource_type,
        resource.resource_name,
        [(config.name, config.value) for config in resource.configs],
        static,
    )


def refuse(request: AlterConfigsRequest, version: int, code: ErrorCode) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.Resource(
                code, code.message, resource.resource_type, resource.resource_name
            )
            for resource in request.resources
        ]
    )
