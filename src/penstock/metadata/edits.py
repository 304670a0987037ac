"""Collects changes of many partitions into one decision that writes each key once.

The size of a decision is limited in three ways. In keys, because etcd accepts 128 operations per
transaction, conditions included. In bytes, because etcd accepts 1.5 MiB. And in partitions, because
the broker serves nothing else while it computes a decision. The unit is the key: the chunk of a
large topic, or the whole topic otherwise (`topic_keys`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from penstock.metadata.broker_configs import DEFAULT_DURABILITY
from penstock.metadata.configs import BrokerConfigs, TopicSettings
from penstock.metadata.decisions import Change, Decision, Guard
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import Partition, Topic
from penstock.metadata.topic_keys import alteration, chunk_bounds, weight
from penstock.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

TOPICS_MAX: Final = 100
"""The maximum number of keys in a decision."""
PARTITIONS_MAX: Final = 1000
"""A decision accepts no further key once it has this many partitions."""
BYTES_MAX: Final = 512 << 10
"""A decision accepts no further key once its keys may take this many bytes. One key takes at most
half of that."""
NO_STATIC: Final[Mapping[str, str]] = MappingProxyType({})


class Slice(NamedTuple):
    """The partitions of a topic that are stored in one key: from `start` up to, but not including,
    `stop`."""

    topic: Topic
    start: int
    stop: int

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self.topic.partitions[self.start : self.stop]


def slice_of(topic: Topic, index: int) -> Slice:
    """Returns the slice that contains this partition."""
    count = len(topic.partitions)
    step = topic.chunk_partitions or count
    start = index // step * step
    return Slice(topic, start, min(start + step, count))


class Load:
    """The size of a decision so far."""

    def __init__(self) -> None:
        self._slices = self._partitions = self._bytes = 0

    def add(self, part: Slice) -> None:
        self._slices += 1
        self._partitions += part.stop - part.start
        self._bytes += weight(part.partitions)

    @property
    def is_full(self) -> bool:
        return (
            self._slices >= TOPICS_MAX
            or self._partitions >= PARTITIONS_MAX
            or self._bytes >= BYTES_MAX
        )


def in_decisions(topics: Iterable[Topic]) -> Iterator[tuple[Slice, ...]]:
    """Splits the topics into portions that each fit one decision."""
    return in_loads(Slice(topic, *bounds) for topic in topics for bounds in chunk_bounds(topic))


def in_loads(parts: Iterable[Slice]) -> Iterator[tuple[Slice, ...]]:
    portion: list[Slice] = []
    load = Load()
    for part in parts:
        portion.append(part)
        load.add(part)
        if load.is_full:
            yield tuple(portion)
            portion, load = [], Load()
    if portion:
        yield tuple(portion)


class SyncedFrom(NamedTuple):
    """When a topic began to count only synced records.

    `by_file`: the setting is not in the store but in each broker's own config file.
    """

    revision: int
    by_file: bool = False


def synced_from(image: ClusterImage, topic: Topic, settings: TopicSettings) -> SyncedFrom | None:
    """Returns when the topic began to count only synced records; None if it counts records that are
    only written."""
    if settings.durability != "fsync":
        return None
    if "durability" in topic.configs:
        return SyncedFrom(topic.synced_from)
    by_file = DEFAULT_DURABILITY not in image.default_broker_configs
    return SyncedFrom(max(topic.synced_from, image.default_synced_from), by_file)


class TopicEdits:
    """The topics with the collected changes. `static` are the broker's own configs; all others
    override them."""

    def __init__(self, image: ClusterImage, static: Mapping[str, str] = NO_STATIC) -> None:
        self._image = image
        self._configs = BrokerConfigs(static, image.default_broker_configs)
        self._edited: dict[str, list[Partition]] = {}
        self._load = Load()
        self._taken: set[tuple[str, int]] = set()
        self._settings: dict[str, TopicSettings] = {}

    def partition(self, topic: str, index: int) -> Partition:
        found = self._edited.get(topic) or self._image.require_topic(topic).partitions
        if not 0 <= index < len(found):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{topic}' has {len(found)} partition(s): there is no partition {index}.",
            )
        return found[index]

    def settings(self, topic: str) -> TopicSettings:
        held = self._settings.get(topic)
        if held is None:
            overrides = self._image.require_topic(topic).configs
            held = self._settings[topic] = self._configs.settings(overrides)
        return held

    def synced_from(self, topic: str) -> SyncedFrom | None:
        return synced_from(self._image, self._image.require_topic(topic), self.settings(topic))

    def put(self, topic: str, index: int, partition: Partition) -> Partition:
        """Sets the partition to this state, with the next partition epoch."""
        before = self._image.require_topic(topic)
        part = slice_of(before, index)
        if (topic, part.start) not in self._taken:
            if self._load.is_full:
                raise KafkaError(
                    ErrorCode.OPERATION_NOT_ATTEMPTED,
                    f"At most {TOPICS_MAX} topics, or topics with {PARTITIONS_MAX} partitions in "
                    "total, can be changed in one request: send another one for the others.",
                )
            self._load.add(part)
            self._taken.add((topic, part.start))
        partitions = self._edited.get(topic)
        if partitions is None:
            partitions = self._edited[topic] = list(before.partitions)
        epoch = partitions[index].partition_epoch + 1
        after = partitions[index] = replace(partition, partition_epoch=epoch)
        return after

    def has_room(self, topic: str, index: int) -> bool:
        """Whether this decision has space for a change of this partition."""
        part = slice_of(self._image.require_topic(topic), index)
        return (topic, part.start) in self._taken or not self._load.is_full

    def decision(self, result: R, guards: tuple[Guard, ...] = ()) -> Decision[R]:
        """Returns the collected changes as a decision. `guards` apply only if there are changes."""
        changes: list[Change] = []
        rests_on: list[Guard] = []
        for name, partitions in self._edited.items():
            before = self._image.require_topic(name)
            made = alteration(self._image, before, replace(before, partitions=tuple(partitions)))
            changes += made.changes
            rests_on += made.guards
        return Decision(tuple(changes), result, (*rests_on, *guards) if changes else ())
