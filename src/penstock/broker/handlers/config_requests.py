"""Shared by AlterConfigs and IncrementalAlterConfigs, which differ in the decision they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.broker.context import RequestContext, Services
from penstock.broker.handlers.admin_requests import decide_each, error_of, repeated
from penstock.metadata.config_changes import ResourceType
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError


class _Resource(Protocol):
    resource_type: int
    resource_name: str


A = TypeVar("A", bound=_Resource)
Alter = Callable[[ClusterImage, A], Decision[Mapping[str, str]]]


async def alter_each(
    context: RequestContext, resources: Sequence[A], alter: Alter[A], *, validate_only: bool
) -> list[tuple[int, str | None]]:
    """Changes every resource by `alter`. Returns the code of each, with a message if it failed."""
    twice = repeated((each.resource_type, each.resource_name) for each in resources)

    def make(resource: A) -> Callable[[ClusterImage], Decision[Mapping[str, str]]]:
        def decide(image: ClusterImage) -> Decision[Mapping[str, str]]:
            require_configs(context, AclOperation.ALTER_CONFIGS, resource)
            if (resource.resource_type, resource.resource_name) in twice:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"The request changes '{resource.resource_name}' more than once: put all "
                    "its changes together.",
                )
            decision = alter(image, resource)
            _require_broker(image, resource)
            return decision

        return decide

    made = await decide_each(
        context, [make(resource) for resource in resources], validate_only=validate_only
    )
    return [error_of(each) if isinstance(each, Exception) else (0, None) for each in made]


def require_configs(context: RequestContext, operation: AclOperation, resource: _Resource) -> None:
    """Raises the error of a client that may not describe or alter the configs of a resource."""
    if resource.resource_type == ResourceType.TOPIC:
        context.require_topic(operation, resource.resource_name)
    elif resource.resource_type == ResourceType.GROUP:
        context.require_group(operation, resource.resource_name)
    else:
        context.require_cluster(operation)


def require_this_broker(services: Services, name: str) -> None:
    """Raises INVALID_REQUEST unless `name` is this broker's id.

    Some settings exist only on one broker, and only that broker can answer for them.
    """
    if name != str(services.config.broker_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {services.config.broker_id} and cannot answer for broker '{name}': "
            "send the request to that one. An empty name stands for the defaults of all brokers.",
        )


def _require_broker(image: ClusterImage, resource: _Resource) -> None:
    name = resource.resource_name
    if resource.resource_type != ResourceType.BROKER or not name:
        return
    if int(name) not in image.brokers:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {name} is not registered: use one of {sorted(image.brokers)}.",
        )
