"""What a membership wants done, and what it has to tell. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.model import TopicPartition
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

GroupRequest = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
GroupResponse = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse


# -- steps: for the shell's background task -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the coordinator; `on_answer` or `on_failure` follows."""

    request: GroupRequest
    timeout_s: float
    find: bool
    """Find out afresh who coordinates the group: the last one asked does not, or is gone."""


@dataclass(frozen=True, slots=True)
class Count:
    """Find out how many partitions these topics have; `on_counts` or `on_failure` follows."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until then, or until something happens."""

    until: float | None


Step = Ask | Count | Wait


# -- news: for whoever polls --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """These are added; none, when a rebalance brought this member nothing new."""

    places: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """These are taken away; still held while this is being told, so a commit is in time."""

    places: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """These are gone already: others may be reading them, and nothing can be committed."""

    places: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    error: Exception


News = Assigned | Revoked | Lost | Failed


@dataclass(frozen=True, slots=True)
class Identity:
    """How a member signs what it sends; a group with nobody in it is written to as `NOBODY`."""

    generation: int
    member_id: str
    instance_id: str | None = None


NOBODY = Identity(-1, "")
