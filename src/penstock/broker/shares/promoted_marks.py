"""Reads the times of promoted records again: a promoted record may expire before it is delivered.

The records are decoded on threads, once for each promotion or load. Nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.shares.log_reads import READ_BYTES_MAX, ReadBatch, ReadLimits, read_batches
from penstock.broker.shares.record_scans import SCAN_TIMEOUT_S, ScanCounters
from penstock.shares.record_marks import Mark, MarkReader, MarkRules
from penstock.shares.share_partition import SharePartition
from penstock.wire.errors import ErrorCode, KafkaError

_EVERYTHING: Final = 2**63 - 1
_TIMED: Final = MarkRules(timed=True)


@dataclass(eq=False, slots=True)
class _Known:
    """One share partition, as long as it is in memory."""

    partition: SharePartition
    marks: dict[int, Mark] = field(default_factory=dict)
    is_running: bool = False
    failure: Exception | None = None

    def unknown(self) -> list[int]:
        """Returns the promoted records that were not read, and forgets those that are done."""
        offsets = [
            offset
            for span in self.partition.promoted
            for offset in range(span.first, span.last + 1)
        ]
        self.marks = {offset: self.marks[offset] for offset in offsets if offset in self.marks}
        return [offset for offset in offsets if offset not in self.marks]


class PromotedMarks:
    """The times of promoted records of one led partition."""

    def __init__(
        self,
        hosted: HostedPartition,
        threads: LargeBatches,
        counters: ScanCounters,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        on_read: Callable[[str], None],
    ) -> None:
        """`on_read` is called with a group when more of its records were read, or when that
        failed."""
        self._hosted = hosted
        self._threads = threads
        self._counters = counters
        self._spawn = spawn
        self._on_read = on_read
        self._known: dict[str, _Known] = {}

    def forget(self, group_id: str) -> None:
        self._known.pop(group_id, None)

    def of(self, group_id: str, partition: SharePartition) -> Mapping[int, Mark]:
        """Returns what is known. Begins to read the rest.

        Raises one of `EXPECTED_ERRORS` if that failed.
        """
        known = self._known.get(group_id)
        if known is None or known.partition is not partition:
            known = self._known[group_id] = _Known(partition)
        if known.failure is not None:
            failure, known.failure = known.failure, None
            raise failure
        if not known.is_running and known.unknown():
            known.is_running = True
            self._spawn(partial(self._run, group_id, known))
        return known.marks

    async def _run(self, group_id: str, known: _Known) -> None:
        try:
            while self._known.get(group_id) is known and (unknown := known.unknown()):
                await self._step(known, unknown)
                self._on_read(group_id)
        except EXPECTED_ERRORS as error:
            self._counters.failed += 1
            known.failure = error
        finally:
            known.is_running = False
        self._on_read(group_id)

    async def _step(self, known: _Known, unknown: list[int]) -> None:
        """Reads batches with some of these records."""
        batches: list[ReadBatch] = []
        read: list[int] = []
        size = 0
        for offset in unknown:
            if not batches or batches[-1].batch.last < offset:
                if size >= READ_BYTES_MAX:
                    break
                # One batch: the next promoted record may be far away.
                limits = ReadLimits(self._hosted.high_watermark, _EVERYTHING, 1, False)
                found = read_batches(self._hosted, offset, limits)[:1]
                if not found:
                    raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
                if not batches or found[0].batch.first > batches[-1].batch.last:
                    batches += found
                    size += len(found[0].data)
            read.append(offset)
        reader = MarkReader(_TIMED)
        marks = await self._threads.run(partial(reader.read, batches), SCAN_TIMEOUT_S)
        known.marks |= {offset: Mark(offset, offset) for offset in read}
        known.marks |= _of_offsets(marks, frozenset(read))
        self._counters.scanned += sum(each.batch.last - each.batch.first + 1 for each in batches)


def _of_offsets(marks: Iterable[Mark], offsets: frozenset[int]) -> dict[int, Mark]:
    return {
        offset: mark
        for mark in marks
        for offset in range(mark.first, mark.last + 1)
        if offset in offsets
    }
