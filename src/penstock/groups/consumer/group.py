"""A consumer group as its coordinator has it in memory.

`stored` is what the log says, and in addition the records that are being appended. The rest follows
from it, or may be lost: when members last made contact, requests that wait.

Invariants, checked by `verify`:

- a partition is owned by at most one member, also while it is being revoked;
- the epochs of members are at most that of the target assignment, and that one is at most the
  group's;
- every member has metadata, and every instance id belongs to one member.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.coordination.effects import LogRecord, Now, Token
from penstock.coordination.invariants import InvariantViolated
from penstock.groups.consumer.records import (
    Current,
    CurrentEntry,
    Entry,
    EpochEntry,
    MemberEntry,
    MemberMetadata,
    MemberState,
    RegexEntry,
    TargetEpochEntry,
    TopicIdPartition,
    record_of,
)
from penstock.groups.consumer.stored_group import StoredGroup
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import KafkaError
from penstock.wire.messages.base import Response

_NOTHING = Current()


class ConsumerState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is not computed yet."""
    RECONCILING = "Reconciling"
    """Members are still giving up and taking over partitions."""
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Session:
    ends_ms: int
    timer_at_ms: int | None = None


@dataclass(slots=True)
class Revocation:
    """A member must have given up its partitions by `at_ms`."""

    epoch: int
    at_ms: int


@dataclass(slots=True)
class Turn:
    """Decisions about a group whose records are appended together."""

    group: ConsumerGroup
    now: Now
    records: list[LogRecord] = field(default_factory=list)

    def write(self, entry: Entry) -> None:
        """Changes the group and adds the record of the change."""
        self.group.put(entry)
        self.records.append(record_of(entry))


@dataclass(frozen=True, slots=True)
class Asked:
    """Something to decide about a group: a request, or a timer that fired.

    `decide` checks everything before its first change: after a change it raises nothing.
    """

    decide: Callable[[Turn], Response | None]
    refuse: Callable[[KafkaError], Response] | None = None
    """Makes the answer if the request fails."""
    token: Token = None
    """None if nothing waits for an answer."""


