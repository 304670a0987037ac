"""Replaces the topics that a definition reads by the rows of a test.

While a test runs its pipeline, `spark.readStream.format("penstock")` and `spark.read` with that
format give Spark's own file source. Its files hold the given records, decoded by the same code as
in a real run, in the columns of a real source. So Spark starts no Python process, which would take
most of the time of a test. All records that were given since the last run are one file, and so one
micro-batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from penstock.spark.bad_records import BadRecords
from penstock.spark.client_options import check_client
from penstock.spark.formats import avro_codec
from penstock.spark.offsets import EARLIEST_MARK, LATEST_MARK, Span
from penstock.spark.options import Bound, SourceOptions, TopicChoice, parse_source
from penstock.spark.reading import Shaper
from penstock.spark.schema import source_ddl
from penstock.testing.pipelines.failures import PipelineTestFailed
from penstock.testing.pipelines.records import GivenRecord, Topics, to_bytes
from penstock.topic_partition import TopicPartition

FORMAT: Final = "penstock"
_READERS: Final[tuple[type[Any], ...]] = (DataFrameReader, DataStreamReader)
_FETCHED: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestamp_type", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of records as the client fetches them."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that the pipeline would have sent."""

    key: Any
    value: Any
    headers: Any = None
    partition: int | None = None
    timestamp: Any = None


@dataclass(slots=True)
class Outbox:
    """Collects what would have been sent. Takes the place of the producer of dead letters."""

    records: dict[str, list[Sent]] = field(default_factory=dict)

    def send(self, topic: str, value: Any, *, key: Any = None, headers: Any = ()) -> _Delivered:
        self.add(topic, Sent(key, value, [{"key": name, "value": text} for name, text in headers]))
        return _Delivered()

    def add(self, topic: str, sent: Sent) -> None:
        self.records.setdefault(topic, []).append(sent)

    def flush(self, _timeout_s: float) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


class _Delivered:
    def result(self, _timeout_s: float) -> None:
        """The record was delivered when it was sent."""


@dataclass(slots=True)
class _Stream:
    folder: Path
    positions: dict[TopicPartition, int] | None = None
    """The next offset of each partition. None: not read yet."""
    files: int = 0


class Sources:
    """The sources of one pipeline in one test."""

    def __init__(
        self, topics: Topics, outbox: Outbox, folder: Path, *, from_start: bool = False
    ) -> None:
        """With `from_start`, streams read every record, whatever their options say."""
        self.read_topics: set[str] = set()
        """Topics that a definition reads."""
        self._from_start = from_start
        self._topics = topics
        self._outbox = outbox
        self._folder = folder
        self._streams: dict[str, _Stream] = {}
        self._batch_reads = 0

    @contextmanager
    def in_place(self, session: SparkSession) -> Iterator[None]:
        """Replaces sources in the block."""
        before = {
            (reader, name): getattr(reader, name)
            for reader in _READERS
            for name in ("format", "option", "options", "load")
        }
        for reader in _READERS:
            load = partial(self._load, session, reader is DataStreamReader)
            for name, method in _recording(before, reader, load).items():
                setattr(reader, name, method)
        try:
            yield
        finally:
            for (reader, name), method in before.items():
                setattr(reader, name, method)

    def _load(self, session: SparkSession, streaming: bool, given: Mapping[str, str]) -> Any:
        options = parse_source(given, streaming=streaming)
        check_client(options)
        schema = cast("StructType", StructType.fromDDL(source_ddl(options)))
        if not streaming:
            self._batch_reads += 1
            folder = self._folder / f"batch-read-{self._batch_reads}"
            self._write(folder / "rows.parquet", options, schema, self._bounded(options))
            return session.read.schema(schema).parquet(str(folder))
        name = repr(sorted((key.lower(), value) for key, value in given.items()))
        stream = self._streams.setdefault(name, _Stream(self._folder / f"s{len(self._streams)}"))
        self._add_new(stream, options, schema)
        return session.readStream.schema(schema).parquet(str(stream.folder))

    def _add_new(self, stream: _Stream, options: SourceOptions, schema: StructType) -> None:
        """Writes the records that are new to this stream, as one file."""
        stream.folder.mkdir(parents=True, exist_ok=True)
        chosen = self._chosen(options.topics)
        if stream.positions is None and not self._from_start:
            positions = {one: self._offset(options.starting, one) for one in chosen}
        elif stream.positions is None:
            positions = dict.fromkeys(chosen, 0)
        else:
            positions = {one: stream.positions.get(one, 0) for one in chosen}
        spans = {one: self._topics.of(one)[start:] for one, start in positions.items()}
        if any(spans.values()):
            stream.files += 1
            path = stream.folder / f"{stream.files:06}.parquet"
            self._write(path, options, schema, spans)
        stream.positions = {one: len(self._topics.of(one)) for one in chosen}

    def _bounded(self, options: SourceOptions) -> dict[TopicPartition, Any]:
        return {
            one: self._topics.of(one)[
                self._offset(options.starting, one) : self._offset(options.ending, one)
            ]
            for one in self._chosen(options.topics)
        }

    def _offset(self, bound: Bound, topic_partition: TopicPartition) -> int:
        records = self._topics.of(topic_partition)
        if bound.kind == "earliest":
            return 0
        if bound.kind in ("timestamp", "timestamps"):
            least_ms = bound.numbers.get(topic_partition, bound.timestamp_ms)
            later = [one.offset for one in records if one.timestamp_ms >= least_ms]
            return min(later, default=len(records))
        number = bound.numbers.get(topic_partition, LATEST_MARK)
        return {LATEST_MARK: len(records), EARLIEST_MARK: 0}.get(number, number)

    def _chosen(self, choice: TopicChoice) -> list[TopicPartition]:
        known = self._topics.names()
        if choice.partitions:
            names = sorted({one.topic for one in choice.partitions})
        elif choice.pattern:
            names = [name for name in known if re.fullmatch(choice.pattern, name)]
        else:
            names = list(choice.names)
        if missing := [name for name in names if name not in known]:
            raise PipelineTestFailed(
                f"the pipeline reads the topic {', '.join(missing)}, but the test has no "
                "records for it: "
                "call given(topic, rows) before run(), or add the topic to spark.penstock.topics "
                "in the project file"
            )
        self.read_topics.update(names)
        if choice.partitions:
            return list(choice.partitions)
        return [one for name in names for one in self._topics.topic_partitions(name)]

    def _write(
        self,
        path: Path,
        options: SourceOptions,
        schema: StructType,
        spans: Mapping[TopicPartition, Any],
    ) -> None:
        arrow = to_arrow_schema(schema, timezone="UTC")
        shaped = []
        for topic_partition, records in spans.items():
            if not records:
                continue
            span = Span(*topic_partition, records[0].offset, records[-1].offset + 1)
            bad = BadRecords(options, span, producer=cast("Any", self._outbox))
            shaper = Shaper(options, arrow, span, bad)
            shaped.append(shaper.shape(_fetched(options, records)))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_batches(shaped, arrow), path)


