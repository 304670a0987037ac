"""The codec: headers, records without copies, fields that a version lacks, embedded messages."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from penstock.testing.slowness import patient
from penstock.wire.api import SUPPORTED, ApiKey, advertised, served
from penstock.wire.codec import (
    RequestHeader,
    UnsupportedRequest,
    decode,
    decode_embedded,
    decode_header,
    decode_request,
    decode_response,
    encode,
    encode_embedded,
    encode_parts,
    encode_request,
    encode_response,
    request_class,
    response_class,
    response_correlation_id,
)
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerGroupDescribeResponse,
    ConsumerProtocolSubscription,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    SaslAuthenticateRequest,
)
from penstock.wire.schema import message_schema


def frame_of(parts: list[bytes | bytearray | memoryview]) -> memoryview:
    """Returns the frame that the receiver's framing would return."""
    data = bytearray(b"".join(parts))
    assert struct.unpack_from(">i", data)[0] == len(data) - 4
    return memoryview(data)[4:]


def produce(records: bytes | memoryview | None) -> ProduceRequest:
    partition = ProduceRequest.Partition(3, records)
    return ProduceRequest(
        acks=-1, topic_data=[ProduceRequest.Topic("t", partition_data=[partition])]
    )


@pytest.mark.parametrize("client_id", ["tester", "", None])
@pytest.mark.parametrize("version", [8, 9])
def test_a_request_survives_a_round_trip(version: int, client_id: str | None) -> None:
    """With header versions 1 and 2."""
    message = produce(b"abc")
    header, decoded = decode_request(frame_of(encode_request(message, version, 99, client_id)))
    assert header == RequestHeader(0, version, 99, client_id)
    assert decoded == message


def test_client_id_is_never_compact() -> None:
    """Header version 2 keeps the old two-byte length for it, and ends with its tagged fields."""
    sent = b"".join(encode_request(HeartbeatRequest(), 4, 1, "ab"))
    assert sent[4:18] == struct.pack(">hhih", 12, 4, 1, 2) + b"ab" + b"\0" + b"\1"


def test_header_tags_are_skipped() -> None:
    """Tagged fields in a request or response header are ignored."""
    body = encode(HeartbeatRequest("g"), 4)
    tags = b"\1\x07\x02zz"
    frame = memoryview(bytearray(struct.pack(">hhih", 12, 4, 1, -1) + tags + body))
    assert decode_request(frame)[1] == HeartbeatRequest("g")
    answer = encode(HeartbeatResponse(5, 6), 4)
    frame = memoryview(bytearray(struct.pack(">i", 1) + tags + answer))
    assert decode_response(HeartbeatResponse, frame, 4) == (1, HeartbeatResponse(5, 6))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_responses_always_have_header_version_0(version: int) -> None:
    """Its header has no tagged fields in any version, unlike those of other responses."""
    message = ApiVersionsResponse(0, [ApiVersionsResponse.ApiVersion(0, 0, 11)])
    sent = encode_response(message, version, 7)
    assert b"".join(sent)[8:] == encode(message, version)
    assert decode_response(ApiVersionsResponse, frame_of(sent), version) == (7, message)
    flexible = b"".join(encode_response(HeartbeatResponse(), 4, 7))
    assert flexible[8:] == b"\0" + encode(HeartbeatResponse(), 4)


def test_api_versions_refusal_is_read_as_version_zero() -> None:
    """A broker that lacks the version answers with version 0."""
    refusal = ApiVersionsResponse(
        ErrorCode.UNSUPPORTED_VERSION, [ApiVersionsResponse.ApiVersion(18, 0, 2)]
    )
    frame = frame_of(encode_response(refusal, 0, 7))
    assert decode_response(ApiVersionsResponse, frame, 4) == (7, refusal)


def test_the_error_for_an_unsupported_version_has_the_header() -> None:
    """The body of an unsupported version is not decoded; the response needs the header."""
    frame = memoryview(bytearray(struct.pack(">hhih", 18, 99, 5, 1) + b"x" + b"\xff" * 9))
    with pytest.raises(UnsupportedRequest, match="version 99") as caught:
        decode_request(frame)
    assert caught.value.header == RequestHeader(18, 99, 5, "x") == decode_header(frame)


def test_only_served_apis_and_versions_are_decoded() -> None:
    """Only APIs with a handler are decoded, from the lowest served version."""
    chosen = served([ApiKey.PRODUCE, ApiKey.API_VERSIONS])
    assert chosen[0] == (3, 12)
    ok = frame_of(encode_request(ApiVersionsRequest(), 3, 1, None))
    assert decode_request(ok, chosen)[1] == ApiVersionsRequest()
    for refused in (
        frame_of(encode_request(MetadataRequest(), 9, 1, None)),
        frame_of(encode_request(ProduceRequest(), 13, 1, None)),
        memoryview(bytearray(struct.pack(">hhih", 0, 2, 1, -1))),
    ):
        with pytest.raises(UnsupportedRequest):
            decode_request(refused, chosen)


