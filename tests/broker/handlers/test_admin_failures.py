"""When an admin request fails as a whole, every part of its response gets the error code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from broker.harness import BrokerHarness, with_harness
from penstock.broker.dispatch import Dispatcher
from penstock.stores.errors import StoreUnavailable
from penstock.wire.api import SUPPORTED, ApiKey
from penstock.wire.codec import decode_response, encode_response
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
)
from penstock.wire.messages.base import Request, Struct

REQUESTS: dict[str, tuple[Callable[[], Request], int]] = {
    "create topics": (lambda: CreateTopicsRequest([CreateTopicsRequest.Topic("a")]), 1),
    "delete by name": (lambda: DeleteTopicsRequest(topic_names=["a", "b"]), 2),
    "delete by id": (
        lambda: DeleteTopicsRequest([DeleteTopicsRequest.Topic(None, b"i" * 16)]),
        1,
    ),
    "create partitions": (
        lambda: CreatePartitionsRequest([CreatePartitionsRequest.Topic("a", 2)]),
        1,
    ),
    "delete records": (
        lambda: DeleteRecordsRequest(
            [DeleteRecordsRequest.Topic("a", [DeleteRecordsRequest.Partition(1, 2)])]
        ),
        1,
    ),
    "describe configs": (
        lambda: DescribeConfigsRequest([DescribeConfigsRequest.Resource(2, "a")]),
        1,
    ),
    "alter configs": (lambda: AlterConfigsRequest([AlterConfigsRequest.Resource(2, "a")]), 1),
    "edit configs": (
        lambda: IncrementalAlterConfigsRequest([IncrementalAlterConfigsRequest.Resource(2, "a")]),
        1,
    ),
    "describe partitions": (
        lambda: DescribeTopicPartitionsRequest([DescribeTopicPartitionsRequest.Topic("a")]),
        1,
    ),
    "describe producers": (
        lambda: DescribeProducersRequest([DescribeProducersRequest.Topic("a", [0, 1])]),
        2,
    ),
    "describe log dirs": (lambda: DescribeLogDirsRequest(None), 1),
    "describe cluster": (DescribeClusterRequest, 1),
    "list reassignments": (ListPartitionReassignmentsRequest, 1),
}


def codes(part: object) -> Iterator[int]:
    """Yields every error code in a message, at any depth."""
    if isinstance(part, Struct):
        for name in part.__slots__:
            value = getattr(part, name)
            if name == "error_code":
                yield value
            yield from codes(value)
    elif isinstance(part, list):
        for each in part:
            yield from codes(each)


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_that_fails_as_a_whole_is_answered_in_full(case: str) -> None:
    """Each topic, partition or resource has the code, and the response can be encoded."""
    make, parts = REQUESTS[case]
    request = make()
    key = ApiKey(request.API_KEY)
    version = SUPPORTED[key].max_version
    refused = Dispatcher().refuse(request, version, KafkaError(ErrorCode.NOT_CONTROLLER))
    given = [code for code in codes(refused) if code]
    assert given == [ErrorCode.NOT_CONTROLLER] * parts
    frame = memoryview(b"".join(encode_response(refused, version, 5)))[4:]
    _, received = decode_response(type(refused), frame, version)
    assert [code for code in codes(received) if code] == given


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("the disk is full: free some room"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (TimeoutError(), ErrorCode.REQUEST_TIMED_OUT),
        (KafkaError(ErrorCode.NOT_CONTROLLER), ErrorCode.NOT_CONTROLLER),
    ],
)
def test_a_failed_store_is_reported_for_every_topic(
    error: Exception,
    code: ErrorCode,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each topic has a message, and the broker goes on."""

    async def scenario(harness: BrokerHarness) -> None:
        async def fail(_: object) -> None:
            raise error

        request = CreateTopicsRequest([CreateTopicsRequest.Topic(name, 1, 1) for name in "ab"])
        with monkeypatch.context() as patch:
            patch.setattr(harness.broker.controller, "decide", fail)
            response = await harness.ask(request, 7, CreateTopicsResponse)
        assert [topic.error_code for topic in response.topics] == [code, code]
        assert all(topic.error_message for topic in response.topics)
        response = await harness.ask(request, 7, CreateTopicsResponse)
        assert [topic.error_code for topic in response.topics] == [0, 0]

    with_harness(scenario)(tmp_path_factory.mktemp("harness"))


@pytest.mark.parametrize("version", [2, 7])
def test_an_unexpected_exception_is_answered_and_logged(
    version: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client gets UNKNOWN_SERVER_ERROR."""

    async def scenario(harness: BrokerHarness) -> None:
        async def fail() -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(harness.broker.replicas, "settled", fail)
        request = CreateTopicsRequest([CreateTopicsRequest.Topic("a", 1, 1)])
        response = await harness.ask(request, version, CreateTopicsResponse)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.UNKNOWN_SERVER_ERROR]

    with_harness(scenario)(tmp_path_factory.mktemp("harness"))
    assert "CreateTopicsRequest failed" in caplog.text
