"""Hashes are Java's, and groups and transactional ids belong to the same partitions as in Kafka."""

from __future__ import annotations

import pytest

from penstock.wire.java import java_hash, partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("polygenelubricantt", -(1 << 31) + 1),
        ("hello world", 1794106052),
        ("test-group", 627841412),
        ("consumer-7", -166239200),
        ("gr\u00fcppe", -1233264812),
        ("\N{GRINNING FACE}-group", -1198440043),
        ("\N{GRINNING FACE}", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    """Java's String.hashCode, over UTF-16 units, in signed 32 bits."""
    assert java_hash(text) == expected


def test_the_partition_comes_from_the_absolute_hash() -> None:
    """Kafka uses the absolute value, not the lower 31 bits. They differ for negative hashes."""
    assert partition_of("hello", 50) == 99162322 % 50
    assert partition_of("polygenelubricantt", 50) == ((1 << 31) - 1) % 50
    assert partition_of("polygenelubricantt", 50) != ((-(1 << 31) + 1) & 0x7FFFFFFF) % 50


def test_the_smallest_hash_goes_to_partition_zero() -> None:
    """It is the only number whose absolute value does not fit into 32 bits. It counts as zero."""
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("polygenelubricants", 7) == 0
