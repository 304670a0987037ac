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
    TargetEntry,
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
    pending: frozenset[TopicIdPartition]
    at_ms: int


@dataclass(slots=True)
class Turn:
    """Decisions about a group whose records are appended together."""

    group: ConsumerGroup
    now: Now
    earlier: list[list[LogRecord]] = field(default_factory=list)
    """The records of each decision but the last one."""
    records: list[LogRecord] = field(default_factory=list)
    """Those of the last decision."""
    firsts: int = 0
    """How many of these were written by `write_first`."""

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
        self.classic_members = 0
        """How many members speak the classic protocol."""
        self.classic_protocols: Counter[str] = Counter()
        """How many of them support each protocol."""
        self.syncs_due: dict[str, int] = {}
        """Classic members that must fetch their assignment, and until when, in ticks."""
        self.rejoins_due: dict[str, int] = {}
        """Classic members that were told to join again, and until when, in ticks."""
        self.arrival: list[LogRecord] = []
        """Records that precede those of its first change: it was a classic group before."""
        self.queue: deque[Asked] = deque()
        """Requests that wait until the records of earlier ones are committed."""
        self.strangers: set[str] = set()
        """Ids that have an assignment in the log, but no member that this broker can read."""
        self.downgrade_exceeds = 0
        """The limit of a batch that the records of a downgrade were too large for; 0 for none."""
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
        """New expressions that took too long or matched too much. Their members are refused."""
        self.outgrown_regexes: set[str] = set()
        """Expressions that do so by now. They keep the topics of the last time."""
        self.commits_in_flight: Counter[TopicPartition] = Counter()
        """Offsets that are being appended. They do not expire meanwhile."""
        self.unstable_in_flight: Counter[TopicPartition] = Counter()
        """Those of them that are committed in transactions."""
        self._subscriptions: Counter[tuple[frozenset[str], str | None]] = Counter()
        """How many members have each subscription."""
        self._subscribed: frozenset[str] | None = None
        self._downgrade_rests = 0
        """How many members may change before the size of a downgrade is looked at again."""
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
        before = self.stored.members.get(member_id)
        self._downgrade_rests -= 1
        if metadata is None or self._downgrade_rests <= 0:
            self.downgrade_exceeds = 0
        self._count_subscription(before, -1)
        self._count_subscription(metadata, 1)
        if before is not None and before.instance_id is not None:
            self.static_members.pop(before.instance_id, None)
        if before is not None and before.regex is not None:
            self.regex_users[before.regex] -= 1
            if not self.regex_users[before.regex]:
                del self.regex_users[before.regex]
        self._count_classic(before, -1)
        self._count_classic(metadata, 1)
        if metadata is not None and metadata.regex is not None:
            self.regex_users[metadata.regex] += 1
        if metadata is not None and metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id

    def _count_subscription(self, metadata: MemberMetadata | None, by: int) -> None:
        if metadata is None:
            return
        subscription = metadata.names, metadata.regex
        known = self._subscriptions[subscription] = self._subscriptions[subscription] + by
        if not known:
            del self._subscriptions[subscription]
        if known == max(by, 0):
            # It is the first or was the last with this subscription.
            self._subscribed = None

    def _count_classic(self, metadata: MemberMetadata | None, by: int) -> None:
        if metadata is None or metadata.classic is None:
            return
        self.classic_members += by
        for name, _ in metadata.classic.protocols:
            self.classic_protocols[name] += by
            if not self.classic_protocols[name]:
                del self.classic_protocols[name]

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
        self.strangers = {*stored.currents, *stored.targets} - stored.members.keys()
        for member_id in self.strangers:
            self.stored.currents.pop(member_id, None)
            self.stored.targets.pop(member_id, None)
        self.downgrade_exceeds = 0
        self._subscribed = None
        self._subscriptions = Counter((one.names, one.regex) for one in stored.members.values())
        self.metadata_is_stale = self.topics_were_created = True
        self.static_members = {
            metadata.instance_id: member_id
            for member_id, metadata in stored.members.items()
            if metadata.instance_id is not None
        }
        self.regex_users = Counter(
            metadata.regex for metadata in stored.members.values() if metadata.regex is not None
        )
        self.classic_members, self.classic_protocols = 0, Counter()
        for metadata in stored.members.values():
            self._count_classic(metadata, 1)
        self.owners = {
            partition: member_id
            for member_id, current in self.stored.currents.items()
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
    def is_classic_only(self) -> bool:
        """Whether the group has members, and none of them speaks the new protocol."""
        return 0 < self.classic_members == len(self.members)

    @property
    def empty_since_ms(self) -> int:
        """When the last member left, on the wall clock; 0 if there are members."""
        if self.members or self.stored.target_epoch is None:
            return 0
        # The group then got an empty target assignment.
        return self.stored.target_epoch.computed_ms

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
            names = (names | self.matches(regex) for names, regex in self._subscriptions)
            self._subscribed = frozenset().union(*names)
        return self._subscribed

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topics

    def preferred_assignor(self, offered: Iterable[str]) -> str:
        """Returns the assignor that most members name; the first one offered if none does."""
        votes = Counter(one.assignor for one in self.members.values())
        ranks = {name: rank for rank, name in enumerate(offered)}
        return max(ranks, key=lambda name: (votes[name], -ranks[name]))

    def note_downgrade_exceeds(self, batch_bytes_max: int) -> None:
        """Remembers that a downgrade is too large, until a member is gone or all have changed."""
        self.downgrade_exceeds, self._downgrade_rests = batch_bytes_max, len(self.members)

    def tombstones(self) -> list[LogRecord]:
        """Returns the records that remove the group from the log."""
        group_id, stored = self.group_id, self.stored
        entries: list[Entry] = [
            *(CurrentEntry(group_id, member_id, None) for member_id in stored.currents),
            *(TargetEntry(group_id, member_id, None) for member_id in stored.targets),
            TargetEpochEntry(group_id, None),
            *(MemberEntry(group_id, member_id, None) for member_id in stored.members),
            *(RegexEntry(group_id, regex, None) for regex in sorted(stored.regexes)),
            *self.tombstones_of_strangers(),
            EpochEntry(group_id, None),
        ]
        return [record_of(entry) for entry in entries]

    def tombstones_of_strangers(self) -> list[Entry]:
        return [
            entry
            for member_id in sorted(self.strangers)
            for entry in (
                CurrentEntry(self.group_id, member_id, None),
                TargetEntry(self.group_id, member_id, None),
                MemberEntry(self.group_id, member_id, None),
            )
        ]

    def verify(self) -> None:
        """Checks the invariants above; tests and simulations call it after every event."""
        owned: Counter[TopicIdPartition] = Counter()
        for current in self.stored.currents.values():
            owned.update((*current.assigned, *current.pending))
        epochs = [each.epoch for each in self.stored.currents.values()]
        classic = {
            member_id: one.classic
            for member_id, one in self.members.items()
            if one.classic is not None
        }
        facts = {
            "a partition has one owner": all(count == 1 for count in owned.values()),
            "the owners are those that are stored": owned.keys() == self.owners.keys(),
            "no member is ahead of the target": all(each <= self.target_epoch for each in epochs),
            "the target is not ahead of the group": self.target_epoch <= self.epoch,
            "assignments are of members": self.stored.currents.keys() <= self.members.keys(),
            "targets are of members": self.stored.targets.keys() <= self.members.keys(),
            "expressions are those of members": self.regex_users
            == Counter(one.regex for one in self.members.values() if one.regex is not None),
            "subscriptions are those of members": self._subscriptions
            == Counter((one.names, one.regex) for one in self.members.values()),
            "classic members are counted": self.classic_members == len(classic),
            "their protocols are counted": dict(self.classic_protocols)
            == Counter(name for one in classic.values() for name, _ in one.protocols),
            "limits of joining are those of classic members": self.syncs_due.keys()
            | self.rejoins_due.keys()
            <= classic.keys(),
            "limits of revocations are those of what is pending": {
                member_id: (running.epoch, running.pending)
                for member_id, running in self.revocations.items()
            }
            == {
                member_id: (each.epoch, frozenset(each.pending))
                for member_id, each in self.stored.currents.items()
                if each.state is MemberState.UNREVOKED and member_id not in classic
            },
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
