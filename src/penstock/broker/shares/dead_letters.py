"""Writes the dead letters of the share groups of one partition, while this broker leads it.

`shares.letters` decides which letters are written, and under which numbers. Here is one task for
each group that has something to write. It writes what was asked for last until that succeeds, with
a growing pause after each failure. The batches of an order are built once: if it is unknown whether
they were written, the same batches are sent again.

A letter has the headers of KIP-1191. If the group copies records and the dead-letter topic refuses
a copy as too large, the letter is written without the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.shares.letter_sender import WRITTEN, LetterSender
from penstock.ports import Env
from penstock.records.batch import read_header
from penstock.records.record import Record, build_batch, read_records
from penstock.shares.events import (
    DeadLetter,
    DeadLettersWritten,
    Event,
    ProducerIdTaken,
    TakeProducerId,
    WriteDeadLetters,
)
from penstock.shares.settings import ShareSettings
from penstock.shares.states import GiveUpReason
from penstock.storage.errors import OffsetOutOfRange
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0
_LOG_EVERY_S: Final = 60.0
_PREFIX: Final = "__dlq.errors."
_REFUSED: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""The dead-letter partition expects another sequence number."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
REASONS: Final = {
    GiveUpReason.NONE: "The record was given up.",
    GiveUpReason.REJECTED: "A member of the group rejected the record.",
    GiveUpReason.DELIVERY_LIMIT: "The record was delivered as often as the group allows.",
    GiveUpReason.EXPIRED: "The record has expired.",
    GiveUpReason.LENGTH_LIMIT: "The queue was too long.",
}
_log = logging.getLogger(__name__)

Order = WriteDeadLetters | TakeProducerId


@dataclass(slots=True)
class LetterCounters:
    """What the dead letters of this broker's share partitions have come to since it started."""

    written: int = 0
    missing: int = 0
    """Records that were gone before their dead letter was written."""
    without_copy: int = 0
    """Letters without their record, because the copy was too large."""
    failures: int = 0
    """Attempts that failed, and were or will be repeated."""


@dataclass(slots=True)
class _Built:
    """The batches of an order, up to the first record that is missing."""

    order: WriteDeadLetters
    batches: list[bytearray] = field(default_factory=list)
    is_copy: list[bool] = field(default_factory=list)
    missing: tuple[int, ...] = ()


class _Trouble:
    """The failures of one group since its last success."""

    def __init__(self) -> None:
        self.pause_s = PAUSE_MIN_S
        self.logged_at: float | None = None


