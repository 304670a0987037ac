"""The answers of the fake broker that refuse everything in a request."""

from __future__ import annotations

from typing import Any

from penstock.wire import messages
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.base import Response


def refuse(request: Any, code: ErrorCode) -> Response:
    """Returns an answer that refuses everything in the request, if the request's API allows it."""
    match request:
        case messages.ProduceRequest() | messages.FetchRequest() | messages.ListOffsetsRequest():
            return _refuse_partitions(request, code)
        case messages.CreateTopicsRequest():
            return messages.CreateTopicsResponse(
                topics=[
                    messages.CreateTopicsResponse.Topic(topic.name, error_code=code)
                    for topic in request.topics
                ]
            )
        case messages.DescribeGroupsRequest():
            return messages.DescribeGroupsResponse(
                groups=[
                    messages.DescribeGroupsResponse.Group(code, group_id=name)
                    for name in request.groups
                ]
            )
        case messages.FindCoordinatorRequest():
            return messages.FindCoordinatorResponse(
                coordinators=[
                    messages.FindCoordinatorResponse.Coordinator(key, -1, "", -1, code)
                    for key in request.coordinator_keys
                ]
            )
        case messages.MetadataRequest():
            return messages.MetadataResponse(
                brokers=[],
                topics=[
                    messages.MetadataResponse.Topic(code, topic.name)
                    for topic in request.topics or ()
                ],
                error_code=0 if request.topics else code,
            )
        case messages.InitProducerIdRequest():
            return messages.InitProducerIdResponse(error_code=code)
    raise NotImplementedError(f"no refusal is written for {type(request).__name__}")


def _refuse_partitions(
    request: messages.ProduceRequest | messages.FetchRequest | messages.ListOffsetsRequest,
    code: ErrorCode,
) -> Response:
    match request:
        case messages.ProduceRequest():
            return messages.ProduceResponse(
                responses=[
                    messages.ProduceResponse.Topic(
                        topic.name,
                        partition_responses=[
                            messages.ProduceResponse.Partition(part.index, code, -1)
                            for part in topic.partition_data
                        ],
                    )
                    for topic in request.topic_data
                ]
            )
        case messages.FetchRequest():
            return messages.FetchResponse(
                responses=[
                    messages.FetchResponse.Topic(
                        topic.topic,
                        partitions=[
                            messages.FetchResponse.Partition(part.partition, code)
                            for part in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
        case messages.ListOffsetsRequest():
            return messages.ListOffsetsResponse(
                topics=[
                    messages.ListOffsetsResponse.Topic(
                        topic.name,
                        [
                            messages.ListOffsetsResponse.Partition(part.partition_index, code)
                            for part in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
