"""Builds the requests that followers send to leaders, and reads the answers.

The main connection keeps a fetch session with its leader (KIP-227). A request names a partition
only when its fetch position is new. The partition then stays pending until the leader has news
about it. So a round costs in proportion to what has changed, not to the number of partitions. The
leader's session must match what is pending here: a partition that was answered is named again, or
removed from the session, in the next request. Otherwise the leader would go on counting it at its
old fetch offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.broker.replication.linked_partition import LinkedPartition
from penstock.metadata.configs import BrokerConfigs
from penstock.partition.epochs import EpochEnd
from penstock.partition.follower import Fetch, FetchAnswer, read_spans
from penstock.ports import Buffer
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

FETCH_VERSION: Final = 17
LIST_OFFSETS_VERSION: Final = 7
_EARLIEST: Final = -2
_LATEST: Final = -1
_NO_SESSION: Final = -1
_NEW_SESSION: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
_CODES: Final = {int(code): code for code in ErrorCode}
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

_Key = tuple[bytes, int]
"""Topic id and partition index."""


class Asked(NamedTuple):
    linked: LinkedPartition
    fetch: Fetch
    bytes_max: int

    @property
    def key(self) -> _Key:
        hosted = self.linked.shell.hosted
        return hosted.topic_id, hosted.index


class FetchSession:
    """The fetches of one connection that are pending: sent, or to be sent, and not answered yet."""

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._session_id = 0
        self._epoch = _NEW_SESSION if is_kept else _NO_SESSION
        self._standing: dict[_Key, Asked] = {}
        self._sent: set[_Key] = set()
        self._gone: dict[_Key, None] = {}
        """Partitions in the leader's session that are no longer pending."""

    def __len__(self) -> int:
        return len(self._standing)

    def request(
        self,
        asked: Iterable[Asked],
        replica: tuple[int, int],
        wait_ms: int,
        configs: BrokerConfigs,
    ) -> FetchRequest:
        """Returns the next request. It adds these fetches to the pending ones. `replica` is this
        broker's id and epoch."""
        new = {each.key: each for each in asked}
        self._standing.update(new)
        named: Iterable[Asked] = new.values()
        if self._epoch <= _NEW_SESSION:
            named = self._standing.values()
            self._sent.clear()
            self._gone.clear()
        for key in new:
            self._gone.pop(key, None)
        forgotten: dict[bytes, FetchRequest.ForgottenTopic] = {}
        for topic_id, index in self._gone:
            topic = forgotten.setdefault(topic_id, FetchRequest.ForgottenTopic(topic_id=topic_id))
            topic.partitions.append(index)
            self._sent.discard((topic_id, index))
        self._gone.clear()
        self._sent.update(self._standing if self._epoch <= _NEW_SESSION else new)
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(*replica),
            max_wait_ms=wait_ms,
            min_bytes=configs.int_value("replica.fetch.min.bytes"),
            max_bytes=configs.int_value("replica.fetch.response.max.bytes"),
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=_topics(named),
            forgotten_topics_data=list(forgotten.values()),
        )

    def answers(self, response: FetchResponse) -> Iterator[tuple[Asked, FetchAnswer, Buffer]]:
        """Yields the leader's answers to pending fetches. Partitions that the response omits stay
        pending.

        If the leader has lost the session, the next request begins a new one.
        """
        code = _CODES.get(response.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
        if self._is_kept and code in _SESSION_LOST:
            self._begin_anew()
            return
        if code != ErrorCode.NONE:
            for each in self.take_all():
                yield each, FetchAnswer(code), b""
            return
        is_full = self._epoch <= _NEW_SESSION
        if self._is_kept:
            self._session_id = response.session_id
            kept = response.session_id != 0
            self._epoch = self._epoch % _EPOCH_MAX + 1 if kept else _NEW_SESSION
        for topic in response.responses:
            for part in topic.partitions:
                held = self._standing.get((topic.topic_id, part.partition_index))
                if held is not None:
                    self.drop(held)
                    yield held, *_read(part)
        if is_full:
            for each in list(self._standing.values()):
                self.drop(each)
                yield each, FetchAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), b""

    def drop(self, asked: Asked) -> None:
        """Removes a pending fetch."""
        key = asked.key
        if self._standing.get(key) is asked:
            del self._standing[key]
            if key in self._sent:
                self._gone[key] = None

    def drop_linked(self, linked: LinkedPartition) -> Asked | None:
        """Removes the pending fetch of this partition, and returns it."""
        hosted = linked.shell.hosted
        held = self._standing.get((hosted.topic_id, hosted.index))
        if held is None or held.linked is not linked:
            return None
        self.drop(held)
        return held

    def take_all(self) -> list[Asked]:
        """Removes and returns all pending fetches, because the leader will not answer them."""
        standing = list(self._standing.values())
        self._standing.clear()
        self._begin_anew()
        return standing

    def _begin_anew(self) -> None:
        self._session_id = 0
        self._epoch = _NEW_SESSION if self._is_kept else _NO_SESSION


def _topics(named: Iterable[Asked]) -> list[FetchRequest.Topic]:
    topics: dict[bytes, FetchRequest.Topic] = {}
    for linked, fetch, bytes_max in named:
        hosted = linked.shell.hosted
        topic = topics.get(hosted.topic_id)
        if topic is None:
            topic = topics[hosted.topic_id] = FetchRequest.Topic(topic_id=hosted.topic_id)
        topic.partitions.append(
            FetchRequest.Partition(
                hosted.index,
                fetch.leader_epoch,
                fetch.offset,
                fetch.last_fetched_epoch,
                fetch.log_start_offset,
                bytes_max,
            )
        )
    return list(topics.values())


def _read(part: FetchResponse.Partition) -> tuple[FetchAnswer, Buffer]:
    error = _CODES.get(part.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
    records = part.records if part.records is not None else b""
    if isinstance(records, list):
        records = b"".join(records)
    found = part.diverging_epoch
    parts = found is not None and (found.epoch, found.end_offset) != (-1, -1)
    spans, flaw = read_spans(records) if records and not parts else ((), None)
    answer = FetchAnswer(
        error,
        part.high_watermark,
        part.log_start_offset,
        EpochEnd(found.epoch, found.end_offset) if found is not None and parts else None,
        spans,
        flaw,
    )
    return answer, records


def bounds_requests(asked: Sequence[Asked], broker_id: int) -> Iterator[ListOffsetsRequest]:
    """Yields requests for the start and the end of the leader's logs. A replica gets the log end
    offset, not the high watermark."""
    for timestamp in (_EARLIEST, _LATEST):
        topics: dict[str, ListOffsetsRequest.Topic] = {}
        for linked, fetch, _ in asked:
            name, index = linked.key
            topic = topics.setdefault(name, ListOffsetsRequest.Topic(name))
            topic.partitions.append(
                ListOffsetsRequest.Partition(index, fetch.leader_epoch, timestamp)
            )
        yield ListOffsetsRequest(replica_id=broker_id, topics=list(topics.values()))


def read_offsets(response: ListOffsetsResponse) -> dict[TopicPartition, int]:
    """Returns the offsets of the partitions that were answered without an error."""
    return {
        TopicPartition(topic.name, part.partition_index): part.offset
        for topic in response.topics
        for part in topic.partitions
        if part.error_code == ErrorCode.NONE and part.offset >= 0
    }
