"""Reads the result of each pipeline, and compares it with the records, one by one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock import Consumer

from .load import CLOSING, Row, decode
from .pipelines import WINDOW_MS

_BATCH = re.compile(r"(\d+)(\.compact)?")
SHOWN = 5


@dataclass
class Comparison:
    """How a result differs from what it must be."""

    rows: int = 0
    missing: int = 0
    duplicates: int = 0
    wrong: int = 0
    """Rows that must not be there at all, such as aggregates with wrong values."""
    examples: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.duplicates or self.wrong)


def compare(found: Iterable[Hashable], expected: Iterable[Hashable]) -> Comparison:
    """Compares two collections in which each row is expected once."""
    have, want = Counter(found), set(expected)
    missing = [row for row in want if row not in have]
    twice = [row for row, count in have.items() if count > 1 and row in want]
    wrong = [row for row in have if row not in want]
    shown = [
        *(f"missing: {row}" for row in missing[:SHOWN]),
        *(f"{have[row]} times: {row}" for row in twice[:SHOWN]),
        *(f"unexpected: {row}" for row in wrong[:SHOWN]),
    ]
    extra = sum(have[row] - 1 for row in twice)
    return Comparison(have.total(), len(missing), extra, len(wrong), shown)


# -- what must be there ----------------------------------------------------------------------------


def expected_windows(rows: Iterable[Row]) -> set[tuple[int, str, int, int]]:
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for row in rows:
        if row.key != CLOSING:
            place = row.at_ms // WINDOW_MS * WINDOW_MS, row.key
            count, total = found.get(place, (0, 0))
            found[place] = count + 1, total + row.number
    return {(start, key, *sums) for (start, key), sums in found.items()}


def expected_counts(rows: Iterable[Row]) -> set[tuple[str, int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        count, total = found.get(row.key, (0, 0))
        found[row.key] = count + 1, total + row.number
    return {(key, *sums) for key, sums in found.items()}


# -- what is there ---------------------------------------------------------------------------------


def topic_rows(bootstrap: str, topic: str, partitions: int) -> list[Row]:
    """Returns the committed records of a topic."""
    found: list[Row] = []
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        for partition in range(partitions):
            for batch in consumer.read_batches(topic, partitions=[partition]):
                keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
                found += map(decode, keys, values)
    return found


def table_files(folder: Path) -> list[Path]:
    """Returns the files that belong to a table: those in its log of batches, if it has one."""
    log = folder / "_spark_metadata"
    if not log.is_dir():
        return sorted(folder.glob("[!._]*.parquet"))
    batches: dict[int, Path] = {}
    compacted = -1
    for entry in log.iterdir():
        if named := _BATCH.fullmatch(entry.name):
            number = int(named[1])
            if named[2]:
                compacted = max(compacted, number)
            if named[2] or number not in batches:
                batches[number] = entry
    files: list[Path] = []
    for number in sorted(batches):
        if number >= compacted:
            for line in batches[number].read_text().splitlines()[1:]:
                files.append(folder / Path(json.loads(line)["path"]).name)
    return files


def table_rows(storage: Path, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Returns the rows of a table; none if it is not there yet."""
    found: list[tuple[Any, ...]] = []
    for folder in storage.glob(f"spark-warehouse/**/{table}"):
        for file in table_files(folder):
            content = pq.read_table(file, columns=list(columns)).to_pydict()
            found += zip(*(content[name] for name in columns), strict=True)
    return found
