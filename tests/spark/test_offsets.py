"""Tests the offset arithmetic of micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.errors import OptionError
from penstock.spark.offsets import (
    Span,
    advance,
    from_spark,
    parse_partition_numbers,
    spans,
    split,
    to_spark,
    waiting,
)
from penstock.topic_partition import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

topic_partitions = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 20))
starts = st.dictionaries(topic_partitions, st.integers(0, 1_000), max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(topic_partitions, st.integers(0, 1 << 62)))
def test_offsets_survive_the_checkpoint(offsets: dict[TopicPartition, int]) -> None:
    """What is written to Spark's checkpoint is read back unchanged."""
    assert from_spark(to_spark(offsets)) == offsets


def test_equal_offsets_have_equal_text() -> None:
    """Spark compares offsets as JSON text, so their order must not depend
    on how they were learned."""
    one = to_spark({B0: 1, A1: 2, A0: 3})
    other = to_spark({A0: 3, A1: 2, B0: 1})
    assert str(one) == str(other) == "{'a': {'0': 3, '1': 2}, 'b': {'0': 1}}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "not JSON"),
        ("[1]", r"but is \[1\]"),
        ('{"a": 1}', "topic a has 1"),
        ('{"a": {"x": 1}}', '"x": 1'),
        ('{"a": {"0": "1"}}', '"0": "1"'),
        ('{"a": {"0": true}}', '"0": true'),
    ],
)
def test_invalid_offsets_are_refused(text: str, wrong: str) -> None:
    """The error names the option, shows the format and what was found."""
    with pytest.raises(OptionError, match=f"startingOffsets must look like .*{wrong}"):
        parse_partition_numbers(text, "startingOffsets")


@settings(deadline=None, max_examples=60)
@given(starts, st.data(), st.integers(1, 500))
def test_a_limit_holds_except_for_one_record_per_partition(
    start: dict[TopicPartition, int], data: st.DataObject, limit: int
) -> None:
    """No offset goes back or beyond the end, and every partition with records advances."""
    latest = {
        topic_partition: offset + data.draw(st.integers(0, 400))
        for topic_partition, offset in start.items()
    }
    end = advance(start, latest, records_max=limit)
    assert set(end) == set(start)
    for topic_partition, begin in start.items():
        assert begin <= end[topic_partition] <= latest[topic_partition]
        assert (end[topic_partition] > begin) == (latest[topic_partition] > begin)
    assert waiting(start, end) <= max(limit, 0) + len(start)
    if waiting(start, latest) <= limit:
        assert end == latest


@settings(deadline=None, max_examples=60)
@given(starts, st.data())
def test_batches_under_a_limit_reach_the_end(
    start: dict[TopicPartition, int], data: st.DataObject
) -> None:
    """With any limit, successive batches read everything."""
    latest = {
        topic_partition: offset + data.draw(st.integers(0, 50))
        for topic_partition, offset in start.items()
    }
    position = dict(start)
    for _ in range(sum(latest.values()) - sum(start.values()) + 1):
        position = advance(position, latest, records_max=3)
    assert position == latest


def test_a_limit_is_divided_in_proportion() -> None:
    """The partition with the most unread records gets the largest share."""
    end = advance({A0: 0, A1: 100}, {A0: 900, A1: 200}, records_max=100)
    assert end == {A0: 90, A1: 110}


def test_a_limit_in_bytes_uses_the_size_of_records() -> None:
    """Large records fill a batch sooner."""
    sizes = {A0: 1000.0, A1: 10.0}
    end = advance({A0: 0, A1: 0}, {A0: 100, A1: 100}, bytes_max=50_500, record_bytes=sizes)
    assert end == {A0: 50, A1: 50}


def test_a_missing_partition_keeps_its_offset() -> None:
    """Other code decides whether this is data loss; the arithmetic forgets nothing."""
    assert advance({A0: 5, B0: 7}, {A0: 9}) == {A0: 9, B0: 7}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 1_000), min_size=1, max_size=8),
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1, 300),
)
def test_splitting_keeps_every_record_once(
    sizes: list[int], pieces_min: int | None, records_max: int | None
) -> None:
    """The pieces of a partition are contiguous, do not overlap, and are in order."""
    end = {TopicPartition("a", index): size for index, size in enumerate(sizes)}
    whole = spans(dict.fromkeys(end, 0), end)
    pieces = split(whole, pieces_min=pieces_min, records_max=records_max)
    for span in whole:
        mine = [piece for piece in pieces if piece.topic_partition == span.topic_partition]
        assert [piece.start for piece in mine] == [0, *(piece.end for piece in mine[:-1])]
        assert mine[-1].end == span.end
        assert all(piece.size > 0 for piece in mine)
    if pieces_min is not None:
        assert len(pieces) >= min(pieces_min, sum(sizes))
    if records_max is not None:
        assert all(piece.size <= records_max for piece in pieces)


def test_pieces_have_about_equal_sizes() -> None:
    """A long partition is split more often than a short one."""
    pieces = split([Span("a", 0, 0, 900), Span("a", 1, 0, 100)], pieces_min=10)
    assert [piece.size for piece in pieces] == [100] * 10
