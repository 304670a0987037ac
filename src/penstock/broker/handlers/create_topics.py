"""CreateTopics, versions 2 to 7: creates topics, each with its own result.

A topic is answered when it is in the cluster's metadata and this broker serves its share of it. The
request's timeout is ignored, since that takes milliseconds. -1 partitions or replicas (version 4)
stand for the broker's defaults. From version 5 on the answer contains what the topic got: the
number of partitions and replicas, and every config with its source. Version 7 adds the topic's id;
a request that only validates gets none.

A name that is given twice is refused, and answered once. `__consumer_offsets` may be created by
hand, as in Kafka, and is compacted unless the request says otherwise: a topic with the default
policy would lose the groups' offsets after a week.

From version 6 on, a client over its `controller_mutation_rate` gets THROTTLING_QUOTA_EXCEEDED for
each topic. Older clients are only throttled.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.handlers.admin_requests import (
    Make,
    charged,
    count_all,
    decide_each,
    error_of,
    repeated,
)
from penstock.broker.handlers.config_requests import require_delay_rights
from penstock.broker.handlers.large_requests import one_by_one
from penstock.broker.handlers.topic_creation import SHARE_STATE_CONFIGS, topic_defaults
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import AUDIT_TOPIC, COMPACTED_TOPICS, SHARE_STATE_TOPIC, Topic
from penstock.metadata.topic_ids import ZERO_ID, new_id
from penstock.metadata.topics import TopicSpec, create_topic
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import CreateTopicsRequest, CreateTopicsResponse

_INTERNAL_CONFIGS: Final = {
    **dict.fromkeys(COMPACTED_TOPICS, (("cleanup.policy", "compact"),)),
    SHARE_STATE_TOPIC: SHARE_STATE_CONFIGS,
}
"""What an operator who creates these topics by hand need not say."""
_CLUSTER_METADATA = "__cluster_metadata"
"""Kafka's metadata topic; its tools would mistake a topic of that name for it."""
_HIDDEN: Final = -1
_REFUSED_SINCE: Final = 6
"""From this version on, clients know THROTTLING_QUOTA_EXCEEDED."""
_MANY: Final = 50
"""With more topics, the answer is encoded on a thread: it contains all configs of each."""


def handle(
    request: CreateTopicsRequest, context: RequestContext
) -> asyncio.Future[CreateTopicsResponse]:
    return context.spawn(_run(request, context))


async def _run(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    services = context.services
    slices = slices_of(services.env)
    context.is_large = context.is_large or len(request.topics) > _MANY
    refused = _refused(request, context)
    wanted = [topic for topic in request.topics if topic.name not in refused]
    makes = await one_by_one(lambda topic: _maker(topic, context), wanted, slices)
    made = await decide_each(context, makes, validate_only=request.validate_only)
    outcomes: dict[str, Topic | Exception] = {**refused}
    outcomes.update(zip((topic.name for topic in wanted), made, strict=True))
    response = CreateTopicsResponse()
    for name in dict.fromkeys(topic.name for topic in request.topics):
        outcome = outcomes[name]
        if isinstance(outcome, Exception):
            code, words = error_of(outcome)
            answer = CreateTopicsResponse.Topic(name, error_code=code, error_message=words)
        else:
            answer = _created(outcome, services.configs())
            if not context.may_topic(AclOperation.DESCRIBE_CONFIGS, name, audited=False):
                _hide_configs(answer)
            if request.validate_only:
                answer.topic_id = ZERO_ID
        response.topics.append(answer)
        await slices.give_way()
    return response


def _refused(request: CreateTopicsRequest, context: RequestContext) -> dict[str, KafkaError]:
    """Returns what is wrong with the request regardless of the cluster's state."""
    names = [topic.name for topic in request.topics]
    refused: dict[str, KafkaError] = {}
    if AUDIT_TOPIC in names:
        refused[AUDIT_TOPIC] = KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"'{AUDIT_TOPIC}' is created by the brokers when they need it: set audit.enabled.",
        )
    if _CLUSTER_METADATA in names:
        refused[_CLUSTER_METADATA] = KafkaError(
            ErrorCode.INVALID_REQUEST, f"'{_CLUSTER_METADATA}' is reserved: choose another name."
        )
    # The decision checks for collisions with existing topics; this finds collisions within the
    # request.
    first_of_metric: dict[str, str] = {}
    for name in names:
        first = first_of_metric.setdefault(name.replace(".", "_"), name)
        if first != name:
            refused[name] = KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with '{first}' in the same request: names must not "
                "differ only in '.' and '_', because such topics share their metrics.",
            )
    if not context.may_cluster(AclOperation.CREATE, audited=False):
        for name in dict.fromkeys(names):
            if not context.may_topic(AclOperation.CREATE, name):
                refused[name] = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for topic in request.topics:
        try:
            require_delay_rights(context, topic.configs)
        except KafkaError as error:
            refused.setdefault(topic.name, error)
    for name in repeated(names):
        refused[name] = KafkaError(
            ErrorCode.INVALID_REQUEST, f"The request names the topic '{name}' more than once."
        )
    return refused


def _hide_configs(answer: CreateTopicsResponse.Topic) -> None:
    """Removes what only a client with DESCRIBE_CONFIGS may see, as in Kafka."""
    answer.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer.configs = []
    answer.num_partitions = answer.replication_factor = _HIDDEN


def _maker(topic: CreateTopicsRequest.Topic, context: RequestContext) -> Make[Topic]:
    services = context.services
    configs = [(config.name, config.value) for config in topic.configs]
    given = {name for name, _ in configs}
    configs += [pair for pair in _INTERNAL_CONFIGS.get(topic.name, ()) if pair[0] not in given]
    spec = TopicSpec(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs,
    )
    random = services.env.random
    topic_id = new_id(random.bytes)
    start_index = random.below(max(1, len(services.image.brokers)))

    def make(image: ClusterImage) -> Decision[Topic]:
        return create_topic(
            image,
            spec,
            topic_id=topic_id,
            defaults=topic_defaults(services),
            start_index=start_index,
        )

    return charged(context, make, count_all, _REFUSED_SINCE)


def _created(topic: Topic, configs: BrokerConfigs) -> CreateTopicsResponse.Topic:
    return CreateTopicsResponse.Topic(
        topic.name,
        topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=[
            CreateTopicsResponse.Config(
                config.name, config.text, config.read_only, config.source, config.is_sensitive
            )
            for config in configs.topic(topic.configs).values()
        ],
    )


def refuse(request: CreateTopicsRequest, version: int, code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreateTopicsResponse.Topic(name, error_code=code, error_message=code.message)
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    )
