"""FindCoordinator, versions 0 to 5: the broker that looks after a group.

It is the leader of the group's partition of `__consumer_offsets`. That topic is made when it is
first asked for; until then the answer is COORDINATOR_NOT_AVAILABLE and clients ask again. From
version 4 on several keys may be asked for at once. Key type 1, transactions, comes with them.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.creation import OFFSETS_TOPIC, create_offsets_topic
from penstock.groups.hashing import partition_for_group
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

_GROUP = 0
_TRANSACTION = 1


def handle(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    if context.version >= 4:
        found = [
            _find(key, request.key_type, context) for key in dict.fromkeys(request.coordinator_keys)
        ]
        return FindCoordinatorResponse(coordinators=found, error_message=None)
    one = _find(request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _find(key: str, key_type: int, context: RequestContext) -> FindCoordinatorResponse.Coordinator:
    if key_type not in (_GROUP, _TRANSACTION):
        return _none(key, ErrorCode.INVALID_REQUEST, f"key type {key_type} has no meaning")
    if key_type == _TRANSACTION:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "transactions are not served yet")
    services = context.services
    image = services.image
    topic = image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        create_offsets_topic(services)
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group topic is being created")
    partition = topic.partitions[partition_for_group(key, len(topic.partitions))]
    broker = image.brokers.get(partition.leader)
    if broker is None:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker leads it at the moment")
    return FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        error_message=None,
    )


def _none(key: str, code: ErrorCode, message: str) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, port=-1, error_code=code, error_message=message
    )
