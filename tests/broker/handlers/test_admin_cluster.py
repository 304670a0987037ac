"""DescribeCluster and UnregisterBroker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.harness import TIMEOUT_S, BrokerHarness, open_harness, with_harness, with_harness_of
from penstock.broker.config import BrokerConfig
from penstock.metadata.config_values import encode_configs
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.keys import broker_config_key
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


@with_harness_of(brokers=2)
async def test_every_broker_describes_the_same_cluster(harness: BrokerHarness) -> None:
    """Cluster id, brokers with their addresses and racks, and a controller that is one of them."""
    for version in range(3):
        for broker in range(2):
            response = await harness.ask(
                DescribeClusterRequest(), version, DescribeClusterResponse, broker=broker
            )
            assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
            assert response.cluster_id == harness.broker.cluster.image.cluster_id
            assert response.controller_id == 0
            assert response.endpoint_type == 1
            assert response.cluster_authorized_operations == -2147483648
            brokers = [(each.broker_id, each.host, each.port) for each in response.brokers]
            assert brokers == [(0, "127.0.0.1", 9092), (1, "127.0.0.1", 9093)]
            assert [each.rack for each in response.brokers] == ["rack-0", "rack-1"]
            assert not any(each.is_fenced for each in response.brokers)


@with_harness
async def test_a_request_may_include_fenced_brokers(harness: BrokerHarness) -> None:
    """There are none: a broker is either registered or gone."""
    request = DescribeClusterRequest(include_fenced_brokers=True)
    response = await harness.ask(request, 2, DescribeClusterResponse)
    assert [(each.broker_id, each.is_fenced) for each in response.brokers] == [(0, False)]


@with_harness
async def test_describe_quorum_names_the_controller_as_the_only_voter(
    harness: BrokerHarness,
) -> None:
    """The revision of the metadata store is reported as the high watermark and the log end
    offset.
    """
    asked = [DescribeQuorumRequest.Partition(0), DescribeQuorumRequest.Partition(1)]
    topics = [DescribeQuorumRequest.Topic("__cluster_metadata", asked)]
    for version in (0, 1, 2):
        request = DescribeQuorumRequest(topics)
        response = await harness.ask(request, version, DescribeQuorumResponse)
        known, unknown = response.topics[0].partitions
        assert (response.error_code, known.error_code) == (0, 0)
        assert (known.leader_id, known.leader_epoch) == (0, 1)
        assert known.high_watermark > 0
        (voter,) = known.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (0, known.high_watermark)
        assert known.observers == []
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [node.node_id for node in response.nodes] == ([0] if version == 2 else [])


@with_harness
async def test_a_broker_refuses_requests_for_controller_endpoints(harness: BrokerHarness) -> None:
    """From version 1 on, a request can name the wrong type of endpoint, or an unknown one."""
    for endpoint_type, code in (
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ):
        request = DescribeClusterRequest(endpoint_type=endpoint_type)
        response = await harness.ask(request, 1, DescribeClusterResponse)
        assert response.error_code == code
        assert response.error_message
        assert response.brokers == []


@pytest.mark.parametrize(
    ("config", "address"),
    [
        (BrokerConfig(host="0.0.0.0"), ("127.0.0.1", 9092)),
        (BrokerConfig(host="::"), ("127.0.0.1", 9092)),
        (BrokerConfig(host="192.0.2.9"), ("192.0.2.9", 9092)),
        (
            BrokerConfig(host="0.0.0.0", advertised_host="logs.example", advertised_port=19092),
            ("logs.example", 19092),
        ),
    ],
)
def test_brokers_advertise_an_address_that_clients_can_connect_to(
    tmp_path: Path, config: BrokerConfig, address: tuple[str, int]
) -> None:
    """Never the wildcard address, and never localhost, which some clients resolve to ::1."""

    async def run_case() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            open_harness(tmp_path, base=config) as harness,
        ):
            response = await harness.ask(DescribeClusterRequest(), 0, DescribeClusterResponse)
            assert [(each.host, each.port) for each in response.brokers] == [address]

    asyncio.run(run_case())


async def forget(harness: BrokerHarness, broker: int) -> UnregisterBrokerResponse:
    return await harness.ask(UnregisterBrokerRequest(broker), 0, UnregisterBrokerResponse)


@with_harness
async def test_a_running_broker_cannot_be_unregistered(harness: BrokerHarness) -> None:
    """The error message says that it is running."""
    response = await forget(harness, 0)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "Broker 0 is running" in (response.error_message or "")


@with_harness
async def test_unregistering_a_broker_removes_its_configs(harness: BrokerHarness) -> None:
    """After that the broker is unknown."""
    left = Change(broker_config_key(7), encode_configs({"log.retention.ms": "1000"}), 0)
    await harness.broker.controller.decide(lambda image: Decision((left,), None))
    assert 7 in harness.broker.cluster.image.broker_configs
    response = await forget(harness, 7)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert 7 not in harness.broker.cluster.image.broker_configs
    assert (await forget(harness, 7)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
