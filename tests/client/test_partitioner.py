"""Keys go where Java's producer puts them."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.partitioner import murmur2, partition_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own use of importlib
    from kafka.partitioner.default import murmur2 as peer_murmur2


@given(st.binary(max_size=70))
@settings(deadline=None, max_examples=300)
def test_the_hash_is_the_one_other_clients_use(key: bytes) -> None:
    """Byte for byte the same as an independent implementation."""
    assert murmur2(key) == peer_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "signed_hash"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_known_hashes(key: bytes, signed_hash: int) -> None:
    """Values that Java's client is tested with."""
    assert murmur2(key) == signed_hash & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
@settings(deadline=None, max_examples=100)
def test_a_key_has_one_partition_and_it_exists(key: bytes, partitions: int) -> None:
    """Negative hashes lose their sign, they do not become negative partitions."""
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions
