"""Verification tells a torn tail from damage, and says what recovery will do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.records.batch import Codec
from penstock.storage.findings import LogReport
from penstock.storage.inspect import read_checkpoint
from penstock.storage.offset_checkpoint import OFFSETS, LogOffsets, encode_offsets, read_offsets
from penstock.storage.readonly import ReadOnlyDisk
from penstock.storage.recovery import open_log
from penstock.storage.verify import verify_directory

from .sample_log import (
    CONFIG,
    START_MS,
    TOPIC_ID,
    SampleLog,
    new_log,
    new_resources,
    sample_records,
)
from .test_verify import errors, segments, warnings

DISK = ReadOnlyDisk()
Change = Callable[[bytes, int], bytes]


@pytest.fixture
def killed(tmp_path: Path) -> SampleLog:
    """A log whose broker was killed: the checkpoint is older than the stored offsets, and the last
    batches are above both.
    """
    root = tmp_path / "data"
    root.mkdir()
    sample = new_log(str(root))
    sample.fill(5)
    sample.log.flush(checkpoint=True)
    for number in range(3):
        sample.append(sample_records(number), Codec.NONE, 2)
    sample.log.flush()
    store_offsets(sample, sample.log.end_offset)
    for number in range(3):
        sample.append(sample_records(number), Codec.NONE, 2)
    sample.kill()
    return sample


def store_offsets(sample: SampleLog, synced: int, topic: str = TOPIC_ID, newer: int = 0) -> None:
    checkpoint = read_checkpoint(DISK, f"{sample.directory}/penstock-checkpoint")
    assert checkpoint is not None
    noted = LogOffsets(topic, checkpoint.generation + newer, synced, 0)
    offsets = encode_offsets({Path(sample.directory).name: noted})
    (Path(sample.directory).parent / OFFSETS).write_bytes(offsets)


def verified(directory: str, *, intact: bool = False) -> LogReport:
    (report,) = verify_directory(DISK, directory, cache_is_intact=lambda _: intact).logs
    return report


def start_of(sample: SampleLog, number: int) -> int:
    """Returns where a batch begins; the log has one segment."""
    sizes = [header.size for header, _ in sample.batches]
    return sum(sizes[:number] if number >= 0 else sizes[: len(sizes) + number])


def last_segment(sample: SampleLog) -> Path:
    (path,) = segments(Path(sample.directory))
    return path


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


@pytest.mark.parametrize("intact", [False, True])
def test_a_partly_written_batch_at_the_end_is_a_torn_tail(killed: SampleLog, intact: bool) -> None:
    path = last_segment(killed)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    report = verified(killed.directory, intact=intact)
    assert report.sound
    assert warnings(report) == ["torn-tail"]
    (message,) = [each.message for each in report.findings if each.code == "torn-tail"]
    assert message.startswith("torn tail, 40 bytes: recovery will cut it off. ")


def test_rot_below_the_synced_offset_is_damage(killed: SampleLog) -> None:
    """The recovery point in the checkpoint is older, and moves only when files come and go."""
    path = last_segment(killed)
    data = path.read_bytes()
    path.write_bytes(flip(data, start_of(killed, -4) + 70))
    assert errors(verified(killed.directory)) == ["damage"]
    path.write_bytes(data[: start_of(killed, -4)])
    assert errors(verified(killed.directory)) == ["short"]


@pytest.mark.parametrize("field", [7, 15], ids=["base offset", "leader epoch"])
def test_rot_that_the_crc_does_not_cover_is_damage(killed: SampleLog, field: int) -> None:
    """The next batch shows it, which is above the synced offset, and is not to blame."""
    path = last_segment(killed)
    data = bytearray(path.read_bytes())
    data[start_of(killed, -4) + field] += 1
    path.write_bytes(data)
    assert "damage" in errors(verified(killed.directory))


def test_rot_in_a_whole_batch_is_damage_while_the_page_cache_is_intact(killed: SampleLog) -> None:
    """A process that was killed leaves one incomplete batch and nothing after it. After a power
    loss, unsynced batches may have any bytes.
    """
    path = last_segment(killed)
    data = path.read_bytes()
    for number in (-1, -2):
        path.write_bytes(flip(data, start_of(killed, number) + 70))
        assert errors(verified(killed.directory, intact=True)) == ["damage"]
        report = verified(killed.directory)
        assert report.sound
        assert warnings(report) == ["torn-tail"]


@pytest.mark.parametrize(("topic", "newer"), [("another", 0), (TOPIC_ID, 1)])
def test_offsets_of_another_topic_or_generation_prove_nothing(
    killed: SampleLog, topic: str, newer: int
) -> None:
    store_offsets(killed, 10**6, topic, newer)
    assert verified(killed.directory).sound


def test_a_bad_file_of_offsets_is_a_warning(killed: SampleLog) -> None:
    (Path(killed.directory).parent / OFFSETS).write_bytes(b"penstock-offsets 1\n")
    report = verified(killed.directory)
    assert report.sound
    assert warnings(report) == ["bad-offsets"]


@pytest.mark.parametrize("intact", [False, True])
@pytest.mark.parametrize("change", [flip, lambda data, at: data[:at]], ids=["flipped", "cut"])
def test_verification_foretells_recovery(killed: SampleLog, intact: bool, change: Change) -> None:
    """At every seventh byte of the log."""
    path = last_segment(killed)
    data = path.read_bytes()
    root = Path(killed.directory).parent
    resources = new_resources(str(root))
    name = Path(killed.directory).name
    known = read_offsets(DISK, str(root))[name]
    outcomes = set()
    for at in range(0, len(data), 7):
        path.write_bytes(change(data, at))
        report = verified(killed.directory, intact=intact)
        copy = root / "copy" / name
        shutil.copytree(killed.directory, copy)
        _, found = open_log(
            resources, str(copy), CONFIG, START_MS, known=known, cache_is_intact=intact
        )
        damaged, torn = bool(found.damage), bool(found.cut_bytes)
        assert (not report.sound, "torn-tail" in warnings(report)) == (damaged, torn), at
        outcomes.add((damaged, torn))
        resources.pool.close()
        shutil.rmtree(copy)
    assert {(True, False), (False, True)} <= outcomes
