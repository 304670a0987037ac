"""The identity of a partition: its text, and its equality with a plain tuple."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.topic_partition import TopicPartition


@given(st.text(min_size=1), st.integers(0, 2**31 - 1))
def test_its_text_can_be_parsed(topic: str, partition: int) -> None:
    """Also if the topic's name has hyphens or ends in a number."""
    found = TopicPartition(topic, partition)
    assert TopicPartition.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "orders", "-0", "orders-", "orders-x", "orders--1 ", "orders-1.5", "orders-²"]
)
def test_a_text_without_an_index_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it as TOPIC-INDEX"):
        TopicPartition.parse(text)


def test_a_plain_tuple_finds_it_in_a_dict() -> None:
    """Hot paths look partitions up with plain tuples."""
    found: dict[tuple[str, int], int] = {TopicPartition("orders", 3): 7}
    assert found["orders", 3] == 7
