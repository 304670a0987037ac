"""A group and its members, and the state transitions of a group.

A group goes through generations. In each one, the members that joined agree on a protocol (for
consumers, an assignor). One of them is the leader and assigns the partitions, and all members work
with that assignment until a member joins, leaves or changes. Then all members join again, into the
next generation.

    Empty                 no members; at most committed offsets
    PreparingRebalance    members are joining; joins are parked until all have joined or time is up
    CompletingRebalance   the generation is fixed; members wait for the leader's assignment
    Stable                the assignment is in the log; members have it or may ask for it
    Dead                  its tombstones are being appended; it must not be changed any more

The meaning of the protocols' metadata and of the assignments is up to the clients. The coordinator
reads only one thing: the topics in a consumer's subscription, so that it does not expire or delete
offsets that are still needed.

Invariants, checked by `verify`:

- a parked join or sync belongs to a member; joins are parked only while preparing, syncs only while
  completing;
- the leader is a member, and there is one whenever there are members;
- every instance id maps to a member that has it;
- at least one protocol is supported by all members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from penstock.coordination.effects import Token
from penstock.coordination.invariants import InvariantViolated
from penstock.groups.formats import NO_TIMESTAMP, GroupValue
from penstock.topic_partition import TopicPartition
from penstock.wire.codec import decode_at
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages.embedded import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
UNKNOWN_MEMBER: Final = ""


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NEXT_STATES: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset((State.PREPARING, State.DEAD)),
    State.PREPARING: frozenset((State.COMPLETING, State.EMPTY)),
    State.COMPLETING: frozenset((State.STABLE, State.PREPARING)),
    State.STABLE: frozenset((State.PREPARING,)),
    # Restored if its tombstones could not be appended.
    State.DEAD: frozenset((State.EMPTY,)),
}


class Parked(NamedTuple):
    """A request that waits for its answer; the version determines the form of the answer."""

    token: Token
    version: int


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    """Protocol name to metadata, in the member's order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Its first join is not answered yet, so it does not know its id and cannot send heartbeats."""
    session_ends_ms: int = 0
    session_timer_at_ms: int | None = None


