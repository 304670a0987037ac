"""Shared by AlterConfigs and IncrementalAlterConfigs, which differ in the decision they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.broker.context import RequestContext, Services
from penstock.broker.handlers.admin_requests import decide_each, error_of, repeated
from penstock.broker.handlers.large_requests import one_by_one
from penstock.metadata.config_changes import ResourceType
from penstock.metadata.dead_letter_configs import DEAD_LETTER_TOPIC
from penstock.metadata.decisions import Decision
from penstock.metadata.delay_configs import DELAY_TARGET
from penstock.metadata.image import ClusterImage
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError


class _Config(Protocol):
    name: str
    value: str | None


class _Resource(Protocol):
    resource_type: int
    resource_name: str


class _Changed(_Resource, Protocol):
    @property
    def configs(self) -> Sequence[_Config]: ...


A = TypeVar("A", bound=_Changed)
Alter = Callable[[ClusterImage, A], Decision[Mapping[str, str]]]


async def alter_each(
    context: RequestContext, resources: Sequence[A], alter: Alter[A], *, validate_only: bool
) -> list[tuple[int, str | None]]:
    """Changes every resource by `alter`. Returns the code of each, with a message if it failed."""
    twice = repeated((each.resource_type, each.resource_name) for each in resources)

    def make(resource: A) -> Callable[[ClusterImage], Decision[Mapping[str, str]]]:
        def decide(image: ClusterImage) -> Decision[Mapping[str, str]]:
            require_configs(context, AclOperation.ALTER_CONFIGS, resource)
            if resource.resource_type == ResourceType.TOPIC:
                topic = image.topics.get(resource.resource_name)
                held = None if topic is None else topic.configs.get(DELAY_TARGET)
                require_delay_rights(context, resource.configs, held)
            if (resource.resource_type, resource.resource_name) in twice:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"The request changes '{resource.resource_name}' more than once: put all "
                    "its changes together.",
                )
            decision = alter(image, resource)
            _require_broker(image, resource)
            _require_letters(context, image, resource, decision.result)
            return decision

        return decide

    slices = context.slices()
    context.is_large = context.is_large or len(resources) > context.slicing.elements
    makes = await one_by_one(make, resources, slices)
    made = await decide_each(context, makes, validate_only=validate_only)
    return await one_by_one(_code_of, made, slices)


def _code_of(outcome: Mapping[str, str] | Exception) -> tuple[int, str | None]:
    return error_of(outcome) if isinstance(outcome, Exception) else (ErrorCode.NONE, None)


def require_configs(context: RequestContext, operation: AclOperation, resource: _Resource) -> None:
    """Raises the error of a client that may not describe or alter the configs of a resource."""
    if resource.resource_type == ResourceType.TOPIC:
        context.require_topic(operation, resource.resource_name)
    elif resource.resource_type == ResourceType.GROUP:
        context.require_group(operation, resource.resource_name)
    else:
        context.require_cluster(operation)


def _require_letters(
    context: RequestContext, image: ClusterImage, resource: _Resource, after: Mapping[str, str]
) -> None:
    """Raises an error if the client gives a group a dead-letter topic that it may not write to.

    Brokers write the letters, without a right of their own, and members of the group decide what is
    in them. So this is the place where the right is checked.
    """
    if resource.resource_type != ResourceType.GROUP:
        return
    topic = after.get(DEAD_LETTER_TOPIC)
    before = image.group_configs.get(resource.resource_name, {}).get(DEAD_LETTER_TOPIC)
    if topic and topic != before and not context.may_topic(AclOperation.WRITE, topic):
        raise KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"{DEAD_LETTER_TOPIC} needs the right to write to the topic '{topic}'.",
        )


def require_delay_rights(
    context: RequestContext, configs: Iterable[_Config], held: str | None = None
) -> None:
    """Raises TOPIC_AUTHORIZATION_FAILED if a delay topic would get a target to which its client may
    not write. `held` is the target that it has already."""
    for config in configs:
        target = config.value
        if config.name != DELAY_TARGET or not target or target == held:
            continue
        if not context.may_topic(AclOperation.WRITE, target):
            raise KafkaError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                f"{DELAY_TARGET}={target} needs the right to write to the topic '{target}'",
            )


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
