"""Who may write to the internal topics with produce requests, and what brokers write.

Kafka's tools write to the coordinators' topics. Only brokers write to `__audit`. They also write
dead letters of share groups and copies of delay topics to other topics. For this, brokers are
clients of the listener between brokers that send a client id of their own. Any client can send
these ids, so with an authorizer it must also have the right to act as a broker.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.shares.letter_sender import COPIES_CLIENT, LETTERS_CLIENT
from penstock.metadata.model import AUDIT_TOPIC
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError

_TOOLS: Final = "__admin_client"
"""The client id under which Kafka's tools write to internal topics."""


def sends_audit(context: RequestContext, topic: str) -> bool:
    """Returns whether a broker writes its audit events. It needs no WRITE on the topic."""
    return topic == AUDIT_TOPIC and context.client_id == AUDIT_TOPIC and _is_broker(context)


def writes_as_broker(context: RequestContext, topic: str) -> bool:
    """Returns whether a broker writes audit events, dead letters or copies of a delay topic. It
    needs no WRITE on the topic.

    The leader that sends dead letters has checked that the topic allows them. The client that made
    a topic the target of a delay topic had WRITE on it.
    """
    if context.client_id in (LETTERS_CLIENT, COPIES_CLIENT):
        return _is_broker(context)
    return sends_audit(context, topic)


def _is_broker(context: RequestContext) -> bool:
    return context.identity.listener == (
        context.services.config.listeners.inter_broker
    ) and context.may_cluster(AclOperation.CLUSTER_ACTION)


def require_internal_writer(context: RequestContext, topic: str) -> None:
    """Raises `KafkaError` if the client may not write to this internal topic."""
    if topic == AUDIT_TOPIC:
        is_writer = sends_audit(context, topic)
    else:
        is_writer = context.client_id == _TOOLS and context.may_cluster(AclOperation.CLUSTER_ACTION)
    if not is_writer:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
