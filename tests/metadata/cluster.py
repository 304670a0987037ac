"""A cluster in a dictionary: decisions are committed, and reach the image as events."""

from __future__ import annotations

from typing import TypeVar

from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import broker_key
from penstock.metadata.membership import register_broker
from penstock.metadata.model import BrokerInfo, Topic
from penstock.metadata.topics import TopicDefaults, TopicSpec, create_topic

R = TypeVar("R")


class Conflict(Exception):
    """A key does not have the expected revision."""


class Cluster:
    def __init__(self, brokers: int = 0, racks: int = 0) -> None:
        self.entries: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.image = ClusterImage()
        self._ids = 0
        for broker_id in range(brokers):
            self.start(broker_id, f"rack{broker_id % racks}" if racks else None)

    def commit(self, decision: Decision[R]) -> R:
        expected = [(change.key, change.expected_revision) for change in decision.changes]
        expected += [(guard.key, guard.expected_revision) for guard in decision.guards]
        for key, revision in expected:
            if self.entries.get(key, (b"", 0))[1] != revision:
                raise Conflict(key)
        if decision.changes:
            self.revision += 1
        for change in decision.changes:
            if change.value is None:
                del self.entries[change.key]
            else:
                self.entries[change.key] = (change.value, self.revision)
            self.image.apply(change.key, change.value, self.revision)
        return decision.result

    def start(self, broker_id: int, rack: str | None = None) -> BrokerInfo:
        """Starts a broker, or restarts it after a kill with a new incarnation id."""
        broker = BrokerInfo(broker_id, f"host{broker_id}", 9092, rack, self.new_id())
        self.commit(register_broker(self.image, broker, take_over=True))
        return self.image.brokers[broker_id]

    def kill(self, *broker_ids: int) -> None:
        """Ends the leases of these brokers."""
        self.revision += 1
        for broker_id in broker_ids:
            del self.entries[broker_key(broker_id)]
            self.image.apply(broker_key(broker_id), None, self.revision)

    def new_id(self) -> bytes:
        self._ids += 1
        return b"\x10" + self._ids.to_bytes(15, "big")

    def create(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        start_index: int = 0,
        **configs: str,
    ) -> Topic:
        spec = TopicSpec(
            name,
            partitions,
            replicas,
            configs=[(key.replace("_", "."), value) for key, value in configs.items()],
        )
        return self.commit(
            create_topic(
                self.image,
                spec,
                topic_id=self.new_id(),
                defaults=TopicDefaults(),
                start_index=start_index,
            )
        )

    def reloaded(self) -> ClusterImage:
        image = ClusterImage()
        image.load(((key, *entry) for key, entry in self.entries.items()), self.revision)
        return image
