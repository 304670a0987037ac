"""Changes of many partitions that become one decision: a topic is one key, written once."""

from __future__ import annotations

from collections.abc import Mapping
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
"""Of one decision; etcd takes 128 changes at once, guards included."""
NO_STATIC: Final[Mapping[str, str]] = MappingProxyType({})


class TopicEdits:
    """The topics as they will be. `static` are the broker's own configs, under all others."""

    def __init__(self, image: ClusterImage, static: Mapping[str, str] = NO_STATIC) -> None:
        self._image = image
        self._configs = BrokerConfigs(static, image.default_broker_configs)
        self._edited: dict[str, Topic] = {}
        self._settings: dict[str, TopicSettings] = {}

    def partition(self, topic: str, index: int) -> Partition:
        found = self._edited.get(topic) or self._image.require_topic(topic)
        if not 0 <= index < len(found.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{topic}' has {len(found.partitions)} partition(s): there is no {index}.",
            )
        return found.partitions[index]

    def settings(self, topic: str) -> TopicSettings:
        held = self._settings.get(topic)
        if held is None:
            overrides = self._image.require_topic(topic).configs
            held = self._settings[topic] = self._configs.settings(overrides)
        return held

    def put(self, topic: str, index: int, partition: Partition) -> Partition:
        """Let the partition become this, under the next partition epoch."""
        before = self._edited.get(topic)
        if before is None and self.is_full:
            raise KafkaError(
                ErrorCode.OPERATION_NOT_ATTEMPTED,
                f"At most {TOPICS_MAX} topics are changed at once: ask again for the others.",
            )
        if before is None:
            before = self._image.require_topic(topic)
        epoch = before.partitions[index].partition_epoch + 1
        after = replace(partition, partition_epoch=epoch)
        partitions = (*before.partitions[:index], after, *before.partitions[index + 1 :])
        self._edited[topic] = replace(before, partitions=partitions)
        return after

    @property
    def is_full(self) -> bool:
        return len(self._edited) >= TOPICS_MAX

    def changes(self) -> tuple[Change, ...]:
        return tuple(
            Change(topic_key(name), encode_topic(topic), self._image.revision_of(topic_key(name)))
            for name, topic in self._edited.items()
        )
