"""DeleteTopics, versions 1 to 6: deletes topics by name, from version 6 on by name or id.

A topic is answered when it is gone from the cluster's metadata and from this broker's disk, at
least under its name; its space is freed by then too. The offsets that groups committed for it are
deleted with it. The request's timeout is ignored. `delete.topic.enable=false` refuses the whole
request, from version 3 on with TOPIC_DELETION_DISABLED. Version 5 added a message to the code.

A topic that is named twice, even once by name and once by id, is refused. Internal topics are
refused as well, unlike in Kafka, where any client can delete all offsets and transactions.

From version 5 on, a client over its `controller_mutation_rate` gets THROTTLING_QUOTA_EXCEEDED for
each topic. Older clients are only throttled.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Slices, slices_of
from penstock.broker.handlers.admin_requests import (
    Make,
    charged,
    count_all,
    decide_each,
    error_of,
    repeated,
)
from penstock.broker.handlers.large_requests import one_by_one
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import Topic
from penstock.metadata.topic_ids import ZERO_ID
from penstock.metadata.topics import delete_topic
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

_REFUSED_SINCE: Final = 5
"""From this version on, clients know THROTTLING_QUOTA_EXCEEDED."""
_Named = tuple[str | None, bytes]
"""A topic's name or id, as the client gave it."""


def handle(
    request: DeleteTopicsRequest, context: RequestContext
) -> asyncio.Future[DeleteTopicsResponse]:
    if not context.services.configs().bool_value("delete.topic.enable"):
        old = context.version < 3
        raise KafkaError(ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED)
    return context.spawn(_run(request, context))


async def _run(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    services = context.services
    slices = slices_of(services.env)
    named = _named(request)
    context.is_large = context.is_large or len(named) > context.slicing.elements
    forbidden = await _forbidden(context, named, slices)
    identities = await one_by_one(
        lambda each: each if each in forbidden else _identity(services.image, each), named, slices
    )
    twice = repeated(identities)
    wanted = dict(zip(named, identities, strict=True))
    makes = await one_by_one(
        lambda each: (
            _refuser() if each in forbidden else _maker(each, wanted[each] in twice, context)
        ),
        list(wanted),
        slices,
    )
    made = await decide_each(context, makes, validate_only=False)
    response = DeleteTopicsResponse()
    for (name, topic_id), outcome in zip(wanted, made, strict=True):
        if isinstance(outcome, Exception):
            code, words = error_of(outcome)
            shown = forbidden.get((name, topic_id), name)
            answer = DeleteTopicsResponse.Topic(shown, topic_id, code, words)
        else:
            answer = DeleteTopicsResponse.Topic(outcome.name, outcome.topic_id)
        response.responses.append(answer)
        await slices.give_way()
    return response


def _named(request: DeleteTopicsRequest) -> list[_Named]:
    by_either = [(topic.name, topic.topic_id) for topic in request.topics]
    return [*by_either, *((name, ZERO_ID) for name in request.topic_names)]


def _identity(image: ClusterImage, named: _Named) -> bytes | _Named:
    """Returns a value that is the same for a topic's name and its id."""
    name, topic_id = named
    known = image.topics.get(name) if name is not None else image.topic_by_id(topic_id)
    return known.topic_id if known is not None else named


async def _forbidden(
    context: RequestContext, named: list[_Named], slices: Slices
) -> dict[_Named, str | None]:
    """Returns the topics that the client may not delete, and the name to answer with.

    The name of a topic that is given by its id is shown only to a client that may describe it. An
    id that does not exist is not forbidden.
    """
    if context.may_cluster(AclOperation.DELETE, audited=False):
        return {}
    image = context.services.image
    forbidden: dict[_Named, str | None] = {}
    for given in dict.fromkeys(named):
        await slices.give_way()
        name, topic_id = given
        if name is None:
            topic = image.topic_by_id(topic_id)
            if topic is None or context.may_topic(AclOperation.DELETE, topic.name):
                continue
            is_shown = context.may_topic(AclOperation.DESCRIBE, topic.name, audited=False)
            forbidden[given] = topic.name if is_shown else None
        elif not context.may_topic(AclOperation.DELETE, name):
            forbidden[given] = name
    return forbidden


def _refuser() -> Make[Topic]:
    def refuse_it(_: ClusterImage) -> Decision[Topic]:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    return refuse_it


def _maker(named: _Named, twice: bool, context: RequestContext) -> Make[Topic]:
    name, topic_id = named

    def make(image: ClusterImage) -> Decision[Topic]:
        if twice:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The request names this topic more than once."
            )
        decision = delete_topic(image, name=name, topic_id=topic_id)
        if decision.result.is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{decision.result.name}' is internal and cannot be deleted.",
            )
        return decision

    return charged(context, make, count_all, _REFUSED_SINCE)


def refuse(request: DeleteTopicsRequest, version: int, code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponse.Topic(name, topic_id, code, code.message)
            for name, topic_id in dict.fromkeys(_named(request))
        ]
    )
