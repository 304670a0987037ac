"""What the log says: the state of a shard that survives a restart.

Only `replay` changes it, with records that are committed, in the order of the log. The broker that
wrote a record and the one that reads it after a restart therefore end up with the same image. What
is not in here (who is waiting for what, who was last heard of when) may be lost: clients join
again.

Committed offsets live nowhere else. A group's image is its last written generation, which the live
group may have left behind.
"""

from __future__ import annotations

from penstock.groups.formats import GroupValue, OffsetEntry, OffsetValue, read_record

TopicPartition = tuple[str, int]


class ShardImage:
    def __init__(self) -> None:
        self.groups: dict[str, GroupValue] = {}
        self.offsets: dict[str, dict[TopicPartition, OffsetValue]] = {}

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        entry = read_record(key, value)
        if entry is None:
            return
        if isinstance(entry, OffsetEntry):
            about = entry.key
            self._set_offset(about.group, (about.topic, about.partition), entry.value)
        elif entry.value is None:
            self.groups.pop(entry.key.group, None)
        else:
            self.groups[entry.key.group] = entry.value

    def _set_offset(self, group_id: str, about: TopicPartition, value: OffsetValue | None) -> None:
        if value is not None:
            self.offsets.setdefault(group_id, {})[about] = value
        elif group_id in self.offsets:
            self.offsets[group_id].pop(about, None)
            if not self.offsets[group_id]:
                del self.offsets[group_id]

    def offsets_of(self, group_id: str) -> dict[TopicPartition, OffsetValue]:
        return self.offsets.get(group_id, {})
