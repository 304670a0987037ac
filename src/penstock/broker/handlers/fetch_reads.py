"""Reads the partitions of one fetch request, and builds its response.

The partitions may be read twice: when the request arrives, and again after it has waited. Both the
reads and the response can be split into portions (`read_some`, `answer_some`), and other requests
are served between two portions. Each partition is read in one piece, so its records and offsets are
consistent. Two partitions may be read at different times; a client cannot rely on more, because
they may have different leaders.
"""

from __future__ import annotations

from typing import Final, cast

from penstock.broker.access.quotas import RequestMeter
from penstock.broker.context import Services
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.handlers.fetch_sender import (
    FollowerId,
    MayRead,
    fetching_follower,
    is_registered,
)
from penstock.broker.partitions.fetch_sessions import Session, Wanted
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.partition.epochs import UNDEFINED_EPOCH, diverging_epoch
from penstock.partition.leadership import Leadership
from penstock.records.aborted import AbortedTransaction
from penstock.storage.spans import FileSpan
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest, FetchResponse

READ_COMMITTED: Final = 1
IDS_SINCE: Final = 13
"""From this version on, requests identify topics by id only."""
_EMPTY: Final = b""
_NOTHING: Final = -1
_NOT_YET: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
MEMORY_BYTES_MAX: Final = 16 << 20
"""The most that one client's fetch reads into memory. Anything more is sent from its file."""
_QUIET_MS: Final = 50
"""How long the leader skips a partition whose follower has everything, before it looks again and
counts the follower's fetch."""
_RACKS_SINCE: Final = 11


class Reading:
    """The result of the reads so far."""

    __slots__ = ("answers", "left", "must_answer", "size")

    def __init__(self, left: int) -> None:
        self.answers: list[FetchResponse.Partition | None] = []
        """One for each partition that was read. None if a session's partition has no news."""
        self.size = 0
        self.left = left
        """How many bytes may still be read."""
        self.must_answer = False
        """Waiting would not help: there is an error, a divergence, a preferred read replica, or a
        lack of memory."""

    def free(self, start: int, stop: int) -> None:
        """Frees a portion that has been handled: it is in the response, or was left out."""
        for number in range(start, min(stop, len(self.answers))):
            self.answers[number] = None


