"""Passes lines to the producer, and counts what the cluster acknowledged.

Many lines at once are sent as a table, a few as records. A table costs less per line, but loading
pyarrow takes as long as sending a few thousand records. The producer keeps the order within a
partition in both cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.output import printable
from penstock.cli.produce_input import BadLine, InputRecord, parse_json_line, split_key
from penstock.client.errors import ClientError
from penstock.client.model import RecordMetadata

if TYPE_CHECKING:
    from penstock.client.producing.producer import Producer
    from penstock.client.producing.tables import TableMetadata

_TABLE_LINES_MIN: Final = 2_000


class Tally:
    """Counts what the cluster has acknowledged, and keeps the first error."""

    def __init__(self) -> None:
        self.records = 0
        self.payload_bytes = 0
        """Bytes of keys, values and headers."""
        self.partitions: dict[int, tuple[int, int]] = {}
        """Partition -> first offset written, offset after the last one; empty with acks=0."""
        self.failure: ClientError | None = None

    def on_record(
        self, size: int, metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        if metadata is None:
            self.failure = self.failure or error
            return
        self.records += 1
        self.payload_bytes += size
        self._extend(metadata.partition, metadata.offset, metadata.offset)

    def on_table(
        self, size: int, metadata: TableMetadata | None, error: ClientError | None
    ) -> None:
        if metadata is None:
            self.failure = self.failure or error
            return
        self.records += metadata.records
        self.payload_bytes += size
        for partition, ranges in metadata.ranges.items():
            for written in ranges:
                self._extend(partition, written.first, written.last)

    def check(self) -> None:
        """Raises the first error, if there was one: the remaining records would fail as well."""
        if self.failure is not None:
            raise self.failure

    def _extend(self, partition: int, first: int, last: int) -> None:
        if first >= 0:
            earliest, after = self.partitions.get(partition, (first, 0))
            self.partitions[partition] = min(earliest, first), max(after, last + 1)


class Feed:
    """Passes lines to the producer as records. Counts lines, for error messages."""

    def __init__(
        self,
        topic: str,
        separator: bytes | None,
        as_json: bool,
        partition: int | None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        """`headers` are added to those of each line."""
        self.tally = Tally()
        self.topic = topic
        self._separator = separator
        self._as_json = as_json
        self._partition = partition
        self._headers = headers
        self._number = 0

    async def send(self, producer: Producer[Any, Any], lines: list[bytes]) -> None:
        self.tally.check()
        in_table = 0
        if not self._as_json and not self._headers and len(lines) >= _TABLE_LINES_MIN:
            in_table = await self._send_table(producer, lines)
        for line in lines[in_table:] if in_table else lines:
            await self._send_line(producer, line)

    async def _send_line(self, producer: Producer[Any, Any], line: bytes) -> None:
        self._number += 1
        if self._as_json and not line.strip():
            return
        record = self._parse(line)
        size = len(record.key or b"") + len(record.value or b"")
        headers = (*record.headers, *self._headers)
        size += sum(len(name) + len(data or b"") for name, data in headers)
        await producer.send(
            self.topic,
            record.value,
            key=record.key,
            headers=headers,
            partition=self._partition if record.partition is None else record.partition,
            timestamp_ms=record.timestamp,
            on_delivery=partial(self.tally.on_record, size),
        )

    async def _send_table(self, producer: Producer[Any, Any], lines: list[bytes]) -> int:
        """Sends the lines before the first one without a separator, and returns their number."""
        import pyarrow as pa  # noqa: PLC0415 -- slow to load, and not needed for a few lines
        import pyarrow.compute as pc  # noqa: PLC0415 -- only when used

        keys: Sequence[bytes] = ()
        values: Sequence[bytes] = lines
        if self._separator is not None:
            parts = [line.partition(self._separator) for line in lines]
            good = next((at for at, part in enumerate(parts) if not part[1]), len(parts))
            keys = [part[0] for part in parts[:good]]
            values = [part[2] for part in parts[:good]]
        if not values:
            return 0
        columns: dict[str, Any] = {"value": pa.array(values, pa.binary())}
        if keys:
            columns["key"] = pa.array(keys, pa.binary())
        size = sum(pc.sum(pc.binary_length(column)).as_py() for column in columns.values())
        if self._partition is not None:
            columns["partition"] = pa.repeat(pa.scalar(self._partition, pa.int32()), len(values))
        delivery = await producer.send_table(self.topic, pa.table(columns))
        delivery.add_callback(partial(self.tally.on_table, size))
        self._number += len(values)
        return len(values)

    def _parse(self, line: bytes) -> InputRecord:
        try:
            if self._as_json:
                return parse_json_line(line)
            if self._separator is not None:
                return split_key(line, self._separator)
        except BadLine as error:
            raise BadLine(f"line {self._number}: {printable(str(error))}") from error
        return InputRecord(None, line)
