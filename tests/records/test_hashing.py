"""Keys hash to the same partitions as in other clients, one by one and as columns."""

from __future__ import annotations

import warnings
from array import array
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import hashing
from penstock.records.arrow_input import flat
from penstock.records.hashing import CRC32, MURMUR2, fill_run, murmur2, partition_of, place_keys

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's use of importlib
    from kafka.partitioner.default import murmur2 as peer_murmur2

KEYS = st.lists(st.none() | st.binary(max_size=40), max_size=60)
OUT = memoryview(array("i", [0] * 5))
TYPES = [pa.binary(), pa.large_binary()]


@given(st.binary(max_size=70))
@settings(deadline=None, max_examples=300)
def test_murmur2_equals_the_hash_of_other_clients(key: bytes) -> None:
    """Same result as an independent implementation."""
    assert murmur2(key) == peer_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "signed_hash"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_gives_known_values(key: bytes, signed_hash: int) -> None:
    """Values from the tests of the Java client."""
    assert murmur2(key) == signed_hash & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
@settings(deadline=None, max_examples=100)
def test_the_partition_of_a_key_is_in_range(key: bytes, partitions: int) -> None:
    """The sign bit of a hash is masked, so no partition is negative."""
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def place(column: pa.Array, partitions: int, algorithm: int) -> tuple[list[int], int]:
    out = array("i", [-7]) * len(column)
    nulls = place_keys(flat(column, "key"), partitions, algorithm, memoryview(out))
    return out.tolist(), nulls


@given(KEYS, st.integers(1, 100), st.sampled_from(TYPES), st.integers(0, 5), st.integers(0, 5))
@settings(deadline=None, max_examples=200)
def test_a_column_gets_the_same_partitions_as_its_keys(
    keys: list[bytes | None], partitions: int, kind: pa.DataType, skip: int, drop: int
) -> None:
    """Whole arrays and slices, with and without nulls: each row as if it were alone."""
    column = pa.array(keys, kind)[skip:]
    column = column[: max(0, len(column) - drop)]
    wanted = column.to_pylist()
    assert place(column, partitions, MURMUR2) == (
        [-1 if key is None else partition_of(key, partitions) for key in wanted],
        wanted.count(None),
    )
    assert place(column, partitions, CRC32) == (
        [-1 if key is None else crc32(key) % partitions for key in wanted],
        wanted.count(None),
    )


def test_a_column_of_nulls_gets_no_partitions() -> None:
    """A null column has no buffers."""
    assert place(pa.nulls(3), 4, MURMUR2) == ([-1, -1, -1], 3)


@pytest.mark.parametrize("offsets", [[0, 9], [0, -1], [3, 1], [-2, 1]])
def test_offsets_outside_the_data_are_refused(offsets: list[int]) -> None:
    """A malformed array raises an error; other memory is never read."""
    for kind in "iq":
        cells = memoryview(array(kind, offsets))
        with pytest.raises(ValueError, match="validate"):
            place_keys((cells, None, memoryview(b"abc"), 0, 1, 3), 4, MURMUR2, OUT[:1])


def test_arrays_with_inconsistent_lengths_are_refused() -> None:
    """More cells than offsets, or too small a result buffer: refused before a byte is read."""
    cells = memoryview(array("i", [0, 1]))
    with pytest.raises(ValueError, match="fewer cells"):
        place_keys((cells, None, memoryview(b"a"), 0, 2, 1), 4, MURMUR2, OUT)
    with pytest.raises(ValueError, match="fewer cells"):
        place_keys((cells, memoryview(b""), memoryview(b"a"), 0, 1, 1), 4, MURMUR2, OUT)
    with pytest.raises(ValueError, match="fewer cells"):
        place_keys((cells, None, memoryview(b"a"), 0, 1, 2), 4, MURMUR2, OUT)
    with pytest.raises(ValueError, match="no room"):
        place_keys((cells, None, memoryview(b"a"), 0, 1, 1), 4, MURMUR2, OUT[:0])
    with pytest.raises(ValueError, match="partitions"):
        place_keys((cells, None, memoryview(b"a"), 0, 1, 1), 0, MURMUR2, OUT)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40),
    st.integers(1, 120),
)
@settings(deadline=None, max_examples=150)
def test_a_run_gets_free_rows_until_it_is_full(rows: list[tuple[bool, int]], room: int) -> None:
    """Rows with a partition keep it; a run ends with the row that fills it."""
    placed = array("i", [7 if taken else -1 for taken, _ in rows])
    sizes = array("q", [size for _, size in rows])
    before = placed.tolist()
    end, taken_bytes = fill_run(memoryview(placed), memoryview(sizes), 0, room, 3)
    free = [row for row in range(end) if before[row] == -1]
    assert placed.tolist() == [3 if row in free else cell for row, cell in enumerate(before)]
    assert taken_bytes == sum(sizes[row] for row in free)
    assert end == len(rows) or taken_bytes >= room
    if end:
        assert sum(sizes[row] for row in free if row < end - 1) < room


def test_murmur2_and_crc32_are_different_algorithms() -> None:
    """Both hashes work, whether or not the kernel is compiled."""
    column = pa.array([b"key"])
    assert isinstance(hashing.COMPILED, bool)
    assert place(column, 1 << 30, MURMUR2) != place(column, 1 << 30, CRC32)
