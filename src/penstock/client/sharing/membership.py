"""The membership of a share group, as a pure machine: answers and the time in, requests out.

A member chooses its id itself, joins with epoch 0, and then sends heartbeats. Nothing is revoked:
partitions of share groups may have several members, so an assignment takes effect when it arrives.
A coordinator that does not know the member (it lost its state, or the session timed out) makes it
join again under the same id. Its locks are not affected, because the leaders of partitions have
them.

A group that sees a topic for the first time assigns its partitions only after some heartbeats. A
member without partitions therefore asks again soon, at intervals that double up to the group's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.client.errors import ApiNotServed, BrokerError, ClientError
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
_EAGER_S: Final = 0.1
"""The first interval between heartbeats of a member without partitions."""
_INTERVAL_S: Final = 5.0
"""Used until the first answer says how often to send heartbeats."""
_JOIN_AGAIN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_LOOK_UP: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class SharePart(NamedTuple):
    """A partition, named as requests of share groups name it."""

    topic_id: bytes
    partition: int


class ShareMembership:
    """One member of one share group."""

    def __init__(
        self,
        group_id: str,
        member_id: str,
        topics: Iterable[str],
        *,
        backoff_s: float,
        backoff_max_s: float,
        uniform: Callable[[], float],
    ) -> None:
        """`uniform` returns numbers in [0, 1), for jitter."""
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self.assignment: frozenset[SharePart] = frozenset()
        self.due = 0.0
        """When the next heartbeat is due."""
        self.find_coordinator = False
        """Whether the next heartbeat needs a fresh lookup of the coordinator."""
        self.error: ClientError | None = None
        """The error that ended the membership for good."""
        self.joins = 0
        self._topics = sorted(topics)
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._uniform = uniform
        self._failures = 0
        self._interval_s = _INTERVAL_S
        self._eager_s = _EAGER_S

    @property
    def is_member(self) -> bool:
        return self.epoch > JOIN_EPOCH

    def heartbeat(self) -> ShareGroupHeartbeatRequest:
        """Returns the request that is due. Topics are sent only to join."""
        return ShareGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            subscribed_topic_names=None if self.is_member else self._topics,
        )

    def leave(self) -> ShareGroupHeartbeatRequest | None:
        """Returns the request that ends the membership; None if there is none to end."""
        if not self.is_member:
            return None
        return ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH
        )

    def answered(self, answer: ShareGroupHeartbeatResponse, now: float) -> None:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._joined_or_alive(answer, now)
        elif code in _JOIN_AGAIN:
            self.epoch = JOIN_EPOCH
            self._again(now)
        elif code in _LOOK_UP:
            self.find_coordinator = True
            self._again(now)
        else:
            subject = f"share group {self.group_id}"
            self.failed(BrokerError(code, answer.error_message, subject), now)

    def failed(self, error: ClientError, now: float) -> None:
        """The request failed. Tries again later, at a coordinator that is looked up again, unless
        that cannot help."""
        if error.retriable:
            self.find_coordinator = True
            self._again(now)
            return
        if isinstance(error, ApiNotServed):
            error = ApiNotServed(
                f"{error}: share groups need Kafka 4.2 or later, or a Penstock broker on which "
                "they are enabled"
            )
        self.error = error
        self.epoch = JOIN_EPOCH
        self.assignment = frozenset()

    def _joined_or_alive(self, answer: ShareGroupHeartbeatResponse, now: float) -> None:
        if not self.is_member:
            self.joins += 1
            self._eager_s = _EAGER_S
        self.find_coordinator = False
        self._failures = 0
        self.epoch = answer.member_epoch
        if answer.heartbeat_interval_ms > 0:
            self._interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            self.assignment = frozenset(
                SharePart(topic.topic_id, partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            )
        wait_s = self._interval_s
        if not self.assignment:
            wait_s = min(wait_s, self._eager_s)
            self._eager_s *= 2
        self.due = now + wait_s

    def _again(self, now: float) -> None:
        pause_s = min(self._backoff_s * 2 ** min(self._failures, 16), self._backoff_max_s)
        self._failures += 1
        self.due = now + pause_s * (0.5 + self._uniform())
