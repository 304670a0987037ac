"""Builds the JoinGroup and SyncGroup requests of members and leaders. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.membership.assignors import Assignor, Memory, Peer
from penstock.client.membership.protocol import (
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import Identity
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest

Peers = tuple[Peer, ...]

_REASON_MAX: Final = 255


def join_request(
    options: MembershipOptions,
    member_id: str,
    topics: tuple[str, ...],
    held: Memory,
    last: Memory,
    reason: str,
) -> JoinGroupRequest:
    """Builds a JoinGroup. `held` is what the member keeps reading, `last` its last assignment."""
    protocols = [
        JoinGroupRequest.Protocol(
            assignor.name,
            encode_subscription(
                Subscription(
                    topics,
                    held.topic_partitions,
                    held.generation,
                    assignor.user_data(last),
                    options.client_rack,
                )
            ),
        )
        for assignor in options.assignors
    ]
    return JoinGroupRequest(
        options.group_id,
        options.session_timeout_ms,
        options.rebalance_ms,
        member_id,
        options.group_instance_id,
        options.protocol_type,
        protocols,
        reason[:_REASON_MAX],
    )


def peers_of(answer: JoinGroupResponse) -> Peers:
    """Returns the members of the group.

    A member whose subscription cannot be read gets no partitions, and the group continues without
    it. Stopping the whole group would not help that member.
    """
    return tuple(
        Peer(member.member_id, _subscription(member.metadata), member.group_instance_id)
        for member in answer.members
    )


def _subscription(data: bytes) -> Subscription:
    try:
        return decode_subscription(data)
    except ProtocolError:
        return Subscription()


def topics_of(peers: Peers) -> tuple[str, ...]:
    return tuple(sorted({topic for peer in peers for topic in peer.subscription.topics}))


def chosen(options: MembershipOptions, name: str | None) -> Assignor:
    for assignor in options.assignors:
        if assignor.name == name:
            return assignor
    raise ClientError(
        f"the coordinator of group {options.group_id} chose the assignor {name!r}, "
        "which this consumer does not have: give all members a common "
        "partition_assignment_strategy"
    )


def follower_sync(
    options: MembershipOptions, identity: Identity, assignor: Assignor
) -> SyncGroupRequest:
    return SyncGroupRequest(
        options.group_id,
        identity.generation,
        identity.member_id,
        identity.instance_id,
        options.protocol_type,
        assignor.name,
    )


def leader_sync(
    options: MembershipOptions,
    identity: Identity,
    assignor: Assignor,
    peers: Peers,
    counts: Mapping[str, int],
) -> SyncGroupRequest:
    request = follower_sync(options, identity, assignor)
    assignment = assignor.assign(counts, peers)
    request.assignments = [
        SyncGroupRequest.Assignment(
            peer.member_id, encode_assignment(assignment.get(peer.member_id, ()))
        )
        for peer in peers
    ]
    return request
