"""What a consumer group must know about the topics of the cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol


class TopicFacts(NamedTuple):
    topic_id: bytes
    partitions: int


class Topics(Protocol):
    """The topics of the cluster, as this broker knows them."""

    def find(self, name: str) -> TopicFacts | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def names(self) -> Collection[str]: ...

    def version(self) -> int:
        """Returns a number that grows when a topic changes."""


class NoTopics:
    """A cluster without topics; for shards that serve classic groups only."""

    def find(self, name: str) -> TopicFacts | None:
        return None

    def name_of(self, topic_id: bytes) -> str | None:
        return None

    def names(self) -> Collection[str]:
        return ()

    def version(self) -> int:
        return 0


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """Returns a hash of all that an assignment depends on: which of the topics exist, their ids
    and their partitions. It is 0 if none exists."""
    known = [(name, found) for name in sorted(names) if (found := topics.find(name)) is not None]
    if not known:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, (topic_id, partitions) in known:
        digest.update(f"{len(name)}:{name}:{topic_id.hex()}:{partitions};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
