"""Reads the partitions of one share fetch, and builds its response."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.handlers.share_requests import (
    MOVED,
    Outcome,
    add_endpoints,
    current_leader,
    led_partition,
)
from penstock.broker.handlers.share_visits import Visit, visits, with_same_topic
from penstock.broker.shares.acquired_reads import Wanted
from penstock.broker.shares.led_partition import LedPartition
from penstock.broker.shares.parked_fetch import ParkedFetch
from penstock.security.acls import AclOperation
from penstock.shares.sessions import INITIAL_EPOCH, SessionKey, SharedPartition
from penstock.shares.states import AcquireMode
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ShareFetchRequest, ShareFetchResponse

_log = logging.getLogger(__name__)

MEMORY_BYTES_MAX: Final = 16 << 20
"""The most that one share fetch reads into memory, besides the first batch."""
_KNOWN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""The errors of a partition that Java's share consumer expects. Others end its application."""


@dataclass(slots=True)
class Reading:
    """What was read so far."""

    bytes_left: int
    records_left: int
    size: int = 0
    answers: dict[SharedPartition, ShareFetchResponse.PartitionData] = field(default_factory=dict)
    """Partitions with records or an error."""


class ShareReads:
    """One share fetch."""

    __slots__ = ("_context", "_partitions", "_request", "_shares", "key")

    def __init__(
        self,
        request: ShareFetchRequest,
        context: RequestContext,
        key: SessionKey,
        partitions: tuple[SharedPartition, ...],
    ) -> None:
        self._request = request
        self._context = context
        self._shares = context.services.shares
        self._partitions = partitions
        self.key = key

    async def read(self) -> Reading:
        """Acquires records, and waits for some if there are none."""
        request, meter = self._request, self._context.meter
        reading = self._begin()
        if request.max_records <= 0 or request.is_renew_ack or not self._partitions:
            return reading
        if meter is not None and meter.record_fetch(0):
            return reading
        slices = self._context.slices()
        waits: list[LedPartition] = []
        for visit in visits(self._context, self.key.group_id, self._partitions, reading):
            if not self._is_current():
                return reading
            led = self._read_one(visit, reading, is_last=request.max_wait_ms <= 0)
            if led is not None:
                waits.append(led)
            await slices.give_way()
        if not reading.answers and request.max_wait_ms > 0 and self._is_current():
            parked = ParkedFetch(
                self.key.group_id,
                waits,
                request.max_wait_ms / 1000,
                self._read_woken,
                self._read_all,
                reading,
            )
            self._shares.park(self.key, parked)
            for led in waits:
                # It may have been loaded, or got records, while others were read.
                parked.attempt(led)
            reading = await parked.future
        if meter is not None and reading.size:
            meter.record_fetch(reading.size)
        return reading

    def _begin(self) -> Reading:
        services, request = self._context.services, self._request
        limits = [
            request.max_bytes,
            services.configs().int_value("fetch.max.bytes"),
            MEMORY_BYTES_MAX,
            services.response_room(),
        ]
        if self._context.meter is not None:
            limits.append(self._context.meter.fetch_bytes_max())
        return Reading(max(0, min(limits)), request.max_records)

    def _is_current(self) -> bool:
        """Whether the member still has the session. Otherwise nobody would release its records."""
        connection = self._context.turn
        return connection is not None and self._shares.sessions.has(self.key, connection)

    def _read_woken(self, led: LedPartition) -> Reading | None:
        """Reads a partition that may have something. None: the fetch goes on waiting."""
        partition = SharedPartition(led.hosted.topic_id, led.hosted.index)
        reading = self._begin()
        if not self._is_current():
            return reading
        if led.is_closed:
            self._fail(partition, reading, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            to_read = with_same_topic(self._context, self._partitions, partition)
            self._read_again(to_read, reading, is_last=False)
        return reading if reading.answers else None

    def _read_all(self) -> Reading:
        reading = self._begin()
        if self._is_current():
            self._read_again(self._partitions, reading, is_last=True)
        return reading

    def _read_again(
        self, partitions: tuple[SharedPartition, ...], reading: Reading, *, is_last: bool
    ) -> None:
        try:
            self._context.require_group(AclOperation.READ, self.key.group_id)
        except KafkaError as error:
            for partition in partitions:
                self._fail(partition, reading, error)
            return
        for visit in visits(self._context, self.key.group_id, partitions, reading):
            self._read_one(visit, reading, is_last=is_last, is_again=True)

    def _read_one(
        self,
        visit: Visit,
        reading: Reading,
        *,
        is_last: bool,
        is_again: bool = False,
    ) -> LedPartition | None:
        """Reads one partition, if the limits allow it. Returns it if it can be waited for.

        An error is the answer of this partition alone: other partitions may have records that are
        acquired by now.
        """
        request, group_id, partition = self._request, self.key.group_id, visit.partition
        if reading.records_left <= 0 or (reading.bytes_left <= 0 and reading.size):
            return None
        try:
            led = led_partition(self._context, partition)
            if is_again:
                led.require_loadable(group_id)
            if (
                led.use(group_id)
                and visit.records_max != 0
                and (is_last or led.has_bytes(group_id, request.min_bytes))
            ):
                self._acquire(led, visit, reading)
        except EXPECTED_ERRORS as error:
            self._fail(partition, reading, error)
            return None
        except Exception:  # noqa: BLE001 - logged; the records of other partitions are locked
            _log.exception(
                "a share fetch of group %s failed at partition %d of the topic with id %s; the "
                "member gets an error for this partition only",
                group_id,
                partition.partition,
                partition.topic_id.hex(),
            )
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "see the log of the broker")
            self._fail(partition, reading, failure)
            return None
        return led

    def _acquire(self, led: LedPartition, visit: Visit, reading: Reading) -> None:
        request, (partition, records_max) = self._request, visit
        records_left = reading.records_left
        wanted = Wanted(
            self.key.member_id,
            records_left if records_max is None else min(records_left, records_max),
            reading.bytes_left,
            request.batch_size,
            AcquireMode(request.share_acquire_mode),
        )
        given = led.acquire(self.key.group_id, wanted)
        if given is None:
            return
        self._shares.sessions.on_acquired(self.key, partition)
        reading.answers[partition] = ShareFetchResponse.PartitionData(
            partition.partition,
            records=given.records,
            acquired_records=[ShareFetchResponse.AcquiredRecords(*each) for each in given.ranges],
        )
        size = len(given.records)
        led.hosted.sent_bytes += size
        reading.size += size
        reading.bytes_left -= size
        reading.records_left -= sum(each.last - each.first + 1 for each in given.ranges)

    def _fail(self, partition: SharedPartition, reading: Reading, error: Exception) -> None:
        code = code_of(error)
        if code in (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif code not in _KNOWN:
            retriable = code.retriable
            code = ErrorCode.OFFSET_NOT_AVAILABLE if retriable else ErrorCode.UNKNOWN_SERVER_ERROR
        reading.answers[partition] = ShareFetchResponse.PartitionData(
            partition.partition, code, str(error), records=b""
        )

    # The response

    def response(
        self, reading: Reading, acknowledged: Mapping[SharedPartition, Outcome]
    ) -> Steps[ShareFetchResponse]:
        """Builds the response in steps. That of a new session has all partitions; later ones have
        those with news."""
        named = dict.fromkeys((*reading.answers, *acknowledged))
        if self._request.share_session_epoch == INITIAL_EPOCH:
            named |= dict.fromkeys(self._partitions)
        lock_ms = self._shares.settings_of(self.key.group_id).record_lock_ms
        response = ShareFetchResponse(acquisition_lock_timeout_ms=lock_ms)
        topics: dict[bytes, ShareFetchResponse.TopicResponse] = {}
        leaders: list[int] = []
        for partition in named:
            answer = reading.answers.get(partition)
            if answer is None:
                answer = ShareFetchResponse.PartitionData(partition.partition, records=b"")
            outcome = acknowledged.get(partition)
            if outcome is not None:
                answer.acknowledge_error_code = outcome.code
                answer.acknowledge_error_message = outcome.message
            if answer.error_code in MOVED or (outcome is not None and outcome.code in MOVED):
                leader = current_leader(self._context, partition)
                answer.current_leader = ShareFetchResponse.LeaderIdAndEpoch(*leader)
                leaders.append(leader[0])
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = ShareFetchResponse.TopicResponse(
                    partition.topic_id
                )
            topic.partitions.append(answer)
            yield
        response.responses = list(topics.values())
        add_endpoints(response, self._context, leaders)
        return response