def _fetched(options: SourceOptions, records: list[GivenRecord]) -> pa.RecordBatch:
    formats = options.formats
    columns = {
        "key": [
            to_bytes(one.key, _avro(formats.key, formats.key_schema, formats.key_schema_id))
            for one in records
        ],
        "value": [
            to_bytes(one.value, _avro(formats.value, formats.value_schema, formats.value_schema_id))
            for one in records
        ],
        "partition": [one.partition for one in records],
        "offset": [one.offset for one in records],
        "timestamp": [one.timestamp_ms for one in records],
        "timestamp_type": [0] * len(records),
        "headers": [
            [{"key": name, "value": value} for name, value in one.headers] for one in records
        ],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in _FETCHED], schema=_FETCHED
    )


def _avro(kind: str, schema: str, schema_id: int | None) -> Callable[[Any], bytes] | None:
    return avro_codec(schema, schema_id).serialize if kind == "avro" else None


def _recording(
    before: Mapping[tuple[type[Any], str], Any],
    reader: type[Any],
    load: Callable[[Mapping[str, str]], Any],
) -> dict[str, Any]:
    """Returns methods that remember format and options, and call `load` for this format."""

    def with_format(self: Any, source: str) -> Any:
        self._penstock_format = source
        return before[reader, "format"](self, source)

    def with_option(self: Any, key: str, value: Any) -> Any:
        return with_options(self, **{key: value})

    def with_options(self: Any, **options: Any) -> Any:
        given = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
            if value is not None
        }
        self._penstock_options = {**getattr(self, "_penstock_options", {}), **given}
        return before[reader, "options"](self, **options)

    def loaded(
        self: Any,
        path: Any = None,
        format: Any = None,  # noqa: A002 -- Spark's name
        schema: Any = None,
        **options: Any,
    ) -> Any:
        if (format or getattr(self, "_penstock_format", None)) != FORMAT:
            return before[reader, "load"](self, path, format, schema, **options)
        if schema is not None:
            raise PipelineTestFailed("leave out the schema: this source defines its own columns")
        return load(getattr(with_options(self, **options), "_penstock_options", {}))

    return {"format": with_format, "option": with_option, "options": with_options, "load": loaded}
