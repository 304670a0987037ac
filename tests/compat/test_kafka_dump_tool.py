"""Kafka's own dump tool reads our files, and finds in them what we find.

The tool is the real `kafka.tools.DumpLogSegments`, downloaded like the Java clients. If it is not
available, the tests are skipped with the reason.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from compat.toolchain import java_class_path
from penstock.storage.inspect import (
    BatchAt,
    read_batches,
    read_offset_index,
    read_snapshot,
    read_time_index,
)
from penstock.storage.readonly import ReadOnlyDisk
from penstock.testing.slowness import patient
from storage.sample_log import SampleLog, stopped_log

KAFKA = "4.0.0"
TOOL = "kafka.tools.DumpLogSegments"
TOOL_TIMEOUT_S = 150
DISK = ReadOnlyDisk()

FAULTS = re.compile(
    r"mismatch|not found|out of order|corrupt|isvalid: false|exception|non-consecutive|"
    r"unexpected|invalid",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def class_path() -> str:
    return java_class_path(KAFKA, "kafka_2.13")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleLog:
    return stopped_log(str(tmp_path_factory.mktemp("data")))


def run_tool(class_path: str, paths: list[Path], *options: str) -> str:
    """Returns the output of the tool, after checking that it has no complaints."""
    command = ["java", "-cp", class_path, TOOL, *options, "--files", ",".join(map(str, paths))]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patient(TOOL_TIMEOUT_S)
    )
    assert result.returncode == 0, result.stderr
    # Problems with indexes go to stderr, with exit code 0; only the logging library may write
    # there.
    complaints = [line for line in result.stderr.splitlines() if not line.startswith("SLF4J:")]
    assert not complaints, "\n".join(complaints)
    for line in result.stdout.splitlines():
        # Payloads are ours and harmless; any other text may be a complaint.
        assert not FAULTS.search(line.partition(" payload: ")[0]), line
    return result.stdout


def segment_files(sample: SampleLog, suffix: str) -> list[Path]:
    return sorted(Path(sample.directory).glob(f"*{suffix}"))


def index_files(sample: SampleLog) -> list[Path]:
    """Returns all indexes. The tool needs an offset index, even an empty one, for a time index."""
    return segment_files(sample, ".index") + segment_files(sample, ".timeindex")


def numbers(pattern: str, text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, found)) for found in re.findall(pattern, text, re.MULTILINE)]


def sections(output: str) -> dict[Path, str]:
    """Returns the tool's output by file."""
    parts = re.split(r"^Dumping (.+)$", output, flags=re.MULTILINE)[1:]
    return {Path(name): text for name, text in zip(parts[::2], parts[1::2], strict=True)}


def our_batches(path: Path) -> list[BatchAt]:
    items = list(read_batches(DISK, str(path), int(path.stem)))
    found = [item for item in items if isinstance(item, BatchAt)]
    assert len(found) == len(items)
    return found


def test_the_tool_reads_every_batch_and_record(class_path: str, sample: SampleLog) -> None:
    """Offsets, positions, sizes, CRCs, codecs, producers, epochs, records, headers, markers."""
    logs = segment_files(sample, ".log")
    assert len(logs) > 3
    dumped = sections(run_tool(class_path, logs, "--deep-iteration", "--print-data-log"))
    assert list(dumped) == logs
    records = []
    for path, text in dumped.items():
        ours = our_batches(path)
        assert numbers(
            r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) "
            r"lastSequence: (-?\d+) producerId: (-?\d+) producerEpoch: (-?\d+) "
            r"partitionLeaderEpoch: (\d+) .*position: (\d+) CreateTime: (\d+) size: (\d+) "
            r"magic: (\d+) .*crc: (\d+) isvalid: true$",
            text,
        ) == [
            (
                *(header.base_offset, header.last_offset, header.record_count),
                *(header.base_sequence, header.last_sequence),
                *(header.producer_id, header.producer_epoch, header.leader_epoch),
                *(position, header.max_timestamp, header.size, header.magic, header.crc),
            )
            for position, header, _ in ours
        ]
        assert re.findall(r"isControl: (\w+) .*compresscodec: (\w+)", text) == [
            (str(item.header.is_control).lower(), item.header.codec.name.lower()) for item in ours
        ]
        records += re.findall(
            r"^\| offset: (\d+) CreateTime: (\d+) keySize: (-?\d+) valueSize: (-?\d+) "
            r"sequence: -?\d+ headerKeys: \[(.*?)\](.*)$",
            text,
            re.MULTILINE,
        )
    appended = [(header, record) for header, held in sample.batches for record in held]
    assert len(records) == len(appended)
    for shown, (header, record) in zip(records, appended, strict=True):
        offset, timestamp, key_size, value_size, names, rest = shown
        assert (int(offset), int(timestamp)) == (record.offset, record.timestamp)
        assert int(key_size) == (-1 if record.key is None else len(record.key))
        assert int(value_size) == (-1 if record.value is None else len(record.value))
        assert names == ",".join(name for name, _ in record.headers)
        if header.is_control:
            assert rest == " endTxnMarker: COMMIT coordinatorEpoch: 4"
        elif record.value is not None:
            assert rest.endswith(f" payload: {record.value.decode()}")


