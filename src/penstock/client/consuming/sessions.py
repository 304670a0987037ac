"""Fetch sessions (KIP-227), client side: only changes are sent. Pure.

    request         id, epoch     partitions in the request
    first           0, 0          all; the response names the session that this began
    next            id, 1, 2 ...  new and changed ones, and those to forget
    restart         id, 0         all; ends the lost session

A broker without sessions answers the first request with id 0, and then every request is a first
one. A session is lost when a request fails, because it is unknown whether the broker has counted
it. It is also lost when the connection changes: the broker may have restarted, and the id may
belong to another client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.topic_partition import TopicPartition
from penstock.wire.messages import FetchRequest

NO_SESSION: Final = 0
_INITIAL: Final = 0
_NONE: Final = -1
_EPOCH_MAX: Final = 2**31 - 1


class Asked(NamedTuple):
    """What is requested of one partition."""

    offset: int
    leader_epoch: int
    bytes_max: int


class FetchSession:
    """The client's side of one fetch session with one broker."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = _INITIAL
        self._known: dict[TopicPartition, Asked] = {}
        self._connection: object = None

    def carry_by(self, connection: object) -> None:
        """Sets the connection for the following requests. A new connection begins a new session."""
        if connection is not self._connection:
            self._connection = connection
            self.lost()

    def fill(
        self, request: FetchRequest, wanted: Mapping[TopicPartition, Asked], *, served: bool
    ) -> None:
        """Adds to the request what is needed to fetch these partitions and no others.

        If the broker has no sessions (`served`), every request lists all partitions.
        """
        request.session_id = self._id if served else NO_SESSION
        request.session_epoch = self._epoch if served else _NONE
        if not served or self._epoch == _INITIAL:
            request.topics = _topics(wanted, wanted)
        else:
            changed = [
                topic_partition
                for topic_partition in wanted
                if self._known.get(topic_partition) != wanted[topic_partition]
            ]
            request.topics = _topics(changed, wanted)
            gone = [
                topic_partition for topic_partition in self._known if topic_partition not in wanted
            ]
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(topic, partitions=partitions)
                for topic, partitions in _by_topic(gone).items()
            ]
        self._known = dict(wanted)

    def answered(self, session_id: int) -> None:
        """Handles a successful request whose response named this session."""
        if session_id == NO_SESSION or (self._epoch != _INITIAL and session_id != self._id):
            self._id, self._epoch = NO_SESSION, _INITIAL
        elif self._epoch == _INITIAL:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = self._epoch + 1 if self._epoch < _EPOCH_MAX else 1

    def lost(self, *, forgotten: bool = False) -> None:
        """Starts again. With `forgotten` the broker has lost the session, so it need not be
        ended."""
        if forgotten:
            self._id = NO_SESSION
        self._epoch = _INITIAL

    @property
    def is_open(self) -> bool:
        return self._epoch != _INITIAL


def _topics(
    topic_partitions: Iterable[TopicPartition], wanted: Mapping[TopicPartition, Asked]
) -> list[FetchRequest.Topic]:
    """Keeps the given order, in which a broker fills its response."""
    topics: list[FetchRequest.Topic] = []
    for topic_partition in topic_partitions:
        if not topics or topics[-1].topic != topic_partition.topic:
            topics.append(FetchRequest.Topic(topic_partition.topic))
        asked = wanted[topic_partition]
        topics[-1].partitions.append(
            FetchRequest.Partition(
                topic_partition.partition,
                current_leader_epoch=asked.leader_epoch,
                fetch_offset=asked.offset,
                partition_max_bytes=asked.bytes_max,
            )
        )
    return topics


def _by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic_partition in topic_partitions:
        topics[topic_partition.topic].append(topic_partition.partition)
    return topics
