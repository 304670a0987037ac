"""How fast are records encoded to batches, and batches decoded to Arrow, on one core?

Everything runs in one process, in turns, several times, and the best time of each contender counts:
on a shared machine the best run is the least disturbed one. The floor is a memcpy of as many bytes
as the values have, into memory that is already allocated. Both directions include the CRC.

kafka-python and aiokafka handle one record at a time, as their clients do: they take a list of
Python bytes and return Python objects. They get fewer records, and are compared per record. They
run uncompressed only: kafka-python needs an lz4 library that is not installed.

    python benchmarks/records.py [--json] [--smoke]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from penstock.records import kernels
from penstock.records.batch import Codec
from penstock.records.columnar import BatchOptions, decode, encode

NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Scale:
    value_bytes_total: int
    foreign_records: int
    rounds: int


FULL = Scale(value_bytes_total=32 << 20, foreign_records=5_000, rounds=15)
SMOKE = Scale(value_bytes_total=256 << 10, foreign_records=200, rounds=2)


@dataclass
class Contender:
    """One candidate: how many records and value bytes a run handles, and its best time."""

    name: str
    run: Callable[[], Any]
    records: int
    value_bytes: int
    best_seconds: float = field(default=float("inf"))

    def take_turn(self) -> None:
        started = perf_counter()
        result = self.run()
        self.best_seconds = min(self.best_seconds, perf_counter() - started)
        # Freed outside the measured time for all contenders: memcpy's target is never freed.
        del result

    @property
    def records_per_second(self) -> float:
        return self.records / self.best_seconds

    def report(self) -> dict[str, float]:
        return {
            "records_per_second": round(self.records_per_second),
            "megabytes_per_second": round(self.value_bytes / self.best_seconds / 1e6, 1),
        }


def make_values(count: int, value_bytes: int) -> list[bytes]:
    """Returns different values that compress about as well as text with numbers."""
    words = b" the quick brown fox jumps over the lazy dog and on to the next of its adventures"
    text = words * (value_bytes // len(words) + 2)
    return [
        (b"%d %x" % (index, index * 2654435761 % 2**32) + text[index % 80 :])[:value_bytes]
        for index in range(count)
    ]


def memcpy(name: str, values: pa.Array, value_bytes: int) -> Contender:
    source = memoryview(values.buffers()[2]).cast("B")
    target = memoryview(bytearray(len(source)))

    def run() -> None:
        target[:] = source

    return Contender(name, run, len(values), len(values) * value_bytes)


def columnar(name: str, values: pa.Array, value_bytes: int, codec: Codec) -> list[Contender]:
    rows = pa.record_batch({"value": values})
    options = BatchOptions(codec=codec)
    chunk = b"".join(encode(rows, options, now_ms=NOW_MS))
    if not decode(chunk).records.column("value").equals(values):
        raise AssertionError("what was decoded is not what was encoded")
    total = len(values) * value_bytes
    return [
        Contender(
            f"{name}.encode", lambda: encode(rows, options, now_ms=NOW_MS), len(values), total
        ),
        Contender(f"{name}.decode", lambda: decode(chunk), len(values), total),
    ]


def kafka_python(name: str, values: Sequence[bytes]) -> list[Contender]:
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

    def build() -> bytes:
        builder = MemoryRecordsBuilder(2, 0, 1 << 20)
        chunks = []
        for value in values:
            if builder.append(NOW_MS, None, value, []) is None:
                builder.close()
                chunks.append(builder.buffer())
                builder = MemoryRecordsBuilder(2, 0, 1 << 20)
                builder.append(NOW_MS, None, value, [])
        builder.close()
        return b"".join([*chunks, builder.buffer()])

    chunk = build()

    def read() -> list[Any]:
        records = MemoryRecords(chunk)
        found: list[Any] = []
        while records.has_next():
            batch = records.next_batch()
            batch.validate_crc()
            found.extend(batch)
        return found

    if [record.value for record in read()] != list(values):
        raise AssertionError("kafka-python read other values than it wrote")
    return foreign(name, build, read, values)


def aiokafka(name: str, values: Sequence[bytes]) -> list[Contender]:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder
    from aiokafka.record.memory_records import MemoryRecords

    def new_builder() -> Any:
        return DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)

    def build() -> bytes:
        builder = new_builder()
        chunks = []
        offset = 0
        for value in values:
            if builder.append(offset, NOW_MS, None, value, []) is None:
                chunks.append(bytes(builder.build()))
                builder, offset = new_builder(), 0
                builder.append(offset, NOW_MS, None, value, [])
            offset += 1
        return b"".join([*chunks, bytes(builder.build())])

    chunk = build()

    def read() -> list[Any]:
        records = MemoryRecords(chunk)
        found: list[Any] = []
        while records.has_next():
            batch = records.next_batch()
            if batch is None or not batch.validate_crc():
                raise AssertionError("aiokafka does not read what it wrote")
            found.extend(batch)
        return found

    if [record.value for record in read()] != list(values):
        raise AssertionError("aiokafka read other values than it wrote")
    return foreign(name, build, read, values)


def foreign(
    name: str, build: Callable[[], Any], read: Callable[[], Any], values: Sequence[bytes]
) -> list[Contender]:
    total = sum(map(len, values))
    return [
        Contender(f"{name}.encode", build, len(values), total),
        Contender(f"{name}.decode", read, len(values), total),
    ]


def case(value_bytes: int, codec: Codec, scale: Scale) -> dict[str, Any]:
    """Measures all contenders with values of one size and one codec."""
    values = make_values(scale.value_bytes_total // value_bytes, value_bytes)
    column = pa.array(values, pa.binary())
    few = values[: scale.foreign_records]
    contenders = [
        memcpy("memcpy", column, value_bytes),
        *columnar("penstock", column, value_bytes, codec),
    ]
    foreigners = ("kafka_python", "aiokafka") if codec == Codec.NONE else ()
    if foreigners:
        contenders += kafka_python("kafka_python", few) + aiokafka("aiokafka", few)
    for _ in range(scale.rounds):
        for contender in contenders:
            contender.take_turn()
    rate = {contender.name: contender.records_per_second for contender in contenders}
    report: dict[str, Any] = {contender.name: contender.report() for contender in contenders}
    for way in ("encode", "decode"):
        ours = rate[f"penstock.{way}"]
        report[f"{way}_vs_memcpy"] = round(ours / rate["memcpy"], 3)
        for other in foreigners:
            report[f"{way}_vs_{other}"] = round(ours / rate[f"{other}.{way}"], 1)
    return report


def show(cases: dict[str, dict[str, Any]]) -> None:
    console = Console()
    for name, report in cases.items():
        table = Table(title=f"values of {name}", title_justify="left")
        for heading in ("", "M records/s", "MB/s", "x memcpy", "x kafka-python", "x aiokafka"):
            table.add_column(heading, justify="left" if not heading else "right")
        for contender, numbers in report.items():
            if not isinstance(numbers, dict):
                continue
            way = contender.rpartition(".")[2]
            ours = contender.startswith("penstock")
            ratios = [f"{way}_vs_{other}" for other in ("memcpy", "kafka_python", "aiokafka")]
            table.add_row(
                contender,
                f"{numbers['records_per_second'] / 1e6:.3f}",
                f"{numbers['megabytes_per_second']:.0f}",
                *(str(report.get(ratio, "")) if ours else "" for ratio in ratios),
            )
        console.print(table)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run at all?")
    options = parser.parse_args(arguments)
    scale = SMOKE if options.smoke else FULL
    cases = {
        f"{value_bytes} bytes, {codec.name.lower()}": case(value_bytes, codec, scale)
        for codec in (Codec.NONE, Codec.LZ4)
        for value_bytes in (100, 1024)
    }
    if not options.json:
        show(cases)
        return
    first = next(iter(cases.values()))
    summary = {name: value for name, value in first.items() if not isinstance(value, dict)}
    print(
        json.dumps(
            {"benchmark": "records", "compiled": kernels.COMPILED, **summary, "cases": cases}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
