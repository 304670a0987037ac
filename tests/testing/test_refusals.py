"""Tests the error responses that the fault proxy sends in place of the broker, in every version."""

from __future__ import annotations

import pytest

from penstock.testing.refusals import can_fail, refusal, spoil
from penstock.wire.api import SUPPORTED, ApiKey
from penstock.wire.codec import (
    decode_response,
    encode_response,
    request_class,
    response_class,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Response

CODE = ErrorCode.NOT_LEADER_OR_FOLLOWER


def over_the_wire(answer: Response, version: int) -> Response:
    frame = b"".join(encode_response(answer, version, 5))[4:]
    return decode_response(type(answer), memoryview(frame), version)[1]


@pytest.mark.parametrize("api", [api for api in SUPPORTED if can_fail(api)])
def test_every_refusal_can_be_sent_in_every_version(api: ApiKey) -> None:
    kind = request_class(api)
    assert kind is not None
    for version in range(SUPPORTED[api].serve_min, SUPPORTED[api].max_version + 1):
        answer = refusal(kind(), CODE)
        if answer is None:
            answer = response_class(api)()
            spoil(answer, CODE)
        assert isinstance(over_the_wire(answer, version), response_class(api))


def test_a_refused_produce_names_every_partition_it_was_for() -> None:
    request = ProduceRequest(
        topic_data=[
            ProduceRequest.Topic(
                "a", partition_data=[ProduceRequest.Partition(0), ProduceRequest.Partition(3)]
            ),
            ProduceRequest.Topic("b", partition_data=[ProduceRequest.Partition(1)]),
        ]
    )
    answer = refusal(request, CODE)
    assert isinstance(answer, ProduceResponse)
    assert [
        (topic.name, partition.index, partition.error_code)
        for topic in answer.responses
        for partition in topic.partition_responses
    ] == [("a", 0, CODE), ("a", 3, CODE), ("b", 1, CODE)]


@pytest.mark.parametrize("version", [2, 4])
def test_a_refused_coordinator_uses_the_error_field_of_its_version(version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    if version < 4:
        request = FindCoordinatorRequest(key="g")
    answer = refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert answer is not None
    answer = over_the_wire(answer, version)
    assert isinstance(answer, FindCoordinatorResponse)
    told = answer.coordinators[0] if version >= 4 else answer
    assert (told.error_code, told.host) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")


def test_offsets_are_refused_for_each_group() -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group("g", topics=None)])
    answer = refusal(request, CODE)
    assert isinstance(answer, OffsetFetchResponse)
    assert [(group.group_id, group.error_code) for group in answer.groups] == [("g", CODE)]


def test_responses_of_read_only_requests_get_their_error_codes_replaced() -> None:
    """The codes are set on the partitions, not at the top level."""
    answer = ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.Topic(
                "a", [ListOffsetsResponse.Partition(0), ListOffsetsResponse.Partition(1)]
            )
        ]
    )
    spoil(answer, CODE)
    assert [partition.error_code for partition in answer.topics[0].partitions] == [CODE, CODE]


def test_metadata_with_injected_errors_still_lists_the_brokers() -> None:
    answer = MetadataResponse(
        brokers=[MetadataResponse.Broker(1, "h", 1)],
        topics=[MetadataResponse.Topic(0, "a", partitions=[MetadataResponse.Partition()])],
    )
    spoil(answer, ErrorCode.LEADER_NOT_AVAILABLE)
    assert [broker.node_id for broker in answer.brokers] == [1]
    assert answer.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert answer.topics[0].partitions == []
