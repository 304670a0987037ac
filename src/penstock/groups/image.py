"""The state of a shard that is in the log, and survives a restart.

Only `replay` and `end_transaction` change it, with committed records and markers, in log order. So
the broker that wrote them and the one that reads them after a restart get the same image. State
that is not in here (waiting requests, when a member last made contact) may be lost: clients join
again.

Committed offsets are stored nowhere else. A group's entry is the last generation in the log, which
the live group may have left already.

Offsets committed in a transaction are pending until its marker. When the transaction is committed,
they take effect as of their position in the log: an offset that was committed for the same
partition after them, without a transaction or by one that ended first, stays.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.groups.consumer.records import Entry, EpochEntry, read_entry
from penstock.groups.consumer.stored_group import StoredGroup
from penstock.groups.formats import GroupValue, OffsetEntry, OffsetValue, read_record
from penstock.groups.record_codec import VersionTooNew
from penstock.groups.share.records import read_entry as read_share_entry
from penstock.groups.share.stored_group import StoredShareGroup
from penstock.topic_partition import TopicPartition

NO_PRODUCER: Final = -1


class Pending:
    """An offset in an open transaction; `number` is its number among this log's pending offsets."""

    __slots__ = ("is_overtaken", "number", "value")

    def __init__(self, value: OffsetValue, number: int) -> None:
        self.value = value
        self.number = number
        self.is_overtaken = False


class ShardImage:
    def __init__(self) -> None:
        self.groups: dict[str, GroupValue] = {}
        """Groups of the classic protocol."""
        self.consumer_groups: dict[str, StoredGroup] = {}
        """Groups of the new protocol."""
        self.too_new: set[tuple[str, int]] = set()
        """The kinds and versions of values that were skipped, because only a newer broker knows
        them."""
        self.share_groups: dict[str, StoredShareGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, OffsetValue]] = {}
        self._pending: dict[str, dict[TopicPartition, dict[int, Pending]]] = {}
        self._of_producer: dict[int, dict[tuple[str, TopicPartition], None]] = {}
        self._numbers = 0

    def replay(
        self, key: bytes | None, value: bytes | None, producer_id: int = NO_PRODUCER
    ) -> None:
        """Applies one record; `producer_id` is set if it belongs to a transaction.

        A record whose value is too new is skipped: the other groups of this log must be served.
        """
        try:
            self._replay(key, value, producer_id)
        except VersionTooNew as error:
            self.too_new.add((error.name, error.version))

    def _replay(self, key: bytes | None, value: bytes | None, producer_id: int) -> None:
        entry = read_record(key, value)
        if entry is None:
            if key is not None:
                self._replay_entry(key, value)
        elif isinstance(entry, OffsetEntry):
            about = TopicPartition(entry.key.topic, entry.key.partition)
            if producer_id != NO_PRODUCER and entry.value is not None:
                self._set_pending(entry.key.group, about, producer_id, entry.value)
            else:
                self._set_offset(entry.key.group, about, entry.value)
        elif entry.value is None:
            self.groups.pop(entry.key.group, None)
        else:
            # The last record decides of which protocol a group is.
            self.consumer_groups.pop(entry.key.group, None)
            self.groups[entry.key.group] = entry.value

    def _replay_entry(self, key: bytes, value: bytes | None) -> None:
        found = read_entry(key, value)
        if found is not None:
            self._apply(found)
        elif (of_share_group := read_share_entry(key, value)) is not None:
            group_id = of_share_group.group_id
            group = self.share_groups.setdefault(group_id, StoredShareGroup())
            group.apply(of_share_group)
            if not group:
                del self.share_groups[group_id]

    def _apply(self, entry: Entry) -> None:
        group_id = entry.group_id
        if isinstance(entry, EpochEntry) and entry.value is not None:
            self.groups.pop(group_id, None)
        group = self.consumer_groups.setdefault(group_id, StoredGroup())
        group.apply(entry)
        if not group:
            del self.consumer_groups[group_id]

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Applies a marker: the offsets of the transaction take effect or are discarded."""
        for group_id, about in self._of_producer.pop(producer_id, {}):
            ended = self._pending[group_id][about].pop(producer_id)
            if committed and not ended.is_overtaken:
                self.offsets.setdefault(group_id, {})[about] = ended.value
                for other in self._pending[group_id][about].values():
                    other.is_overtaken = other.is_overtaken or other.number < ended.number
            self._tidy(group_id, about)

    def _set_pending(
        self, group_id: str, about: TopicPartition, producer_id: int, value: OffsetValue
    ) -> None:
        self._numbers += 1
        pending = self._pending.setdefault(group_id, {}).setdefault(about, {})
        pending[producer_id] = Pending(value, self._numbers)
        self._of_producer.setdefault(producer_id, {})[group_id, about] = None

    def _set_offset(self, group_id: str, about: TopicPartition, value: OffsetValue | None) -> None:
        pending = self._pending.get(group_id, {}).get(about, {})
        if value is not None:
            self.offsets.setdefault(group_id, {})[about] = value
            for each in pending.values():
                each.is_overtaken = True
            return
        if group_id in self.offsets:
            self.offsets[group_id].pop(about, None)
            if not self.offsets[group_id]:
                del self.offsets[group_id]
        if pending:
            # A tombstone removes pending offsets too: the topic or the group was deleted.
            for producer_id in pending:
                of_producer = self._of_producer[producer_id]
                del of_producer[group_id, about]
                if not of_producer:
                    del self._of_producer[producer_id]
            pending.clear()
            self._tidy(group_id, about)

    def _tidy(self, group_id: str, about: TopicPartition) -> None:
        if not self._pending[group_id][about]:
            del self._pending[group_id][about]
            if not self._pending[group_id]:
                del self._pending[group_id]

    def offsets_of(self, group_id: str) -> dict[TopicPartition, OffsetValue]:
        return self.offsets.get(group_id, {})

    def pending_of(self, group_id: str) -> Collection[TopicPartition]:
        """Returns the partitions with offsets in open transactions."""
        return self._pending.get(group_id, {}).keys()

    def group_ids(self) -> set[str]:
        """Returns the ids of all groups that have offsets, pending ones included."""
        return self.offsets.keys() | self._pending.keys()
