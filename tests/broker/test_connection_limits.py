"""Kafka's settings for connections, request sizes and fetch sessions take effect."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from penstock.testing.slowness import patient
from penstock.wire.codec import encode_request
from penstock.wire.messages import (
    ApiVersionsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    FetchRequest,
    FetchResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from .three_brokers import ThreeBrokers, three_brokers

BROKER = 4
SET, DELETE = 0, 1


async def is_served(cluster: ThreeBrokers, size: int | None = None) -> bool:
    """Returns whether a new connection gets a response to a request of at least `size` bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.nodes[0].port)
    try:
        name = "x" * (size or 1)
        writer.write(b"".join(encode_request(ApiVersionsRequest(name, "1"), 3, 7, "limits")))
        answer = await reader.readexactly(8)
        return bool(struct.unpack(">ii", answer)[1] == 7)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    finally:
        writer.close()


async def alter(cluster: ThreeBrokers, name: str, value: str | None, broker: str = "") -> None:
    """Changes a config of one broker, or of all brokers if `broker` is empty."""
    config = IncrementalAlterConfigsRequest.Config(name, DELETE if value is None else SET, value)
    resource = IncrementalAlterConfigsRequest.Resource(BROKER, broker, [config])
    answer = await cluster.nodes[0].ask(
        IncrementalAlterConfigsRequest([resource]), 1, IncrementalAlterConfigsResponse
    )
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


async def described(cluster: ThreeBrokers, name: str) -> str | None:
    resource = DescribeConfigsRequest.Resource(BROKER, "0", [name])
    answer = await cluster.nodes[0].ask(
        DescribeConfigsRequest([resource]), 1, DescribeConfigsResponse
    )
    return answer.results[0].configs[0].value


async def crowd(cluster: ThreeBrokers, count: int) -> list[asyncio.StreamWriter]:
    """Opens connections that send nothing."""
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.nodes[0].port)
        writers.append(writer)
    return writers


def test_connection_limits_can_be_changed_while_the_broker_runs(tmp_path: Path) -> None:
    """For all brokers or for one. Lowering a limit closes no connection."""

    async def run() -> None:
        async with asyncio.timeout(patient(60.0)), three_brokers(tmp_path, brokers=1) as cluster:
            server = cluster.broker(0).server
            assert await described(cluster, "max.connections") == "10000"
            writers = await crowd(cluster, 5)
            await cluster.until(lambda: server.counters.connections == 6)
            for name, broker in (("max.connections.per.ip", ""), ("max.connections", "0")):
                await alter(cluster, name, "6", broker)
                assert await described(cluster, name) == "6"
                assert not await is_served(cluster)
                await alter(cluster, name, "7", broker)
                assert await is_served(cluster)
                await cluster.until(lambda: server.counters.connections == 6)
                await alter(cluster, name, "2", broker)
                assert server.counters.connections == 6
                assert not await is_served(cluster)
                await alter(cluster, name, None, broker)
                assert await is_served(cluster)
                await cluster.until(lambda: server.counters.connections == 6)
            for writer in writers:
                writer.close()

    asyncio.run(run())


def test_an_address_can_have_another_limit_than_the_others(tmp_path: Path) -> None:
    """max.connections.per.ip.overrides, by address and by name."""

    async def run() -> None:
        async with asyncio.timeout(patient(60.0)), three_brokers(tmp_path, brokers=1) as cluster:
            admission = cluster.broker(0).server.admission
            name = "max.connections.per.ip.overrides"
            await alter(cluster, name, "127.0.0.1:1,10.9.9.9:5")
            assert not await is_served(cluster)
            await alter(cluster, name, "localhost:1")
            await cluster.until(lambda: admission.of_address.get("127.0.0.1") == 1)
            assert not await is_served(cluster)
            await alter(cluster, name, "127.0.0.1:1000")
            await alter(cluster, "max.connections.per.ip", "1")
            assert await is_served(cluster)

    asyncio.run(run())


def test_the_rate_of_connections_can_be_changed_while_the_broker_runs(tmp_path: Path) -> None:
    """Those over max.connection.creation.rate are served too, only later."""

    async def run() -> None:
        async with asyncio.timeout(patient(60.0)), three_brokers(tmp_path, brokers=1) as cluster:
            delays = cluster.broker(0).listeners.accept_rates.delays["PLAINTEXT"]
            assert await is_served(cluster)
            assert delays.count == 0
            await alter(cluster, "max.connection.creation.rate", "1")
            while not delays.count:
                assert await is_served(cluster)
            assert await is_served(cluster)
            assert delays.ms > 0

    asyncio.run(run())


def test_limits_from_the_config_file_take_effect(tmp_path: Path) -> None:
    """max.connections and socket.request.max.bytes."""
    settings = {"max.connections": "3", "socket.request.max.bytes": "2000"}

    async def run() -> None:
        async with (
            asyncio.timeout(patient(60.0)),
            three_brokers(tmp_path, settings, brokers=1) as cluster,
        ):
            assert await described(cluster, "socket.request.max.bytes") == "2000"
            assert await is_served(cluster, 1000)
            assert not await is_served(cluster, 2000)
            writers = await crowd(cluster, 2)
            await cluster.until(lambda: cluster.broker(0).server.counters.connections == 3)
            assert not await is_served(cluster)
            for writer in writers:
                writer.close()

    asyncio.run(run())


def test_the_number_of_fetch_sessions_is_limited(tmp_path: Path) -> None:
    """Beyond max.incremental.fetch.session.cache.slots a client is served without a session."""
    settings = {"max.incremental.fetch.session.cache.slots": "2"}

    async def run() -> None:
        async with (
            asyncio.timeout(patient(60.0)),
            three_brokers(tmp_path, settings, brokers=1) as cluster,
        ):
            await cluster.create(replicas=1)
            request = FetchRequest(
                session_epoch=0,
                topics=[FetchRequest.Topic("t", partitions=[FetchRequest.Partition(0)])],
            )
            asked = [await cluster.nodes[0].ask(request, 11, FetchResponse) for _ in range(3)]
            assert [bool(answer.session_id) for answer in asked] == [True, True, False]
            assert all(answer.responses[0].partitions[0].error_code == 0 for answer in asked)

    asyncio.run(run())
