"""The "sticky" assignor. Pure.

Members give up all partitions before they join, so their subscriptions do not say what they owned.
Each member remembers it and sends it to the leader as the assignor's user data:

    int32 count, per topic: string name, int32 count, int32 partition...    (version 0)
    int32 generation                                                       (version 1 adds)

The data does not contain its version. The first part has the layout of an assignment.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.client.membership.assignors.base import Assignment, Memory, Peer
from penstock.client.membership.assignors.stickiness import assign_sticky
from penstock.client.membership.protocol import NO_GENERATION, by_topic
from penstock.topic_partition import TopicPartition
from penstock.wire.codec import decode_at, encode
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import ConsumerProtocolAssignment

_GENERATION: Final = struct.Struct(">i")
_NO_USER_DATA: Final = b"\xff\xff\xff\xff"
"""The end of an assignment without user data."""


class StickyAssignor:
    name = "sticky"
    cooperative = False

    def user_data(self, memory: Memory) -> bytes | None:
        return encode_memory(memory) if memory.generation != NO_GENERATION else None

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
        claims = {peer.member_id: decode_memory(peer.subscription.user_data) for peer in members}
        return assign_sticky(partition_counts, members, claims)


def encode_memory(memory: Memory) -> bytes:
    topic_partitions = [
        ConsumerProtocolAssignment.TopicPartition(topic, partitions)
        for topic, partitions in by_topic(memory.topic_partitions).items()
    ]
    body = encode(ConsumerProtocolAssignment(topic_partitions, None), 0)
    return body.removesuffix(_NO_USER_DATA) + _GENERATION.pack(memory.generation)


def decode_memory(data: bytes | None) -> Memory:
    """Decodes a member's memory. Returns an empty one if the bytes cannot be read.

    Other libraries have had bugs here, and a group must not fail because of a mere preference.
    """
    if not data:
        return Memory()
    topic_partitions = _decode_topic_partitions(data[: -_GENERATION.size])
    if topic_partitions is not None:
        return Memory(topic_partitions, _GENERATION.unpack(data[-_GENERATION.size :])[0])
    return Memory(_decode_topic_partitions(data) or ())


def _decode_topic_partitions(data: bytes) -> tuple[TopicPartition, ...] | None:
    """Returns the partitions, or None unless the bytes are a list of partitions and nothing
    else."""
    whole = data + _NO_USER_DATA
    try:
        message, end = decode_at(ConsumerProtocolAssignment, whole, 0, 0)
    except ProtocolError:
        return None
    if end != len(whole):
        return None
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in message.assigned_partitions
        for partition in topic.partitions
    )
