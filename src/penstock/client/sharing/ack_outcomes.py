"""What an answer means for the acknowledgements of a partition. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from penstock.client.errors import BrokerError, ClientError, LockLost
from penstock.client.sharing.acknowledgements import AckQueue, Group
from penstock.wire.errors import ErrorCode

LEADER_CHANGED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


MOVED: Final = "another broker leads the partition"


class Settled(Enum):
    ENDED = auto()
    """All callers know the outcome, or the group was divided and is sent again at once."""
    LEADER_CHANGED = auto()
    """The locks are lost, because another broker leads the partition."""
    AGAIN = auto()
    """The group is sent again after a while."""


def settle_group(queue: AckQueue, group: Group, code: int, message: str | None) -> Settled:
    """Handles the answer for the acknowledgements of one partition."""
    if code == ErrorCode.NONE:
        resolve_all([group], None)
    elif code == ErrorCode.INVALID_RECORD_STATE:
        if not queue.divide(group):
            resolve_all([group], lock_lost("the broker says that this client does not hold it"))
    elif code in LEADER_CHANGED:
        resolve_all([group], lock_lost(MOVED))
        return Settled.LEADER_CHANGED
    else:
        error = BrokerError(code, message, f"partition {group[0].part.partition}")
        if error.retriable:
            queue.put_back([group])
            return Settled.AGAIN
        resolve_all([group], error)
    return Settled.ENDED


def lock_lost(reason: str) -> LockLost:
    return LockLost(
        f"the lock of the job is lost: {reason}. The job is delivered again, unless it was given "
        "up or an earlier acknowledgement of it has arrived"
    )


def resolve_all(groups: Iterable[Group], error: ClientError | None) -> None:
    for group in groups:
        for each in group:
            each.resolve(error)
