"""The brokers of a cluster with an authorizer need the right to act as brokers."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from pathlib import Path

import pytest

from broker.access.clients import entry
from broker.harness import HarnessPeer
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.broker.dispatch import BrokerSession, Dispatcher
from penstock.broker.identity import ANONYMOUS, Identity
from penstock.net.outbox import in_memory
from penstock.security.acls import AclOperation, ResourceType
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_response, encode_request, response_class
from penstock.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.base import Request, Response

SETTINGS = {
    "authorizer.class.name": "penstock",
    "super.users": "User:admin",
    "replica.fetch.backoff.ms": "100",
}
_numbers = count(1)


async def ask_as_admin(cluster: ThreeBrokers, request: Request, version: int) -> Response:
    services = cluster.broker(0).services
    assert services is not None
    identity = Identity("User:admin", "127.0.0.1")
    session = BrokerSession(services, Dispatcher(), HarnessPeer(), identity)
    frame = b"".join(encode_request(request, version, next(_numbers), "admin"))[4:]
    answer = session.on_frame(memoryview(bytearray(frame)))
    parts = await answer if isinstance(answer, asyncio.Future) else answer
    assert parts is not None
    data = memoryview(bytearray(b"".join(in_memory(parts))[4:]))
    return decode_response(response_class(ApiKey(request.API_KEY)), data, version)[1]


async def replicate(cluster: ThreeBrokers, log: pytest.LogCaptureFixture) -> None:
    topic = CreateTopicsRequest.Topic("t", 3, 3)
    made = await ask_as_admin(cluster, CreateTopicsRequest([topic]), 7)
    assert isinstance(made, CreateTopicsResponse) and not made.topics[0].error_code
    await cluster.until(lambda: "User:ANONYMOUS" in log.text)
    assert "refuses the requests of this broker" in log.text
    assert "add it to super.users" in log.text
    rights = [
        entry(ANONYMOUS, ResourceType.CLUSTER, "", AclOperation.CLUSTER_ACTION),
        entry(ANONYMOUS, ResourceType.TOPIC, "t", AclOperation.WRITE),
    ]
    allowed = await ask_as_admin(cluster, CreateAclsRequest(rights), 3)
    assert isinstance(allowed, CreateAclsResponse)
    assert [each.error_code for each in allowed.results] == [0, 0]
    await cluster.produce(b"x")
    assert await cluster.all_equal() == [b"x"]


def test_brokers_replicate_only_with_the_right_and_the_log_says_what_to_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="penstock")

    async def run() -> None:
        async with asyncio.timeout(patient(100)), three_brokers(tmp_path, SETTINGS) as cluster:
            await replicate(cluster, caplog)

    asyncio.run(run())
