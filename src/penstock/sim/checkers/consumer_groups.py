"""Checks the consumer groups of the new protocol (KIP-848) against their log, record by record.

I15  In the log of the groups a partition belongs to one member, also while that one must give it
     up. Epochs never go back: that of the group, that of the target assignment and those of the
     members, none of which is ahead of the next. An instance id belongs to one member, and another
     member takes it over only after the first has left.
I16  A partition is taken from a member only after the member has stopped reading it, or was
     removed from the group.
I17  An offset is committed only for a member of the group, under its epoch, or under an older one
     if it has had the partition since then.
I18  A coordinator has in memory what the log says (`consumer_probe`).
I23  A group has records of the classic or of the new protocol in the log, not of both. When it
     changes its protocol, members keep the partitions that they read (I16).
E12  A committed offset that is returned is not older than one that was acknowledged before.
E34  What a coordinator answers to a heartbeat is in the log: the member's epoch and its partitions.
     The epoch is not below the one that the member sent.
E35  A member is never told that its group does not exist, and never gets an error without a reason
     in its request.

The log is decoded here and not by the code of the brokers, and a batch is checked when it is
committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.client.membership.protocol import decode_assignment
from penstock.groups.consumer import record_schemas as schemas
from penstock.groups.consumer.record_schemas import CODEC, KEY_KINDS
from penstock.groups.consumer.records import LEFT_FOR_A_WHILE, TopicIdPartition
from penstock.groups.formats import (
    GroupEntry,
    GroupValue,
    OffsetEntry,
    OffsetKey,
    OffsetValue,
    read_record,
)
from penstock.groups.record_codec import read_version
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.records.record import Record
from penstock.sim.actors.consumer_board import Answer, CommitClaim, ConsumerBoard
from penstock.sim.checkers.metadata_invariants import InvariantBroken, broken
from penstock.sim.scenario import is_consumer_group

_NO_OFFSET: Final = ""

Epochs = dict[TopicIdPartition, int]


@dataclass(slots=True)
class Owner:
    """What the log says that a member has."""

    epoch: int = 0
    previous_epoch: int = 0
    state: int = 0
    assigned: Epochs = field(default_factory=dict)
    pending: Epochs = field(default_factory=dict)

    @property
    def partitions(self) -> Epochs:
        return self.assigned | self.pending


@dataclass(slots=True)
class TrueGroup:
    """A consumer group, as the committed part of the log has it."""

    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, schemas.MemberValue] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    targets: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    """By member: the highest epoch that it ever had."""
    last: dict[str, int] = field(default_factory=dict)
    """By member: the last epoch that it had. It may be removed by now."""
    classic: dict[str, Owner] | None = None
    """If it is a classic group: what its members were assigned in the newest generation."""
    generation: int = 0
    is_handed_over: bool = False
    """It was downgraded, and has had no rebalance since then."""

    @property
    def current_owners(self) -> dict[str, Owner]:
        return self.owners if self.classic is None else self.classic


@dataclass(slots=True)
class _Before:
    """A group before a batch."""

    epoch: int
    target_epoch: int
    owners: dict[str, Owner]
    replaced: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """By instance id: the member that has just been removed, before the group has a new epoch, and
    whether it spoke the classic protocol."""
    text: str = ""
    """What is wrong with a record of the batch."""
    comes_from_classic: bool = False


class TrueConsumerGroups:
    def __init__(self, board: ConsumerBoard) -> None:
        self.topic = OFFSETS_TOPIC
        self.groups: dict[str, TrueGroup] = {}
        self.broken: InvariantBroken | None = None
        """What a member saw that no member may see. The next check of the invariants raises it."""
        self._board = board
        self.names: dict[bytes, str] = {}
        """By topic id: the names of all topics that there ever were."""
        self._granted: dict[tuple[str, str], dict[tuple[int, frozenset[TopicIdPartition]], None]]
        self._granted = {}
        """By group and member: all epochs and assignments that the log ever had."""
        self._commits: dict[tuple[str, str], list[str]] = {}
        """By group and partition name: the metadata of all commits, in log order."""
        self._acked: dict[tuple[str, str], int] = {}
        self.upgrades = 0
        self.downgrades = 0

    # The log

    def on_committed(self, partition_name: str, offset: int, records: Iterable[Record]) -> None:
        """Applies a batch, and checks the groups that it changes."""
        before: dict[str, _Before] = {}
        gone: dict[tuple[str, str], None] = {}
        for record in records:
            if record.key is None:
                continue
            if read_version("a key", record.key) in KEY_KINDS:
                self._apply(before, gone, record.key, record.value)
                continue
            entry = read_record(record.key, record.value)
            if isinstance(entry, OffsetEntry):
                self._on_offset(partition_name, offset, entry.key, entry.value)
            elif isinstance(entry, GroupEntry):
                self._on_generation(before, gone, entry.key.group, entry.value)
        for name, member_id in gone:
            group = self.groups[name]
            if member_id not in group.members and member_id not in (group.classic or {}):
                self._board.fence(name, member_id)
        for name, was in before.items():
            self._check(partition_name, offset, name, was)

    def _on_generation(
        self,
        before: dict[str, _Before],
        gone: dict[tuple[str, str], None],
        name: str,
        value: GroupValue | None,
    ) -> None:
        """Applies the record of a generation of a classic group."""
        if not is_consumer_group(name):
            return
        group = self.groups.setdefault(name, TrueGroup())
        known = group.classic or {}
        if value is None:
            # If records of the new protocol follow in the batch, they must have all of its members.
            before.setdefault(name, _Before(0, 0, dict(known), comes_from_classic=bool(known)))
            group.classic = None
            gone |= dict.fromkeys((name, member_id) for member_id in known)
            return
        self.downgrades += name in before and bool(value.members)
        group.classic = {each.member_id: self._classic_owner(value, each) for each in value.members}
        group.generation = value.generation
        group.is_handed_over = bool(value.members) and value.leader is None
        gone |= dict.fromkeys((name, member_id) for member_id in known.keys() - group.classic)

    def _classic_owner(self, value: GroupValue, member: GroupValue.Member) -> Owner:
        ids = {name: topic_id for topic_id, name in self.names.items()}
        assigned = {
            TopicIdPartition(ids[each.topic], each.partition): value.generation
            for each in decode_assignment(member.assignment)
            if each.topic in ids
        }
        return Owner(value.generation, value.generation, assigned=assigned)

    def _apply(
        self,
        before: dict[str, _Before],
        gone: dict[tuple[str, str], None],
        key: bytes,
        value: bytes | None,
    ) -> None:
        found = CODEC.decode(KEY_KINDS[read_version("a key", key)], key)
        # All keys have the field.
        name: str = found.group  # type: ignore[attr-defined]
        group = self.groups.setdefault(name, TrueGroup())
        if name not in before:
            before[name] = _Before(group.epoch, group.target_epoch, dict(group.owners))
        was = before[name]
        match found:
            case schemas.EpochKey() if value is None:
                self.groups[name] = TrueGroup()
                # If the record of a classic group follows in the batch, it has the members.
                before[name] = _Before(0, 0, was.owners)
            case schemas.EpochKey():
                group.epoch = CODEC.decode(schemas.EpochValue, value or b"").epoch
                was.replaced.clear()
            case schemas.TargetEpochKey() if value is not None:
                group.target_epoch = CODEC.decode(schemas.TargetEpochValue, value).assignment_epoch
            case schemas.MemberKey() if value is None:
                left = group.members.pop(found.member, None)
                if left is not None and left.instance_id is not None:
                    is_classic = left.classic is not None
                    was.replaced[left.instance_id] = found.member, is_classic
                gone[name, found.member] = None
            case schemas.MemberKey():
                member = CODEC.decode(schemas.MemberValue, value or b"")
                group.members[found.member] = member
                was.text = was.text or _wrong_replacement(group, was, found.member, member)
            case schemas.TargetKey() if value is None:
                group.targets.pop(found.member, None)
            case schemas.TargetKey():
                target = CODEC.decode(schemas.TargetValue, value or b"")
                group.targets[found.member] = frozenset(
                    TopicIdPartition(topic.topic_id, index)
                    for topic in target.topics
                    for index in topic.partitions
                )
            case schemas.CurrentKey() if value is None:
                group.owners.pop(found.member, None)
            case schemas.CurrentKey():
                owner = _owner(CODEC.decode(schemas.CurrentValue, value or b""))
                group.owners[found.member] = owner
                group.last[found.member] = owner.epoch
                granted = self._granted.setdefault((name, found.member), {})
                granted[owner.epoch, frozenset(owner.assigned)] = None

    def _check(self, partition_name: str, offset: int, name: str, was: _Before) -> None:
        group = self.groups[name]
        if was.comes_from_classic and group.members:
            self.upgrades += 1
        text = (
            was.text
            or _both_protocols(group)
            or _wrong_owners(group)
            or _wrong_epochs(group, was)
            or _wrong_instances(group)
            or self._missing_release(name, group, was)
        )
        if text:
            rule, _, told = text.partition(" ")
            raise broken(rule, partition_name, f"group {name}: {told}", offset)
        for member_id, owner in group.owners.items():
            group.highest[member_id] = max(owner.epoch, group.highest.get(member_id, 0))

    def _missing_release(self, name: str, group: TrueGroup, was: _Before) -> str:
        for member_id, owner in was.owners.items():
            now = group.current_owners.get(member_id)
            for partition in owner.partitions:
                if now is not None and partition in now.partitions:
                    continue
                process = self._board.holder(name, member_id, partition)
                if process:
                    return (
                        f"I16 {_told(partition)} was taken from {process} (member {member_id}), "
                        "which still reads it"
                    )
        return ""

    def _on_offset(
        self, partition_name: str, offset: int, key: OffsetKey, value: OffsetValue | None
    ) -> None:
        about = f"{key.topic}-{key.partition}"
        commits = self._commits.setdefault((key.group, about), [])
        commits.append(_NO_OFFSET if value is None else value.metadata)
        claim = None if value is None else self._board.claims.get(value.metadata)
        if claim is None:
            return
        text = self._wrong_commit(claim, key)
        if text:
            raise broken("I17", partition_name, f"group {key.group}: {text}", offset)

    def _wrong_commit(self, claim: CommitClaim, key: OffsetKey) -> str:
        group = self.groups.get(claim.group, TrueGroup())
        told = (
            f"member {claim.member_id} committed for {claim.partition_name} in epoch {claim.epoch}"
        )
        members = group.members if group.classic is None else group.classic
        if claim.member_id not in members:
            return f"{told}, but was no member"
        owner = group.current_owners.get(claim.member_id, Owner())
        if claim.epoch == owner.epoch:
            return ""
        # A broker that does not know yet that a topic was created again decides by the old id.
        since = [
            epoch
            for partition, epoch in owner.partitions.items()
            if self.names.get(partition.topic_id) == key.topic
            and partition.partition == key.partition
        ]
        if claim.epoch < owner.epoch and any(claim.epoch >= epoch for epoch in since):
            return ""
        # The commit was accepted while the records of a downgrade were being appended. The member
        # had the partition under its old epoch, and has it still.
        if group.is_handed_over and claim.epoch < owner.epoch and since:
            return ""
        # If a rebalance of a classic group begins again before it is completed, its generation is
        # not in the log. As in Kafka, a member that joined it may commit what it still has.
        if group.classic is not None and claim.epoch > owner.epoch and since:
            return ""
        return f"{told}, but its epoch was {owner.epoch}, and it had the partition since {since}"

    # What members see

    def owns(self, group: str, member_id: str, partition: TopicIdPartition) -> bool:
        owner = self.groups.get(group, TrueGroup()).current_owners.get(member_id)
        return owner is not None and partition in owner.partitions

    def on_answer(self, answer: Answer) -> None:
        name, member_id, sent_epoch, epoch, assigned = answer
        granted = self._granted.get((name, member_id), {})
        told = f"group {name}: member {member_id} was answered with epoch {epoch}"
        if epoch < sent_epoch:
            self._fail("E34", f"{told}, but it had sent {sent_epoch}")
        elif assigned is not None and (epoch, assigned) not in granted:
            partitions = ", ".join(map(_told, sorted(assigned))) or "no partitions"
            self._fail("E34", f"{told} and {partitions}, which is not in the log")
        elif all(known != epoch for known, _ in granted):
            self._fail("E34", f"{told}, which is not in the log")

    def on_refused(self, group: str, member_id: str, error: str) -> None:
        self._fail("E35", f"group {group}: member {member_id} was answered with {error}")

    def acked(self, group: str, partition_name: str) -> int:
        return self._acked.get((group, partition_name), -1)

    def on_acked(self, claim: CommitClaim, metadata: str) -> None:
        key = claim.group, claim.partition_name
        commits = self._commits.get(key, [])
        if metadata not in commits:
            self._fail("E12", f"{claim} was acknowledged, but is not in the log")
            return
        self._acked[key] = max(commits.index(metadata), self._acked.get(key, -1))

    def on_fetched(self, group: str, partition_name: str, metadata: str, least: int) -> None:
        commits = self._commits.get((group, partition_name), [])
        if least >= 0 and metadata not in commits[least:]:
            told = metadata or "none"
            self._fail(
                "E12",
                f"group {group}: the commit {told} was returned for {partition_name}, but "
                f"{commits[least]} was acknowledged before",
            )

    def _fail(self, rule: str, text: str) -> None:
        self.broken = self.broken or broken(rule, "", text)


def _told(partition: TopicIdPartition) -> str:
    return f"{partition.topic_id.hex()[:8]}-{partition.partition}"


def _owner(value: schemas.CurrentValue) -> Owner:
    return Owner(
        value.member_epoch,
        value.previous_member_epoch,
        value.state,
        _epochs(value.assigned),
        _epochs(value.pending),
    )


def _epochs(topics: Iterable[schemas.CurrentValue.Topic]) -> Epochs:
    return {
        TopicIdPartition(topic.topic_id, index): epoch
        for topic in topics
        for index, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
    }


def _both_protocols(group: TrueGroup) -> str:
    if group.classic and (group.members or group.epoch):
        return f"I23 it has records of both protocols, with the members {[*group.classic]}"
    return ""


def _wrong_owners(group: TrueGroup) -> str:
    owned: dict[TopicIdPartition, str] = {}
    for member_id, owner in group.owners.items():
        if member_id not in group.members:
            return f"I15 {member_id} has an assignment and is no member"
        for partition in owner.partitions:
            other = owned.setdefault(partition, member_id)
            if other != member_id:
                return f"I15 {_told(partition)} belongs to the members {other} and {member_id}"
    return ""


def _wrong_epochs(group: TrueGroup, was: _Before) -> str:
    if group.epoch < was.epoch:
        return f"I15 the group epoch went back from {was.epoch} to {group.epoch}"
    if group.target_epoch < was.target_epoch:
        return f"I15 the target epoch went back from {was.target_epoch} to {group.target_epoch}"
    if group.target_epoch > group.epoch:
        return f"I15 the target epoch {group.target_epoch} is above the group's, {group.epoch}"
    for member_id, owner in group.owners.items():
        highest = group.highest.get(member_id, 0)
        if owner.epoch > group.target_epoch:
            return f"I15 member {member_id} has epoch {owner.epoch}, above the target's"
        if owner.epoch < highest and owner.epoch != LEFT_FOR_A_WHILE:
            return f"I15 the epoch of member {member_id} went back from {highest} to {owner.epoch}"
    return ""


def _wrong_instances(group: TrueGroup) -> str:
    held: dict[str, str] = {}
    for member_id, member in group.members.items():
        if member.instance_id is not None:
            other = held.setdefault(member.instance_id, member_id)
            if other != member_id:
                return f"I15 {member.instance_id} belongs to the members {other} and {member_id}"
    return ""


def _wrong_replacement(
    group: TrueGroup, was: _Before, member_id: str, member: schemas.MemberValue
) -> str:
    """Checks a static member that takes the place of another."""
    replaced, was_classic = was.replaced.pop(member.instance_id or "", (member_id, False))
    if replaced == member_id or group.last.get(replaced) == LEFT_FOR_A_WHILE:
        return ""
    if was_classic or member.classic is not None:
        # As in classic groups, a member takes over the instance id of one that still runs.
        return ""
    return (
        f"I15 member {member_id} took over the instance id {member.instance_id} from {replaced}, "
        "which had not left"
    )
