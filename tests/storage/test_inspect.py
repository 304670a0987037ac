"""Reading the files of a log: what each one is, what it contains, and where it is damaged."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from penstock.partition.epochs import EpochStart
from penstock.records.batch import BatchHeader
from penstock.records.record import Record, read_records
from penstock.storage.errors import CorruptFile
from penstock.storage.inspect import (
    BadRange,
    BatchAt,
    Content,
    FileKind,
    classify,
    find_logs,
    list_files,
    read_batches,
    read_checkpoint,
    read_epochs,
    read_offset_index,
    read_snapshot,
    read_time_index,
    read_topic_id,
)
from penstock.storage.readonly import ReadOnlyDisk

from .sample_log import PRODUCER_ID, TOPIC_ID, SampleLog, stopped_log

DISK = ReadOnlyDisk()
STEM = f"{42:020d}"


@pytest.fixture
def sample(tmp_path: Path) -> SampleLog:
    return stopped_log(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{STEM}.log", FileKind(Content.BATCHES, 42)),
        (f"{STEM}.index", FileKind(Content.OFFSET_INDEX, 42)),
        (f"{STEM}.timeindex", FileKind(Content.TIME_INDEX, 42)),
        (f"{STEM}.snapshot", FileKind(Content.PRODUCERS, 42)),
        ("leader-epoch-checkpoint", FileKind(Content.EPOCHS)),
        ("partition.metadata", FileKind(Content.PARTITION)),
        ("penstock-checkpoint", FileKind(Content.CHECKPOINT)),
        (f"{STEM}.log.deleted", FileKind(Content.BATCHES, 42, ".deleted")),
        (f"{STEM}.index.deleted", FileKind(Content.OFFSET_INDEX, 42, ".deleted")),
        (f"{STEM}-{99:020d}.swap", FileKind(Content.BATCHES, 42, ".swap")),
        (f"{STEM}-{99:020d}.cleaned", FileKind(Content.BATCHES, 42, ".cleaned")),
        ("penstock-checkpoint.tmp", FileKind(Content.CHECKPOINT, 0, ".tmp")),
        ("anything.tmp", FileKind(None, 0, ".tmp")),
        ("42.log", FileKind(None)),
        ("meta.properties", FileKind(None)),
    ],
)
def test_a_name_says_what_a_file_is(name: str, kind: FileKind) -> None:
    """Segments, small files, and leftovers of an interrupted operation."""
    assert classify(name) == kind


def read_all(sample: SampleLog) -> list[tuple[BatchHeader, list[Record]]]:
    read = []
    for entry in list_files(DISK, sample.directory):
        if entry.kind.content == Content.BATCHES:
            path = f"{sample.directory}/{entry.name}"
            for item in read_batches(DISK, path, entry.kind.base_offset):
                assert isinstance(item, BatchAt)
                read.append((item.header, read_records(item.data, item.header)))
    return read


def test_batches_are_read_as_they_were_appended(sample: SampleLog) -> None:
    """Headers and records of all segments."""
    assert read_all(sample) == sample.batches


def test_a_walk_covers_every_byte_and_skips_bad_ranges(sample: SampleLog) -> None:
    """A bad range has the offset that was expected there. Valid batches after it are read."""
    path = Path(f"{sample.directory}/{0:020d}.log")
    data = bytearray(path.read_bytes())
    first, second = sample.batches[0][0].size, sample.batches[1][0].size
    data[first + 70] ^= 1
    path.write_bytes(data + b"\x00\x00")
    items = list(read_batches(DISK, str(path), 0))
    position = 0
    for item in items:
        assert item.position == position
        position = item.end if isinstance(item, BadRange) else position + item.header.size
    assert position == len(data) + 2
    bad = [item for item in items if isinstance(item, BadRange)]
    assert [(item.position, item.end) for item in bad] == [
        (first, first + second),
        (len(data), len(data) + 2),
    ]
    assert bad[0].expected == sample.batches[1][0].base_offset
    assert "CRC" in bad[0].reason


def test_index_entries_have_absolute_offsets(sample: SampleLog) -> None:
    """An entry is a batch's last offset and its position, or the latest timestamp so far."""
    base = sample.log.segments[1].base_offset
    stem = f"{sample.directory}/{base:020d}"
    placed = {
        item.header.last_offset: item
        for item in read_batches(DISK, f"{stem}.log", base)
        if isinstance(item, BatchAt)
    }
    index = read_offset_index(DISK, f"{stem}.index", base)
    times = read_time_index(DISK, f"{stem}.timeindex", base)
    assert index is not None
    assert times is not None
    assert len(index.entries) > 2
    assert len(times.entries) > 2
    for entry in index.entries:
        assert placed[entry.offset].position == entry.position
    for timed in times.entries:
        assert placed[timed.offset].header.max_timestamp == timed.timestamp
    assert (index.padding_entries, index.ragged_bytes) == (0, 0)


