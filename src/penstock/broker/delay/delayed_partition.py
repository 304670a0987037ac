"""Copies the records of one partition of a delay topic, while this broker leads it.

It is one task. `delays.copying` says what to do next, and this module does it: it reads the log,
stores the state at the share coordinator, and sends batches to the target. All of that has time
limits. After a failure it pauses, longer after each, and tries again. If the state could not be
read or stored, it is read again first: from then on the coordinator refuses what was sent before.

A leadership that has ended is never used again: a later one has a `DelayedPartition` of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.delay.source_reads import SourceReads
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.partitions.parked_requests import next_key
from penstock.broker.shares.led_partition import SURE
from penstock.broker.shares.letter_sender import WRITTEN, LetterSender
from penstock.delays.copy_state import BATCHES_MAX, CopyState, Target, lost_from
from penstock.delays.copying import (
    Copying,
    Gather,
    NeedTarget,
    Scan,
    Send,
    Store,
    TakeProducerId,
    View,
    Wait,
)
from penstock.delays.formats import decode, encode
from penstock.delays.records import SourceRecord, planned_batches
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.delay_configs import DELAY_GROUP, DELAY_TARGET
from penstock.metadata.model import Topic
from penstock.partition.leadership import Leadership
from penstock.ports import Env
from penstock.schedule.cursor import DueEntry, ScheduleCursor
from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import CallOrder, SharePartitionId, ShareState
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0
WAIT_MAX_S: Final = 5.0
"""The wall clock may be set, so due times are looked at again after this time."""
RECORDS_MAX: Final = 500
"""Of a batch. The plan of five batches is stored with the offsets of all records."""
BATCH_BYTES_MAX: Final = 256 << 10
"""A batch is larger only if its only record is."""
_NOTE_AT_ONCE: Final = 1_000
_FIRST_READ: Final = 16
"""How many records are read before it is known how large they are."""
_LOG_EVERY_S: Final = 60.0
_OUT_OF_SEQUENCE: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_NOT_ACCEPTED: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""The target has refused a batch. It may accept it when its settings are changed."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DelayCounters:
    """What the delay topics of this broker have come to since it started."""

    copied: int = 0
    missing: int = 0
    """Records that were gone from the log before they were copied."""
    failures: int = 0
    """Attempts that failed and were or will be repeated."""
    scanned: int = 0
    """Offsets whose records were read for their due times. Some are read more than once."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all partitions of delay topics of a broker share."""

    env: Env
    cluster: ClusterView
    configs: Callable[[], BrokerConfigs]
    state: ShareState
    sender: LetterSender
    threads: LargeBatches
    counters: DelayCounters