def test_advertised_versions_may_differ_from_served_versions() -> None:
    """Produce is advertised from version 0 for old librdkafka, but served from 3. Every range is
    within what the schema tables describe."""
    assert advertised([ApiKey.FETCH, ApiKey.PRODUCE]) == [
        ApiVersionsResponse.ApiVersion(0, 0, 12),
        ApiVersionsResponse.ApiVersion(1, 4, 17),
    ]
    for key, known in SUPPORTED.items():
        tables = message_schema(f"{key.api_name}Request").versions
        assert known.min_version <= known.serve_min <= known.max_version
        assert tables.cover(known.served.first)
        assert tables.cover(known.served.last)
        found = request_class(key)
        assert found is not None
        assert found.API_KEY == response_class(key).API_KEY == key


def test_bytes_after_the_body_are_ignored() -> None:
    """As in Kafka: the frame determines where the next request begins."""
    frame = bytearray(frame_of(encode_request(HeartbeatRequest("g"), 3, 1, None)))
    assert decode_request(memoryview(frame + b"more"))[1] == HeartbeatRequest("g")


def test_short_headers_are_refused() -> None:
    """Frames that are too short for a header, or whose client id exceeds them, are not requests."""
    for data in (b"", b"\0" * 9, struct.pack(">hhih", 12, 0, 1, 5) + b"abcd"):
        with pytest.raises(ProtocolError):
            decode_request(memoryview(bytearray(data)))
    with pytest.raises(ProtocolError, match="too short"):
        response_correlation_id(memoryview(b"\0\0\0"))
    with pytest.raises(ProtocolError, match="not UTF-8"):
        decode_header(memoryview(struct.pack(">hhih", 12, 0, 1, 1) + b"\xff"))
    with pytest.raises(ProtocolError, match="header"):
        decode_request(memoryview(struct.pack(">hhih", 12, 4, 1, -1)))


def test_records_are_slices_of_the_frame() -> None:
    """Stamping a decoded batch writes into the frame."""
    frame = frame_of(encode_request(produce(bytes(5000)), 9, 1, None))
    _, request = decode_request(frame)
    assert isinstance(request, ProduceRequest)
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert len(records) == 5000
    records[0:3] = b"abc"
    assert bytes(frame).count(b"abc") == 1


def test_large_records_are_not_copied_by_the_encoder() -> None:
    """Large records are passed on as they are, one buffer or several; small ones are copied."""
    view = memoryview(bytearray(b"r" * 100_000))
    several: list[bytes | bytearray | memoryview] = [b"a" * 5000, view[:9000]]
    partitions = [
        FetchResponse.Partition(0, records=view),
        FetchResponse.Partition(1, records=several),
        FetchResponse.Partition(2, records=b"small"),
        FetchResponse.Partition(3, records=[b"sm", b"all"]),
        FetchResponse.Partition(4, records=[]),
        FetchResponse.Partition(5, records=None),
    ]
    message = FetchResponse(responses=[FetchResponse.Topic("t", partitions=partitions)])
    for version in (4, 11, 12):
        parts = encode_response(message, version, 3)
        assert len(parts) == 6
        assert parts[1] is view
        assert parts[3] is several[0]
        assert parts[4] is several[1]
        _, decoded = decode_response(FetchResponse, frame_of(parts), version)
        found = [p.records for p in decoded.responses[0].partitions]
        assert found == [view, b"a" * 5000 + view[:9000], b"small", b"small", b"", None]
        assert b"".join(encode_parts(message, version)) == encode(message, version)


def test_values_that_a_version_lacks_are_dropped_or_refused() -> None:
    """Ignorable values are dropped; for others the error names the field."""
    response = ProduceResponse(
        responses=[
            ProduceResponse.Topic(
                "t", partition_responses=[ProduceResponse.Partition(0, error_message="why")]
            )
        ]
    )
    old = decode(ProduceResponse, encode(response, 7), 7)
    assert old.responses[0].partition_responses[0].error_message is None
    response.responses[0].partition_responses[0].current_leader = ProduceResponse.Leader(1, 2)
    with pytest.raises(ProtocolError, match=r"v9: Partition\.CurrentLeader has a value"):
        encode(response, 9)
    assert decode(ProduceResponse, encode(response, 10), 10) == response
    with pytest.raises(ProtocolError, match=r"MetadataRequest v3: .*AllowAutoTopicCreation"):
        encode(MetadataRequest(allow_auto_topic_creation=False), 3)
    with pytest.raises(ProtocolError, match=r"Topics may not be null"):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(ProtocolError, match=r"ProtocolName may not be null"):
        encode(JoinGroupResponse(protocol_name=None), 6)


