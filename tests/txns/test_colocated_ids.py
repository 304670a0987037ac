"""Which partition of __transaction_state stores a transactional id."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.txns.colocated_ids import id_beside
from penstock.wire.java import java_hash, partition_of, utf16_units


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("😀", 1772899)],
)
def test_the_hash_is_javas(text: str, code: int) -> None:
    """The expected values are Java's, over UTF-16."""
    assert java_hash(text) == code


def test_the_smallest_hash_goes_to_partition_zero() -> None:
    """Its absolute value does not fit into 32 bits. Kafka's Utils.abs returns 0 for it."""
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("hello", 50) == 99162322 % 50


def test_utf16_code_units() -> None:
    """A character beyond the basic plane counts as two."""
    assert list(utf16_units("a😀")) == [0x61, 0xD83D, 0xDE00]


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=20), st.integers(0, 500), st.sampled_from([1, 3, 50, 97]))
def test_ids_made_for_an_anchor_share_its_partition(anchor: str, number: int, count: int) -> None:
    """The same name always gets the same id. Every id starts with its name."""
    found = id_beside(anchor, f"{anchor}#{number}", count)
    assert found.startswith(f"{anchor}#{number}~")
    assert found == id_beside(anchor, f"{anchor}#{number}", count)
    assert partition_of(found, count) == partition_of(anchor, count)
