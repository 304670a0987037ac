"""Every message in every version is encoded and decoded, and compared with two other encoders."""

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
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's use of importlib
    KAFKA_PYTHON = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in ("admin", "consumer", "metadata", "producer", "sasl")
    ]
NOT_IN_KAFKA_PYTHON = {
    "EndTransactionsRequest",
    "EndTransactionsResponse",
    "DescribeRolesRequest",
    "DescribeRolesResponse",
    "AlterRolesRequest",
    "AlterRolesResponse",
    "CheckAccessRequest",
    "CheckAccessResponse",
    *(
        f"{verb}DelegationToken{kind}"
        for verb in ("Create", "Renew", "Expire", "Describe")
        for kind in ("Request", "Response")
    ),
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    *(
        f"{api}{kind}"
        for api in (
            *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
            *("ShareState", "DescribeQueue"),
            *(f"{verb}ShareGroupOffsets" for verb in ("Describe", "Alter", "Delete")),
        )
        for kind in ("Request", "Response")
    ),
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
def test_every_message_survives_a_round_trip(name: str, seed: int) -> None:
    """All bytes are consumed, and the simple encoder writes the same ones; in every version."""
    for version in versions(name):
        message = sample(name, version, seed)
        data = encode(message, version)
        assert data == plain_encode(name, version, message)
        decoded, end = decode_at(message_class(name), memoryview(data), version, 0)
        assert end == len(data)
        assert decoded == message, version


@pytest.mark.parametrize("name", message_names())
def test_messages_of_defaults_survive_a_round_trip(name: str) -> None:
    """A message with defaults can be sent in every version."""
    for version in versions(name):
        message = message_class(name)()
        assert decode_at(message_class(name), encode(message, version), version, 0)[0] == message


def in_kafka_python() -> list[str]:
    return [name for name in message_names() if kafka_python_class(name) is not None]


def test_kafka_python_knows_nearly_all_messages() -> None:
    """It lacks those of new kinds of groups, delegation tokens, telemetry, one more API, and our
    own."""
    assert set(message_names()) - set(in_kafka_python()) == NOT_IN_KAFKA_PYTHON


@pytest.mark.parametrize("name", in_kafka_python())
def test_messages_are_encoded_as_by_kafka_python(name: str) -> None:
    """kafka-python decodes our bytes to the same values, and encodes the same bytes again."""
    options = {} if isinstance(message_class(name)(), Request | Response) else {"header": False}
    theirs = kafka_python_class(name)
    assert theirs.max_version >= versions(name)[-1]
    for version in versions(name):
        for seed in range(6):
            message: Any = sample(name, version, seed)
            if name == "ApiVersionsResponse":
                message.error_code = 0  # With an error, kafka-python reads it as version 0.
            data = encode(message, version)
            read = theirs.decode(data, version=version, **options)
            same_values(message_schema(name).root, version, message, read)
            read._header = None
            assert bytes(read.encode(version=version, **options)) == data, version


@pytest.mark.parametrize("name", sorted(set(in_kafka_python()) - set(EMBEDDED)))
def test_frames_are_encoded_as_by_kafka_python(name: str) -> None:
    """The frames with their headers are equal byte for byte."""
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
    """Asserts that every field of the version has the value that kafka-python read."""
    for field in part.fields:
        if not field.versions.cover(version) or field.name.endswith("AuthorizedOperations"):
            continue  # kafka-python turns these bits into sets, under another name.
        value, other = getattr(ours, field.attribute), getattr(theirs, field.attribute)
        if value is None:
            # kafka-python has a struct of defaults where a tagged struct is absent.
            assert other is None or field.is_struct(), field
        elif field.struct is not None:
            ones, others = (value, other) if field.is_array else ([value], [other])
            for one, another in zip(ones, others, strict=True):
                same_values(field.struct, version, one, another)
        elif field.type == "uuid":
            assert value == (other.bytes if other is not None else bytes(16)), field
        else:
            assert value == other, field
