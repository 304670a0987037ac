"""Tests one connection: version negotiation, matching responses to requests, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from client.fake_broker import DROP, GARBAGE, SILENCE, FakeBroker
from penstock.client.address import Address
from penstock.client.connection import Connection, ConnectionConfig
from penstock.client.connection_opening import open_connection
from penstock.client.errors import (
    ApiNotServed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
)
from penstock.net.sockets import SocketNetwork
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FetchRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)

T = TypeVar("T")


def connected(
    fake: FakeBroker, work: Callable[[Connection], Awaitable[T]], *, timeout_s: float | None = None
) -> T:
    async def main() -> T:
        host, _, port = fake.address.partition(":")
        connection = await open_connection(
            SocketNetwork(),
            Address(host, int(port)),
            ConnectionConfig(request_timeout_s=timeout_s or patient(30.0)),
        )
        try:
            return await work(connection)
        finally:
            connection.close()

    return asyncio.run(main())


def test_the_newest_common_version_is_used() -> None:
    """For each API: what the broker serves, what the schema tables have,
    and what the client can use."""
    with FakeBroker(versions={ApiKey.METADATA: (0, 5)}) as fake:

        async def work(connection: Connection) -> tuple[int, int, int]:
            return (
                connection.version_of(MetadataRequest),
                connection.version_of(FetchRequest),
                connection.version_of(ProduceRequest),
            )

        assert connected(fake, work) == (5, 12, 12)


def test_an_old_broker_is_asked_again_in_its_own_version() -> None:
    """A broker that refuses the version of ApiVersions reports which ones it has."""
    with FakeBroker(versions={ApiKey.API_VERSIONS: (0, 2)}) as fake:

        async def work(connection: Connection) -> int:
            return connection.version_of(MetadataRequest)

        assert connected(fake, work) == 13
        versions = [
            header.api_version
            for header, _ in fake.requests
            if header.api_key == ApiKey.API_VERSIONS
        ]
        assert versions == [2]


@pytest.mark.parametrize("versions", [(20, 30), (-5, -1)])
def test_an_api_without_a_common_version_is_refused_by_name(versions: tuple[int, int]) -> None:
    """Before anything is sent."""
    with FakeBroker(versions={ApiKey.LIST_GROUPS: versions}) as fake:

        async def work(connection: Connection) -> None:
            await connection.call(ListGroupsRequest(), ListGroupsResponse)

        with pytest.raises(ApiNotServed, match=r"supports versions .* of ListGroups"):
            connected(fake, work)
        assert fake.asked(ApiKey.LIST_GROUPS) == []


def test_requests_are_pipelined_and_each_gets_its_own_answer(fake: FakeBroker) -> None:
    """Requests do not wait for the responses to earlier ones."""
    for name in ("a", "b", "c"):
        fake.model.add_topic(name)

    async def work(connection: Connection) -> list[list[str | None]]:
        async def names(name: str) -> list[str | None]:
            request = MetadataRequest([MetadataRequest.Topic(name=name)])
            answer = await connection.call(request, MetadataResponse)
            return [topic.name for topic in answer.topics]

        cluster = connection.call(DescribeClusterRequest(), DescribeClusterResponse)
        asked = await asyncio.gather(names("a"), names("b"), cluster, names("c"))
        return [asked[0], asked[1], asked[3]]

    assert connected(fake, work) == [["a"], ["b"], ["c"]]


def test_a_request_timeout_ends_the_connection(fake: FakeBroker) -> None:
    """All requests behind it are stuck as well, and fail with `ConnectionLost`."""
    fake.next(ApiKey.METADATA, SILENCE)

    async def work(connection: Connection) -> list[object]:
        stuck = connection.call(MetadataRequest(), MetadataResponse, timeout_s=0.05)
        fake.next(ApiKey.DESCRIBE_CLUSTER, SILENCE)
        behind = connection.call(DescribeClusterRequest(), DescribeClusterResponse)
        outcomes = await asyncio.gather(stuck, behind, return_exceptions=True)
        assert not connection.is_open
        return list(outcomes)

    first, second = connected(fake, work)
    assert isinstance(first, RequestTimedOut)
    assert first.retriable
    assert "did not answer Metadata within 0.05 s" in str(first)
    assert isinstance(second, ConnectionLost)


def test_a_connection_closed_by_the_broker_is_lost(fake: FakeBroker) -> None:
    """Requests in flight fail with a retriable error, later ones fail at once."""
    fake.next(ApiKey.METADATA, DROP)

    async def work(connection: Connection) -> None:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            await connection.call(MetadataRequest(), MetadataResponse)
        with pytest.raises(ConnectionLost):
            await connection.call(MetadataRequest(), MetadataResponse)

    connected(fake, work)


def test_a_reset_connection_is_lost(fake: FakeBroker) -> None:
    """This happens when a broker is killed."""
    fake.next(ApiKey.METADATA, SILENCE)

    async def work(connection: Connection) -> None:
        waiting = asyncio.ensure_future(connection.call(MetadataRequest(), MetadataResponse))
        await asyncio.sleep(0)
        await asyncio.to_thread(fake.reset_connections)
        with pytest.raises(ConnectionLost):
            await waiting

    connected(fake, work)


def test_a_response_that_is_not_kafka_is_reported(fake: FakeBroker) -> None:
    """For example when the port belongs to a web server."""
    fake.next(ApiKey.API_VERSIONS, GARBAGE)

    async def work(connection: Connection) -> None:
        raise AssertionError("it must not open")

    with pytest.raises(NotKafka, match="check that this is the port of a broker"):
        connected(fake, work)


def test_a_tls_alert_is_recognized() -> None:
    """A broker that expected TLS answers with an alert, and not with a frame."""
    with FakeBroker() as fake:
        host, _, port = fake.address.partition(":")

        async def main() -> None:
            connection = Connection(Address(host, int(port)), ConnectionConfig())
            await SocketNetwork().connect(host, int(port), lambda: connection, 10)
            fake.next(ApiKey.API_VERSIONS, SILENCE)
            waiting = asyncio.ensure_future(connection.negotiate())
            await asyncio.sleep(0)
            alert = b"\x15\x03\x03\x00\x02\x02\x46"
            connection.get_buffer(-1)[: len(alert)] = alert
            connection.buffer_updated(len(alert))
            with pytest.raises(NotKafka, match="answers with TLS: set security_protocol to SSL"):
                await waiting

        asyncio.run(main())


def test_a_response_out_of_order_ends_the_connection(fake: FakeBroker) -> None:
    """Correlation ids must return in the order in which they were sent."""

    async def work(connection: Connection) -> None:
        waiting = asyncio.ensure_future(connection.call(MetadataRequest(), MetadataResponse))
        fake.next(ApiKey.METADATA, SILENCE)
        await asyncio.sleep(0)
        stray = b"\x00\x00\x00\x05\x00\x00\x63\x00\x00"
        connection.get_buffer(-1)[: len(stray)] = stray
        connection.buffer_updated(len(stray))
        with pytest.raises(NotKafka, match="out of order"):
            await waiting

    connected(fake, work)


def test_a_canceled_call_leaves_the_connection_usable(fake: FakeBroker) -> None:
    """The response to the canceled call is dropped, and the next one is matched correctly."""
    fake.model.add_topic("a")

    async def work(connection: Connection) -> list[str | None]:
        waiting = asyncio.ensure_future(connection.call(MetadataRequest([]), MetadataResponse))
        await asyncio.sleep(0)
        waiting.cancel()
        answer = await connection.call(MetadataRequest(None), MetadataResponse)
        return [topic.name for topic in answer.topics]

    assert connected(fake, work) == ["a"]


def test_writing_waits_while_the_transport_is_full(fake: FakeBroker) -> None:
    """A paused transport accepts no request until it resumes. The wait has a timeout."""

    async def work(connection: Connection) -> None:
        connection.pause_writing()
        waiting = asyncio.ensure_future(connection.call(MetadataRequest([]), MetadataResponse))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert fake.asked(ApiKey.METADATA) == []
        connection.resume_writing()
        await waiting
        connection.pause_writing()
        with pytest.raises(RequestTimedOut):
            await connection.call(MetadataRequest([]), MetadataResponse, timeout_s=0.02)

    connected(fake, work)


@pytest.mark.parametrize(
    ("host", "reason"), [("127.0.0.1", "refused"), ("no-such.invalid", "be resolved")]
)
def test_a_failed_connect_reports_the_reason(host: str, reason: str) -> None:
    """With the address."""
    config = ConnectionConfig(connect_timeout_s=patient(60.0))
    # While the port is bound, no other program can listen on it.
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        async def main() -> None:
            await open_connection(SocketNetwork(), Address(host, port), config)

        with pytest.raises(ConnectFailed, match=reason) as failed:
            asyncio.run(main())
    assert f"{host}:{port}" in str(failed.value)
    assert isinstance(failed.value, ClientError)
