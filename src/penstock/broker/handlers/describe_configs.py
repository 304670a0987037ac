"""DescribeConfigs, versions 1 to 4: returns all configs of topics and of this broker, with sources.

A topic shows all its configs, inherited values too: tools look for `cleanup.policy` whether or not
it was ever set. A broker is named by its id, and answers only for itself. The empty name stands for
the dynamic defaults of all brokers and shows only those that are set. Requested keys that are
unknown are left out; an empty list of keys means all. Kafka's broker settings that have no effect
here are shown where they are set or requested; their documentation says so. Secrets are null.

A broker's loggers are named by its id too, and only the broker itself can answer for them
(`log_levels`). Groups and client metrics have no configs here: their answer is empty.

Version 1 added synonyms on request, the sources a value could come from. Version 3 added the type
and, on request, a sentence of documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from penstock.broker.context import RequestContext, Services
from penstock.broker.cooperative_yield import Steps
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.handlers import log_levels
from penstock.broker.handlers.admin_requests import error_of
from penstock.broker.handlers.config_requests import require_configs, require_this_broker
from penstock.broker.handlers.fresh_topics import with_fresh_topics
from penstock.broker.handlers.large_requests import answered
from penstock.metadata.config_changes import NO_CONFIGS, ResourceType
from penstock.metadata.configs import BrokerConfigs, ConfigSource, ConfigType, ConfigValue
from penstock.metadata.group_configs import group_values
from penstock.metadata.topics import validate_topic_name
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

_SETTINGS = 40


def handle(
    request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse | asyncio.Future[DescribeConfigsResponse]:
    # Each resource has several dozen settings.
    count = _SETTINGS * len(request.resources)
    context.is_large = count > context.slicing.elements
    return with_fresh_topics(
        context,
        [
            each.resource_name
            for each in request.resources
            if each.resource_type == ResourceType.TOPIC
            and context.may_topic(AclOperation.DESCRIBE_CONFIGS, each.resource_name, audited=False)
        ],
        lambda: answered(context, _answered(request, context), count),
    )


def _answered(
    request: DescribeConfigsRequest, context: RequestContext
) -> Steps[DescribeConfigsResponse]:
    response = DescribeConfigsResponse()
    seen: set[tuple[int, str]] = set()
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in seen:
            continue  # A resource that is named twice is answered once.
        yield
        seen.add((resource.resource_type, resource.resource_name))
        answer = DescribeConfigsResponse.Resource(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        response.results.append(answer)
        try:
            require_configs(context, AclOperation.DESCRIBE_CONFIGS, resource)
            answer.configs = _configs(resource, request, context.services)
        except EXPECTED_ERRORS as error:
            answer.error_code, answer.error_message = error_of(error)
    return response


def _configs(
    resource: DescribeConfigsRequest.Resource, request: DescribeConfigsRequest, services: Services
) -> list[DescribeConfigsResponse.Config]:
    kind = resource.resource_type
    if kind == ResourceType.BROKER_LOGGER:
        require_this_broker(services, resource.resource_name)
        return _levels(resource.configuration_keys)
    if kind in NO_CONFIGS:
        if not resource.resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The resource has no name: give one.")
        return []
    values = _values(resource, services)
    return [_shown(value, request) for value in _chosen(values, resource, services)]


def _levels(keys: list[str] | None) -> list[DescribeConfigsResponse.Config]:
    return [
        DescribeConfigsResponse.Config(
            name,
            level,
            config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            config_type=ConfigType.STRING,
        )
        for name, level in log_levels.levels().items()
        if not keys or name in keys
    ]


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
        require_this_broker(services, name)
        return services.configs().broker()
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The resource has no name: give one.")
        return group_values(services.configs(), services.image.group_configs.get(name, {}))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Resource type {resource.resource_type} has no configs in Penstock: use 2 for topics, 4 "
        "for brokers or 8 for the loggers of a broker.",
    )


def _defaults_set(texts: Mapping[str, str]) -> Mapping[str, ConfigValue]:
    values = BrokerConfigs(dynamic_default=texts).broker()
    return {name: values[name] for name in texts if name in values}


def _chosen(
    values: Mapping[str, ConfigValue],
    resource: DescribeConfigsRequest.Resource,
    services: Services,
) -> Iterable[ConfigValue]:
    if not resource.configuration_keys:
        return values.values()
    of_broker = resource.resource_type == ResourceType.BROKER and resource.resource_name
    find = services.configs().broker_value if of_broker else values.get
    found = [find(key) for key in dict.fromkeys(resource.configuration_keys)]
    return [value for value in found if value is not None]


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
