"""The identity of a partition: the name of its topic and its index. Everything may import it."""

from __future__ import annotations

from typing import NamedTuple, Self


class TopicPartition(NamedTuple):
    """A topic's name with a partition index: one partition of a topic.

    It compares equal to the plain tuple `(topic, partition)` and has its hash, so that either finds
    an entry of a dict.

    Example:
        first = TopicPartition("orders", 0)
        print(first, first.topic, first == ("orders", 0), TopicPartition.parse("orders-0") == first)
        #> orders-0 orders True True
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads `orders-3`, as `str` writes it. A topic may have hyphens of its own.

        Raises `ValueError` if there is no index after the last hyphen.
        """
        topic, _, index = name.rpartition("-")
        if not topic or not (index.isascii() and index.isdecimal()):
            raise ValueError(
                f"{name!r} is not a partition: write it as TOPIC-INDEX, such as orders-0"
            )
        return cls(topic, int(index))
