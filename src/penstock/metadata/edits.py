"""Changes of many partitions that become one decision: a topic is one key, written once.

A decision is bounded: in topics, since etcd takes 128 changes at once, guards included, and in
partitions, since it takes about a megabyte, and since nobody else is served while a broker thinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from penstock.metadata.configs import BrokerConfigs, TopicSettings
from penstock.metadata.decisions import Change
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import encode_topic, topic_key
from penstock.metadata.model import Partition, Topic
from penstock.wire.errors import ErrorCode, KafkaError

TOPICS_MAX: Final = 100
PARTITIONS_MAX: Final = 1000
"""A decision takes no more topics once it has this many; each has less than 200 bytes."""
NO_STATIC: Final[Mapping[str, str]] = MappingProxyType({})


def in_decisions(topics: Iterable[Topic]) -> Iterator[tuple[Topic, ...]]:
    """The topics in portions that one decision each can change."""
    portion: list[Topic] = []
    partitions = 0
    for topic in topics:
        portion.append(topic)
        partitions += len(topic.partitions)
        if is_full(len(portion), partitions):
            yield tuple(portion)
            portion, partitions = [], 0
    if portion:
        yield tuple(portion)


def is_full(topics: int, partitions: int) -> bool:
    """Whether a decision about so many takes no further topic."""
    return topics >= TOPICS_MAX or partitions >= PARTITIONS_MAX


class TopicEdits:
    """The topics as they will be. `static` are the broker's own configs, under all others."""

    def __init__(self, image: ClusterImage, static: Mapping[str, str] = NO_STATIC) -> None:
        self._image = image
        self._configs = BrokerConfigs(static, image.default_broker_configs)
        self._edited: dict[str, list[Partition]] = {}
        self._partitions = 0
        self._settings: dict[str, TopicSettings] = {}

    def partition(self, topic: str, index: int) -> Partition:
        found = self._edited.get(topic) or self._image.require_topic(topic).partitions
        if not 0 <= index < len(found):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{topic}' has {len(found)} partition(s): there is no {index}.",
            )
        return found[index]

    def settings(self, topic: str) -> TopicSettings:
        held = self._settings.get(topic)
        if held is None:
            overrides = self._image.require_topic(topic).configs
            held = self._settings[topic] = self._configs.settings(overrides)
        return held

    def put(self, topic: str, index: int, partition: Partition) -> Partition:
        """Let the partition become this, under the next partition epoch."""
        partitions = self._edited.get(topic)
        if partitions is None:
            if self.is_full:
                raise KafkaError(
                    ErrorCode.OPERATION_NOT_ATTEMPTED,
                    f"At most {TOPICS_MAX} topics, or as many as have {PARTITIONS_MAX} partitions, "
                    "are changed at once: ask again for the others.",
                )
            partitions = self._edited[topic] = list(self._image.require_topic(topic).partitions)
            self._partitions += len(partitions)
        epoch = partitions[index].partition_epoch + 1
        after = partitions[index] = replace(partition, partition_epoch=epoch)
        return after

    @property
    def is_full(self) -> bool:
        return is_full(len(self._edited), self._partitions)

    def changes(self) -> tuple[Change, ...]:
        return tuple(self._change(name, tuple(each)) for name, each in self._edited.items())

    def _change(self, name: str, partitions: tuple[Partition, ...]) -> Change:
        after = replace(self._image.require_topic(name), partitions=partitions)
        key = topic_key(name)
        return Change(key, encode_topic(after), self._image.revision_of(key))
