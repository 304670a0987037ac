"""Tests `penstock topic to-table` and `from-table` with a real broker.

Nothing is lost, and every mismatch is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import Admin, Consumer, Producer, TopicPartition
from penstock.cli.app import run
from penstock.cli.archive_files import (
    ArchiveWriter,
    BadArchive,
    Note,
    PartitionNote,
    count_rows,
    parquet_files,
    read_note,
)
from penstock.cli.topic_archive import Bound, parse_bound
from penstock.testing import Broker

DAY_MS = 86_400_000
FIRST_MS = 1_750_000_000_000


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Runner:
    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Ended:
        self._capture.readouterr()
        code = run(list(arguments))
        written = self._capture.readouterr()
        assert "Traceback" not in written.err
        return Ended(code, written.out, written.err)


@pytest.fixture
def penstock(
    capsys: pytest.CaptureFixture[str], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runner]:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap)
    yield Runner(capsys)


@pytest.fixture(scope="module")
def filled(broker: Broker, admin: Admin) -> str:
    """Three partitions, 1,000 records one second apart, with keys,
    headers, nulls and binary values."""
    topic = "archive-me"
    admin.create_topic(topic, 3, configs={"retention.ms": "-1"})
    with Producer(broker.bootstrap) as producer:
        for number in range(1_000):
            producer.send(
                topic,
                None if number % 50 == 0 else bytes([number % 256]) * (number % 20),
                key=None if number % 7 == 0 else f"k{number % 11}".encode(),
                headers=[("h", b"\xff"), ("n", None)] if number % 3 == 0 else [],
                partition=number % 3,
                timestamp_ms=FIRST_MS + 1_000 * number,
            )
    return topic


def content(broker: Broker, topic: str) -> list[tuple[Any, ...]]:
    """Returns everything that a replay keeps, in the order of each partition."""
    with Consumer(broker.bootstrap) as consumer:
        table = consumer.read_table(topic)
    columns = ("partition", "offset", "timestamp", "key", "value", "headers")
    return sorted(
        (tuple(row[name] for name in columns) for row in table.to_pylist()),
        key=lambda row: row[:2],
    )


def test_a_replay_with_partitions_recreates_the_topic(
    penstock: Runner, broker: Broker, filled: str, tmp_path: Path
) -> None:
    """Keys, values, nulls, headers, timestamps and partitions are restored, and counts agree."""
    path = str(tmp_path / "archive")
    archived = penstock("topic", "to-table", filled, path, "--json")
    assert archived.code == 0 and archived.json["records"] == 1_000
    assert archived.json["gaps"] == 0
    sent = penstock("topic", "from-table", path, "archive-copy", "--keep-partitions", "--json")
    assert sent.code == 0 and sent.json["records"] == 1_000
    assert "created topic archive-copy with 3 partitions" in sent.err
    assert content(broker, "archive-copy") == content(broker, filled)


def test_the_archive_is_a_table_for_any_parquet_reader(
    penstock: Runner, filled: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    assert penstock("topic", "to-table", filled, path).code == 0
    table = pq.read_table(path)
    assert table.num_rows == 1_000
    assert pc.sum(table.column("offset")).as_py() == sum(number // 3 for number in range(1_000))


def test_ranges_by_offset_and_by_time(penstock: Runner, filled: str, tmp_path: Path) -> None:
    """One offset for all partitions, one for each, times in milliseconds and as dates."""

    def archived(*words: str) -> Any:
        path = str(tmp_path / f"range{len(list(tmp_path.iterdir()))}")
        ended = penstock("topic", "to-table", filled, path, "--json", *words)
        assert ended.code == 0, ended.err
        assert pq.read_table(path).num_rows == ended.json["records"]
        return ended.json

    assert archived("--from", "10", "--to", "20")["records"] == 30
    assert archived("--from", "330")["records"] == 1_000 - 990
    assert archived("--from", "0:300,2:333")["records"] == 34 + 333 + 0
    since, until = FIRST_MS + 100_000, FIRST_MS + 200_000
    assert archived("--from", f"@{since}", "--to", f"@{until}")["records"] == 100
    assert archived("--from", "2025-06-15T15:08:20Z", "--to", f"@{until}")["records"] == 100
    assert archived("--from", "2030-01-01")["records"] == 0


def test_an_empty_range_is_a_table_without_rows(
    penstock: Runner, filled: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "empty")
    assert penstock("topic", "to-table", filled, path, "--from", "latest").code == 0
    assert "value" in pq.read_table(path).column_names
    sent = penstock("topic", "from-table", path, "archive-empty", "--json")
    assert sent.code == 0 and sent.json["records"] == 0


def test_records_deleted_at_the_start_of_the_log_are_not_gaps(
    penstock: Runner, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    """The range begins after them. A range that asks for deleted offsets is refused."""
    topic = "archive-cut"
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, str(number).encode())
    admin.delete_records({TopicPartition(topic, 0): 4})
    ended = penstock("topic", "to-table", topic, str(tmp_path / "cut"), "--json")
    assert ended.json["partitions"][0] == {
        "partition": 0,
        "first_offset": 4,
        "next_offset": 10,
        "records": 6,
        "gaps": 0,
    }
    refused = penstock("topic", "to-table", topic, str(tmp_path / "no"), "--from", "0:2")
    assert refused.code == 2
    assert "does not have offset 2: choose one from 4 to 10" in refused.err
    assert not (tmp_path / "no").exists()


def test_an_archive_that_lost_rows_is_not_replayed(
    penstock: Runner, admin: Admin, filled: str, tmp_path: Path
) -> None:
    """Its note has the number of rows: exit code 1, and nothing is written to the topic."""
    path = tmp_path / "damaged"
    assert penstock("topic", "to-table", filled, str(path)).code == 0
    file = next(iter(sorted(path.glob("*.parquet"))))
    pq.write_table(pq.read_table(file).slice(5), file)
    ended = penstock("topic", "from-table", str(path), "archive-damaged")
    assert ended.code == 1
    assert "the row counts do not match" in ended.err
    assert "archive-damaged" not in {topic.name for topic in admin.list_topics()}


def test_existing_files_are_not_overwritten(penstock: Runner, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    assert penstock("topic", "to-table", filled, str(path)).code == 0
    again = penstock("topic", "to-table", filled, str(path))
    assert again.code == 2 and "--overwrite" in again.err
    replaced = penstock("topic", "to-table", filled, str(path), "--overwrite", "--to", "1")
    assert replaced.code == 0 and pq.read_table(str(path)).num_rows == 3
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    assert penstock("topic", "to-table", filled, str(other), "--overwrite").code == 2
    assert (other / "mine.txt").read_text() == "mine"


def test_parquet_files_of_other_programs_can_be_replayed(
    penstock: Runner, broker: Broker, tmp_path: Path
) -> None:
    """Any table with a value column works. Without one it is refused, and
    the error lists the columns."""
    path = str(tmp_path / "plain.parquet")
    pq.write_table(pa.table({"value": ["a", "b"], "key": ["x", "y"], "more": [1, 2]}), path)
    assert penstock("topic", "from-table", path, "archive-plain").code == 0
    found = {(row[3], row[4]) for row in content(broker, "archive-plain")}
    assert found == {(b"x", b"a"), (b"y", b"b")}
    pq.write_table(pa.table({"values": ["a"]}), path)
    refused = penstock("topic", "from-table", path, "archive-plain")
    assert refused.code == 1 and "has no column named value (it has values)" in refused.err
    missing = penstock("topic", "from-table", str(tmp_path / "nowhere"), "archive-plain")
    assert missing.code == 1 and "does not exist" in missing.err


def test_too_few_partitions_are_reported_before_anything_is_sent(
    penstock: Runner, broker: Broker, admin: Admin, filled: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "archive")
    assert penstock("topic", "to-table", filled, path).code == 0
    admin.create_topic("archive-narrow", 2)
    refused = penstock("topic", "from-table", path, "archive-narrow", "--keep-partitions")
    assert refused.code == 2 and "has 2 partitions but the archive needs 3" in refused.err
    assert content(broker, "archive-narrow") == []
    by_key = penstock("topic", "from-table", path, "archive-narrow", "--timestamps", "now")
    assert by_key.code == 0 and len(content(broker, "archive-narrow")) == 1_000


def test_old_timestamps_with_short_retention_are_a_warning(
    penstock: Runner, admin: Admin, filled: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "archive")
    assert penstock("topic", "to-table", filled, path).code == 0
    admin.create_topic("archive-short", 1, configs={"retention.ms": str(DAY_MS)})
    warned = penstock("topic", "from-table", path, "archive-short")
    assert warned.code == 0
    assert "keeps records for 1 days, and some of these records are older" in warned.err


def test_an_unknown_topic_is_reported_in_one_line(penstock: Runner, tmp_path: Path) -> None:
    ended = penstock("topic", "to-table", "archive-nothing", str(tmp_path / "a"))
    assert ended.code == 1
    assert ended.err.count("\n") == 1 and "archive-nothing" in ended.err
    assert not (tmp_path / "a").exists()


def some_rows(partition: int, offsets: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"k"] * len(offsets), pa.binary()),
            "value": pa.array([b"value"] * len(offsets), pa.binary()),
        }
    )


def test_a_large_archive_has_many_files(tmp_path: Path) -> None:
    """A file is closed when it is full. Counts cover all files, and gaps are counted."""
    note = Note("t", 2, {0: PartitionNote(0, 100), 1: PartitionNote(5, 10)})
    path = str(tmp_path / "many")
    with ArchiveWriter(path, note, compression="none", file_bytes=1) as writer:
        for begin in range(0, 100, 10):
            writer.write(some_rows(0, list(range(begin, begin + 10))))
        writer.write(some_rows(1, [6, 9]))
        writer.finish(some_rows(0, []).schema)
    assert len(parquet_files(path)) == 11
    assert count_rows(path) == {0: 100, 1: 2}
    read = read_note(path)
    assert read is not None and read.records == 102 and read.gaps == 3


@pytest.mark.parametrize("offsets", [[3, 4], [5, 10], [4, 5, 6]])
def test_unexpected_offsets_abort_the_archive(tmp_path: Path, offsets: list[int]) -> None:
    """Repeated offsets, or offsets outside of the range. No file remains."""
    note = Note("t", 1, {0: PartitionNote(0, 10)})
    path = tmp_path / "wrong"
    with (
        pytest.raises(BadArchive, match="the archive is incomplete"),
        ArchiveWriter(str(path), note, compression="none", file_bytes=1 << 20) as writer,
    ):
        writer.write(some_rows(0, [0, 1, 4]))
        writer.write(some_rows(0, offsets))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound(mark="earliest")),
        ("1000", Bound(offset=1000)),
        ("0:10,2:5", Bound(offsets={0: 10, 2: 5})),
        ("@1700000000000", Bound(time_ms=1_700_000_000_000)),
        ("10m", Bound(time_ms=5_000_000 - 600_000)),
        ("1970-01-01T00:00:01Z", Bound(time_ms=1_000)),
    ],
)
def test_bounds_are_parsed(text: str, bound: Bound) -> None:
    assert parse_bound(text, "--from", 5_000_000) == bound
