"""What the log says about one share group: the values of its records, by key."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, fields
from typing import TypeVar

from penstock.groups.consumer.records import GroupEpoch, TargetEpoch, TopicIdPartition
from penstock.groups.share.records import (
    CurrentEntry,
    Entry,
    EpochEntry,
    MemberEntry,
    ShareCurrent,
    ShareMember,
    ShareStates,
    StatesEntry,
    TargetEntry,
    TargetEpochEntry,
)

V = TypeVar("V")
_NO_STATES = ShareStates()


@dataclass(slots=True)
class StoredShareGroup:
    epoch: GroupEpoch | None = None
    target_epoch: TargetEpoch | None = None
    members: dict[str, ShareMember] = field(default_factory=dict)
    targets: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    currents: dict[str, ShareCurrent] = field(default_factory=dict)
    states: ShareStates = _NO_STATES

    def apply(self, entry: Entry) -> None:
        match entry:
            case EpochEntry(_, value):
                self.epoch = value
            case TargetEpochEntry(_, target_epoch):
                self.target_epoch = target_epoch
            case MemberEntry(_, member_id, member):
                _set(self.members, member_id, member)
            case TargetEntry(_, member_id, target):
                _set(self.targets, member_id, target)
            case CurrentEntry(_, member_id, current):
                _set(self.currents, member_id, current)
            case StatesEntry(_, states):
                self.states = states or _NO_STATES

    def copy(self) -> StoredShareGroup:
        """Returns a copy that can be changed by itself. The values are immutable and shared."""
        return StoredShareGroup(*(copy(getattr(self, each.name)) for each in fields(self)))

    def __bool__(self) -> bool:
        """Returns whether the log has any record of the group."""
        return any(getattr(self, each.name) for each in fields(self))


def _set(values: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
