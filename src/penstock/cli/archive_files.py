"""Reads and writes archives: a range of a topic as a folder of Parquet files, with a summary.

    orders/
      _penstock.json          the summary: requested range and records found, per partition
      records-00000.parquet   the records; those of a partition are in the order of their offsets
      records-00001.parquet

Programs that read Parquet folders (Spark, DuckDB, pandas, pyarrow) ignore names that begin with an
underscore, so they can read the folder as a table. The folder is written under a temporary name
and renamed when it is finished, so a folder with the right name is complete.

Records are counted twice, in different ways: as they arrive, and as rows in the finished files. An
archive whose files do not match its summary is refused before it is used.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NOTE_NAME: Final = "_penstock.json"
FORMAT: Final = 1
FILE_BYTES: Final = 256 << 20
"""The size of the records in memory. The compressed file is smaller."""
_BATCH_ROWS: Final = 65_536
_PARTIAL: Final = ".partial"


class BadArchive(Exception):
    """The folder cannot be used as an archive. The message says why."""


@dataclass(slots=True)
class PartitionNote:
    """The requested range of one partition, and the number of records found in it."""

    first_offset: int
    next_offset: int
    records: int = 0

    @property
    def gaps(self) -> int:
        """Offsets without a record: compaction removed it, or it is a transaction marker."""
        return self.next_offset - self.first_offset - self.records


@dataclass(slots=True)
class Note:
    topic: str
    partition_count: int
    """The number of partitions of the topic, even if not all of them were archived."""
    partitions: dict[int, PartitionNote] = field(default_factory=dict)
    payload_bytes: int = 0

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions.values())

    @property
    def gaps(self) -> int:
        return sum(each.gaps for each in self.partitions.values())

    def dump(self) -> str:
        found = {"format": FORMAT, "records": self.records, **asdict(self)}
        found["partitions"] = {
            str(number): asdict(each) for number, each in sorted(self.partitions.items())
        }
        return json.dumps(found, indent=2) + "\n"

    @classmethod
    def load(cls, text: str) -> Note:
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise BadArchive(
                    f"{NOTE_NAME} has format {found['format']}, which this version of "
                    "penstock does not know: use the version that wrote the archive"
                )
            return cls(
                found["topic"],
                found["partition_count"],
                {int(key): PartitionNote(**each) for key, each in found["partitions"].items()},
                found["payload_bytes"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadArchive(f"{NOTE_NAME} is damaged ({error}): archive the topic again") from None


def is_archive(path: str) -> bool:
    return (Path(path) / NOTE_NAME).is_file()


class ArchiveWriter:
    """Writes an archive. Use it as a context manager: it removes an unfinished archive on exit."""

    def __init__(self, path: str, note: Note, *, compression: str, file_bytes: int) -> None:
        self.note = note
        self._path = Path(path)
        self._partial = self._path.with_name(self._path.name + _PARTIAL)
        self._compression = compression
        self._file_bytes = file_bytes
        self._writer: pq.ParquetWriter | None = None
        self._written_bytes = 0
        self._files = 0
        self._last: dict[int, int] = {}

    def __enter__(self) -> ArchiveWriter:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._close_file()
        shutil.rmtree(self._partial, ignore_errors=True)

    def write(self, batch: pa.RecordBatch) -> None:
        self._count(batch)
        if self._writer is None:
            name = f"records-{self._files:05d}.parquet"
            self._files += 1
            self._writer = pq.ParquetWriter(
                str(self._partial / name), batch.schema, compression=self._compression
            )
        self._writer.write_batch(batch)
        self._written_bytes += batch.nbytes
        if self._written_bytes >= self._file_bytes:
            self._close_file()

    def finish(self, schema: pa.Schema) -> None:
        """Checks that the files have all records that were written, and renames the folder."""
        self._close_file()
        if not self._files:
            # Readers need the columns even if there are no rows.
            pq.write_table(schema.empty_table(), str(self._partial / "records-00000.parquet"))
        (self._partial / NOTE_NAME).write_text(self.note.dump(), "utf-8")
        check_counts(self.note, count_rows(str(self._partial)))
        if self._path.exists():
            shutil.rmtree(self._path)
        os.replace(self._partial, self._path)

    def _count(self, batch: pa.RecordBatch) -> None:
        for partition, rows in _rows_by_partition(batch):
            offsets = rows.column("offset")
            note = self.note.partitions[partition]
            first, last = offsets[0].as_py(), offsets[-1].as_py()
            after = self._last.get(partition, note.first_offset - 1)
            if not after < first <= last < note.next_offset:
                raise BadArchive(
                    f"partition {partition} returned offsets {first} to {last}, but offsets after "
                    f"{after} and below {note.next_offset} were expected: the archive is "
                    "incomplete, run the command again"
                )
            self._last[partition] = last
            note.records += len(rows)
        for name in ("key", "value"):
            self.note.payload_bytes += pc.sum(pc.binary_length(batch.column(name))).as_py() or 0

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._written_bytes = 0


def _rows_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    column = batch.column("partition")
    partitions = pc.unique(column).to_pylist()
    for partition in partitions:
        rows = batch if len(partitions) == 1 else batch.filter(pc.equal(column, partition))
        yield partition, rows


def parquet_files(path: str) -> list[str]:
    """Returns the Parquet files at `path`: the file itself, or those in the folder."""
    given = Path(path)
    if given.is_file():
        return [path]
    if not given.is_dir():
        raise BadArchive(
            f"{path} does not exist: give a folder that to-table wrote, or a Parquet file"
        )
    found = sorted(
        str(each)
        for each in given.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in each.relative_to(given).parts)
    )
    if not found:
        raise BadArchive(f"{path} contains no Parquet files: give a folder that to-table wrote")
    return found


def read_note(path: str) -> Note | None:
    """Returns the summary of an archive; None for Parquet that `to-table` did not write."""
    if not is_archive(path):
        return None
    return Note.load((Path(path) / NOTE_NAME).read_text("utf-8"))


def count_rows(path: str) -> dict[int, int]:
    """Returns the number of rows per partition, counted in the files."""
    found: dict[int, int] = {}
    for file in parquet_files(path):
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_BATCH_ROWS, columns=["partition"]):
                for each in pc.value_counts(batch.column(0)).to_pylist():
                    found[each["values"]] = found.get(each["values"], 0) + each["counts"]
    return found


def total_rows(path: str) -> int:
    total = 0
    for file in parquet_files(path):
        with pq.ParquetFile(file) as opened:
            total += opened.metadata.num_rows
    return total


def check_counts(note: Note, counted: Mapping[int, int]) -> None:
    wrong = [
        f"partition {number} has {counted.get(number, 0):,} rows in the files and "
        f"{each.records:,} records in {NOTE_NAME}"
        for number, each in sorted(note.partitions.items())
        if counted.get(number, 0) != each.records
    ]
    if wrong:
        raise BadArchive(
            f"the row counts do not match: {'; '.join(wrong)}: archive the topic again"
        )


def read_batches(path: str) -> Iterator[pa.RecordBatch]:
    for file in parquet_files(path):
        with pq.ParquetFile(file) as opened:
            yield from opened.iter_batches(_BATCH_ROWS)


def columns_of(path: str) -> dict[str, Any]:
    """Returns column -> Arrow type of the first file. All files must have the same columns."""
    files = parquet_files(path)
    try:
        schemas = [pq.read_schema(file) for file in files]
    except (pa.ArrowInvalid, OSError) as error:
        raise BadArchive(f"{path} cannot be read as Parquet: {error}") from None
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise BadArchive(
                f"{file} and {files[0]} have different columns: give the files of one table"
            )
    return {each.name: each.type for each in schemas[0]}
