"""The topics that consumer groups are assigned, from the image of the cluster."""

from __future__ import annotations

from collections.abc import Collection

from penstock.broker.control.cluster_view import ClusterView
from penstock.groups.consumer.topics import TopicFacts
from penstock.metadata.model import INTERNAL_TOPICS


class ClusterTopics:
    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def find(self, name: str) -> TopicFacts | None:
        topic = self._cluster.image.topics.get(name)
        return None if topic is None else TopicFacts(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._cluster.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def names(self) -> Collection[str]:
        """Returns the names that a regular expression may match: internal topics are left out."""
        return [name for name in self._cluster.image.topics if name not in INTERNAL_TOPICS]

    def version(self) -> int:
        return self._cluster.image.revision