class DelayedPartition:
    """See the module's docstring."""

    def __init__(self, around: Surroundings, hosted: HostedPartition, term: Leadership) -> None:
        self.hosted = hosted
        self.term = term
        self.is_closed = False
        self._around = around
        self._state_id = SharePartitionId(DELAY_GROUP, hosted.topic_id, hosted.index)
        self._reads = SourceReads(hosted, around.threads)
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        """Ends a pause after a failure. More records do not."""
        self._copying: Copying | None = None
        """None until the state has been read, and when it must be read again."""
        self._before: Copying | None = None
        """What there was before the outcome of a store was unknown."""
        self._image: ShareImage | None = None
        self._records: dict[tuple[int, ...], list[SourceRecord]] = {}
        """The records of the planned batches, unless another leader has planned them."""
        self._pause_s = PAUSE_MIN_S
        self._logged_at: float | None = None
        self._failing_since_ms: int | None = None

    # What others ask

    @property
    def waiting(self) -> int:
        """The number of records that are known and not copied yet."""
        return 0 if self._copying is None else self._copying.waiting

    def overdue_ms(self) -> int:
        """Returns how long the next record has been due, or how long nothing has worked."""
        now_ms = self._around.env.clock.wall_ms()
        since = [self._failing_since_ms]
        if self._copying is not None:
            since.append(self._copying.overdue_since_ms(now_ms))
        return max((now_ms - each for each in since if each is not None), default=0)

    def wake(self) -> None:
        """The target or the settings may have changed."""
        self._wake.set()
        self._changed.set()

    def close(self) -> None:
        self.is_closed = True
        self.wake()

    # The task

    async def run(self) -> None:
        key = next_key()
        self.hosted.listen_commits(key, lambda _: self._wake.set())
        try:
            while self._is_leading():
                try:
                    await self._step()
                except (*EXPECTED_ERRORS, ProtocolError) as error:
                    await self._on_failure(error)
                except Exception as error:  # noqa: BLE001 - it is logged, and tried again
                    # A bug must not end the broker, nor stop other topics.
                    _log.exception("copying %s failed because of a bug; retrying", self._name())
                    self._copying = self._before = None
                    await self._on_failure(error)
        finally:
            self.hosted.unlisten_commits(key)

    def _is_leading(self) -> bool:
        return not self.is_closed and self.hosted.leadership is self.term

    def _name(self) -> str:
        return f"partition {self.hosted.index} of the delay topic {self.hosted.topic}"

    async def _step(self) -> None:
        if self._copying is None:
            self._copying = await self._load()
            return
        self._wake.clear()
        copying, view = self._copying, self._view(self._copying.state)
        if view.is_planned_target_gone:
            # The image of this broker may be older than the plan.
            await self._around.cluster.catch_up()
            view = self._view(copying.state)
            if not self._is_leading():
                return
        step = copying.next_step(view)
        match step:
            case Scan(offset):
                entries, end = await self._reads.due_from(offset)
                self._around.counters.scanned += end - offset
                await self._note(copying, entries, end)
            case Gather():
                await self._gather(copying, view.now_ms)
            case TakeProducerId():
                copying.on_producer_id(await self._around.sender.producer_id())
            case Store(state):
                await self._store(state)
                copying.on_stored(state)
            case Send(state):
                await self._send(copying, state)
            case NeedTarget():
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"the topic '{self._target_name()}' does not exist: create it, or change "
                    f"{DELAY_TARGET}",
                )
            case Wait(until_ms):
                self._on_success()
                await self._wait(until_ms)

    async def _wait(self, until_ms: int | None) -> None:
        seconds = WAIT_MAX_S
        if until_ms is not None:
            left_ms = until_ms - self._around.env.clock.wall_ms()
            seconds = min(seconds, max(0.0, left_ms / 1000))
        await _wait_for(self._wake, seconds)

    # The target

    def _target_name(self) -> str:
        topic = self._around.cluster.image.topics.get(self.hosted.topic)
        return "" if topic is None else topic.configs.get(DELAY_TARGET, "")

    def _target_topic(self) -> Topic | None:
        return self._around.cluster.image.topics.get(self._target_name())

    def _view(self, state: CopyState) -> View:
        topic, image = self._target_topic(), self._around.cluster.image
        target = None
        if topic is not None:
            target = Target(topic.topic_id, self.hosted.index % len(topic.partitions))
        is_gone = bool(state.planned) and image.topic_by_id(state.target.topic_id) is None
        return View(
            self._around.env.clock.wall_ms(),
            self.hosted.log.log_start_offset,
            self.hosted.last_stable_offset,
            target,
            is_gone,
        )

    # The state

    async def _load(self) -> Copying:
        port, hosted = self._around.state, self.hosted
        try:
            image = await port.read(self._state_id, self.term.epoch)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # This is the first leader. A call that comes second has no effect.
            start = hosted.log.log_start_offset
            await port.initialize(self._state_id, 0, start, CallOrder())
            image = await port.read(self._state_id, self.term.epoch)
        self._image = image
        state = CopyState(ScheduleCursor.starting_at(image.start_offset))
        if image.attachment:
            state = decode(image.attachment)
        if not self._is_leading():
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        before, self._before = self._before, None
        if before is not None and before.resume(state):
            return before
        self._records.clear()
        epochs, log_end = hosted.log.epochs, hosted.log.end_offset
        lost = lost_from(state, *epochs.end_offset_for(state.end_epoch, log_end), log_end)
        if lost is None:
            return Copying(state)
        _log.warning(
            "%s: an unclean election lost its records from offset %d on; the records that "
            "replaced them are copied, and some other records may be copied twice",
            self._name(),
            lost,
        )
        return Copying(state.cut(lost, epochs.epoch_at(lost - 1)), is_stored=False)

    async def _store(self, state: CopyState) -> None:
        image = self._image
        assert image is not None
        ends = (image.start_offset, image.end_offset, image.end_leader_epoch)
        delta = Delta(image.state_epoch, *ends, (), attachment=encode(state))
        try:
            await self._around.state.write(self._state_id, self.term.epoch, delta)
        except KafkaError as error:
            if error.code not in SURE:
                self._before, self._copying = self._copying, None
            raise

    # Copies

    async def _note(self, copying: Copying, entries: list[DueEntry], end: int) -> None:
        """Reports due times that were read, in parts, so that other tasks have their turns."""
        slices = slices_of(self._around.env)
        for at in range(0, len(entries), _NOTE_AT_ONCE):
            later = at + _NOTE_AT_ONCE
            part_end = entries[later].offset if later < len(entries) else end
            copying.on_scanned(entries[at:later], part_end)
            await slices.give_way()
        copying.on_scanned((), end)

    async def _gather(self, copying: Copying, now_ms: int) -> None:
        """Reads records that are due, up to a size, and plans batches of them."""
        topic = self._target_topic()
        assert topic is not None
        limit = self._around.configs().settings(topic.configs).max_message_bytes
        divider = _Divider(min(BATCH_BYTES_MAX, limit * 3 // 4))
        missing: set[int] = set()
        try:
            while not divider.is_full:
                offsets = copying.take(divider.next_read, now_ms)
                if not offsets:
                    break
                found = await self._reads.records_at(offsets)
                for offset in offsets:
                    source = found.get(offset)
                    if source is None:
                        missing.add(offset)
                    elif not divider.add(source):
                        break
        except EXPECTED_ERRORS:
            # What was taken is found again when the state has been read.
            self._copying = None
            raise
        batches = [[each.record.offset for each in batch] for batch in divider.batches]
        self._around.counters.missing += len(missing)
        if missing:
            _log.warning(
                "%s: retention deleted %d records before they were copied: raise retention.ms",
                self._name(),
                len(missing),
            )
        copying.plan(batches, missing, now_ms, self.hosted.log.epochs.epoch_at)
        self._records = {
            tuple(offsets): batch for offsets, batch in zip(batches, divider.batches, strict=True)
        }

    async def _send(self, copying: Copying, state: CopyState) -> None:
        records: list[list[SourceRecord]] = []
        for index, planned in enumerate(state.planned):
            sources = self._records.get(planned.offsets)
            if sources is None:
                found = await self._reads.records_at(planned.offsets)
                if len(found) < len(planned.offsets):
                    self._around.counters.missing += len(planned.offsets) - len(found)
                    copying.on_missing(index)
                    return
                sources = [found[offset] for offset in planned.offsets]
                self._records[planned.offsets] = sources
            records.append(sources)
        topic = self._around.cluster.image.topic_by_id(state.target.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        build = partial(planned_batches, state, records)
        batches = await self._around.env.executor.run(lambda: list(build()))
        if not self._is_leading():
            return
        where = TopicPartition(topic.name, state.target.partition)
        codes = await self._around.sender.append(where, batches, topic.topic_id)
        self._on_answer(copying, state, codes)

    def _on_answer(self, copying: Copying, state: CopyState, codes: list[ErrorCode]) -> None:
        written = 0
        while written < len(codes) and codes[written] in WRITTEN:
            written += 1
        self._around.counters.copied += sum(len(each.offsets) for each in state.planned[:written])
        code = codes[written] if written < len(codes) else None
        if written == len(state.planned) or code in _OUT_OF_SEQUENCE:
            copying.on_sent(written, is_refused=code is not None)
            if code is None:
                self._on_success()
                self._records.clear()
            return
        if code in _NOT_ACCEPTED:
            copying.on_refused_for_good(written)
        else:
            copying.on_sent(written, is_refused=False)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR if code is None else code)

    # Failures

    def _on_success(self) -> None:
        if self._logged_at is not None:
            _log.info("resumed copying %s to '%s'", self._name(), self._target_name())
        self._logged_at = self._failing_since_ms = None
        self._pause_s = PAUSE_MIN_S

    async def _on_failure(self, error: Exception) -> None:
        if not self._is_leading():
            return
        clock = self._around.env.clock
        self._around.counters.failures += 1
        if self._failing_since_ms is None:
            self._failing_since_ms = clock.wall_ms()
        now = clock.monotonic()
        if self._logged_at is None or now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            _log.warning(
                "cannot copy %s to '%s', retrying: %s (%s)",
                self._name(),
                self._target_name(),
                error,
                code_of(error).name,
            )
        self._changed.clear()
        await _wait_for(self._changed, self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class _Divider:
    """Divides records into batches, in their order, by number and size."""

    def __init__(self, bytes_max: int) -> None:
        self.batches: list[list[SourceRecord]] = []
        self.is_full = False
        self._bytes_max = bytes_max
        self._last_bytes = 0
        self._bytes = 0
        self._records = 0

    @property
    def next_read(self) -> int:
        """How many records to read next, so that they fill what is left and not much more."""
        if not self._records:
            return _FIRST_READ
        left = BATCHES_MAX * self._bytes_max - self._bytes
        return max(1, min(RECORDS_MAX, left * self._records // max(1, self._bytes)))

    def add(self, source: SourceRecord) -> bool:
        """Returns whether there was room for the record."""
        size = source.size
        is_new = (
            not self.batches
            or len(self.batches[-1]) == RECORDS_MAX
            or self._last_bytes + size > self._bytes_max
        )
        if is_new and len(self.batches) == BATCHES_MAX:
            self.is_full = True
            return False
        if is_new:
            self.batches.append([])
            self._last_bytes = 0
        self.batches[-1].append(source)
        self._last_bytes += size
        self._bytes += size
        self._records += 1
        return True
