"""FindCoordinator, versions 0 to 6: returns the coordinator of a group or a transactional id.

That is the leader of its partition of `__consumer_offsets` or `__transaction_state`. These topics
are created at the first request, once there are enough brokers for all their replicas (KIP-115).
Until then the answer is COORDINATOR_NOT_AVAILABLE and clients ask again. From version 4 on a
request can contain several keys. From version 6 on (KIP-932) a key of type 2 is a share partition,
`group:topic id:partition`: its coordinator leads a partition of `__share_group_state`. Only brokers
may ask for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.context import RequestContext, Services
from penstock.broker.cooperative_yield import Steps
from penstock.broker.coordinators.share_keys import is_share_key
from penstock.broker.handlers.large_requests import answered
from penstock.broker.handlers.topic_creation import (
    create_offsets_topic,
    create_share_state_topic,
    create_transactions_topic,
)
from penstock.metadata.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from penstock.security.acls import AclOperation
from penstock.txns.formats import TOPIC
from penstock.wire.errors import ErrorCode
from penstock.wire.java import partition_of
from penstock.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse


class _Kind(NamedTuple):
    topic: str
    create: Callable[[Services], str | None]


_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_SHARE_SINCE: Final = 6
_KINDS: Final = {
    _GROUP: _Kind(OFFSETS_TOPIC, create_offsets_topic),
    _TRANSACTION: _Kind(TOPIC, create_transactions_topic),
    _SHARE: _Kind(SHARE_STATE_TOPIC, create_share_state_topic),
}


def handle(
    request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | asyncio.Future[FindCoordinatorResponse]:
    if context.version >= 4:
        return answered(context, _found(request, context), len(request.coordinator_keys))
    one = _find(request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _found(
    request: FindCoordinatorRequest, context: RequestContext
) -> Steps[FindCoordinatorResponse]:
    response = FindCoordinatorResponse(error_message=None)
    for key in dict.fromkeys(request.coordinator_keys):
        response.coordinators.append(_find(key, request.key_type, context))
        yield
    return response


def _find(key: str, key_type: int, context: RequestContext) -> FindCoordinatorResponse.Coordinator:
    code = _refusal(key, key_type, context)
    if code != ErrorCode.NONE:
        return _none(key, code, code.message)
    kind = _KINDS.get(key_type)
    if kind is None or (key_type == _SHARE and context.version < _SHARE_SINCE):
        return _none(
            key,
            ErrorCode.INVALID_REQUEST,
            f"key type {key_type} is unknown: use 0 (group), 1 (transaction), or 2 (share "
            f"partition, from version {_SHARE_SINCE} on)",
        )
    if key_type == _SHARE and not is_share_key(key):
        return _none(
            key,
            ErrorCode.INVALID_REQUEST,
            f"'{key}' is not a share partition's key: use group:topic id:partition",
        )
    image = context.services.image
    topic = image.topics.get(kind.topic)
    if topic is None:
        reason = kind.create(context.services) or f"{kind.topic} is being created: try again"
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
    partition = topic.partitions[partition_of(key, len(topic.partitions))]
    broker = image.brokers.get(partition.leader)
    if broker is None:
        return _none(
            key,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "the coordinator's partition has no leader at the moment: try again",
        )
    endpoint = broker.endpoint(context.identity.listener)
    if endpoint is None:
        return _none(
            key,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"the coordinator, broker {broker.broker_id}, does not have the listener "
            f"{context.identity.listener}: add it there, or connect to another listener",
        )
    host, port = endpoint
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=broker.broker_id, host=host, port=port, error_message=None
    )


def _refusal(key: str, key_type: int, context: RequestContext) -> ErrorCode:
    """Returns the error of a client that may not look for this coordinator."""
    if key_type == _GROUP:
        if not context.may_group(AclOperation.DESCRIBE, key):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif key_type == _TRANSACTION:
        if not context.may_transactional_id(AclOperation.DESCRIBE, key):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not context.may_cluster(AclOperation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def refuse(
    request: FindCoordinatorRequest, version: int, code: ErrorCode
) -> FindCoordinatorResponse:
    if version >= 4:
        keys = dict.fromkeys(request.coordinator_keys)
        found = [_none(key, code, code.message) for key in keys]
        return FindCoordinatorResponse(coordinators=found, error_message=None)
    return FindCoordinatorResponse(error_code=code, error_message=code.message, node_id=-1, port=-1)


def _none(key: str, code: ErrorCode, message: str) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, port=-1, error_code=code, error_message=message
    )
