"""The outputs of the membership machines: steps for its shell, news for the poll. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.topic_partition import TopicPartition
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MetadataRequest,
    MetadataResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

Goodbye = LeaveGroupRequest | ConsumerGroupHeartbeatRequest
"""A request with which a member leaves."""
GroupRequest = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | ConsumerGroupHeartbeatRequest
    | MetadataRequest
)
GroupResponse = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | ConsumerGroupHeartbeatResponse
    | MetadataResponse
)


# -- steps: for the shell's background task -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request to the coordinator. `on_answer` or `on_failure` follows."""

    request: GroupRequest
    timeout_s: float
    find: bool
    """Look up the coordinator again: the last one is unavailable or not the coordinator any
    more."""


@dataclass(frozen=True, slots=True)
class Count:
    """Count the partitions of these topics. `on_counts` or `on_failure` follows."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until this time, or until something happens."""

    until: float | None


Step = Ask | Count | Wait


# -- news: for the poll -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions were added; none if a rebalance brought this member nothing new."""

    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions are being revoked. They are still owned meanwhile, so offsets can be
    committed."""

    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions are already lost: other members may be reading them, and commits will
    fail."""

    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    error: Exception


News = Assigned | Revoked | Lost | Failed


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity with which a member signs its requests. `NOBODY` is for a group without
    members."""

    generation: int
    member_id: str
    instance_id: str | None = None


NOBODY = Identity(-1, "")