class ConsumerGroup:
    def __init__(self, group_id: str, stored: StoredGroup | None = None) -> None:
        self.group_id = group_id
        self.stored = StoredGroup()
        self.owners: dict[TopicIdPartition, str] = {}
        """The member that owns each partition, or still has to give it up."""
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.regex_users: Counter[str] = Counter()
        """How many members subscribe with each regular expression."""
        self.sessions: dict[str, Session] = {}
        self.revocations: dict[str, Revocation] = {}
        self.queue: deque[Asked] = deque()
        """Requests that wait until the records of earlier ones are committed."""
        self.is_writing = False
        self.is_late = False
        """The append that is under way takes too long."""
        self.is_dead = False
        """Its tombstones are being appended. It must not be changed any more."""
        self.metadata_is_stale = True
        """Topics may have changed since the group epoch was last raised."""
        self.topics_were_created = True
        """There may be new topics that match a regular expression."""
        self.is_resolving = False
        self.resolved_ms: int | None = None
        """When regular expressions were last resolved, in ticks."""
        self.unusable_regexes: set[str] = set()
        self.commits_in_flight: Counter[TopicPartition] = Counter()
        """Offsets that are being appended. They do not expire meanwhile."""
        self.unstable_in_flight: Counter[TopicPartition] = Counter()
        """Those of them that are committed in transactions."""
        self._subscribed: frozenset[str] | None = None
        if stored is not None:
            self.reset(stored)

    # Changes

    def put(self, entry: Entry) -> None:
        """Applies one record to the group."""
        match entry:
            case MemberEntry(_, member_id, metadata):
                self._put_member(member_id, metadata)
            case CurrentEntry(_, member_id, current):
                self._put_current(member_id, current)
            case RegexEntry():
                self._subscribed = None
        self.stored.apply(entry)

    def _put_member(self, member_id: str, metadata: MemberMetadata | None) -> None:
        self._subscribed = None
        before = self.stored.members.get(member_id)
        if before is not None and before.instance_id is not None:
            self.static_members.pop(before.instance_id, None)
        if before is not None and before.regex is not None:
            self.regex_users[before.regex] -= 1
            if not self.regex_users[before.regex]:
                del self.regex_users[before.regex]
        if metadata is not None and metadata.regex is not None:
            self.regex_users[metadata.regex] += 1
        if metadata is not None and metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id

    def _put_current(self, member_id: str, current: Current | None) -> None:
        before = self.current(member_id)
        for partition in (*before.assigned, *before.pending):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        if current is not None:
            for partition in (*current.assigned, *current.pending):
                self.owners[partition] = member_id

    def reset(self, stored: StoredGroup) -> None:
        """Replaces what is stored, for example after records could not be appended."""
        self.stored = stored.copy()
        self._subscribed = None
        self.metadata_is_stale = self.topics_were_created = True
        self.static_members = {
            metadata.instance_id: member_id
            for member_id, metadata in stored.members.items()
            if metadata.instance_id is not None
        }
        self.regex_users = Counter(
            metadata.regex for metadata in stored.members.values() if metadata.regex is not None
        )
        self.owners = {
            partition: member_id
            for member_id, current in stored.currents.items()
            if member_id in stored.members
            for partition in (*current.assigned, *current.pending)
        }

    # Views

    @property
    def members(self) -> Mapping[str, MemberMetadata]:
        return self.stored.members

    def current(self, member_id: str) -> Current:
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
    def state(self) -> ConsumerState:
        if self.is_dead:
            return ConsumerState.DEAD
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        currents = map(self.current, self.members)
        if all(
            each.state is MemberState.STABLE and each.epoch == self.target_epoch
            for each in currents
        ):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def matches(self, regex: str | None) -> frozenset[str]:
        """Returns the topics that match an expression; none if it is not resolved yet."""
        resolved = None if regex is None else self.stored.regexes.get(regex)
        return frozenset() if resolved is None else resolved.topics

    def topics_of(self, metadata: MemberMetadata) -> frozenset[str]:
        """Returns the names of all topics that a member subscribes to."""
        return metadata.names | self.matches(metadata.regex)

    @property
    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed is None:
            each = {(one.names, one.regex) for one in self.members.values()}
            names = (names | self.matches(regex) for names, regex in each)
            self._subscribed = frozenset().union(*names)
        return self._subscribed

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topics

    def preferred_assignor(self, offered: Iterable[str]) -> str:
        """Returns the assignor that most members name; the first one offered if none does."""
        votes = Counter(one.assignor for one in self.members.values())
        ranks = {name: rank for rank, name in enumerate(offered)}
        return max(ranks, key=lambda name: (votes[name], -ranks[name]))

    def tombstones(self) -> list[LogRecord]:
        """Returns the records that remove the group from the log, if it has no members."""
        entries: list[Entry] = [
            *(RegexEntry(self.group_id, regex, None) for regex in sorted(self.stored.regexes)),
            TargetEpochEntry(self.group_id, None),
            EpochEntry(self.group_id, None),
        ]
        return [record_of(entry) for entry in entries]

    def verify(self) -> None:
        """Checks the invariants above; tests and simulations call it after every event."""
        owned: Counter[TopicIdPartition] = Counter()
        for current in self.stored.currents.values():
            owned.update((*current.assigned, *current.pending))
        epochs = [each.epoch for each in self.stored.currents.values()]
        facts = {
            "a partition has one owner": all(count == 1 for count in owned.values()),
            "the owners are those that are stored": owned.keys() == self.owners.keys(),
            "no member is ahead of the target": all(each <= self.target_epoch for each in epochs),
            "the target is not ahead of the group": self.target_epoch <= self.epoch,
            "assignments are of members": self.stored.currents.keys() <= self.members.keys(),
            "targets are of members": self.stored.targets.keys() <= self.members.keys(),
            "expressions are those of members": self.regex_users
            == Counter(one.regex for one in self.members.values() if one.regex is not None),
            "static members are members": all(
                member_id in self.members and self.members[member_id].instance_id == instance_id
                for instance_id, member_id in self.static_members.items()
            ),
        }
        for fact, holds in facts.items():
            if not holds:
                raise InvariantViolated(
                    f"group {self.group_id} violates an invariant: {fact}; it is {self.stored}"
                )
