"""What the members of consumer groups really do, seen from outside.

A member holds a partition from when it starts to read it until it stops. A member that is frozen or
cut off goes on holding its partitions, because it does not know better. The checker of consumer
groups (`checkers.consumer_groups`) compares this with what is in the log of the groups.

A request whose answer is missing may reach a broker long after its member has sent others. If it
does not list a partition that the member reads by then, the coordinator takes that for a release,
and cannot know better. Such a hold is doubtful, and proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from penstock.groups.consumer.records import TopicIdPartition

_LATE_MS: Final = 40_000
"""No request arrives later than this after it was sent: faults do not last longer."""


class Answer(NamedTuple):
    """A heartbeat that was answered without an error."""

    group: str
    member_id: str
    sent_epoch: int
    epoch: int
    assigned: frozenset[TopicIdPartition] | None


class CommitClaim(NamedTuple):
    """As whom a member has sent a commit. The metadata of the commit identifies it."""

    group: str
    member_id: str
    epoch: int
    partition_name: str


class Judge(Protocol):
    """Compares what members see with the log of the groups."""

    def owns(self, group: str, member_id: str, partition: TopicIdPartition) -> bool:
        """Returns whether the partition belongs to the member, by the log."""

    def on_answer(self, answer: Answer) -> None: ...

    def on_refused(self, group: str, member_id: str, error: str) -> None:
        """Handles an error that no coordinator may answer."""

    def acked(self, group: str, partition_name: str) -> int:
        """Returns the number of the newest commit that was acknowledged; -1 for none."""

    def on_acked(self, claim: CommitClaim, metadata: str) -> None: ...

    def on_fetched(self, group: str, partition_name: str, metadata: str, least: int) -> None:
        """Handles a committed offset that was returned. `least` is what `acked` returned before
        the request."""


@dataclass(slots=True)
class LiveMember:
    """A member whose process runs."""

    group: str
    member_id: str
    names: frozenset[str] = frozenset()
    regex: str = ""
    held: dict[TopicIdPartition, bool] = field(default_factory=dict)
    """The partitions that it reads. False if the hold proves nothing."""
    unanswered: list[tuple[float, frozenset[TopicIdPartition]]] = field(default_factory=list)
    """When requests were sent whose outcome is unknown, and which partitions they listed."""


@dataclass(slots=True)
class ConsumerBoard:
    now_ms: Callable[[], float] = lambda: 0.0
    judge: Judge | None = None
    members: dict[str, LiveMember] = field(default_factory=dict)
    """By process."""
    claims: dict[str, CommitClaim] = field(default_factory=dict)
    """By the metadata of a commit."""
    retiring: dict[str, None] = field(default_factory=dict)
    """Processes of members that will leave their group for good, and have not done so yet."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when members must end."""

    def hold(self, process: str, partition: TopicIdPartition) -> None:
        """The member starts to read a partition."""
        member = self.members[process]
        assert self.judge is not None
        now_ms = self.now_ms()
        member.unanswered = [each for each in member.unanswered if each[0] > now_ms - _LATE_MS]
        member.held[partition] = self.judge.owns(
            member.group, member.member_id, partition
        ) and not any(partition not in listed for _, listed in member.unanswered)

    def release(self, process: str, partition: TopicIdPartition) -> None:
        self.members[process].held.pop(partition, None)

    def fence(self, group: str, member_id: str) -> None:
        """The group has removed a member. What the member holds from now on proves nothing."""
        for member in self.members.values():
            if (member.group, member.member_id) == (group, member_id):
                for partition in member.held:
                    member.held[partition] = False

    def holder(self, group: str, member_id: str, partition: TopicIdPartition) -> str:
        """Returns the process that reads the partition as this member; empty if there is none."""
        for process, member in self.members.items():
            if (member.group, member.member_id) == (group, member_id) and member.held.get(
                partition
            ):
                return process
        return ""


def show_member(
    board: ConsumerBoard,
    process: str,
    group: str,
    member_id: str,
    names: Iterable[str],
    regex: str = "",
) -> None:
    """Shows on the board as which member a process takes part in a group now."""
    known = board.members.get(process)
    if known is None or (known.group, known.member_id) != (group, member_id):
        known = board.members[process] = LiveMember(group, member_id)
    known.names, known.regex = frozenset(names), regex
