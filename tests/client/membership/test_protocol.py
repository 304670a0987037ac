"""What members tell each other: exact bytes, old and new versions, nonsense."""

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
from penstock.client.model import TopicPartition
from penstock.wire.errors import ProtocolError

A0, A1, B2 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)
TOPICS = bytes.fromhex("00000002 0001 61 0001 62")
OWNED = bytes.fromhex("00000001 0001 61 00000002 00000000 00000001")
PLACES = st.lists(
    st.builds(TopicPartition, st.text("abc", min_size=1, max_size=3), st.integers(0, 1 << 30)),
    unique=True,
).map(lambda places: tuple(sorted(places)))


def test_a_subscription_is_written_as_version_3() -> None:
    """Topics, user data, owned partitions, generation, rack: in this order, behind a version."""
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
def test_every_version_of_a_subscription_is_read(data: str, expected: Subscription) -> None:
    """What an old member does not say has its default; that it says no generation is known."""
    assert decode_subscription(bytes.fromhex(data)) == expected


def test_what_newer_versions_add_is_passed_over() -> None:
    """A member ahead of us is understood as far as we know its language."""
    written = encode_subscription(Subscription(("a",), (A0,), 3))
    assert decode_subscription(b"\x00\x09" + written[2:] + b"more") == Subscription(
        ("a",), (A0,), 3
    )
    given = encode_assignment([A0, B2])
    assert decode_assignment(b"\x00\x09" + given[2:] + b"more") == (A0, B2)


@given(PLACES, st.one_of(st.none(), st.binary()), st.integers(-1, 1 << 30))
@settings(deadline=None, max_examples=50)
def test_what_is_written_is_read(
    places: tuple[TopicPartition, ...], user_data: bytes | None, generation: int
) -> None:
    """Subscriptions, assignments and memories survive the journey."""
    subscription = Subscription(("a", "b"), places, generation, user_data, "rack")
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(places, user_data)) == places
    assert decode_memory(encode_memory(Memory(places, generation))) == Memory(places, generation)


def test_an_assignment_looks_the_same_to_everyone() -> None:
    """Version 0, partitions by topic, no user data; no bytes at all mean nothing to read."""
    expected = "0000 00000002 0001 61 00000001 00000001 0001 62 00000001 00000002 ffffffff"
    assert encode_assignment([B2, A1]) == bytes.fromhex(expected)
    assert decode_assignment(b"") == ()


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x03\x00\x00\x00\x05a", b"\xff\xff" + TOPICS])
def test_nonsense_is_refused(data: bytes) -> None:
    """Bytes that are no subscription raise, and do not hang or pass for an empty one."""
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
def test_a_sticky_members_memory_is_read_as_far_as_possible(
    data: bytes | None, expected: Memory
) -> None:
    """Both versions are told apart without a version; what cannot be read is no memory."""
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
def test_where_a_cooperative_member_says_its_generation(
    subscription: Subscription, generation: int
) -> None:
    """The field of newer subscriptions comes first, then what older libraries put elsewhere."""
    assert claimed_generation(subscription) == generation
