"""Clients of a harness with users of their own, and short ways to give them rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import TypeVar

from broker.harness import BrokerHarness, HarnessPeer
from penstock.broker.dispatch import BrokerSession, Dispatcher
from penstock.broker.identity import Identity
from penstock.metadata.model import PLAINTEXT
from penstock.net.outbox import in_memory
from penstock.security.acls import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)

AUTHORIZER = {
    "authorizer.class.name": "penstock",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "delegation.token.secret.key": "a secret key for tests",
}
"""The settings of a broker with an authorizer. The harness's own client is a super user."""
HOST = "192.0.2.7"


class Client:
    """One connection to one broker, with a user of its own."""

    def __init__(
        self,
        harness: BrokerHarness,
        principal: str,
        *,
        broker: int = 0,
        client_id: str = "c",
        by_token: bool = False,
        listener: str = PLAINTEXT,
    ) -> None:
        services = harness.brokers[broker].services
        assert services is not None
        identity = Identity(principal, HOST, listener, by_token)
        apis = services.apis
        dispatcher = Dispatcher(
            ApiKey.CONSUMER_GROUP_HEARTBEAT in apis, ApiKey.SHARE_GROUP_HEARTBEAT in apis
        )
        self._session = BrokerSession(services, dispatcher, HarnessPeer(), identity)
        self._client_id = client_id
        self._correlation_ids = count(1)

    async def exchange(self, request: Request, version: int) -> bytes:
        """Returns the bytes of the response, without its length and correlation id."""
        correlation_id = next(self._correlation_ids)
        frame = b"".join(encode_request(request, version, correlation_id, self._client_id))
        answer = self._session.on_frame(memoryview(bytearray(frame[4:])))
        parts = await answer if isinstance(answer, asyncio.Future) else answer
        assert parts is not None, f"{type(request).__name__} was not answered"
        return b"".join(in_memory(parts))[4:]

    async def ask(self, request: Request, version: int, response: type[R]) -> R:
        data = await self.exchange(request, version)
        return decode_response(response, memoryview(bytearray(data)), version)[1]


def entry(
    principal: str,
    resource_type: ResourceType,
    name: str,
    operation: AclOperation,
    permission: PermissionType = PermissionType.ALLOW,
    *,
    pattern_type: PatternType = PatternType.LITERAL,
    host: str = "*",
) -> CreateAclsRequest.Creation:
    if resource_type == ResourceType.CLUSTER:
        name = CLUSTER_NAME
    return CreateAclsRequest.Creation(
        resource_type, name, pattern_type, principal, host, operation, permission
    )


async def create(
    harness: BrokerHarness, entries: Iterable[CreateAclsRequest.Creation], *, broker: int = 0
) -> None:
    """Creates ACLs as a super user, and asserts that it succeeded."""
    request = CreateAclsRequest(list(entries))
    response = await harness.ask(request, 3, CreateAclsResponse, broker=broker)
    assert [(each.error_code, each.error_message) for each in response.results] == [
        (0, None)
    ] * len(request.creations)


def filter_of(created: CreateAclsRequest.Creation) -> DeleteAclsRequest.Filter:
    """Returns the filter that selects exactly this ACL."""
    return DeleteAclsRequest.Filter(
        created.resource_type,
        created.resource_name,
        created.resource_pattern_type,
        created.principal,
        created.host,
        created.operation,
        created.permission_type,
    )


async def delete(
    harness: BrokerHarness, entries: Iterable[CreateAclsRequest.Creation], *, broker: int = 0
) -> None:
    """Deletes ACLs as a super user, and asserts that each existed."""
    request = DeleteAclsRequest([filter_of(each) for each in entries])
    response = await harness.ask(request, 3, DeleteAclsResponse, broker=broker)
    assert [(each.error_code, len(each.matching_acls)) for each in response.filter_results] == [
        (0, 1)
    ] * len(request.filters)
