"""A response has the endpoints of the listener that its request came in on."""

from __future__ import annotations

import asyncio

from broker.harness import BrokerHarness, with_harness_of
from penstock.metadata.cluster_values import decode_broker, encode_broker
from penstock.metadata.keys import broker_key
from penstock.metadata.model import BrokerInfo
from penstock.security.listeners import Listener, SecurityProtocol
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from .connections import Connection

TWO = {
    "listeners": "INSIDE://127.0.0.1:9092,OUTSIDE://127.0.0.1:9192,HIDDEN://127.0.0.1:9292",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,HIDDEN:PLAINTEXT",
    "advertised.listeners": "INSIDE://inside.example:1,OUTSIDE://outside.example:2",
    "inter.broker.listener.name": "INSIDE",
}


@with_harness_of(kafka=TWO)
async def test_each_listener_answers_with_its_own_endpoint(harness: BrokerHarness) -> None:
    """A listener that is not advertised leads nowhere."""
    await harness.create("t")
    for listener, expected in (
        ("INSIDE", [("inside.example", 1)]),
        ("OUTSIDE", [("outside.example", 2)]),
        ("HIDDEN", []),
    ):
        connection = Connection(harness, listener)
        metadata = await connection.ask(MetadataRequest(None), 12, MetadataResponse)
        assert [(each.host, each.port) for each in metadata.brokers] == expected
        partition = metadata.topics[0].partitions[0]
        code = ErrorCode.NONE if expected else ErrorCode.LISTENER_NOT_FOUND
        assert (partition.error_code, partition.leader_id) == (code, 0 if expected else -1)
        cluster = await connection.ask(DescribeClusterRequest(), 1, DescribeClusterResponse)
        assert [(each.host, each.port) for each in cluster.brokers] == expected
    old = await Connection(harness, "HIDDEN").ask(MetadataRequest([]), 5, MetadataResponse)
    assert old.brokers == []


@with_harness_of(kafka=TWO)
async def test_the_coordinator_is_told_by_the_listener_of_the_request(
    harness: BrokerHarness,
) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])

    async def found(listener: str) -> FindCoordinatorResponse.Coordinator:
        connection = Connection(harness, listener)
        response = await connection.ask(request, 4, FindCoordinatorResponse)
        return response.coordinators[0]

    while (await found("INSIDE")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    inside, outside, hidden = [await found(each) for each in ("INSIDE", "OUTSIDE", "HIDDEN")]
    assert (inside.host, inside.port) == ("inside.example", 1)
    assert (outside.host, outside.port) == ("outside.example", 2)
    assert hidden.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "does not have the listener HIDDEN" in (hidden.error_message or "")


def test_a_registration_has_all_listeners() -> None:
    """One of an earlier version, and one with PLAINTEXT only, has none."""
    listeners = (
        Listener("INSIDE", "a", 1, SecurityProtocol.PLAINTEXT),
        Listener("OUTSIDE", "b", 2, SecurityProtocol.SASL_SSL),
    )
    broker = BrokerInfo(7, "a", 1, None, bytes(16), 3, listeners=listeners)
    assert decode_broker(broker_key(7), encode_broker(broker), 3) == broker
    assert [broker.endpoint(each) for each in ("INSIDE", "OUTSIDE", "PLAINTEXT")] == [
        ("a", 1),
        ("b", 2),
        None,
    ]
    plain = BrokerInfo(7, "a", 1, None, bytes(16), 3)
    assert b"listeners" not in encode_broker(plain)
    assert decode_broker(broker_key(7), encode_broker(plain), 3) == plain
    assert (plain.endpoint("PLAINTEXT"), plain.endpoint("OUTSIDE")) == (("a", 1), None)
