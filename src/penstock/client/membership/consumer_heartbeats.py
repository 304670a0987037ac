"""The requests of a member of a consumer group of the new protocol (KIP-848). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from penstock.client.errors import ApiNotServed, ClientError
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import Identity
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, MetadataRequest

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
_UNCHANGED: Final = -1
_NO_REGEX: Final = ""

Ownership = frozenset[tuple[bytes, int]]
"""Partitions by the id of their topic."""


@dataclass(frozen=True, slots=True)
class Interest:
    """What a member subscribes to: topics, and a regular expression that the broker resolves."""

    topics: frozenset[str] = frozenset()
    regex: str | None = None

    def covers(self, topic: str) -> bool:
        """Returns whether the member may have subscribed to the topic. Only the broker knows what
        its regular expression matches."""
        return self.regex is not None or topic in self.topics


def join(
    options: MembershipOptions, member_id: str, interest: Interest, told: Interest | None
) -> ConsumerGroupHeartbeatRequest:
    identity = Identity(JOIN, member_id, options.group_instance_id)
    return heartbeat(options, identity, interest, told, frozenset(), tells_all=True)


def heartbeat(
    options: MembershipOptions,
    identity: Identity,
    interest: Interest | None,
    told: Interest | None,
    owned: Ownership | None,
    *,
    tells_all: bool,
) -> ConsumerGroupHeartbeatRequest:
    """Returns a heartbeat with what is not None. `told` is the subscription that the coordinator
    may have: its regular expression must be removed if there is none any more."""
    request = ConsumerGroupHeartbeatRequest(
        options.group_id,
        identity.member_id,
        identity.generation,
        identity.instance_id,
        rebalance_timeout_ms=options.rebalance_ms if tells_all else _UNCHANGED,
    )
    if tells_all:
        request.rack_id = options.client_rack
        request.server_assignor = options.remote_assignor
    if interest is not None:
        request.subscribed_topic_names = sorted(interest.topics)
        request.subscribed_topic_regex = interest.regex
        if interest.regex is None and told is not None and told.regex is not None:
            request.subscribed_topic_regex = _NO_REGEX
    if owned is not None:
        request.topic_partitions = [
            ConsumerGroupHeartbeatRequest.TopicPartitions(
                topic_id, [index for _, index in partitions]
            )
            for topic_id, partitions in groupby(sorted(owned), key=itemgetter(0))
        ]
    return request


def names_request(topic_ids: tuple[bytes, ...]) -> MetadataRequest:
    """Asks for the names of these topics."""
    return MetadataRequest(
        topics=[MetadataRequest.Topic(topic_id=topic_id, name=None) for topic_id in topic_ids],
        allow_auto_topic_creation=False,
    )


def not_served(group_id: str, error: ClientError) -> ClientError:
    return ApiNotServed(
        f"group {group_id} cannot use group_protocol='consumer', because the broker does not serve "
        "it: use Kafka 4.0 or later, add consumer to group.coordinator.rebalance.protocols, or "
        f"give group_protocol='classic' ({error})"
    )
