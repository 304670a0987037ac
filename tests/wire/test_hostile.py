"""Hostile input: any bytes give a message or a ProtocolError, at a limited cost."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.api import ApiKey
from penstock.wire.codec import (
    REQUEST_ELEMENTS_MAX,
    decode,
    decode_at,
    decode_embedded,
    decode_request,
    decode_response,
    encode,
    request_class,
    response_class,
)
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import (
    ApiVersionsRequest,
    ConsumerProtocolSubscription,
    CreateTopicsRequest,
    HeartbeatRequest,
    MetadataRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from penstock.wire.schema import message_schema

from .samples import message_class, message_names, plain_encode, sample, uvarint, versions

MIB = 1 << 20


@pytest.mark.parametrize("name", message_names())
def test_every_truncated_message_is_refused(name: str) -> None:
    """A truncated message is a ProtocolError; never another exception, never a guess."""
    for version in versions(name):
        data = encode(sample(name, version, count=1), version)
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                decode(message_class(name), data[:size], version)


@pytest.mark.parametrize("name", message_names())
def test_damaged_messages_never_break_the_decoder(name: str) -> None:
    """Changed, removed and inserted bytes give a message or a ProtocolError."""
    chance = random.Random(name)
    for version in versions(name):
        sound = encode(sample(name, version, seed=3), version)
        for _ in range(15):
            data = bytearray(sound)
            for _ in range(chance.randint(1, 3)):
                at = chance.randrange(len(data) + 1)
                data[at : at + chance.choice((0, 1, 2))] = chance.choice(
                    (b"\xff", b"\x7f", b"\x80", b"\0", chance.randbytes(2), b"\xff" * 5)
                )
            with suppress(ProtocolError):
                decode(message_class(name), bytes(data), version)


@settings(deadline=None, max_examples=150)
@given(data=st.binary(max_size=200), key=st.sampled_from(list(ApiKey)), version=st.integers(0, 18))
def test_random_frames_never_break_the_decoder(data: bytes, key: ApiKey, version: int) -> None:
    """Random bytes, with and without a valid header."""
    frame = struct.pack(">hhih", key, version, 1, -1) + data
    for attempt in (frame, data):
        with suppress(ProtocolError):
            decode_request(memoryview(bytearray(attempt)))
    if message_schema(f"{key.api_name}Response").versions.cover(version):
        with suppress(ProtocolError):
            decode_response(response_class(key), memoryview(bytearray(data)), version)
    with suppress(ProtocolError):
        decode_embedded(ConsumerProtocolSubscription, data)


def flexible_version(name: str) -> int | None:
    schema = message_schema(name)
    last = schema.versions.last
    return last if schema.flexible.cover(last) else None


@pytest.mark.parametrize("name", [name for name in message_names() if flexible_version(name)])
def test_unknown_tags_are_skipped_in_every_struct(name: str) -> None:
    """Tagged fields of a newer peer change nothing, wherever they are."""
    unknown = {9: b"", 100: b"later", 300_000: bytes(200)}
    for version in versions(name):
        if not message_schema(name).flexible.cover(version):
            continue
        for message in (sample(name, version, count=2), sample(name, version, seed=5)):
            data = plain_encode(name, version, message, unknown)
            decoded, end = decode_at(message_class(name), data, version, 0)
            assert decoded == message
            assert end == len(data)


def refused(message: type[Any], data: bytes, version: int, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(message, data, version, elements_max=REQUEST_ELEMENTS_MAX)


def test_lengths_are_checked_against_the_frame() -> None:
    """The error for a negative, null or too large length names its field."""
    refused(HeartbeatRequest, b"\xff\xff" + bytes(20), 0, "GroupId may not be null")
    refused(HeartbeatRequest, b"\x80\x00" + bytes(20), 0, "GroupId may not be null")
    refused(HeartbeatRequest, b"\x7f\xff" + bytes(20), 0, "GroupId ends beyond")
    refused(HeartbeatRequest, b"\x00" + bytes(20), 4, "GroupId may not be null")
    refused(HeartbeatRequest, uvarint(40_000) + bytes(50_000), 4, "GroupId: 39999 bytes")
    refused(HeartbeatRequest, b"\xff" * 9, 4, "longer than five bytes")
    refused(HeartbeatRequest, b"\x03\xff\xfe" + bytes(20), 4, "not UTF-8")
    refused(MetadataRequest, struct.pack(">i", -2), 1, "Topics may not be null")
    refused(MetadataRequest, struct.pack(">i", -1), 0, "Topics may not be null")
    assert decode(MetadataRequest, struct.pack(">i", -1), 1).topics is None


def test_a_tagged_field_must_fill_its_length() -> None:
    """A known tag whose value is shorter or longer than announced is refused."""
    good = encode(sample("FetchRequest", 12, count=1), 12)
    at = good.rindex(b"\x00\x05\x05name")
    assert decode_at(message_class("FetchRequest"), good, 12, 0)[1] == len(good)
    for length in (4, 6):
        data = good[: at + 1] + bytes([length]) + good[at + 2 :] + bytes(4)
        refused(message_class("FetchRequest"), data, 12, "not as long as its length says")


@pytest.mark.parametrize(
    ("message", "version", "head", "element"),
    [
        (ProduceRequest, 9, b"\0\0\1\0\0\0\0", b"\1\1\0"),
        (OffsetFetchRequest, 8, b"", b"\1\1\0"),
        (CreateTopicsRequest, 7, b"", b"\1\0\0\0\0\0\0\1\1\0"),
        (MetadataRequest, 8, b"", b"\0\0"),
    ],
)
def test_bombs_are_refused_with_little_memory(
    message: Any, version: int, head: bytes, element: bytes
) -> None:
    """Frames full of the smallest elements, or that only claim to have them."""
    flexible = message_schema(message.__name__).flexible.cover(version)
    claimed = [8 * MIB // len(element), (1 << 31) - 2]
    for count in claimed:
        prefix = uvarint(count + 1) if flexible else struct.pack(">i", count)
        data = head + prefix + element * (8 * MIB // len(element))
        tracemalloc.start()
        refused(message, data, version, "elements do not fit")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 * MIB


def test_elements_use_no_more_memory_than_the_budget_assumes() -> None:
    """The most expensive element uses less than 200 bytes, a request less than 20 MiB."""
    count = 10_000
    data = uvarint(count + 1) + b"\1\0\0\0\0\0\0\1\1\0" * count + bytes(20)
    tracemalloc.start()
    request = decode(CreateTopicsRequest, data, 7, elements_max=count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(request.topics) == count
    assert peak - len(data) < 200 * count
    assert 200 * REQUEST_ELEMENTS_MAX <= 20 * MIB


def test_nested_arrays_share_one_budget() -> None:
    """Many arrays below the limit may not exceed it together."""
    inner = b"\1" + uvarint(1001) + struct.pack(">i", 1) * 1000 + b"\0"
    data = b"\2g" + uvarint(301) + inner * 300 + b"\0" * 3
    with pytest.raises(ProtocolError, match="limit"):
        decode(OffsetFetchRequest, data, 7, elements_max=200_000)
    assert len(decode(OffsetFetchRequest, data, 7, elements_max=400_000).topics or ()) == 300


def test_tags_are_counted_too() -> None:
    """Millions of empty tagged fields are refused because of their number."""
    many = uvarint(3_000_000) + b"\x05\x00" * 3_000_000
    refused(ApiVersionsRequest, b"\1\1" + many, 3, "tagged fields")
    refused(ApiVersionsRequest, b"\1\1" + uvarint(1 << 31) + b"\5\0", 3, "tagged fields")
    refused(ApiVersionsRequest, b"\1\1\1\5\x7f", 3, "ends beyond")


def test_unknown_api_keys_and_versions_are_refused() -> None:
    """They are refused by their header."""
    for key, version in ((4, 0), (999, 0), (-1, 0), (0, 99), (0, -1), (18, 32767)):
        frame = memoryview(bytearray(struct.pack(">hhih", key, version, 1, -1)))
        with pytest.raises(
            ProtocolError, match=f"API key {key} version {version} is not supported"
        ):
            decode_request(frame)
    assert request_class(4) is None
