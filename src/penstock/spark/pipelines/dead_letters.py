"""Counts the records that the flows of a driver send to dead-letter topics.

Executors write them, and Spark has no way to report such a number to the driver. So the driver asks
the brokers how many records the topics of its queries got since it started. If others write to the
same topic, theirs are counted, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.client.admin.arguments import When
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import TopicInfo
from penstock.client.errors import ClientError
from penstock.spark.pipelines.jvm import items
from penstock.topic_partition import TopicPartition

_OPTION: Final = "deadlettertopic"
_TOPICS_MAX: Final = 100
_LEAVES_MAX: Final = 200


class Offsets(Protocol):
    """The methods of an admin client that are needed."""

    def describe_topic(self, name: str) -> TopicInfo: ...

    def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]: ...


class DeadLetters:
    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._counted: dict[str, dict[TopicPartition, int]] = {}
        """Topic -> the offsets up to which its records were counted."""

    def note(self, query: Any) -> None:
        """Takes a streaming query of the JVM, to learn its dead-letter topics."""
        for topic in _topics(query):
            if len(self._counted) < _TOPICS_MAX:
                self._counted.setdefault(topic, {})

    def look(self, admin: Offsets) -> dict[str, int]:
        """Returns how many records each topic got since the last look, if any."""
        found = {}
        for topic, counted in self._counted.items():
            with suppress(ClientError):  # It may not exist yet, or not answer now.
                if number := self._look(admin, topic, counted):
                    found[topic] = number
        return found

    def _look(self, admin: Offsets, topic: str, counted: dict[TopicPartition, int]) -> int:
        partitions = [
            TopicPartition(topic, each.index) for each in admin.describe_topic(topic).partitions
        ]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        unknown = [each for each in partitions if each not in counted]
        began = admin.list_offsets(dict.fromkeys(unknown, self._since_ms)) if unknown else {}
        number = 0
        for each in partitions:
            end, first = ends.get(each), began.get(each)
            if end is None:
                continue
            before = counted.get(each, end.offset if first is None else first.offset)
            # A topic that was deleted and created again begins at 0.
            number += max(end.offset - before, 0)
            counted[each] = end.offset
        return number


def _topics(query: Any) -> list[str]:
    """Returns the dead-letter topics in the options of a query's sources."""
    found = []
    with suppress(Exception):  # The JVM may be shutting down. The count is not worth an error.
        for leaf in items(query.analyzedPlan().collectLeaves(), _LEAVES_MAX):
            if leaf.getClass().getSimpleName() == "StreamingRelationV2":
                topic = leaf.extraOptions().get(_OPTION)
                if topic:
                    found.append(str(topic))
    return found
