"""Tests the routing of table rows: by content as for single records, or in batches without keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.routers import (
    CallableRouter,
    Crc32Router,
    DefaultRouter,
    GeographicRouter,
    KeyRangeRouter,
    LoadAwareRouter,
    PartitionView,
    RoundRobinRouter,
    Router,
    RoutingError,
    TimeWindowRouter,
    assign_partitions,
)

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KEY_TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()]


def view_of(
    count: int, *, queued: Sequence[int] | None = None, batch_size: int = 100, seed: int = 1
) -> PartitionView:
    waiting = queued or [0] * count
    return PartitionView(
        count, tuple(range(count)), waiting.__getitem__, Random(seed).randrange, batch_size
    )


def assigned(router: Router, rows: pa.RecordBatch, view: PartitionView) -> list[int]:
    answer = assign_partitions(router, "t", rows, view, now_ms=NOW_MS)
    assert answer.type == pa.int32()
    placed: list[int] = answer.to_pylist()
    return placed


def table(keys: Sequence[str | None], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch(
        {"key": pa.array(keys, kind or pa.string()), "value": pa.array(["v"] * len(keys))}
    )


SAME_BY_ROW: Sequence[Callable[[], Router]] = [
    DefaultRouter,
    Crc32Router,
    lambda: Crc32Router(hash_empty_keys=True),
    lambda: KeyRangeRouter([b"b", b"c"]),
    lambda: GeographicRouter({"eu": [0, 1], "us": 2}, fallback=TimeWindowRouter(7)),
    lambda: TimeWindowRouter(7),
    RoundRobinRouter,
]


@given(
    st.sampled_from(SAME_BY_ROW),
    st.sampled_from(KEY_TYPES),
    st.lists(
        st.tuples(
            st.text("abcd", min_size=1, max_size=4),
            st.none() | st.sampled_from(["eu", "us", "mars"]),
            st.integers(0, 200),
        ),
        max_size=25,
    ),
    st.integers(3, 9),
)
@settings(deadline=None, max_examples=150)
def test_table_rows_are_routed_like_single_records(
    make: Callable[[], Router], kind: pa.DataType, rows: list[Any], count: int
) -> None:
    """This holds for routers that decide by the record's content."""
    batch = pa.record_batch(
        {
            "key": pa.array([key for key, _, _ in rows], kind),
            "value": pa.array([b"value"] * len(rows), pa.binary()),
            "headers": pa.array(
                [[{"key": "region", "value": region}] if region else [] for _, region, _ in rows],
                HEADERS,
            ),
            "timestamp": pa.array([when for _, _, when in rows], pa.timestamp("ms", "UTC")),
        }
    )
    single, view = make(), view_of(count)
    wanted = [
        single.route(
            "t", key.encode(), (("region", region.encode()),) if region else (), when, 9, view
        )
        for key, region, when in rows
    ]
    assert assigned(make(), batch, view_of(count)) == wanted


def test_rows_without_keys_fill_batches() -> None:
    """They stay on one partition until a batch is full, independently of the rows with keys."""
    keys = [None, "k", None, None] * 250
    view = view_of(50)
    placed = assigned(DefaultRouter(), table(keys), view)
    keyed = {placed[row] for row in range(1000) if keys[row]}
    assert keyed == {assigned(DefaultRouter(), table(["k"]), view)[0]}
    free = [placed[row] for row in range(1000) if not keys[row]]
    # 13 bytes per row and batches of 100 bytes: eight rows each.
    runs = [len(list(run)) for _, run in groupby(free)]
    assert all(length % 8 == 0 for length in runs[:-1])
    assert len(set(free)) > 30


def test_a_missing_or_null_key_column_means_no_keys() -> None:
    values = pa.array([b"x" * 90] * 200)
    for batch in (
        pa.record_batch({"value": values}),
        pa.record_batch({"key": pa.nulls(200), "value": values}),
        pa.record_batch({"key": pa.array([None] * 200, pa.string()), "value": values}),
    ):
        for router in (DefaultRouter(), Crc32Router(), LoadAwareRouter()):
            assert len(set(assigned(router, batch, view_of(20)))) > 10
        assert set(assigned(Crc32Router(hash_empty_keys=True), batch, view_of(20))) == {0}
        assert set(assigned(KeyRangeRouter([b"a"]), batch, view_of(20))) == {0}


def test_crc32_treats_an_empty_key_as_none() -> None:
    """As for single records. Slices of a table keep their offset."""
    batch = table(["skipped", *[""] * 200, "k"])[1:]
    placed = assigned(Crc32Router(), batch, view_of(40))
    assert len(set(placed[:-1])) > 10
    assert placed[-1] == assigned(Crc32Router(), table(["k"]), view_of(40))[0]