def test_padding_and_extra_bytes_after_the_entries_are_distinguished(tmp_path: Path) -> None:
    """Padding consists of whole entries of zeros. Extra bytes are not an entry."""
    path = tmp_path / "x.index"
    path.write_bytes(pack(">iiiiii", 3, 70, 0, 0, 0, 0) + b"abc")
    index = read_offset_index(DISK, str(path), 10)
    assert index is not None
    assert index.entries == ((13, 70),)
    assert (index.padding_entries, index.ragged_bytes) == (2, 3)
    path.write_bytes(pack(">qiqi", 5, 3, 0, 0))
    times = read_time_index(DISK, str(path), 10)
    assert times is not None
    assert (times.entries, times.padding_entries) == (((5, 13),), 1)
    path.write_bytes(pack(">qi", 0, 0))
    times = read_time_index(DISK, str(path), 10)
    assert times is not None
    assert (times.entries, times.padding_entries) == (((0, 10),), 0)


def test_small_files_are_read(sample: SampleLog) -> None:
    """Producers, epochs, topic id and checkpoint are as the log had them."""
    home, log = sample.directory, sample.log
    producers = read_snapshot(DISK, f"{home}/{log.end_offset:020d}.snapshot")
    assert producers is not None
    assert {entry.producer_id for entry in producers} == {PRODUCER_ID}
    assert producers[-1].last_sequence == sample.sequence - 1
    starts: dict[int, int] = {}
    for header, _ in sample.batches:
        starts.setdefault(header.leader_epoch, header.base_offset)
    assert read_epochs(DISK, f"{home}/leader-epoch-checkpoint") == [
        EpochStart(*item) for item in starts.items()
    ]
    assert read_topic_id(DISK, f"{home}/partition.metadata") == TOPIC_ID
    checkpoint = read_checkpoint(DISK, f"{home}/penstock-checkpoint")
    assert checkpoint is not None
    assert checkpoint.recovery_point == log.end_offset


def test_missing_files_are_none(tmp_path: Path) -> None:
    """A missing file is not damage. The caller knows whether it matters."""
    path = str(tmp_path / "missing")
    assert read_offset_index(DISK, path, 0) is None
    assert read_time_index(DISK, path, 0) is None
    assert read_snapshot(DISK, path) is None
    assert read_epochs(DISK, path) is None
    assert read_checkpoint(DISK, path) is None
    assert read_topic_id(DISK, path) is None


def test_a_bad_snapshot_is_a_corrupt_file(tmp_path: Path) -> None:
    """Like every other small file that fails its own check."""
    path = tmp_path / "x.snapshot"
    path.write_bytes(b"\x00\x01" + b"\x00" * 8)
    with pytest.raises(CorruptFile, match="CRC"):
        read_snapshot(DISK, str(path))


def test_logs_are_found_by_their_contents(tmp_path: Path) -> None:
    """A directory's name proves nothing: `broker-1` looks like a partition."""
    root = tmp_path / "broker-1"
    root.mkdir()
    stopped_log(str(root))
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "file").write_bytes(b"")
    assert find_logs(DISK, str(tmp_path)) == [f"{root}/orders-0"]
    assert find_logs(DISK, f"{root}/orders-0") == [f"{root}/orders-0"]
    assert find_logs(DISK, str(tmp_path / "empty-0")) == []