class DeadLetters:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        hosted: HostedPartition,
        sender: Callable[[], LetterSender],
        counters: LetterCounters,
        settings_of: Callable[[str], ShareSettings | None],
        report: Callable[[str, Event], None],
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
    ) -> None:
        """`settings_of` returns None for a group that is not in memory any more."""
        self._env = env
        self._hosted = hosted
        self._sender = sender
        self._counters = counters
        self._settings_of = settings_of
        self._report = report
        self._spawn = spawn
        self._orders: dict[str, Order] = {}
        self._running: set[str] = set()

    def carry_out(self, group_id: str, order: Order) -> None:
        """Begins to do what a share partition has asked for. It replaces an earlier order."""
        self._orders[group_id] = order
        if group_id not in self._running:
            self._running.add(group_id)
            self._spawn(lambda: self._run(group_id))

    def forget(self, group_id: str) -> None:
        """The share partition is not in memory any more."""
        self._orders.pop(group_id, None)

    def close(self) -> None:
        self._orders.clear()

    async def _run(self, group_id: str) -> None:
        trouble = _Trouble()
        built: _Built | None = None
        try:
            while (order := self._orders.get(group_id)) is not None:
                settings = self._settings_of(group_id)
                if settings is None or not settings.dead_letters:
                    self.forget(group_id)
                    return
                try:
                    if isinstance(order, TakeProducerId):
                        event: Event = ProducerIdTaken(await self._sender().producer_id())
                    else:
                        if built is None or built.order is not order:
                            built = await self._build(group_id, order, settings)
                        event = await self._write(group_id, built, settings)
                except EXPECTED_ERRORS as error:
                    await self._on_failure(group_id, settings, error, trouble)
                    continue
                if trouble.logged_at is not None:
                    _log.info("resumed writing dead letters of group %s", group_id)
                trouble = _Trouble()
                if self._orders.get(group_id) is order:
                    del self._orders[group_id]
                    self._report(group_id, event)
        finally:
            self._running.discard(group_id)

    async def _on_failure(
        self, group_id: str, settings: ShareSettings, error: Exception, trouble: _Trouble
    ) -> None:
        self._counters.failures += 1
        now = self._env.clock.monotonic()
        if trouble.logged_at is None or now - trouble.logged_at >= _LOG_EVERY_S:
            trouble.logged_at = now
            _log.warning(
                "cannot write dead letters of group %s for %s-%d to topic %s, retrying: %s",
                group_id,
                self._hosted.topic,
                self._hosted.index,
                settings.dead_letter_topic,
                error,
            )
        await self._env.clock.sleep(trouble.pause_s)
        trouble.pause_s = min(2 * trouble.pause_s, PAUSE_MAX_S)

    async def _write(
        self, group_id: str, built: _Built, settings: ShareSettings
    ) -> DeadLettersWritten:
        sender, letters = self._sender(), built.order.letters
        source = TopicPartition(self._hosted.topic, self._hosted.index)
        codes: list[ErrorCode] = []
        if built.batches:
            target = await sender.target(settings.dead_letter_topic, source)
            codes = await sender.append(target, built.batches)
        written: list[int] = []
        is_refused = False
        for number, code in enumerate(codes):
            if code in WRITTEN:
                written.append(letters[number].offset)
            elif code in _REFUSED:
                is_refused = True
                break
            else:
                if code in _TOO_LARGE and built.is_copy[number]:
                    self._leave_out_copy(group_id, built, number)
                raise KafkaError(code)
        if not is_refused and len(written) < len(built.batches):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a broker sent too few answers")
        missing = () if is_refused else built.missing
        self._counters.written += len(written)
        self._counters.missing += len(missing)
        return DeadLettersWritten(tuple(written), missing, is_refused)

    # Letters

    async def _build(
        self, group_id: str, order: WriteDeadLetters, settings: ShareSettings
    ) -> _Built:
        built = _Built(order)
        found: dict[int, Record] = {}
        for letter in order.letters:
            if letter.offset not in found:
                found |= await self._records_at(letter.offset)
            record = found.get(letter.offset)
            if record is None:
                built.missing = (letter.offset,)
                break
            built.is_copy.append(settings.copies_records)
            built.batches.append(
                self._batch(group_id, order, letter, record if settings.copies_records else None)
            )
        return built

    def _leave_out_copy(self, group_id: str, built: _Built, number: int) -> None:
        letter = built.order.letters[number]
        built.is_copy[number] = False
        built.batches[number] = self._batch(group_id, built.order, letter, None)
        self._counters.without_copy += 1

    async def _records_at(self, offset: int) -> dict[int, Record]:
        """Returns the records of the batch that has the offset; none if there is no such batch."""
        hosted = self._hosted
        if offset >= hosted.high_watermark:
            # It was committed when it was delivered. A new leader does not know that yet.
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                "the high watermark of the new leader has not reached the record yet",
            )
        try:
            piece = hosted.log.read(offset, 1, hosted.high_watermark)
        except OffsetOutOfRange:
            return {}
        if piece is None:
            return {}
        header = read_header(piece.data)
        if header.base_offset > offset or header.is_control:
            return {}
        data = bytes(piece.data[: header.size])
        records = await self._env.executor.run(lambda: read_records(data, header))
        return {record.offset: record for record in records}

    def _batch(
        self, group_id: str, order: WriteDeadLetters, letter: DeadLetter, copied: Record | None
    ) -> bytearray:
        now_ms = self._env.clock.wall_ms()
        headers = letter_headers(self._hosted.topic, self._hosted.index, group_id, letter)
        key = value = None
        if copied is not None:
            key, value = copied.key, copied.value
            headers = (*copied.headers, *headers)
        return build_batch(
            [Record(0, now_ms, key, value, headers)],
            producer_id=order.producer_id,
            producer_epoch=order.producer_epoch,
            base_sequence=letter.sequence,
        )


def letter_headers(
    topic: str, partition: int, group_id: str, letter: DeadLetter
) -> tuple[tuple[str, bytes | None], ...]:
    """Returns the headers that say which record a dead letter is for, and why."""
    texts = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(letter.offset),
        "group": group_id,
        "delivery.count": str(letter.delivery_count),
        "message": REASONS[letter.reason],
    }
    return tuple((_PREFIX + name, text.encode()) for name, text in texts.items())
