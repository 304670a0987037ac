"""Decides what a micro-batch of a share group holds, and what is acknowledged when. Pure.

The offset that Spark keeps in its checkpoint names the records of the batch that ends there:

    {"shareGroup": "resizers", "batch": 17, "topicIds": {"jobs": "0a..."},
     "records": {"jobs": {"0": [[3, 9], [12, 13]]}}}

So a batch that is repeated after a crash has the same records, also if others have locked them.
They are read from the log.

When Spark goes on from an offset, its batch is committed, and its records are acknowledged. If
their locks were lost meanwhile, because a leader or the driver died, they may come again. This
object remembers the records of the last batch, and has those that come a second time acknowledged
instead of processed. It does so only for a repeated delivery of the same topic: a first delivery
means that somebody has reset the group, and wants the records again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.client.errors import OptionError
from penstock.spark.offset_ranges import Ranges, from_json, joined, to_json
from penstock.topic_partition import TopicPartition


class Taken(NamedTuple):
    """A record that this driver has acquired."""

    topic_id: str
    topic_partition: TopicPartition
    offset: int
    attempt: int
    """How often it was delivered, this delivery included."""
    lease: Any = None
    """What the session needs to settle it."""


@dataclass(frozen=True, slots=True)
class SharePosition:
    """An offset of the stream: see the module's docstring."""

    group: str
    number: int = 0
    ranges: Ranges = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics."""

    def to_spark(self) -> dict[str, Any]:
        return {
            "shareGroup": self.group,
            "batch": self.number,
            "topicIds": dict(sorted(self.topics.items())),
            "records": to_json(self.ranges),
        }

    @classmethod
    def from_spark(cls, given: Mapping[str, Any], group: str) -> SharePosition:
        """Raises `OptionError` if the checkpoint belongs to another query."""
        found = given.get("shareGroup")
        if found != group:
            other = f"the share group {found}" if found else "a query without shareGroup"
            raise OptionError(
                f"the checkpoint belongs to {other}, but shareGroup is {group}: use another "
                "checkpoint"
            )
        return cls(group, given["batch"], from_json(given["records"]), given["topicIds"])


class ShareBatches:
    """The batches of one driver. See the module's docstring."""

    def __init__(self) -> None:
        self._open: tuple[SharePosition, list[Taken]] | None = None
        """The batch that was planned last, until it is committed."""
        self._processed: dict[tuple[str, TopicPartition], tuple[tuple[int, int], ...]] = {}
        self._known: int | None = None
        """The number of the last committed batch."""

    @property
    def planned(self) -> SharePosition | None:
        """The batch that is planned and not committed."""
        return None if self._open is None else self._open[0]

    def on_committed(self, position: SharePosition) -> list[Taken]:
        """The batch that ends here is committed. Returns what is to be acknowledged."""
        if self._open is not None and self._open[0].number == position.number:
            taken = self._open[1]
            self._open, self._known, self._processed = None, position.number, {}
            return taken
        if self._known is None:
            # An earlier driver ran this batch. It may not have acknowledged it.
            self._known = position.number
            for where, ranges in position.ranges.items():
                self._processed[position.topics.get(where.topic, ""), where] = ranges
        return []

    def on_lost(self, lost: Iterable[Taken]) -> None:
        """These records are processed, but their locks were lost: they may come again."""
        for each in lost:
            key = each.topic_id, each.topic_partition
            ranges = [*self._processed.get(key, ()), (each.offset, each.offset + 1)]
            self._processed[key] = joined(ranges)

    def divide(self, taken: Iterable[Taken]) -> tuple[list[Taken], list[Taken]]:
        """Returns the records to process, and those that are processed already."""
        new: list[Taken] = []
        repeated: list[Taken] = []
        for each in taken:
            ranges = self._processed.get((each.topic_id, each.topic_partition), ())
            known = any(start <= each.offset < end for start, end in ranges)
            (repeated if known and each.attempt > 1 else new).append(each)
        return new, repeated

    def plan(self, start: SharePosition, taken: list[Taken]) -> SharePosition:
        """Returns where the batch with these records ends."""
        ranges: dict[TopicPartition, list[tuple[int, int]]] = {}
        for each in taken:
            ranges.setdefault(each.topic_partition, []).append((each.offset, each.offset + 1))
        end = SharePosition(
            start.group,
            start.number + 1,
            {where: joined(found) for where, found in ranges.items()},
            {each.topic_partition.topic: each.topic_id for each in taken},
        )
        self._open = end, taken
        return end
