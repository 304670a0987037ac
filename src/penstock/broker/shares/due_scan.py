"""The index of far due times of one led partition, and how it is built from the log.

The index is shared by all groups with the same isolation level: aborted records are nothing to
groups that read committed records, and make duplicates for others. It begins at the lowest floor of
their schedules. A group with a lower one, or one that needs what the index has forgotten, makes it
begin again. Duplicates are not in it: no group delivers them. `Judged` says how they are
recognized.

One task at a time may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.schedules.bucket_index import DIRECTORY, BucketDueIndex
from penstock.broker.shares.log_reads import READ_BYTES_MAX, ReadBatch, ReadLimits, read_batches
from penstock.broker.shares.record_scans import SCAN_TIMEOUT_S, first_to_read
from penstock.ports import Env
from penstock.schedule.advance import Advance, advance
from penstock.schedule.cursor import DueEntry, ScheduleCursor
from penstock.shares.judged import Judged, combined
from penstock.shares.record_marks import Mark, MarkReader, MarkRules
from penstock.wire.errors import ErrorCode, KafkaError

_EVERYTHING: Final = 2**63 - 1


class Advanced(NamedTuple):
    found: Advance
    left: int
    """About how many records are left."""
    has_passed: bool
    """Whether the end of the cursor has passed scheduled records."""


class _Built:
    """An index, and where the log is read next."""

    def __init__(self, index: BucketDueIndex, judged: Judged, position: int) -> None:
        self.index = index
        self.judged = judged
        self.position = position
        self.is_spoiled = False
        """A read has failed halfway: the readers would take what they read again for duplicates."""
        self._earlier = MarkReader(MarkRules(True, judged.earlier_ms))
        self._reader = MarkReader(MarkRules(True, judged.window_ms))
        self.unsaved: tuple[list[DueEntry], int] | None = None
        """What was read and could not be added to the index."""

    def read(self, batches: Sequence[ReadBatch], end: int) -> None:
        """Reads batches, and adds their far records. Blocking."""
        if self.unsaved is None:
            self.is_spoiled = True
            first, border = self.index.first_offset, self.judged.earlier_end
            found: list[DueEntry] = []
            if self.position < border:
                found += _far(self._earlier.read(batches), first, border)
            found += _far(self._reader.read(batches), max(first, border), _EVERYTHING)
            self.unsaved = found, end
            self.is_spoiled = False
        entries, end = self.unsaved
        self.index.add(entries, max(end, self.index.end))
        self.unsaved = None
        self.position = end


def _far(marks: Iterable[Mark], first: int, end: int) -> list[DueEntry]:
    return [
        DueEntry(mark.due_ms, offset)
        for mark in marks
        if mark.is_far and not mark.is_duplicate
        for offset in range(max(mark.first, first), min(mark.last + 1, end))
    ]


class DueScan:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        hosted: HostedPartition,
        threads: LargeBatches,
        epoch: int,
        *,
        read_committed: bool = False,
    ) -> None:
        self._env = env
        self._hosted = hosted
        self._threads = threads
        self._epoch = epoch
        self._read_committed = read_committed
        self._built: _Built | None = None
        self._builds = 0

    def for_committed_readers(self) -> DueScan:
        """Returns another index, for groups that read committed records."""
        env, hosted, threads = self._env, self._hosted, self._threads
        return DueScan(env, hosted, threads, self._epoch, read_committed=True)

    @property
    def readable_end(self) -> int:
        """The records below it can be read."""
        hosted = self._hosted
        return hosted.last_stable_offset if self._read_committed else hosted.high_watermark

    @property
    def entries(self) -> int:
        """The number of entries in the index, about."""
        return 0 if self._built is None else self._built.index.count

    async def cover(self, cursors: Iterable[ScheduleCursor], judged: Judged, end: int) -> None:
        """Makes the index contain what these cursors need, up to an offset of the log.

        Raises `OSError`, or one of `EXPECTED_ERRORS`. It may be called again.
        """
        cursors = list(cursors)
        log_start = self._hosted.log.log_start_offset
        first = max(log_start, min(each.floor for each in cursors))
        built = self._built
        if built is not None and built.judged.window_ms == judged.window_ms:
            judged = combined((built.judged, judged))
        if (
            built is None
            or built.is_spoiled
            or built.judged != judged
            or first < built.index.first_offset
            or not all(map(built.index.serves, cursors))
        ):
            built = await self._begin(first, judged)
        while built.index.end < end:
            await self._step(built)

    async def _begin(self, first: int, judged: Judged) -> _Built:
        await self.close()
        rules = MarkRules(True, judged.largest_ms)
        position = await first_to_read(self._env, self._hosted, first, rules)
        self._builds += 1
        hosted = self._hosted
        root = hosted.log.directory.rpartition("/")[0]
        kind = "c" if self._read_committed else "u"
        name = f"{hosted.topic_id.hex()}-{hosted.index}-{self._epoch}-{kind}{self._builds}"
        now_ms = self._env.clock.wall_ms()
        index = await self._threads.run(
            partial(BucketDueIndex, self._env.disk, f"{root}/{DIRECTORY}/{name}", now_ms, first),
            SCAN_TIMEOUT_S,
        )
        self._built = _Built(index, judged, position)
        return self._built

    async def _step(self, built: _Built) -> None:
        """Reads some batches of the log."""
        batches: list[ReadBatch] = []
        end = built.position
        if built.unsaved is None:
            offset = max(built.position, self._hosted.log.log_start_offset)
            upper, committed = self.readable_end, self._read_committed
            limits = ReadLimits(upper, _EVERYTHING, READ_BYTES_MAX, committed)
            batches = read_batches(self._hosted, offset, limits)
            if not batches and offset == built.position:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
            # If there are none, the log has nothing below its start any more.
            end = batches[-1].batch.last + 1 if batches else offset
        await self._threads.run(partial(built.read, batches, end), SCAN_TIMEOUT_S)

    async def advance(
        self, cursor: ScheduleCursor, readable_end: int, now_ms: int, room: int
    ) -> Advanced:
        """Call `cover` first."""
        assert self._built is not None
        index = self._built.index

        def work() -> Advanced:
            found = advance(cursor, index, readable_end, now_ms, room)
            has_passed = index.has_any(cursor.end, found.cursor.end)
            return Advanced(found, index.remaining(found.cursor.due), has_passed)

        return await self._threads.run(work, SCAN_TIMEOUT_S)

    async def forget(self, cursors: Iterable[ScheduleCursor]) -> None:
        """Removes what none of these cursors needs any more."""
        cursors = list(cursors)
        if self._built is None or not cursors:
            return
        due, end = min(each.due for each in cursors), min(each.end for each in cursors)
        if self._built.index.may_forget(due, end):
            await self._threads.run(partial(self._built.index.forget, due, end), SCAN_TIMEOUT_S)

    async def close(self) -> None:
        """Removes the files."""
        built, self._built = self._built, None
        if built is not None:
            await self._env.executor.run(built.index.close)