@dataclass(slots=True)
class Group:
    group_id: str
    state_since_ms: int
    """On the wall clock; -1 if the log, written by an old version, does not have it."""
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    """None if no member ever joined: the group only has offsets."""
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Instance id to member id."""
    pending_members: dict[str, int] = field(default_factory=dict)
    """Member ids that were handed out but have not joined yet, with the tick of their expiry."""
    joining: dict[str, Parked] = field(default_factory=dict)
    syncing: dict[str, Parked] = field(default_factory=dict)
    pending_syncs: dict[str, None] = field(default_factory=dict)
    """Members of this generation that have not asked for their assignment yet."""
    subscribed_topics: frozenset[str] | None = None
    """The topics of a consumer group in this generation; None if they could not be read."""
    initial_delay_left_ms: int | None = None
    """In the first join phase after Empty: how much longer the delay may still be extended."""
    new_member_added: bool = False
    join_timer_at_ms: int | None = None
    sync_timer_at_ms: int | None = None
    assignment_in_flight: bool = False
    commits_in_flight: Counter[TopicPartition] = field(default_factory=Counter)
    """Offsets that are being appended. They do not expire meanwhile."""
    unstable_in_flight: Counter[TopicPartition] = field(default_factory=Counter)
    """Those of them that are committed in transactions."""

    def transition(self, state: State, wall_ms: int) -> None:
        if state not in NEXT_STATES[self.state]:
            raise InvariantViolated(f"group {self.group_id}: {self.state} cannot become {state}")
        self.state = state
        self.state_since_ms = wall_ms

    # Membership

    def add(self, member: Member) -> None:
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        self.pending_syncs.pop(member_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Gives a static member a new member id; everything else stays."""
        old_id = member.member_id
        del self.members[old_id]
        member.member_id = member_id
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        if self.leader_id == old_id:
            self.leader_id = member_id
        if old_id in self.pending_syncs:
            del self.pending_syncs[old_id]
            self.pending_syncs[member_id] = None

    def require_member(self, member_id: str, instance_id: str | None) -> Member:
        """Returns the member that sent a request, or raises the error to answer it with."""
        if instance_id is not None:
            known_id = self.static_members.get(instance_id)
            if known_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known_id != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[member_id]

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def everyone_joined(self) -> bool:
        return len(self.joining) == len(self.members) and not self.pending_members

    def absent_members(self) -> list[Member]:
        """Returns the members that have not joined again in this join phase."""
        return [member for name, member in self.members.items() if name not in self.joining]

    def elect_joined_leader(self) -> bool:
        """Keeps the leader if it joined, else elects a member that did. Returns False if
        none did."""
        if self.leader_id not in self.joining:
            joined = next((name for name in self.members if name in self.joining), None)
            if joined is None:
                return False
            self.leader_id = joined
        return True

    # Protocols

    def supports(self, protocol_type: str, protocols: Collection[str]) -> bool:
        """Returns whether a member with these protocols could join the others."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        return not self.candidate_protocols().isdisjoint(protocols) or (
            not self.members and bool(protocols)
        )

    def candidate_protocols(self) -> set[str]:
        """Returns the protocols that all members support."""
        each = [member.protocols.keys() for member in self.members.values()]
        return set(each[0]).intersection(*each[1:]) if each else set()

    def select_protocol(self) -> str:
        """Returns the protocol with most votes: each member votes for its first that all
        support."""
        candidates = self.candidate_protocols()
        votes = Counter(
            next(name for name in member.protocols if name in candidates)
            for member in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    def next_generation(self, wall_ms: int) -> None:
        self.generation += 1
        self.initial_delay_left_ms = None
        self.new_member_added = False
        self.assignment_in_flight = False
        self.pending_syncs.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.read_subscriptions()
        self.transition(State.COMPLETING if self.members else State.EMPTY, wall_ms)

    def read_subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                # All versions begin with the fields of version 0, which contain the topics.
                metadata = member.protocols.get(self.protocol_name or "", b"")
                subscription, _ = decode_at(ConsumerProtocolSubscription, metadata, 0, 2)
                topics.update(subscription.topics)
        except ProtocolError:
            return None
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether a member subscribes to the topic; True if subscriptions are
        unreadable."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    # Conversion to and from the log

    def to_value(self, assignments: Mapping[str, bytes]) -> GroupValue:
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_since_ms,
            members=[
                GroupValue.Member(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.protocols.get(self.protocol_name or "", b""),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    @classmethod
    def from_value(cls, group_id: str, value: GroupValue) -> Group:
        group = cls(
            group_id,
            value.current_state_timestamp,
            State.STABLE if value.members else State.EMPTY,
            value.generation,
            value.protocol_type or None,
            value.protocol,
            value.leader,
        )
        for member in value.members:
            # Versions before 1 had no rebalance timeout: then it was the session timeout.
            rebalance_timeout_ms = member.rebalance_timeout
            if rebalance_timeout_ms == NO_TIMESTAMP:
                rebalance_timeout_ms = member.session_timeout
            group.add(
                Member(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    rebalance_timeout_ms,
                    member.session_timeout,
                    {value.protocol or "": member.subscription},
                    member.assignment,
                )
            )
        group.subscribed_topics = group.read_subscriptions()
        return group

    def verify(self) -> None:
        """Checks the invariants above; tests and simulations call it after every event."""
        facts = {
            "parked joins are of members": self.joining.keys() <= self.members.keys(),
            "parked syncs are of members": self.syncing.keys() <= self.members.keys(),
            "joins are parked only while preparing": not self.joining
            or self.state is State.PREPARING,
            "syncs are parked only while completing": not self.syncing
            or self.state is State.COMPLETING,
            "only Empty and Dead have no members": bool(self.members)
            or self.state in (State.EMPTY, State.DEAD, State.PREPARING),
            "Empty and Dead have no members": not self.members
            or self.state not in (State.EMPTY, State.DEAD),
            "the leader is a member": self.leader_id in self.members
            or (self.leader_id is None and not self.members),
            "static members are members": all(
                name in self.members and self.members[name].instance_id == instance
                for instance, name in self.static_members.items()
            ),
            "all members share a protocol": not self.members or bool(self.candidate_protocols()),
        }
        for fact, holds in facts.items():
            if not holds:
                raise InvariantViolated(
                    f"group {self.group_id} violates an invariant: {fact}; it is {self}"
                )