def test_a_large_table_is_spread_evenly() -> None:
    """Rows that were routed to a partition count as queued there."""
    batch = pa.record_batch({"value": pa.array([b"x" * 88] * 3000)})
    for router in (DefaultRouter(), LoadAwareRouter()):
        counts = Counter(assigned(router, batch, view_of(3)))
        assert max(counts.values()) < 1.25 * min(counts.values())
    behind = Counter(assigned(DefaultRouter(), batch, view_of(3, queued=[0, 0, 10_000_000])))
    assert behind[2] < 60


def test_the_partition_column_takes_precedence() -> None:
    """Where it is null, the router decides for those rows alone."""
    batch = table(["a", "b", "c", "d"]).append_column(
        "partition", pa.array([4, None, 2, None], pa.int64())
    )
    view = view_of(5)
    routed = assigned(DefaultRouter(), table(["b", "d"]), view)
    assert assigned(DefaultRouter(), batch, view) == [4, routed[0], 2, routed[1]]
    full = table(["a", "b"]).append_column("partition", pa.array([1, 0], pa.int32()))
    assert assigned(DefaultRouter(), full, view) == [1, 0]
    empty = table(["b"]).append_column("partition", pa.nulls(1))
    assert assigned(DefaultRouter(), empty, view) == routed[:1]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([0, 5]), "contains partition 5, but the topic has partitions 0 to 4"),
        (pa.array([-1, 0]), "contains partition -1"),
        (pa.array(["x", "y"]), "use int32"),
        (pa.array([1 << 40, 0]), "use int32"),
    ],
)
def test_partitions_that_do_not_exist_are_refused(column: pa.Array, message: str) -> None:
    """The error says which partitions the topic has."""
    batch = table(["a", "b"]).append_column("partition", column)
    with pytest.raises(RoutingError, match=message):
        assigned(DefaultRouter(), batch, view_of(5))


class _Answering(Router):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def route_columns(self, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (pa.array([0]), "one partition for each of 2 rows"),
        (pa.array([0, None]), "one partition for each of 2 rows"),
        ([0, 1], "one partition for each of 2 rows"),
        (pa.array([0, 5]), "_Answering returned partition 5"),
    ],
)
def test_results_of_custom_routers_are_checked(answer: Any, message: str) -> None:
    """A column of results is checked like a single one."""
    with pytest.raises(RoutingError, match=message):
        assigned(_Answering(answer), table(["a", "b"]), view_of(5))
    assert assigned(_Answering(pa.array([3, 4])), table(["a", "b"]), view_of(5)) == [3, 4]


def test_router_functions_are_called_for_each_row() -> None:
    """With key, headers, timestamp and approximate size. Rows without a
    timestamp get the current time."""
    seen: list[Any] = []

    def watch(*arguments: Any) -> int:
        seen.append(arguments[1:5])
        return 0

    def rich(topic: Any, key: Any, headers: Any, timestamp_ms: Any, size: Any, view: Any) -> int:
        return watch(topic, key, headers, timestamp_ms, size, view)

    batch = pa.record_batch(
        {
            "key": pa.array(["k", None]),
            "value": pa.array([b"12345", None], pa.binary()),
            "headers": pa.array([[("h", b"1"), ("h", None)], None], pa.map_("string", "binary")),
            "timestamp": pa.array([77, None], pa.int64()),
        }
    )
    assigned(CallableRouter(rich), batch, view_of(1))
    (key, headers, when, size), (other_key, other_headers, other_when, other_size) = seen
    assert (key, headers, when) == (b"k", (("h", b"1"), ("h", None)), 77)
    assert (other_key, other_headers, other_when) == (None, (), NOW_MS)
    assert size == other_size + 6


def test_time_windows_for_rows_without_a_timestamp() -> None:
    """They are routed by the timestamp that they will get."""
    router = TimeWindowRouter(1000)
    wanted = router.route("t", None, (), NOW_MS, 0, view_of(7))
    assert assigned(router, table(["a", "b"]), view_of(7)) == [wanted] * 2


def test_a_table_without_rows() -> None:
    for router in (DefaultRouter(), RoundRobinRouter(), LoadAwareRouter(), TimeWindowRouter(1)):
        assert assigned(router, table([]), view_of(3)) == []


def test_dictionary_encoded_keys() -> None:
    """Repeated keys are often dictionary encoded."""
    batch = pa.record_batch(
        {"key": pa.array(["a", "b", "a"]).dictionary_encode(), "value": pa.array(["1", "2", "3"])}
    )
    assert assigned(DefaultRouter(), batch, view_of(9)) == assigned(
        DefaultRouter(), table(["a", "b", "a"]), view_of(9)
    )


def test_round_robin_continues_where_it_stopped() -> None:
    """Tables and single records share one counter."""
    router, view = RoundRobinRouter(), view_of(4)
    first = assigned(router, table(["a"] * 6), view)
    then = router.route("t", None, (), 0, 1, view)
    assert [(number - first[0]) % 4 for number in [*first, then]] == [0, 1, 2, 3, 0, 1, 2]
