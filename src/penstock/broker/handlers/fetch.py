"""Fetch, versions 4 to 17: batches from some partitions, as they lie in the log.

Each partition is given whole batches from the one that holds the offset on, the first even if it is
larger than the limit, so that every consumer gets on. When less than `min_bytes` is there the
request waits, at most `max_wait_ms`.

From version 7 on there are fetch sessions. Version 9 sends the leader epoch the client knows, 12
the epoch of its last record (a truncated log is told by a diverging epoch), and from 13 on topics
are named by id only.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast

from penstock.broker.context import RequestContext
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.fetch_sessions import Session, Wanted
from penstock.broker.hosted import HostedPartition
from penstock.broker.purgatory import DataWait
from penstock.broker.services import Services
from penstock.partition.epochs import UNDEFINED_EPOCH
from penstock.storage.spans import FileSpan
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest, FetchResponse

_READ_COMMITTED = 1
_EMPTY = b""


class _Read(NamedTuple):
    answers: list[FetchResponse.Partition]
    size: int
    must_answer: bool
    """An error or a divergence: waiting would not make it better."""


def handle(
    request: FetchRequest, context: RequestContext
) -> FetchResponse | asyncio.Future[FetchResponse]:
    services = context.services
    session, wanted = services.fetch_sessions.begin(request)
    if context.version >= 13:
        _name_topics(wanted, services)
    fetch = _Fetch(request, services, session, wanted, context.version)
    read = fetch.read(spans=True)
    if read.size >= request.min_bytes or read.must_answer or request.max_wait_ms <= 0:
        return fetch.answer(read)
    hosted = [held for held in fetch.hosted if held is not None]
    wait = DataWait(
        hosted,
        request.min_bytes - read.size,
        request.max_wait_ms / 1000,
        lambda: fetch.answer(fetch.read()),
    )
    return wait.future


def _name_topics(wanted: list[Wanted], services: Services) -> None:
    for each in wanted:
        if not each.topic:
            topic = services.image.topic_by_id(each.topic_id)
            each.topic = topic.name if topic is not None else ""


class _Fetch:
    """One fetch, which may be read twice: when it comes and when it has waited."""

    __slots__ = (
        "_by_id",
        "_bytes_max",
        "_has_epochs",
        "_request",
        "_services",
        "_session",
        "hosted",
        "wanted",
    )

    def __init__(
        self,
        request: FetchRequest,
        services: Services,
        session: Session | None,
        wanted: list[Wanted],
        version: int,
    ) -> None:
        self._request = request
        self._services = services
        self._session = session
        self._by_id = version >= 13
        self._has_epochs = version >= 12
        self._bytes_max = services.configs().int_value("fetch.max.bytes")
        self.wanted = wanted
        self.hosted: list[HostedPartition | None] = [
            services.replicas.get(each.topic, each.index) for each in wanted
        ]

    def read(self, *, spans: bool = False) -> _Read:
        """What there is. With `spans` as much of it as can be is left in its file, good only for an
        answer that leaves at once."""
        answers: list[FetchResponse.Partition] = []
        size, must_answer = 0, False
        left = min(self._request.max_bytes, self._bytes_max)
        for each, hosted in zip(self.wanted, self.hosted, strict=True):
            answer = FetchResponse.Partition(partition_index=each.index, records=_EMPTY)
            answers.append(answer)
            try:
                given = self._read_one(each, hosted, answer, left, first=size == 0, spans=spans)
            except EXPECTED as error:
                self._fill_error(answer, each, error)
                must_answer = True
                continue
            must_answer = must_answer or answer.diverging_epoch is not None
            size += given
            left -= given
        return _Read(answers, size, must_answer)

    def _read_one(
        self,
        each: Wanted,
        hosted: HostedPartition | None,
        answer: FetchResponse.Partition,
        left: int,
        *,
        first: bool,
        spans: bool,
    ) -> int:
        if self._by_id and not each.topic:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if hosted is None:
            hosted = self._services.replicas.require(each.topic, each.index)
        if self._by_id and hosted.topic_id != each.topic_id:
            # A session's topic was deleted, and another has its name now.
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        leadership = hosted.require_leader(each.leader_epoch)
        log = hosted.log
        committed = self._request.isolation_level == _READ_COMMITTED
        answer.high_watermark = leadership.high_watermark
        answer.last_stable_offset = hosted.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        answer.aborted_transactions = [] if committed else None
        # A session may have been begun by a later version than this request has.
        if (
            self._has_epochs
            and each.last_fetched_epoch >= 0
            and self._diverges(each, hosted, answer)
        ):
            return 0
        if each.fetch_offset > log.end_offset or each.fetch_offset < log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        upper = answer.last_stable_offset if committed else leadership.high_watermark
        if each.fetch_offset >= upper or (left <= 0 and not first):
            return 0
        bytes_max = max(0, min(each.max_bytes, left))
        piece: memoryview | FileSpan | None
        if spans:
            piece = log.read_or_span(each.fetch_offset, bytes_max, upper)
        else:
            held = log.read(each.fetch_offset, bytes_max, upper)
            piece = None if held is None else held.data
        if piece is None or (len(piece) > left and not first):
            return 0
        # The codec asks a large one only for its length, and the connection knows both kinds.
        answer.records = cast(memoryview, piece)
        return len(piece)

    def _diverges(
        self, each: Wanted, hosted: HostedPartition, answer: FetchResponse.Partition
    ) -> bool:
        """The client's last record may be of a history that this log does not have (KIP-320)."""
        log = hosted.log
        found = log.epochs.end_offset_for(each.last_fetched_epoch, log.end_offset)
        if found.epoch == UNDEFINED_EPOCH:
            return False
        if found.epoch < each.last_fetched_epoch or found.end_offset < each.fetch_offset:
            answer.diverging_epoch = FetchResponse.DivergingEpoch(found.epoch, found.end_offset)
            return True
        return False

    def _fill_error(self, answer: FetchResponse.Partition, each: Wanted, error: Exception) -> None:
        code = code_of(error)
        answer.error_code = code
        answer.high_watermark = answer.last_stable_offset = -1
        partition = self._services.image.partition(each.topic, each.index)
        moved = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if self._has_epochs and code in moved and partition is not None and partition.leader >= 0:
            answer.current_leader = FetchResponse.Leader(partition.leader, partition.leader_epoch)

    def answer(self, read: _Read) -> FetchResponse:
        session = self._session
        response = FetchResponse(session_id=session.session_id if session is not None else 0)
        incremental = session is not None and self._request.session_epoch > 0
        topic: FetchResponse.Topic | None = None
        served: list[Wanted] = []
        for each, answer in zip(self.wanted, read.answers, strict=True):
            size = len(answer.records) if answer.records else 0
            news = each.has_news(answer, size) if session is not None else True
            if size:
                served.append(each)
            if incremental and not news:
                continue
            if topic is None or topic.topic != each.topic or topic.topic_id != each.topic_id:
                topic = FetchResponse.Topic(topic=each.topic, topic_id=each.topic_id)
                response.responses.append(topic)
            topic.partitions.append(answer)
        if session is not None:
            self._services.fetch_sessions.rotate(session, served)
        return response


def refuse(request: FetchRequest, version: int, code: ErrorCode) -> FetchResponse:
    """Sessions have a code of their own from version 7 on; before there are none."""
    return FetchResponse(error_code=code)
