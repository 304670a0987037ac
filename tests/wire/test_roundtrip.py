"""Every message in every version, out and back, against a plain encoder and kafka-python's."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.codec import decode_at, encode, encode_request, encode_response
from penstock.wire.messages.base import Request, Response
from penstock.wire.schema import EMBEDDED, message_schema
from penstock.wire.schema.notation import Struct as Part

from .samples import message_class, message_names, plain_encode, sample, versions

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # It reads its schemas the old way.
    KAFKA_PYTHON = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in ("admin", "consumer", "metadata", "producer", "sasl")
    ]
NOT_IN_KAFKA_PYTHON = {
    "EndTransactionsRequest",
    "EndTransactionsResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "GetTelemetrySubscriptionsRequest",
    "GetTelemetrySubscriptionsResponse",
    "PushTelemetryRequest",
    "PushTelemetryResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
}


def kafka_python_class(name: str) -> Any:
    return next((getattr(m, name) for m in KAFKA_PYTHON if hasattr(m, name)), None)


@pytest.mark.parametrize("name", message_names())
@settings(deadline=None, max_examples=10, database=None)
@given(seed=st.integers(0, 1 << 32))
def test_roundtrip(name: str, seed: int) -> None:
    """What is encoded decodes to an equal message, uses up all bytes, and is what the plain
    encoder writes; in every version."""
    for version in versions(name):
        message = sample(name, version, seed)
        data = encode(message, version)
        assert data == plain_encode(name, version, message)
        decoded, end = decode_at(message_class(name), memoryview(data), version, 0)
        assert end == len(data)
        assert decoded == message, version


@pytest.mark.parametrize("name", message_names())
def test_defaults_roundtrip(name: str) -> None:
    """A message of defaults can be sent in every version and comes back equal."""
    for version in versions(name):
        message = message_class(name)()
        assert decode_at(message_class(name), encode(message, version), version, 0)[0] == message


def in_kafka_python() -> list[str]:
    return [name for name in message_names() if kafka_python_class(name) is not None]


def test_kafka_python_knows_nearly_all() -> None:
    """The comparison below covers all but the new consumer groups, telemetry, one more, and our
    own."""
    assert set(message_names()) - set(in_kafka_python()) == NOT_IN_KAFKA_PYTHON


@pytest.mark.parametrize("name", in_kafka_python())
def test_against_kafka_python(name: str) -> None:
    """kafka-python reads our bytes as the values we wrote, and writes the same bytes again."""
    options = {} if isinstance(message_class(name)(), Request | Response) else {"header": False}
    theirs = kafka_python_class(name)
    assert theirs.max_version >= versions(name)[-1]
    for version in versions(name):
        for seed in range(6):
            message: Any = sample(name, version, seed)
            if name == "ApiVersionsResponse":
                message.error_code = 0  # Any other makes kafka-python read it as version 0.
            data = encode(message, version)
            read = theirs.decode(data, version=version, **options)
            same_values(message_schema(name).root, version, message, read)
            read._header = None
            assert bytes(read.encode(version=version, **options)) == data, version


@pytest.mark.parametrize("name", sorted(set(in_kafka_python()) - set(EMBEDDED)))
def test_frames_against_kafka_python(name: str) -> None:
    """Frames with their headers are what kafka-python writes."""
    for version in versions(name):
        message = sample(name, version, seed=1)
        assert isinstance(message, Request | Response)
        if name == "ApiVersionsResponse":
            message.error_code = 0  # type: ignore[union-attr]
        read = kafka_python_class(name).decode(encode(message, version), version=version)
        read._version = version
        if isinstance(message, Request):
            read.with_header(correlation_id=77, client_id="tester")
            ours = encode_request(message, version, 77, "tester")
        else:
            read.with_header(correlation_id=77)
            ours = encode_response(message, version, 77)
        assert b"".join(ours) == bytes(read.encode(header=True, framed=True))


def same_values(part: Part, version: int, ours: Any, theirs: Any) -> None:
    """Every field that the version has is what kafka-python read."""
    for field in part.fields:
        if not field.versions.cover(version) or field.name.endswith("AuthorizedOperations"):
            continue  # It makes sets of the bits of authorized operations, under another name.
        value, other = getattr(ours, field.attribute), getattr(theirs, field.attribute)
        if value is None:
            # It has a struct of defaults where a tagged struct is absent.
            assert other is None or field.is_struct(), field
        elif field.struct is not None:
            ones, others = (value, other) if field.is_array else ([value], [other])
            for one, another in zip(ones, others, strict=True):
                same_values(field.struct, version, one, another)
        elif field.type == "uuid":
            assert value == (other.bytes if other is not None else bytes(16)), field
        else:
            assert value == other, field
