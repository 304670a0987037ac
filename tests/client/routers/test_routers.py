"""Tests the routing of single records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.errors import OptionError
from penstock.client.model import Headers
from penstock.client.routers import (
    CallableRouter,
    Crc32Router,
    DefaultRouter,
    DistributionMeter,
    GeographicRouter,
    KeyRangeRouter,
    LoadAwareRouter,
    PartitionView,
    RoundRobinRouter,
    Router,
    RoutingError,
    TimeWindowRouter,
    checked,
)
from penstock.records.hashing import partition_of


def view_of(
    count: int,
    *,
    available: Sequence[int] | None = None,
    queued: Sequence[int] | None = None,
    batch_size: int = 100,
    seed: int = 1,
) -> PartitionView:
    waiting = queued or [0] * count
    return PartitionView(
        count=count,
        available=tuple(range(count) if available is None else available),
        queued_bytes=waiting.__getitem__,
        below=Random(seed).randrange,
        batch_size=batch_size,
    )


def route(
    router: Router,
    view: PartitionView,
    key: bytes | None = None,
    *,
    topic: str = "t",
    headers: Headers = (),
    timestamp_ms: int = 0,
    size: int = 10,
) -> int:
    return router.route(topic, key, headers, timestamp_ms, size, view)


@given(st.binary(max_size=30), st.integers(1, 50))
@settings(deadline=None, max_examples=100)
def test_keys_are_routed_like_javas(key: bytes, count: int) -> None:
    """Empty keys too. A partition without a leader is waited for, not avoided."""
    view = view_of(count, available=[count - 1])
    assert route(DefaultRouter(), view, key) == partition_of(key, count)


def test_records_without_keys_stay_on_a_partition_for_one_batch() -> None:
    """Ten records of ten bytes fill a batch of a hundred; then a new
    partition is chosen at random."""
    router = DefaultRouter()
    view = view_of(1000)
    placed = [route(router, view) for _ in range(100)]
    runs = [placed[start : start + 10] for start in range(0, 100, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert len({run[0] for run in runs}) > 5


def test_each_topic_has_its_own_sticky_partition() -> None:
    """Records of another topic neither fill the batch nor change the partition."""
    router = DefaultRouter()
    view = view_of(1000)
    first = route(router, view, topic="a")
    for _ in range(9):
        route(router, view, topic="b")
        assert route(router, view, topic="a") == first


def test_records_without_keys_avoid_partitions_without_a_leader() -> None:
    """If no partition has a leader, any partition is used."""
    router = DefaultRouter()
    view = view_of(10, available=[3, 4], batch_size=1)
    assert {route(router, view) for _ in range(50)} == {3, 4}
    nowhere = view_of(4, available=[], batch_size=1)
    assert {route(router, nowhere) for _ in range(100)} == {0, 1, 2, 3}


def test_partitions_with_long_queues_get_fewer_records() -> None:
    """The longer the queue, the less likely; but even the longest is chosen occasionally."""
    counts = _spread(DefaultRouter(), queued=[0, 1000, 9900])
    assert counts[0] > counts[1] > counts[2] > 0
    assert counts[0] / counts[2] > 20


def test_without_adaptation_queues_do_not_matter() -> None:
    """All partitions are equally likely."""
    counts = _spread(DefaultRouter(adaptive=False), queued=[0, 1000, 9900])
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_equal_queues_are_equally_likely() -> None:
    counts = _spread(DefaultRouter(), queued=[500, 500, 500])
    assert max(counts.values()) < 1.2 * min(counts.values())


def _spread(router: Router, queued: Sequence[int]) -> Counter[int]:
    view = view_of(len(queued), queued=queued)
    return Counter(route(router, view, size=100) for _ in range(3000))


def test_keys_can_be_ignored() -> None:
    """Records with a key are then routed like those without."""
    router = DefaultRouter(ignore_keys=True)
    view = view_of(1000)
    assert len({route(router, view, bytes([number])) for number in range(10)}) == 1


def test_a_topic_that_shrank_is_routed_within_its_new_size() -> None:
    """A deleted topic may be created again with fewer partitions."""
    router = DefaultRouter()
    assert route(router, view_of(10, available=[9])) == 9
    assert route(router, view_of(2, available=[1])) == 1


def test_round_robin_uses_available_partitions_in_order() -> None:
    """With any key, from a random start."""
    router = RoundRobinRouter()
    view = view_of(4, available=[0, 2, 3])
    placed = [route(router, view, b"same") for _ in range(9)]
    assert Counter(placed) == {0: 3, 2: 3, 3: 3}
    assert placed[:3] * 3 == placed


@given(st.binary(min_size=1, max_size=30), st.integers(1, 50))
@settings(deadline=None, max_examples=50)
def test_crc32_keys_are_routed_like_librdkafka(key: bytes, count: int) -> None:
    """The whole unsigned CRC, modulo the number of partitions."""
    assert route(Crc32Router(), view_of(count), key) == crc32(key) % count


def test_crc32_with_empty_keys() -> None:
    """`consistent_random` treats an empty key as none; `consistent` puts both in partition 0."""
    view = view_of(50, batch_size=1)
    assert len({route(Crc32Router(), view, b"") for _ in range(50)}) > 5
    assert len({route(Crc32Router(), view, None) for _ in range(50)}) > 5
    assert route(Crc32Router(hash_empty_keys=True), view, b"") == 0
    assert route(Crc32Router(hash_empty_keys=True), view, None) == 0


def test_key_ranges_are_split_at_their_boundaries() -> None:
    """A boundary is the first key of the range above it."""
    router = KeyRangeRouter(["g", b"p"])
    view = view_of(3)
    placed = {key: route(router, view, key) for key in (b"", b"a", b"f~", b"g", b"o", b"p", b"z")}
    assert placed == {b"": 0, b"a": 0, b"f~": 0, b"g": 1, b"o": 1, b"p": 2, b"z": 2}
    assert route(router, view, None) == 0


@pytest.mark.parametrize("boundaries", [[], [b"b", b"a"], [b"a", b"a"]])
def test_key_ranges_must_ascend(boundaries: list[bytes]) -> None:
    """Empty ranges are refused when the router is created."""
    with pytest.raises(OptionError, match="ascending"):
        KeyRangeRouter(boundaries)


def test_the_region_header_chooses_the_partitions() -> None:
    """If there are several, the last one counts. Within the region's partitions, the key
    decides."""
    router = GeographicRouter({"eu": [0, 1, 2], "us": 3})
    view = view_of(8)
    assert route(router, view, headers=(("region", b"us"),)) == 3
    assert route(router, view, headers=(("region", b"eu"), ("region", b"us"))) == 3
    keys = [bytes([number]) for number in range(30)]
    placed = [route(router, view, key, headers=(("region", b"eu"),)) for key in keys]
    assert set(placed) == {0, 1, 2}
    assert placed == [partition_of(key, 3) for key in keys]


def test_records_without_keys_stay_within_their_region() -> None:
    """Available partitions of the region are preferred, and batches are filled there."""
    router = GeographicRouter({"eu": [2, 5], "us": [6, 7]})
    view = view_of(8, available=[5, 6, 7], batch_size=1)
    assert {route(router, view, headers=(("region", b"eu"),)) for _ in range(20)} == {5}
    assert {route(router, view, headers=(("region", b"us"),)) for _ in range(20)} == {6, 7}


def test_unknown_regions_use_the_fallback() -> None:
    """The default router, or the one given."""
    view = view_of(8)
    router = GeographicRouter({"eu": 0}, fallback=CallableRouter(lambda topic, key, count: 7))
    assert route(router, view, b"k", headers=(("region", b"mars"),)) == 7
    assert route(router, view, b"k") == 7
    assert route(router, view, b"k", headers=(("region", None),)) == 7
    assert route(GeographicRouter({"eu": 0}), view, b"k") == partition_of(b"k", 8)


def test_a_region_needs_a_partition() -> None:
    """An empty list is refused."""
    with pytest.raises(OptionError, match="region eu has no partitions"):
        GeographicRouter({"eu": []})


def test_load_aware_chooses_the_shortest_queue() -> None:
    """Among all partitions the shortest queue. Among two random ones, never the longest of all."""
    queued = [50, 40, 0, 90]
    view = view_of(4, queued=queued, batch_size=1)
    assert {route(LoadAwareRouter(choices=None), view) for _ in range(20)} == {2}
    counts = Counter(route(LoadAwareRouter(), view) for _ in range(600))
    assert set(counts) == {0, 1, 2}
    assert counts[2] > counts[1] > counts[0]


def test_load_aware_fills_a_batch_before_it_chooses_again() -> None:
    """Spreading single records would make every batch small."""
    view = view_of(100, batch_size=100)
    router = LoadAwareRouter()
    assert len({route(router, view) for _ in range(10)}) == 1


def test_load_aware_with_more_choices_than_partitions() -> None:
    """It then considers all of them. Zero choices are refused."""
    assert route(LoadAwareRouter(choices=9), view_of(2, queued=[5, 0])) == 1
    with pytest.raises(OptionError, match="choices is 0"):
        LoadAwareRouter(choices=0)


def test_each_time_window_has_one_partition() -> None:
    """The next window uses the next partition."""
    router = TimeWindowRouter(1000)
    view = view_of(3)
    placed = [route(router, view, timestamp_ms=when) for when in (0, 999, 1000, 2999, 3000, -1)]
    assert placed == [0, 0, 1, 2, 0, 0]
    with pytest.raises(OptionError, match="window_ms"):
        TimeWindowRouter(0)


def test_functions_can_be_routers() -> None:
    """With three arguments or all six."""
    view = view_of(5)
    assert route(CallableRouter(lambda topic, key, count: count - 1), view) == 4

    def rich(
        topic: str,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        view: PartitionView,
    ) -> int:
        return timestamp_ms % view.count

    assert route(CallableRouter(rich), view, timestamp_ms=7) == 2


@pytest.mark.parametrize("answer", [-1, 5, "1", None, True])
def test_a_result_that_is_not_a_partition_is_refused(answer: Any) -> None:
    """The error names the router and the partitions of the topic."""
    view = view_of(5)
    with pytest.raises(RoutingError, match="CallableRouter returned"):
        route(CallableRouter(lambda topic, key, count: answer), view)
    with pytest.raises(RoutingError, match="DefaultRouter returned"):
        checked(DefaultRouter(), answer, view)


ROUTERS: Sequence[Callable[[], Router]] = [
    DefaultRouter,
    RoundRobinRouter,
    Crc32Router,
    lambda: KeyRangeRouter([b"m"]),
    lambda: GeographicRouter({"eu": [0, 1]}),
    LoadAwareRouter,
    lambda: TimeWindowRouter(10),
]


@given(
    st.sampled_from(ROUTERS),
    st.integers(2, 20),
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=8),
            st.sampled_from([(), (("region", b"eu"),), (("region", b"us"),)]),
            st.integers(-1, 100),
            st.integers(1, 300),
        ),
        max_size=30,
    ),
    st.integers(0, 100),
)
@settings(deadline=None, max_examples=100)
def test_every_router_returns_an_existing_partition(
    make: Callable[[], Router], count: int, records: list[Any], seed: int
) -> None:
    """For any record, load and set of leaders."""
    chance = Random(seed)
    router = make()
    for key, headers, when, size in records:
        leaders = [number for number in range(count) if chance.random() < 0.7]
        queued = [chance.randrange(1000) for _ in range(count)]
        view = view_of(count, available=leaders, queued=queued, seed=seed)
        partition = router.route("t", key, headers, when, size, view)
        assert checked(router, partition, view) == partition


def test_the_distribution_of_records() -> None:
    """Counts per partition, the largest relative to the mean, and the overall evenness."""
    meter = DistributionMeter()
    assert meter.snapshot() == {}
    for partition, records in ((1, 30), (0, 10), (1, 30)):
        meter.add("t", partition, records)
    spread = meter.snapshot()["t"]
    assert dict(spread.counts) == {0: 10, 1: 60}
    assert spread.skew == pytest.approx(60 / 35)
    assert 0 < spread.evenness < 1
    meter.expect("t", 4)
    assert dict(meter.snapshot()["t"].counts) == {0: 10, 1: 60, 2: 0, 3: 0}
    assert meter.snapshot()["t"].skew == pytest.approx(60 / 17.5)


def test_the_distribution_in_extreme_cases() -> None:
    """Evenly spread: skew 1, evenness 1. All in one partition: skew n,
    evenness 0. No records: even."""
    meter = DistributionMeter()
    meter.expect("idle", 3)
    meter.expect("one", 4)
    meter.add("one", 2, 8)
    for partition in range(5):
        meter.add("even", partition, 7)
    spreads = meter.snapshot()
    assert (spreads["idle"].skew, spreads["idle"].evenness) == (1.0, 1.0)
    assert (spreads["one"].skew, spreads["one"].evenness) == (4.0, 0.0)
    assert spreads["even"].skew == pytest.approx(1.0)
    assert spreads["even"].evenness == pytest.approx(1.0)