def test_the_tool_reads_every_index_entry(class_path: str, sample: SampleLog) -> None:
    """The same offsets, positions and timestamps; the tool compares each with the log."""
    entries = 0
    for path, text in sections(run_tool(class_path, index_files(sample))).items():
        base = int(path.stem)
        if path.suffix == ".index":
            index = read_offset_index(DISK, str(path), base)
            assert index is not None
            shown = numbers(r"^offset: (\d+) position: (\d+)$", text)
            assert shown == list(map(tuple, index.entries))
        else:
            times = read_time_index(DISK, str(path), base)
            assert times is not None
            shown = numbers(r"^timestamp: (\d+) offset: (\d+)$", text)
            assert shown == list(map(tuple, times.entries))
        entries += len(shown)
    assert entries > 20


@pytest.mark.parametrize("check", ["--verify-index-only", "--index-sanity-check"])
def test_the_tool_accepts_every_index(class_path: str, sample: SampleLog, check: str) -> None:
    paths = index_files(sample)
    output = run_tool(class_path, paths, check)
    for path in paths:
        assert f"Dumping {path}" in output
        if check == "--index-sanity-check":
            assert f"{path} passed sanity check." in output


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_the_tool_notices_a_wrong_index(
    class_path: str, sample: SampleLog, tmp_path: Path, suffix: str
) -> None:
    """An entry that is wrong by one is reported, so no complaint means agreement."""
    stem = segment_files(sample, ".index")[0].with_suffix("")
    for kind in (".log", ".index", ".timeindex"):
        shutil.copy(stem.with_suffix(kind), tmp_path)
    wrong = tmp_path / (stem.name + suffix)
    data = bytearray(wrong.read_bytes())
    data[3 if suffix == ".index" else 7] ^= 1
    wrong.write_bytes(data)
    with pytest.raises(AssertionError, match=r"(?i)mismatch"):
        run_tool(class_path, [wrong])


def test_the_tool_reads_every_producer_snapshot(class_path: str, sample: SampleLog) -> None:
    """Producers with their last batches and open transactions."""
    snapshots = segment_files(sample, ".snapshot")
    pattern = (
        r"^producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
        r"currentTxnFirstOffset: \S+ lastTimestamp: (\d+) firstSequence: (\d+) "
        r"lastSequence: (\d+) lastOffset: (\d+) offsetDelta: (\d+) timestamp: (\d+)$"
    )
    for path, text in sections(run_tool(class_path, snapshots)).items():
        ours = read_snapshot(DISK, str(path))
        assert ours
        assert numbers(pattern, text) == [
            (
                *(entry.producer_id, entry.epoch, entry.coordinator_epoch, entry.timestamp),
                *(entry.last_sequence - entry.offset_delta, entry.last_sequence),
                *(entry.last_offset, entry.offset_delta, entry.timestamp),
            )
            for entry in ours
        ]
        transactions = re.findall(r"currentTxnFirstOffset: OptionalLong(\S+)", text)
        assert transactions == [
            ".empty"
            if entry.current_transaction_first_offset < 0
            else f"[{entry.current_transaction_first_offset}]"
            for entry in ours
        ]
