"""Copies records from a consumer to standard output until a stop condition holds.

A backlog of plain values is written as whole columns, everything else record by record: loading
pyarrow takes as long as showing about ten thousand records.

The consumer retries while brokers do not answer. That is right for a program, but wrong for a
command that a person waits for. So when no answer has arrived for some seconds, this module asks
the cluster for the topic, and fails if it does not answer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.cli.consume_format import Formatter
from penstock.cli.output import printable
from penstock.client.consumer import Consumer
from penstock.client.errors import NoOffset
from penstock.runtime import SystemClock
from penstock.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

RawConsumer = Consumer[bytes | None, bytes | None]
_POLL_S: Final = 1.0
SILENCE_S: Final = 5.0
_RECORDS_PER_POLL: Final = 5_000
_FULL_POLLS: Final = 4
"""After this many full polls in a row there is a backlog."""


@dataclass(frozen=True, slots=True)
class Stop:
    records_max: int | None
    idle_s: float | None
    until_end: bool


class Reading:
    def __init__(
        self,
        consumer: RawConsumer,
        ends: Mapping[TopicPartition, int],
        stop: Stop,
        formatter: Formatter,
    ) -> None:
        self._consumer = consumer
        self._ends = ends
        self._stop = stop
        self._formatter = formatter
        self._left = stop.records_max
        self._clock = SystemClock()
        self._heard = 0
        self._heard_at = self._clock.monotonic()
        self._silence_s = SILENCE_S
        self._in_group = consumer.options.group_id is not None

    async def run(self) -> None:
        last = self._clock.monotonic()
        full_polls = 0
        while not self._is_over():
            in_columns = self._formatter.copies_values and full_polls >= _FULL_POLLS
            wait_s = _POLL_S
            if self._stop.idle_s is not None:
                wait_s = min(wait_s, last + self._stop.idle_s - self._clock.monotonic())
                if wait_s <= 0:
                    return
            try:
                shown = await (self._columns(wait_s) if in_columns else self._records(wait_s))
            except NoOffset:
                await self._go_on()
                continue
            full_polls = full_polls + 1 if shown >= _RECORDS_PER_POLL else 0
            if shown:
                last = self._clock.monotonic()
            else:
                await self._check_silence()

    def _is_over(self) -> bool:
        if self._left == 0:
            return True
        if not self._stop.until_end:
            return False
        reading = self._consumer.assignment() & self._ends.keys()
        positions = self._consumer.positions()
        return bool(reading) and all(
            topic_partition in positions
            and positions[topic_partition].offset >= self._ends[topic_partition]
            for topic_partition in reading
        )

    async def _records(self, wait_s: float) -> int:
        limit = min(self._left or _RECORDS_PER_POLL, _RECORDS_PER_POLL)
        records = await self._consumer.poll(int(wait_s * 1000), limit)
        if self._stop.until_end and not self._in_group:
            # In a group all polled records are shown, because their offsets will be committed.
            ends = self._ends
            records = [record for record in records if record.offset < ends[record.topic_partition]]
        if records:
            self._write(self._formatter.lines(records))
            self._count(len(records))
        return len(records)

    async def _columns(self, wait_s: float) -> int:
        table = await self._consumer.poll_table(
            int(wait_s * 1000), max_rows=self._left, headers=False
        )
        if self._stop.until_end and not self._in_group:
            table = self._before_ends(table)
        if table.num_rows:
            self._write_values(table)
            self._count(table.num_rows)
        count: int = table.num_rows
        return count

    def _before_ends(self, table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc  # noqa: PLC0415 -- slow to load, and only for a backlog

        positions = self._consumer.positions()
        for topic_partition, end in self._ends.items():
            if topic_partition in positions and positions[topic_partition].offset > end:
                beyond = pc.and_(
                    pc.equal(table["partition"], topic_partition.partition),
                    pc.greater_equal(table["offset"], end),
                )
                table = table.filter(pc.invert(beyond))
        return table

    def _write_values(self, table: pa.Table) -> None:
        import pyarrow as pa  # noqa: PLC0415 -- only when used
        import pyarrow.compute as pc  # noqa: PLC0415 -- only when used

        for values in table["value"].chunks:
            whole = pa.ListArray.from_arrays(
                pa.array([0, len(values)], pa.int32()), values.fill_null(b"")
            )
            self._write(pc.binary_join(whole, b"\n")[0].as_buffer(), b"\n")

    def _write(self, *data: bytes | pa.Buffer) -> None:
        try:
            sys.stdout.flush()
            for part in data:
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        except BaseException:
            # Not all of it was shown, so the group must get it again.
            self._consumer.hold_auto_commit()
            raise

    def _count(self, shown: int) -> None:
        if self._left is not None:
            self._left -= shown

    async def _check_silence(self) -> None:
        """Fails if fetches are no longer answered: brokers answer even if there are no records."""
        heard = self._consumer.metrics().fetches
        now = self._clock.monotonic()
        reading = self._consumer.assignment()
        if heard == self._heard and reading and now - self._heard_at > self._silence_s:
            # Raises if the topic is gone or no broker answers, unless the problem has just passed.
            for topic in {topic_partition.topic for topic_partition in reading}:
                await self._consumer.partitions_for(topic)
        elif heard == self._heard and reading:
            return
        self._heard, self._heard_at = heard, now

    async def _go_on(self) -> None:
        """Moves positions that are out of range to the nearest offset of the log.

        If the next records were deleted, reading continues at the oldest record. If the position
        is beyond the end, because the topic was created again, reading continues at the end.
        """
        consumer = self._consumer
        positions = consumer.positions()
        starts = await consumer.beginning_offsets(positions)
        ends = await consumer.end_offsets(positions)
        for topic_partition, position in positions.items():
            nearest = min(max(position.offset, starts[topic_partition]), ends[topic_partition])
            if nearest != position.offset:
                sys.stderr.write(
                    f"penstock: offset {position.offset} of {printable(str(topic_partition))} is "
                    f"not in the log; continuing at {nearest}\n"
                )
                consumer.seek(topic_partition, nearest)
