"""The bytes on disk are Kafka's: every file is parsed here by hand, without Penstock's code.

Only `struct`, a CRC and Kafka's documented layouts are used, so that an error shared by Penstock's
writer and reader cannot hide. `tests/compat` runs Kafka's own tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import iter_unpack, unpack, unpack_from
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c

from .sample_log import PRODUCER_ID, START_MS, TOPIC_ID, SampleLog, sample_records, stopped_log

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Batch(NamedTuple):
    position: int
    base_offset: int
    length: int
    epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    payload: bytes

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleLog:
    return stopped_log(str(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def home(sample: SampleLog) -> Path:
    return Path(sample.directory)


def batches(path: Path) -> list[Batch]:
    data = path.read_bytes()
    found, position = [], 0
    while position < len(data):
        fields = unpack_from(">qiibIhiqqqhii", data, position)
        end = position + 12 + fields[1]
        assert crc32c(data[position + 21 : end]) == fields[4]
        found.append(Batch._make((position, *fields, data[position + 61 : end])))
        position = end
    assert position == len(data)
    return found


def varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def counted(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def plain_records(payload: bytes, count: int) -> Iterator[tuple[Any, ...]]:
    """Yields timestamp delta, offset delta, key, value and headers of uncompressed records."""
    position = 0
    for _ in range(count):
        length, position = varint(payload, position)
        end = position + length
        assert payload[position] == 0
        timestamp, position = varint(payload, position + 1)
        offset, position = varint(payload, position)
        key, position = counted(payload, position)
        value, position = counted(payload, position)
        number, position = varint(payload, position)
        headers = []
        for _ in range(number):
            name, position = counted(payload, position)
            data, position = counted(payload, position)
            assert name is not None
            headers.append((name.decode(), data))
        assert position == end
        yield timestamp, offset, key, value, tuple(headers)
    assert position == len(payload)


def all_batches(home: Path) -> list[Batch]:
    return [batch for path in sorted(home.glob("*.log")) for batch in batches(path)]


def test_a_log_file_is_a_sequence_of_version_2_batches(home: Path) -> None:
    """Offsets start at the file's name and have no gaps, and the fields are as they were
    appended."""
    expected = 0
    for path in sorted(home.glob("*.log")):
        assert len(path.stem) == 20
        assert int(path.stem) == expected
        for batch in batches(path):
            assert batch.base_offset == expected
            assert batch.magic == 2
            assert batch.last_delta == batch.record_count - 1
            assert batch.producer_id == PRODUCER_ID
            expected = batch.last_offset + 1
    data = [batch for batch in all_batches(home) if not batch.attributes & 0x20]
    sequence = 0
    for number, batch in enumerate(data):
        assert CODECS[batch.attributes & 7] == CODECS[number % 5]
        assert batch.attributes & ~7 == 0x10
        assert batch.record_count == number % 5 + 1
        assert batch.epoch == number // 20
        assert batch.base_sequence == sequence
        assert batch.base_timestamp == START_MS + 10 * number
        assert batch.max_timestamp == START_MS + 10 * number + batch.last_delta
        sequence += batch.record_count


def test_records_and_markers_have_kafkas_layout(home: Path) -> None:
    """Deltas, nulls, headers and commit markers, read from the uncompressed batches."""
    seen = markers = 0
    number = -1
    for batch in all_batches(home):
        if batch.attributes & 0x20:
            ((_, _, key, value, headers),) = plain_records(batch.payload, 1)
            assert unpack(">hh", key) == (0, 1)
            assert unpack(">hi", value) == (0, 4)
            assert (headers, batch.base_sequence) == ((), -1)
            markers += 1
            continue
        number += 1
        if batch.attributes & 7 == 0:
            expected = [
                (at, at, record.key, record.value, record.headers)
                for at, record in enumerate(sample_records(number))
            ]
            assert list(plain_records(batch.payload, batch.record_count)) == expected
            seen += 1
    assert (seen, markers) == (12, 3)


def test_an_offset_index_entry_is_relative_last_offset_and_position(home: Path) -> None:
    """8 bytes, big-endian, increasing, about one for each index interval."""
    total = 0
    for path in (log.with_suffix(".index") for log in home.glob("*.log")):
        base = int(path.stem)
        placed = {batch.position: batch for batch in batches(path.with_suffix(".log"))}
        entries = list(iter_unpack(">ii", path.read_bytes()))
        assert entries == sorted(set(entries))
        for relative, position in entries:
            assert placed[position].last_offset == base + relative
        total += len(entries)
    assert total > 10


def test_a_time_index_entry_is_the_latest_timestamp_and_its_offset(home: Path) -> None:
    """12 bytes, increasing. The last entry of a closed segment is the latest of the segment."""
    for log in sorted(home.glob("*.log")):
        base = int(log.stem)
        entries = list(iter_unpack(">qi", log.with_suffix(".timeindex").read_bytes()))
        assert entries == sorted(set(entries))
        latest = -1
        brought = {}
        for batch in batches(log):
            if batch.max_timestamp > latest:
                latest = batch.max_timestamp
                brought[latest] = batch.last_offset - base
        assert entries[-1][0] == latest
        for timestamp, relative in entries:
            assert brought[timestamp] == relative


def test_a_snapshot_is_version_crc_and_entries(sample: SampleLog, home: Path) -> None:
    """There is one at each segment's start and one at the end. The CRC covers everything after
    it."""
    names = {int(path.stem) for path in home.glob("*.snapshot")}
    assert names == {segment.base_offset for segment in sample.log.segments[1:]} | {
        sample.log.end_offset
    }
    for path in home.glob("*.snapshot"):
        data = path.read_bytes()
        version, crc, count = unpack_from(">hIi", data)
        assert version == 1
        assert crc == crc32c(data[6:])
        entries = list(iter_unpack(">qhiqiqiq", data[10 : 10 + 46 * count]))
        assert len(entries) == count
        assert len(data) == 10 + 46 * count + 8, "then the time of its one producer's last append"
        below = [batch for batch in all_batches(home) if batch.last_offset < int(path.stem)]
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator, _ = entries[-1]
        last = [batch for batch in below if not batch.attributes & 0x20][-1]
        assert (producer_id, epoch) == (PRODUCER_ID, 0)
        assert sequence == last.base_sequence + last.last_delta
        assert (offset, delta) == (last.last_offset, last.last_delta)
        assert timestamp == below[-1].max_timestamp, "a marker counts too"
        assert coordinator == (4 if any(batch.attributes & 0x20 for batch in below) else -1)
    final = home / f"{sample.log.end_offset:020d}.snapshot"
    assert unpack(">q", final.read_bytes()[-16:-8]) == (-1,), "no transaction is open at the end"


def test_the_leader_epoch_checkpoint_is_text(home: Path) -> None:
    """Version, count, then one line with epoch and start offset for each epoch."""
    starts: dict[int, int] = {}
    for batch in all_batches(home):
        starts.setdefault(batch.epoch, batch.base_offset)
    lines = "".join(f"{epoch} {start}\n" for epoch, start in starts.items())
    assert (home / "leader-epoch-checkpoint").read_text() == f"0\n3\n{lines}"


def test_partition_metadata_is_text(home: Path) -> None:
    """Version and topic id, as Kafka writes them."""
    assert (home / "partition.metadata").read_text() == f"version: 0\ntopic_id: {TOPIC_ID}"