def test_values_that_do_not_fit_are_refused() -> None:
    """The error says which field cannot be encoded."""
    with pytest.raises(ProtocolError, match="ProduceRequest v9: a value does not fit"):
        encode(ProduceRequest(acks=40_000), 9)
    with pytest.raises(ProtocolError, match="HeartbeatRequest v4: a string of 40000 bytes"):
        encode(HeartbeatRequest("x" * 40_000), 4)
    with pytest.raises(ProtocolError, match="HeartbeatRequest v3: a value does not fit"):
        encode(HeartbeatRequest("x" * 40_000), 3)
    with pytest.raises(ProtocolError, match="a value does not fit"):
        encode(HeartbeatRequest("\ud800"), 3)
    with pytest.raises(ProtocolError, match="TopicId must be a uuid of 16 bytes"):
        encode(MetadataResponse(topics=[MetadataResponse.Topic(topic_id=b"short")]), 12)
    with pytest.raises(ProtocolError, match="has no version 99; use one of 0 to 4"):
        encode(HeartbeatRequest(), 99)
    with pytest.raises(ProtocolError, match="client id"):
        encode_request(HeartbeatRequest(), 0, 0, "x" * 40_000)


def test_embedded_messages_carry_their_version() -> None:
    """An embedded message carries its version; of a newer one the known fields are read."""
    subscription = ConsumerProtocolSubscription(["a", "b"], b"user", rack_id="r1")
    data = encode_embedded(subscription, 3)
    assert decode_embedded(ConsumerProtocolSubscription, data) == (3, subscription)
    newer = struct.pack(">h", 9) + data[2:] + b"what version 9 adds"
    assert decode_embedded(ConsumerProtocolSubscription, newer) == (9, subscription)
    for bad in (b"", b"\0", struct.pack(">h", -1) + data[2:]):
        with pytest.raises(ProtocolError):
            decode_embedded(ConsumerProtocolSubscription, bad)


def test_messages_compare_by_value_and_share_no_defaults() -> None:
    """Messages with equal fields are equal; default lists and structs are not shared."""
    first, second = MetadataRequest(), MetadataRequest()
    assert first == second
    assert first != MetadataRequest(topics=None)
    assert first != ApiVersionsRequest()
    first.topics = [MetadataRequest.Topic(name="t")]
    assert second.topics == []
    one, two = ConsumerGroupDescribeResponse.Member(), ConsumerGroupDescribeResponse.Member()
    assert one.assignment == two.assignment
    assert one.assignment is not two.assignment
    with pytest.raises(AttributeError):
        first.no_such_field = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)


def test_the_repr_of_a_message_hides_bytes() -> None:
    """Bytes may be passwords, so only their length is shown; ids are shown in hex."""
    secret = SaslAuthenticateRequest(b"\0user\0password")
    assert repr(secret) == "SaslAuthenticateRequest(auth_bytes=<14 bytes>)"
    topic = ProduceRequest.Topic("t", bytes(15) + b"\1")
    assert f"topic_id={'00' * 15}01" in repr(topic)


def test_the_error_message_explains_its_code() -> None:
    """A KafkaError uses the message of its code unless it is given a better one."""
    plain = KafkaError(ErrorCode.NOT_COORDINATOR)
    assert plain.retriable
    assert str(plain) == f"NOT_COORDINATOR: {ErrorCode.NOT_COORDINATOR.message}"
    assert str(KafkaError(ErrorCode.INVALID_CONFIG, "no such key")).endswith("no such key")
    assert not KafkaError(ErrorCode.INVALID_CONFIG).retriable
    assert ErrorCode(35) is ErrorCode.UNSUPPORTED_VERSION
    assert {int(code) for code in ErrorCode} == set(range(-1, 134))


def test_the_codec_loads_messages_only_when_they_are_used() -> None:
    """Importing the codec loads no schema tables and hardly any message classes."""
    script = (
        "import sys, penstock.wire.codec, penstock.wire.framing;"
        "print([n for n in sys.modules if n.startswith(('penstock.wire.schema.',"
        " 'penstock.wire.messages.'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(120),
    )
    assert sorted(eval(done.stdout)) == [
        "penstock.wire.messages.base",
        "penstock.wire.messages.cluster",
        "penstock.wire.schema.notation",
    ]
