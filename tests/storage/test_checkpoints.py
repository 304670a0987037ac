"""The small files: always replaced as a whole, and checked when they are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.epochs import EpochStart
from penstock.storage.checkpoints import (
    Checkpoint,
    CleanStop,
    decode_checkpoint,
    decode_epochs,
    decode_partition_metadata,
    encode_checkpoint,
    encode_epochs,
    encode_partition_metadata,
    read_file,
    write_atomic,
)
from penstock.storage.damage import Damage
from penstock.storage.errors import CorruptFile

from .log_bench import LogBench, each_interruption

OFFSETS = st.integers(0, 2**63 - 1)
FULL = Checkpoint(
    recovery_point=100,
    indexed_offset=60,
    log_start_offset=7,
    sparse_offset=4,
    cleaned_offset=50,
    truncating_to=42,
    restarting_at=43,
    segment_bases=(7, 60),
    clean_stop=CleanStop(60, 12345, 100, 0xFFFFFFFF, 0),
    damage=(
        Damage(0, 10, 20, 3, 5, "CRC is 0x1 but\nthe header says crc32c 'é'\u2028"),
        Damage(60, 0, 61, 60, 61, ""),
    ),
)

EMPTY = Checkpoint(
    recovery_point=0, indexed_offset=0, log_start_offset=0, cleaned_offset=0, sparse_offset=0
)


@pytest.mark.parametrize("checkpoint", [FULL, EMPTY])
def test_a_checkpoint_is_read_as_it_was_written(checkpoint: Checkpoint) -> None:
    """Including the exact reasons of damage."""
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@settings(deadline=None, max_examples=50)
@given(
    st.builds(
        Checkpoint,
        recovery_point=OFFSETS,
        indexed_offset=OFFSETS,
        log_start_offset=OFFSETS,
        cleaned_offset=OFFSETS,
        truncating_to=st.integers(-1, 2**63 - 1),
        restarting_at=st.integers(-1, 2**63 - 1),
    )
)
def test_any_offsets_are_read_as_they_were_written(checkpoint: Checkpoint) -> None:
    """64-bit offsets fit."""
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


def test_every_flipped_bit_is_detected() -> None:
    """With a wrong recovery point, damage would be cut off as a torn tail."""
    data = encode_checkpoint(FULL)
    for position in range(len(data)):
        for bit in range(8):
            rotten = bytearray(data)
            rotten[position] ^= 1 << bit
            try:
                found = decode_checkpoint(bytes(rotten))
            except CorruptFile:
                continue
            # A hexadecimal digit of the checksum may change its case; it means the same.
            assert found == FULL


def test_every_truncation_is_detected() -> None:
    """Also an empty file, and one with extra bytes."""
    data = encode_checkpoint(FULL)
    for size in range(len(data) - 1):
        with pytest.raises(CorruptFile):
            decode_checkpoint(data[:size])
    with pytest.raises(CorruptFile):
        decode_checkpoint(data + data)


def test_an_atomic_write_leaves_the_old_or_the_new_file() -> None:
    """Stopped at any point by a kill or a power cut, the file is complete. Once written, it is
    new."""
    old, new = b"old" * 500, b"new" * 700

    def prepare(bench: LogBench) -> Callable[[], object]:
        write_atomic(bench.disk, "/data", "note", old)
        return lambda: write_atomic(bench.disk, "/data", "note", new)

    seen = [read_file(bench.disk, "/data/note") for bench in each_interruption(prepare)]
    assert set(seen) == {old, new}
    assert set(seen[-7:]) == {new}


def test_a_missing_file_is_read_as_none(bench: LogBench) -> None:
    """A missing file is not an error."""
    assert read_file(bench.disk, "/data/note") is None


@pytest.mark.parametrize(
    "entries", [[], [EpochStart(0, 0)], [EpochStart(3, 10), EpochStart(7, 2**62)]]
)
def test_epochs_are_read_as_they_were_written(entries: list[EpochStart]) -> None:
    """In Kafka's format: version, count, then one line for each epoch."""
    assert decode_epochs(encode_epochs(entries)) == entries


def test_the_epochs_file_is_kafkas() -> None:
    """So that Kafka's own tools can read it."""
    assert encode_epochs([EpochStart(3, 10), EpochStart(7, 20)]) == b"0\n2\n3 10\n7 20\n"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"0\n", b"0\n1\n", b"1\n0\n", b"0\n2\n3 10\n", b"0\n1\n3 10\n7 20\n"),
        *(b"0\n1\n3\n", b"0\n1\n3 10 5\n", b"0\n1\nx y\n", b"\xff\n", b"0\n1\n3 10"),
        *(b"0\n2\n3 10\n3 20\n", b"0\n2\n3 10\n7 10\n", b"0\n2\n7 10\n3 20\n"),
    ],
)
def test_invalid_epochs_are_detected(data: bytes) -> None:
    """Cut short, of another version, or not increasing. They are rebuilt from the log instead."""
    with pytest.raises(CorruptFile):
        decode_epochs(data)


def test_partition_metadata_is_read_as_it_was_written() -> None:
    """In Kafka's format."""
    data = encode_partition_metadata("rcl_Dw3sTlyGZKr7PBVqUQ")
    assert data.startswith(b"version: 0\ntopic_id: rcl_Dw3sTlyGZKr7PBVqUQ")
    assert decode_partition_metadata(data) == "rcl_Dw3sTlyGZKr7PBVqUQ"


@pytest.mark.parametrize(
    "data", [b"", b"version: 0\n", b"version: 1\ntopic_id: x", b"version: 0\ntopic_id: ", b"\xff"]
)
def test_bad_partition_metadata_is_detected(data: bytes) -> None:
    """The topic of a log is never guessed."""
    with pytest.raises(CorruptFile, match="cannot be decoded"):
        decode_partition_metadata(data)
