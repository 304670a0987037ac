"""What the log says about one consumer group: the values of its records, by key."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, fields
from typing import TypeVar

from penstock.groups.consumer.records import (
    Current,
    CurrentEntry,
    Entry,
    EpochEntry,
    GroupEpoch,
    MemberEntry,
    MemberMetadata,
    RegexEntry,
    ResolvedRegex,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TopicIdPartition,
)

V = TypeVar("V")


@dataclass(slots=True)
class StoredGroup:
    epoch: GroupEpoch | None = None
    target_epoch: TargetEpoch | None = None
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    targets: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    currents: dict[str, Current] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        match entry:
            case EpochEntry(_, value):
                self.epoch = value
            case TargetEpochEntry(_, target_epoch):
                self.target_epoch = target_epoch
            case MemberEntry(_, member_id, metadata):
                _set(self.members, member_id, metadata)
            case TargetEntry(_, member_id, target):
                _set(self.targets, member_id, target)
            case CurrentEntry(_, member_id, current):
                _set(self.currents, member_id, current)
            case RegexEntry(_, regex, resolved):
                _set(self.regexes, regex, resolved)

    def copy(self) -> StoredGroup:
        """Returns a copy that can be changed by itself. The values are immutable and shared."""
        return StoredGroup(*(copy(getattr(self, each.name)) for each in fields(self)))

    def __bool__(self) -> bool:
        """Returns whether the log has any record of the group."""
        return any(getattr(self, each.name) for each in fields(self))


def _set(values: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
