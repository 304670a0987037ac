"""Tests the messages that members exchange: exact bytes, old and new versions, invalid input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.membership.assignors.base import Memory
from penstock.client.membership.assignors.cooperative import claimed_generation
from penstock.client.membership.assignors.sticky import decode_memory, encode_memory
from penstock.client.membership.protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ProtocolError

A0, A1, B2 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)
TOPICS = bytes.fromhex("00000002 0001 61 0001 62")
OWNED = bytes.fromhex("00000001 0001 61 00000002 00000000 00000001")
TOPIC_PARTITIONS = st.lists(
    st.builds(TopicPartition, st.text("abc", min_size=1, max_size=3), st.integers(0, 1 << 30)),
    unique=True,
).map(lambda topic_partitions: tuple(sorted(topic_partitions)))


def test_a_subscription_is_encoded_as_version_3() -> None:
    """Version, topics, user data, owned partitions, generation, rack, in this order."""
    written = encode_subscription(Subscription(("b", "a"), (A1, A0), 7, b"xy", "r"))
    expected = bytes.fromhex("0003") + TOPICS + bytes.fromhex("00000002 7879") + OWNED
    assert written == expected + bytes.fromhex("00000007 0001 72")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("0000" + TOPICS.hex() + "ffffffff", Subscription(("a", "b"))),
        ("0001" + TOPICS.hex() + "ffffffff" + OWNED.hex(), Subscription(("a", "b"), (A0, A1))),
        (
            "0002" + TOPICS.hex() + "ffffffff" + OWNED.hex() + "00000009",
            Subscription(("a", "b"), (A0, A1), 9),
        ),
        (
            "0003" + TOPICS.hex() + "ffffffff" + OWNED.hex() + "00000009" + "ffff",
            Subscription(("a", "b"), (A0, A1), 9),
        ),
    ],
    ids=["version 0", "version 1", "version 2", "version 3"],
)
def test_every_version_of_a_subscription_is_decoded(data: str, expected: Subscription) -> None:
    """Fields that an old version lacks get their defaults. A missing generation is None, to
    tell it from a given one."""
    assert decode_subscription(bytes.fromhex(data)) == expected


def test_fields_of_newer_versions_are_ignored() -> None:
    written = encode_subscription(Subscription(("a",), (A0,), 3))
    assert decode_subscription(b"\x00\x09" + written[2:] + b"more") == Subscription(
        ("a",), (A0,), 3
    )
    given = encode_assignment([A0, B2])
    assert decode_assignment(b"\x00\x09" + given[2:] + b"more") == (A0, B2)


@given(TOPIC_PARTITIONS, st.one_of(st.none(), st.binary()), st.integers(-1, 1 << 30))
@settings(deadline=None, max_examples=50)
def test_encoded_messages_are_decoded_unchanged(
    topic_partitions: tuple[TopicPartition, ...], user_data: bytes | None, generation: int
) -> None:
    """Subscriptions, assignments and the memory of sticky assignors."""
    subscription = Subscription(("a", "b"), topic_partitions, generation, user_data, "rack")
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(topic_partitions, user_data)) == topic_partitions
    assert decode_memory(encode_memory(Memory(topic_partitions, generation))) == Memory(
        topic_partitions, generation
    )


def test_the_bytes_of_an_assignment() -> None:
    """Version 0, partitions by topic, no user data. Empty bytes mean an empty assignment."""
    expected = "0000 00000002 0001 61 00000001 00000001 0001 62 00000001 00000002 ffffffff"
    assert encode_assignment([B2, A1]) == bytes.fromhex(expected)
    assert decode_assignment(b"") == ()


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x03\x00\x00\x00\x05a", b"\xff\xff" + TOPICS])
def test_invalid_bytes_are_refused(data: bytes) -> None:
    """They raise an error, and are not read as an empty subscription."""
    with pytest.raises(ProtocolError):
        decode_subscription(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, Memory()),
        (b"", Memory()),
        (OWNED, Memory((A0, A1))),
        (OWNED + bytes.fromhex("00000004"), Memory((A0, A1), 4)),
        (bytes.fromhex("00000000 00000004"), Memory((), 4)),
        (b"\x00\x00\x00\x09nonsense", Memory()),
        (OWNED + b"12345", Memory()),
    ],
    ids=["none", "empty", "version 0", "version 1", "nothing held", "nonsense", "too long"],
)
def test_the_memory_of_a_sticky_member_is_decoded_as_far_as_possible(
    data: bytes | None, expected: Memory
) -> None:
    """The two versions are distinguished without a version field. Unreadable
    bytes are an empty memory."""
    assert decode_memory(data) == expected


@pytest.mark.parametrize(
    ("subscription", "generation"),
    [
        (Subscription(("a",), (A0,), 5, b"\x00\x00\x00\x07"), 5),
        (Subscription(("a",), (A0,), None, b"\x00\x00\x00\x07"), 7),
        (Subscription(("a",), (A0,), None, OWNED + b"\x00\x00\x00\x08"), 8),
        (Subscription(("a",), (A0,), None, None), -1),
        (Subscription(("a",), (A0,), None, b"??"), -1),
    ],
    ids=["in its field", "java's user data", "librdkafka's user data", "not said", "nonsense"],
)
def test_where_the_generation_of_a_cooperative_member_is_found(
    subscription: Subscription, generation: int
) -> None:
    """First in the field of newer subscriptions, then where older libraries store it."""
    assert claimed_generation(subscription) == generation