class FetchReads:
    """One fetch request: the partitions it wants, the reads and the response."""

    __slots__ = (
        "_by_id",
        "_bytes_max",
        "_counted",
        "_follower",
        "_has_epochs",
        "_has_racks",
        "_is_incremental",
        "_may_read",
        "_memory_left",
        "_meter",
        "_now_ms",
        "_racks",
        "_request",
        "_services",
        "_session",
        "hosted",
        "is_behind",
        "is_early",
        "is_short",
        "throttled",
        "throttled_ms",
        "wanted",
    )

    def __init__(
        self,
        request: FetchRequest,
        services: Services,
        session: Session | None,
        wanted: list[Wanted],
        version: int,
        may_read: MayRead | None = None,
        meter: RequestMeter | None = None,
    ) -> None:
        self._may_read = may_read
        self._meter = meter
        self._request = request
        self._services = services
        self._session = session
        self._is_incremental = session is not None and request.session_epoch > 0
        self._now_ms = 0
        self._memory_left = 0
        self.is_short = False
        """Less was read than the request allows, because memory for responses is short."""
        self._by_id = version >= IDS_SINCE
        self._has_epochs = version >= 12
        self._has_racks = version >= _RACKS_SINCE
        self._follower = fetching_follower(request, version)
        self._counted: set[tuple[str, bytes, int]] = set()
        """Partitions whose leader has counted this fetch. The fetch offset shows what the follower
        had when it sent the request, so the second read, after a wait, must not count it again."""
        self.is_early = False
        """A follower wants a partition that this broker does not lead yet."""
        self.is_behind = False
        """The follower does not know the current high watermark of some partition."""
        self.throttled: set[HostedPartition] = set()
        """Partitions from which the throttle gives a lagging follower nothing now. New records in
        them do not end the wait."""
        self.throttled_ms = 0
        """In how many milliseconds the throttle allows more bytes."""
        self._racks = self._known_racks() if self._has_racks and request.rack_id else None
        self._bytes_max = services.configs().int_value("fetch.max.bytes")
        if meter is not None:
            self._bytes_max = min(self._bytes_max, meter.fetch_bytes_max())
        self.wanted = wanted
        self.hosted: list[HostedPartition | None] = []
        """This broker's partitions, parallel to `wanted`, as far as `look_up` has found them."""

    def look_up(self, start: int, stop: int) -> None:
        """Finds this broker's partitions for a portion of `wanted`. Portions come in order."""
        wanted = self.wanted[start:stop]
        if self._by_id:
            _name_topics(wanted, self._services)
        find = self._services.replicas.get
        self.hosted += [find(each.topic, each.index) for each in wanted]

    @property
    def is_from_follower(self) -> bool:
        return self._follower is not None

    def _known_racks(self) -> dict[int, str | None]:
        return {each: broker.rack for each, broker in self._services.image.brokers.items()}

    def read(self) -> Reading:
        """Reads all partitions. Records stay in their file, to be sent from there, if possible."""
        reading = self.begin()
        self.read_some(reading, 0, len(self.wanted))
        return reading

    def begin(self) -> Reading:
        left = min(self._request.max_bytes, self._bytes_max)
        self._memory_left = left
        if self._follower is None:
            self._memory_left = min(MEMORY_BYTES_MAX, self._services.response_room())
        self.is_short = False
        return Reading(left)

    def read_some(self, reading: Reading, start: int, stop: int) -> None:
        """Reads a portion of `wanted`. Portions come in order, without gaps."""
        answers = reading.answers
        if self._follower is not None:
            self._now_ms = self._services.replicas.monotonic_ms()
        may_be_quiet = self._follower is not None and self._is_incremental
        if may_be_quiet and self._may_read is not None:
            may_be_quiet = self._may_read("")
        for each, hosted in zip(self.wanted[start:stop], self.hosted[start:stop], strict=True):
            if may_be_quiet and hosted is not None and self._is_quiet(each, hosted):
                answers.append(None)
                continue
            answer = FetchResponse.Partition(partition_index=each.index, records=_EMPTY)
            answers.append(answer)
            try:
                given = self._read_one(each, hosted, answer, reading.left, first=reading.size == 0)
            except EXPECTED_ERRORS as error:
                if self._comes_early(each, code_of(error)):
                    answer.high_watermark = answer.last_stable_offset = -1
                    self.is_early = True
                else:
                    self._fill_error(answer, each, error)
                    reading.must_answer = True
                continue
            if answer.diverging_epoch is not None or answer.preferred_read_replica >= 0:
                reading.must_answer = True
            reading.size += given
            reading.left -= given
        if self.is_short:
            reading.must_answer = True

    def _is_quiet(self, each: Wanted, hosted: HostedPartition) -> bool:
        """Returns whether nothing has changed for the follower since its last fetch was counted.

        A session may have thousands of partitions, and most of them are quiet most of the time.
        """
        leadership, log = hosted.leadership, hosted.log
        return (
            leadership is not None
            and leadership is each.term
            and each.fetch_offset == log.end_offset
            and each.high_watermark == leadership.high_watermark
            and each.log_start_offset == log.log_start_offset
            and self._now_ms - each.counted_ms < _QUIET_MS
        )

    def _read_one(
        self,
        each: Wanted,
        hosted: HostedPartition | None,
        answer: FetchResponse.Partition,
        left: int,
        *,
        first: bool,
    ) -> int:
        if self._by_id and not each.topic:
            _name_topics([each], self._services)
            if not each.topic:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if self._may_read is not None and not self._may_read(each.topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if hosted is None:
            hosted = self._services.replicas.require(each.topic, each.index)
        if self._by_id and hosted.topic_id != each.topic_id:
            # The session's topic was deleted, and another topic with its name was created.
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        if self._follower is not None:
            limit = self._limit_for_follower(self._follower, each, hosted, answer)
        else:
            limit = self._limit_for_consumer(each, hosted, answer)
        if each.fetch_offset >= limit or (left <= 0 and not first):
            return 0
        if self._follower is not None and self._is_throttled(self._follower, hosted):
            return 0
        bytes_max = max(0, min(each.max_bytes, left))
        memory_max = max(0, self._memory_left)
        piece: memoryview | FileSpan | None
        aborted: list[AbortedTransaction] | None = None
        if answer.aborted_transactions is not None:
            found = hosted.log.read_committed(each.fetch_offset, bytes_max, limit, memory_max)
            piece, aborted = (None, None) if found is None else found
        else:
            piece = hosted.log.read_or_span(each.fetch_offset, bytes_max, limit, memory_max)
        if piece is None or (len(piece) > left and not first):
            return 0
        if not isinstance(piece, FileSpan):
            if len(piece) > memory_max and not first:
                self.is_short = True
                return 0
            # A read that was limited by memory uses most of the memory that was left.
            is_short = memory_max < bytes_max and 2 * len(piece) >= memory_max
            self.is_short = self.is_short or is_short
            self._memory_left -= len(piece)
        if aborted:
            answer.aborted_transactions = [
                FetchResponse.AbortedTransaction(*transaction) for transaction in aborted
            ]
        # Of a large value the codec uses only the length, and the connection can send both types.
        answer.records = cast(memoryview, piece)
        return len(piece)

    def _limit_for_consumer(
        self, each: Wanted, hosted: HostedPartition, answer: FetchResponse.Partition
    ) -> int:
        """Returns the offset below which a consumer may read.

        Returns `_NOTHING` if the answer has a divergence or another read replica instead of
        records."""
        machine = hosted.machine
        role = (machine.require_reader if self._has_racks else machine.require_leader)(
            each.leader_epoch
        )
        log = hosted.log
        committed = self._request.isolation_level == READ_COMMITTED
        answer.high_watermark = role.high_watermark
        answer.last_stable_offset = hosted.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        answer.aborted_transactions = [] if committed else None
        # A session may have been opened with a later version than this request has.
        if (
            self._has_epochs
            and each.last_fetched_epoch >= 0
            and self._diverges(each, hosted, answer)
        ):
            return _NOTHING
        leads = isinstance(role, Leadership)
        if each.fetch_offset > log.end_offset and not leads:
            # The leader may have this offset, so it is not out of range.
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        if each.fetch_offset > log.end_offset or each.fetch_offset < log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if self._racks is not None and isinstance(role, Leadership):
            nearest = role.preferred_read_replica(
                self._request.rack_id, self._racks, each.fetch_offset
            )
            if nearest is not None:
                answer.preferred_read_replica = nearest
                return _NOTHING
        return answer.last_stable_offset if committed else answer.high_watermark

    def _limit_for_follower(
        self,
        follower: FollowerId,
        each: Wanted,
        hosted: HostedPartition,
        answer: FetchResponse.Partition,
    ) -> int:
        """Counts a follower's fetch, and returns the end of the log, up to which it may read.

        Returns `_NOTHING` if the follower's log is not a prefix of this one."""
        services, log = self._services, hosted.log
        each.term = None
        if not is_registered(follower, services):
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        if each.leader_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        leadership = hosted.require_leader(each.leader_epoch)
        answer.high_watermark = leadership.high_watermark
        answer.last_stable_offset = hosted.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        answer.aborted_transactions = None
        parted = diverging_epoch(
            log.epochs, each.fetch_offset, each.last_fetched_epoch, log.end_offset
        )
        if parted is not None:
            answer.diverging_epoch = FetchResponse.DivergingEpoch(*parted)
            return _NOTHING
        if not log.log_start_offset <= each.fetch_offset <= log.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if each.key not in self._counted:
            self._counted.add(each.key)
            self._count_follower_fetch(follower, each, hosted, leadership)
            answer.high_watermark = leadership.high_watermark
        each.term = leadership
        return log.end_offset

    def _count_follower_fetch(
        self, follower: FollowerId, each: Wanted, hosted: HostedPartition, leadership: Leadership
    ) -> None:
        """The follower has everything below its fetch offset. This may move the high watermark, or
        let the follower join the ISR."""
        hosted.on_follower_fetch(*follower, each.fetch_offset, self._now_ms, each.log_start)
        self.is_behind = self.is_behind or leadership.is_behind(follower.broker_id)
        is_in_isr = follower.broker_id in leadership.isr
        if not is_in_isr and each.fetch_offset >= leadership.high_watermark:
            self._services.isr_proposals.due(hosted)
        each.counted_ms = self._now_ms

    def _is_throttled(self, follower: FollowerId, hosted: HostedPartition) -> bool:
        leadership, named = hosted.leadership, hosted.settings.leader_replication_throttled_replicas
        throttle = self._services.replicas.leader_throttle
        if not named or leadership is None or follower.broker_id in leadership.isr:
            return False
        if not throttle.names(named, hosted.index):
            return False
        rate = self._services.configs().int_value("leader.replication.throttled.rate")
        wait_ms = throttle.wait_ms(rate, self._now_ms)
        if wait_ms:
            self.throttled.add(hosted)
            self.throttled_ms = wait_ms
        return wait_ms > 0

    def _diverges(
        self, each: Wanted, hosted: HostedPartition, answer: FetchResponse.Partition
    ) -> bool:
        """Returns whether the client's last record is not in this log's history (KIP-320)."""
        log = hosted.log
        found = log.epochs.end_offset_for(each.last_fetched_epoch, log.end_offset)
        if found.epoch == UNDEFINED_EPOCH:
            return False
        if found.epoch < each.last_fetched_epoch or found.end_offset < each.fetch_offset:
            answer.diverging_epoch = FetchResponse.DivergingEpoch(found.epoch, found.end_offset)
            return True
        return False

    def _comes_early(self, each: Wanted, code: ErrorCode) -> bool:
        """Returns whether a follower's fetch failed only because the follower learned of this
        leader before this broker did."""
        if self._follower is None or code not in _NOT_YET or self._request.max_wait_ms <= 0:
            return False
        partition = self._services.image.partition(each.topic, each.index)
        if partition is None or each.leader_epoch > partition.leader_epoch:
            return True
        leads = partition.leader == self._services.config.broker_id
        return leads and each.leader_epoch == partition.leader_epoch

    def _fill_error(self, answer: FetchResponse.Partition, each: Wanted, error: Exception) -> None:
        code = code_of(error)
        answer.error_code = code
        answer.high_watermark = answer.last_stable_offset = -1
        partition = self._services.image.partition(each.topic, each.index)
        moved = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if self._has_epochs and code in moved and partition is not None and partition.leader >= 0:
            answer.current_leader = FetchResponse.Leader(partition.leader, partition.leader_epoch)

    def _note_told(
        self, follower: int, hosted: HostedPartition | None, answer: FetchResponse.Partition
    ) -> None:
        if hosted is not None and hosted.leadership is not None and not answer.error_code:
            hosted.leadership.on_told(follower)

    def _count_sent(self, each: Wanted, size: int) -> None:
        # Looked up again: the partition may have been created here since the request arrived.
        hosted = self._services.replicas.get(each.topic, each.index)
        if hosted is None:
            return
        if self._follower is None:
            hosted.sent_bytes += size
        else:
            hosted.replicated_bytes += size
            named = hosted.settings.leader_replication_throttled_replicas
            if named and self._services.replicas.leader_throttle.names(named, hosted.index):
                self._services.replicas.leader_throttle.on_fetched(size)

    def is_over_quota(self, reading: Reading) -> bool:
        """Counts what was read. Returns whether the client is to get nothing of it."""
        return self._meter is not None and self._meter.record_fetch(reading.size)

    def empty_answer(self) -> FetchResponse:
        """Returns the response to a client that is over its quota (KIP-219).

        A client regards a session as open when the response names its partitions, which this one
        does not. So a new session is ended: the client opens another one next time."""
        if self._session is not None and not self._is_incremental:
            self._services.fetch_sessions.end(self._session)
            return FetchResponse()
        return self.begin_answer()

    def answer(self, reading: Reading) -> FetchResponse:
        if self.is_over_quota(reading):
            return self.empty_answer()
        response = self.begin_answer()
        self.answer_some(response, reading, 0, len(self.wanted))
        return response

    def begin_answer(self) -> FetchResponse:
        session = self._session
        return FetchResponse(session_id=session.session_id if session is not None else 0)

    def answer_some(self, response: FetchResponse, reading: Reading, start: int, stop: int) -> None:
        """Adds a portion of the reads to the response. Portions come in order, without gaps."""
        session, follower = self._session, self._follower
        topic = response.responses[-1] if response.responses else None
        served: list[Wanted] = []
        for each, hosted, answer in zip(
            self.wanted[start:stop],
            self.hosted[start:stop],
            reading.answers[start:stop],
            strict=True,
        ):
            if answer is None:
                continue
            if follower is not None:
                self._note_told(follower.broker_id, hosted, answer)
            size = len(answer.records) if answer.records else 0
            news = each.has_news(answer, size) if session is not None else True
            if size:
                served.append(each)
                self._count_sent(each, size)
            if self._is_incremental and not news:
                continue
            if topic is None or topic.topic != each.topic or topic.topic_id != each.topic_id:
                topic = FetchResponse.Topic(topic=each.topic, topic_id=each.topic_id)
                response.responses.append(topic)
            topic.partitions.append(answer)
        if session is not None:
            self._services.fetch_sessions.rotate(session, served)


def _name_topics(wanted: list[Wanted], services: Services) -> None:
    for each in wanted:
        if not each.topic:
            topic = services.image.topic_by_id(each.topic_id)
            each.topic = topic.name if topic is not None else ""
