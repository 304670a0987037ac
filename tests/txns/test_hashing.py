"""Where transactional ids live."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.txns.hashing import id_beside, partition_for_transactional_id
from penstock.wire.java import java_hash, utf16_units


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("😀", 1772899)],
)
def test_the_hash_is_javas(text: str, code: int) -> None:
    """Values that Java gives, over UTF-16."""
    assert java_hash(text) == code


def test_the_one_number_without_an_absolute_value_is_zero() -> None:
    """As Kafka's Utils.abs has it."""
    assert partition_for_transactional_id("polygenelubricants", 50) == 0
    assert partition_for_transactional_id("hello", 50) == 99162322 % 50


def test_code_units() -> None:
    """A character beyond the first plane counts as two."""
    assert list(utf16_units("a😀")) == [0x61, 0xD83D, 0xDE00]


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=20), st.integers(0, 500), st.sampled_from([1, 3, 50, 97]))
def test_ids_beside_an_anchor_live_with_it(anchor: str, number: int, count: int) -> None:
    """Always the same id for the same name, different ones for different names."""
    found = id_beside(anchor, f"{anchor}#{number}", count)
    assert found.startswith(f"{anchor}#{number}~")
    assert found == id_beside(anchor, f"{anchor}#{number}", count)
    assert partition_for_transactional_id(found, count) == partition_for_transactional_id(
        anchor, count
    )
