"""DescribeConfigs, versions 1 to 4: every config of topics and of this broker, with its source.

A topic shows all it has, inherited values too: tools look for `cleanup.policy` whether or not it
was ever set. A broker is named by its number, and answers for itself alone; the empty name stands
for the dynamic defaults of all brokers and shows only those that are set. Keys that are asked for
and unknown are left out, none asked for means all. Secrets are null.

Version 1 added synonyms, the places a value could come from, on request; version 3 the type and,
on request, a sentence of documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from penstock.broker.context import RequestContext
from penstock.broker.failures import EXPECTED
from penstock.broker.fresh_topics import with_fresh_topics
from penstock.broker.handlers.admin_requests import error_of
from penstock.broker.services import Services
from penstock.metadata.config_changes import ResourceType
from penstock.metadata.configs import BrokerConfigs, ConfigValue
from penstock.metadata.topics import validate_topic_name
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse


def handle(
    request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse | asyncio.Future[DescribeConfigsResponse]:
    return with_fresh_topics(
        context,
        [
            each.resource_name
            for each in request.resources
            if each.resource_type == ResourceType.TOPIC
        ],
        lambda: _answered(request, context),
    )


def _answered(request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    seen: set[tuple[int, str]] = set()
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in seen:
            continue  # asked for twice is answered once
        seen.add((resource.resource_type, resource.resource_name))
        answer = DescribeConfigsResponse.Resource(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        response.results.append(answer)
        try:
            values = _values(resource, context.services)
        except EXPECTED as error:
            answer.error_code, answer.error_message = error_of(error)
            continue
        answer.configs = [
            _shown(value, request) for value in _chosen(values, resource.configuration_keys)
        ]
    return response


def _values(
    resource: DescribeConfigsRequest.Resource, services: Services
) -> Mapping[str, ConfigValue]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        validate_topic_name(name)
        return services.configs().topic(services.image.require_topic(name).configs)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return _defaults_set(services.image.default_broker_configs)
        if name == str(services.config.broker_id):
            return services.configs().broker()
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {services.config.broker_id}, which cannot tell the configs of broker "
            f"'{name}': ask that one, or give an empty name for the defaults of all.",
        )
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Configs of resource type {resource.resource_type} are not kept here: use 2 for topics "
        "or 4 for brokers.",
    )


def _defaults_set(texts: Mapping[str, str]) -> Mapping[str, ConfigValue]:
    values = BrokerConfigs(dynamic_default=texts).broker()
    return {name: values[name] for name in texts}


def _chosen(values: Mapping[str, ConfigValue], keys: list[str] | None) -> Iterable[ConfigValue]:
    if not keys:
        return values.values()
    return [values[key] for key in dict.fromkeys(keys) if key in values]


def _shown(config: ConfigValue, request: DescribeConfigsRequest) -> DescribeConfigsResponse.Config:
    synonyms = config.synonyms if request.include_synonyms else ()
    return DescribeConfigsResponse.Config(
        config.name,
        config.text,
        config.read_only,
        config.source,
        config.is_sensitive,
        [
            DescribeConfigsResponse.Synonym(synonym.name, synonym.text, synonym.source)
            for synonym in synonyms
        ],
        config.config_type,
        config.documentation if request.include_documentation else None,
    )


def refuse(
    request: DescribeConfigsRequest, version: int, code: ErrorCode
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResponse.Resource(
                code, code.message, resource.resource_type, resource.resource_name
            )
            for resource in request.resources
        ]
    )
