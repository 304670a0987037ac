"""A share group as its coordinator has it in memory.

`stored` is what the log says, and in addition the records that are being appended. The rest follows
from it, or may be lost: when members last made contact, requests that wait, and calls of the share
coordinator, which the next coordinator repeats.

Invariants, checked by `verify`:

- the epochs of members are at most that of the target assignment, and that one is at most the
  group's;
- assignments are of members;
- a partition is not listed as initialized and initializing at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.coordination.effects import LogRecord, Now, Token
from penstock.coordination.invariants import InvariantViolated
from penstock.groups.consumer.group import Session
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import ShareStateCall
from penstock.groups.share.records import (
    Entry,
    EpochEntry,
    MemberEntry,
    ShareCurrent,
    ShareMember,
    StatesEntry,
    TargetEpochEntry,
    TopicShares,
    record_of,
)
from penstock.groups.share.stored_group import StoredShareGroup
from penstock.wire.errors import KafkaError
from penstock.wire.messages.base import Response

_NOTHING = ShareCurrent()
Failures = Mapping[TopicIdPartition, KafkaError]
"""The partitions for which a call of the share coordinator failed."""


class ShareGroupState(Enum):
    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(slots=True)
class Turn:
    """Decisions about a group whose records are appended together."""

    group: ShareGroup
    now: Now
    earlier: list[list[LogRecord]] = field(default_factory=list)
    """The records of each decision but the last one."""
    records: list[LogRecord] = field(default_factory=list)
    """Those of the last decision."""
    firsts: int = 0
    """How many of these were written by `write_first`."""
    calls: list[ShareStateCall] = field(default_factory=list)
    """To be made once the records are committed."""

    def write(self, entry: Entry) -> None:
        """Changes the group and adds the record of the change."""
        self.group.put(entry)
        self.records.append(record_of(entry))

    def write_first(self, entry: Entry) -> None:
        """Like `write`, but the record precedes those of this decision that were not written so.

        If the log has only the first part of a decision, it has this.
        """
        self.group.put(entry)
        self.records.insert(self.firsts, record_of(entry))
        self.firsts += 1

    def next_decision(self) -> None:
        if self.records:
            self.earlier.append(self.records)
        self.records, self.firsts = [], 0


@dataclass(frozen=True, slots=True)
class Asked:
    """Something to decide about a group: a request, a timer that fired, the end of a call.

    `decide` checks everything before its first change: after a change it raises nothing. It returns
    None if nothing is to be answered, or not yet.
    """

    decide: Callable[[Turn], Response | None]
    refuse: Callable[[KafkaError], Response] | None = None
    """Makes the answer if the request fails."""
    token: Token = None
    """None if nothing waits for an answer."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the share coordinator that has not ended."""

    partitions: frozenset[TopicIdPartition]
    finish: Callable[[Turn, Failures], Response | None]
    """Decides what follows from the end of the call."""
    refuse: Callable[[KafkaError], Response] | None = None
    token: Token = None


class ShareGroup:
    def __init__(self, group_id: str, stored: StoredShareGroup | None = None) -> None:
        self.group_id = group_id
        self.stored = StoredShareGroup() if stored is None else stored.copy()
        self.sessions: dict[str, Session] = {}
        self.queue: deque[Asked] = deque()
        """Requests that wait until the records of earlier ones are committed."""
        self.is_writing = False
        self.is_late = False
        """The append that is under way takes too long."""
        self.metadata_is_stale = True
        """Topics may have changed since the group epoch was last raised."""
        self.may_lack_states = True
        """Partitions that members subscribe to may not be initialized."""
        self.calls: dict[int, Call] = {}
        """Calls of the share coordinator that are under way."""
        self.retry_at_ms: int | None = None
        """After a call has failed: no further one before this time, in ticks."""
        self.retry_pause_ms = 0
        self._subscribed: frozenset[str] | None = None

    # Changes

    def put(self, entry: Entry) -> None:
        """Applies one record to the group."""
        if isinstance(entry, MemberEntry):
            self._subscribed = None
            self.may_lack_states = True
        elif isinstance(entry, StatesEntry):
            self.may_lack_states = True
        self.stored.apply(entry)

    def reset(self, stored: StoredShareGroup) -> None:
        """Replaces what is stored, after records could not be appended."""
        self.stored = stored.copy()
        self._subscribed = None
        self.metadata_is_stale = self.may_lack_states = True

    # Views

    @property
    def members(self) -> Mapping[str, ShareMember]:
        return self.stored.members

    def current(self, member_id: str) -> ShareCurrent:
        return self.stored.currents.get(member_id, _NOTHING)

    def target(self, member_id: str) -> frozenset[TopicIdPartition]:
        return self.stored.targets.get(member_id, frozenset())

    @property
    def epoch(self) -> int:
        return 0 if self.stored.epoch is None else self.stored.epoch.epoch

    @property
    def target_epoch(self) -> int:
        return 0 if self.stored.target_epoch is None else self.stored.target_epoch.epoch

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed is None:
            each = {one.names for one in self.members.values()}
            self._subscribed = frozenset().union(*each)
        return self._subscribed

    def is_called(self, partition: TopicIdPartition) -> bool:
        """Returns whether a call about the partition is under way."""
        return any(partition in call.partitions for call in self.calls.values())

    def is_topic_called(self, topic_id: bytes) -> bool:
        """Returns whether a call about a partition of the topic is under way."""
        calls = self.calls.values()
        return any(each.topic_id == topic_id for call in calls for each in call.partitions)

    def initialized(self, topic_id: bytes) -> frozenset[int]:
        """Returns the partitions of a topic that can be assigned."""
        states = self.stored.states
        if topic_id in states.deleting or topic_id not in states.initialized:
            return frozenset()
        return states.initialized[topic_id].partitions

    def listed(self, topic_id: bytes) -> TopicShares | None:
        """Returns all partitions of a topic that have, or may have, share state."""
        states = self.stored.states
        found = [
            each[topic_id] for each in (states.initializing, states.initialized) if topic_id in each
        ]
        if not found:
            return None
        return TopicShares(found[0].name, frozenset().union(*(each.partitions for each in found)))

    def listed_topics(self) -> list[bytes]:
        states = self.stored.states
        return sorted({*states.initializing, *states.initialized, *states.deleting})

    def tombstones(self) -> list[Entry]:
        """Returns what removes the group from the log, if it has no members."""
        return [
            TargetEpochEntry(self.group_id, None),
            StatesEntry(self.group_id, None),
            EpochEntry(self.group_id, None),
        ]

    def verify(self) -> None:
        """Checks the invariants above; tests and simulations call it after every event."""
        states = self.stored.states
        both = states.initializing.keys() & states.initialized.keys()
        facts = {
            "no member is ahead of the target": all(
                each.epoch <= self.target_epoch for each in self.stored.currents.values()
            ),
            "the target is not ahead of the group": self.target_epoch <= self.epoch,
            "assignments are of members": self.stored.currents.keys() <= self.members.keys(),
            "targets are of members": self.stored.targets.keys() <= self.members.keys(),
            "a partition is initialized or initializing": not any(
                states.initializing[topic_id].partitions & states.initialized[topic_id].partitions
                for topic_id in both
            ),
        }
        for fact, holds in facts.items():
            if not holds:
                raise InvariantViolated(
                    f"group {self.group_id} violates an invariant: {fact}; it is {self.stored}"
                )
