"""The search for the next valid batch after bad bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.records.batch import HEADER_SIZE
from penstock.records.record import Record, build_batch
from penstock.storage import scan
from penstock.storage.scan import find_batch

CHUNK = 200


class CountedFile:
    """A file that records the size of its largest read."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self.largest = 0

    def pread(self, size: int, position: int) -> bytes:
        self.largest = max(self.largest, size)
        return os.pread(self._descriptor, size, position)

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scan, "SCAN_CHUNK_BYTES", CHUNK)
    yield


def batch(offset: int, size: int = 30) -> bytearray:
    return build_batch([Record(offset, 1_700_000_000_000, b"key", b"\x02" * size)])


def find(path: Path, content: bytes, offset_min: int = 0, offset_end: int = 100) -> int | None:
    path.write_bytes(content)
    file = CountedFile(path)
    try:
        return find_batch(file, 0, len(content), offset_min, offset_end)  # type: ignore[arg-type]
    finally:
        file.close()


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("noise", [b"\x00", b"\x02", b"\xff"])
def test_a_batch_is_found_wherever_it_begins(tmp_path: Path, noise: bytes) -> None:
    """Also across the edge of two chunks, and if it is larger than a chunk."""
    for size in (30, 3 * CHUNK):
        for position in range(0, 2 * CHUNK + HEADER_SIZE, 7):
            content = noise * position + batch(5, size) + batch(6)
            assert find(tmp_path / "log", content) == position


@pytest.mark.usefixtures("chunks")
def test_only_a_valid_batch_with_a_matching_offset_is_found(tmp_path: Path) -> None:
    first, second = batch(5), batch(6)
    damaged = bytearray(first)
    damaged[-1] ^= 1
    path = tmp_path / "log"
    assert find(path, bytes(damaged + second)) == len(first)
    assert find(path, bytes(first + second), offset_min=6) == len(first)
    assert find(path, bytes(first + second), offset_end=5) is None
    assert find(path, bytes(damaged + second[:-1])) is None
    assert find(path, b"") is None
    assert find(path, bytes(HEADER_SIZE - 1)) is None


def test_the_file_is_read_in_small_chunks(tmp_path: Path, chunks: None) -> None:
    """There may be most of a gigabyte after bad bytes."""
    del chunks
    path = tmp_path / "log"
    path.write_bytes(bytes(50 * CHUNK) + batch(5))
    file = CountedFile(path)
    assert find_batch(file, 0, path.stat().st_size, 0, 100) == 50 * CHUNK  # type: ignore[arg-type]
    file.close()
    assert file.largest <= CHUNK
