"""Roles are granted and revoked by requests of Penstock's own, and become ACLs."""

from __future__ import annotations

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.audit.audited import written
from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.security.acls import AclOperation, PatternType, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterRolesRequest,
    AlterRolesResponse,
    CheckAccessRequest,
    CheckAccessResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeRolesRequest,
    DescribeRolesResponse,
    MetadataRequest,
    MetadataResponse,
)

with_authorizer = with_harness_of(kafka=AUTHORIZER)
with_three = with_harness_of(brokers=3, kafka=AUTHORIZER)
DEFINE, DELETE, GRANT, REVOKE = range(4)
TOPIC, PREFIXED = ResourceType.TOPIC, PatternType.PREFIXED
Change = AlterRolesRequest.Change


def on_orders(action: int, role: str, principal: str = "User:alice") -> Change:
    return Change(action, role, [], principal, "*", TOPIC, PREFIXED, "orders.")


def auditor(*operations: AclOperation) -> Change:
    grant = AlterRolesRequest.Grant(TOPIC, list(map(int, operations)), "__audit")
    return Change(DEFINE, "auditor", [grant])


async def alter(harness: BrokerHarness, *changes: Change, broker: int = 0) -> AlterRolesResponse:
    return await harness.ask(AlterRolesRequest(list(changes)), 0, AlterRolesResponse, broker=broker)


async def check(
    harness: BrokerHarness, operation: AclOperation, name: str, principal: str = "User:alice"
) -> CheckAccessResponse:
    request = CheckAccessRequest(principal, "192.0.2.7", operation, TOPIC, name)
    return await harness.ask(request, 0, CheckAccessResponse)


async def acl_count(harness: BrokerHarness) -> int:
    anything = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
    found = await harness.ask(anything, 3, DescribeAclsResponse)
    return sum(len(each.acls) for each in found.resources)


@with_three
async def test_a_granted_role_is_in_force_on_every_broker_and_can_be_revoked(
    harness: BrokerHarness,
) -> None:
    asked = MetadataRequest([MetadataRequest.Topic(name="orders.eu")])

    async def codes() -> set[int]:
        clients = [Client(harness, "User:alice", broker=broker) for broker in range(3)]
        answers = [await each.ask(asked, 12, MetadataResponse) for each in clients]
        return {answer.topics[0].error_code for answer in answers}

    await harness.create("orders.eu")
    assert await codes() == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert (await alter(harness, on_orders(GRANT, "reader"), broker=1)).error_code == 0
    assert await codes() == {0}
    assert (await alter(harness, on_orders(REVOKE, "reader"), broker=2)).error_code == 0
    assert await codes() == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert await acl_count(harness) == 0


@with_authorizer
async def test_access_is_explained_by_the_rule_and_the_role(harness: BrokerHarness) -> None:
    await alter(harness, on_orders(GRANT, "writer"))
    by_hand = entry("User:bob", TOPIC, "orders.eu", AclOperation.READ)
    await create(harness, [by_hand])
    allowed = await check(harness, AclOperation.WRITE, "orders.eu")
    assert (allowed.allowed, allowed.roles) == (True, ["writer"])
    assert allowed.reason == (
        "allowed: ALLOW WRITE on TOPIC names that start with 'orders.' for 'User:alice' "
        "from any host"
    )
    denied = await check(harness, AclOperation.READ, "orders.eu")
    assert (denied.allowed, denied.roles) == (False, [])
    hand = await check(harness, AclOperation.READ, "orders.eu", "User:bob")
    assert (hand.allowed, hand.roles) == (True, [])
    unknown = await check(harness, AclOperation.UNKNOWN, "orders.eu")
    assert unknown.error_code == ErrorCode.INVALID_REQUEST


@with_authorizer
async def test_own_roles_are_defined_changed_listed_and_deleted(harness: BrokerHarness) -> None:
    alice = Change(GRANT, "auditor", [], "User:alice", "*")
    made = await alter(harness, auditor(AclOperation.READ), alice)
    assert made.error_code == 0, made.error_message
    assert (await check(harness, AclOperation.READ, "__audit")).roles == ["auditor"]
    again = await alter(harness, auditor(AclOperation.DESCRIBE_CONFIGS))
    assert again.error_code == 0
    assert not (await check(harness, AclOperation.READ, "__audit")).allowed
    assert (await check(harness, AclOperation.DESCRIBE_CONFIGS, "__audit")).allowed
    listed = await harness.ask(DescribeRolesRequest(), 0, DescribeRolesResponse)
    assert [(each.name, each.built_in) for each in listed.roles] == [
        ("reader", True),
        ("writer", True),
        ("owner", True),
        ("admin", True),
        ("auditor", False),
    ]
    held = [(each.principal, each.role, each.resource_type) for each in listed.assignments]
    assert held == [("User:alice", "auditor", 0)]
    bob = await harness.ask(DescribeRolesRequest("User:bob"), 0, DescribeRolesResponse)
    assert bob.assignments == []
    in_use = await alter(harness, Change(DELETE, "auditor"))
    assert in_use.error_code == ErrorCode.INVALID_REQUEST
    assert "revoke it first" in (in_use.error_message or "")
    gone = await alter(
        harness, Change(REVOKE, "auditor", [], "User:alice", "*"), Change(1, "auditor")
    )
    assert gone.error_code == 0
    assert await acl_count(harness) == 0


@with_authorizer
async def test_a_request_is_made_as_a_whole_or_not_at_all(harness: BrokerHarness) -> None:
    refused = await alter(
        harness, on_orders(GRANT, "reader"), on_orders(GRANT, "no-such-role", "User:bob")
    )
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "no-such-role" in (refused.error_message or "")
    assert await acl_count(harness) == 0
    many = await alter(harness, *[on_orders(GRANT, "reader")] * 101)
    assert many.error_code == ErrorCode.INVALID_REQUEST
    unknown = await alter(harness, on_orders(9, "reader"))
    assert unknown.error_code == ErrorCode.INVALID_REQUEST


@with_authorizer
async def test_an_acl_made_by_hand_stays_when_the_role_is_revoked(harness: BrokerHarness) -> None:
    by_hand = entry("User:alice", TOPIC, "orders.", AclOperation.READ, pattern_type=PREFIXED)
    await create(harness, [by_hand])
    await alter(harness, on_orders(GRANT, "reader"))
    assert await acl_count(harness) == 2
    await alter(harness, on_orders(REVOKE, "reader"))
    assert await acl_count(harness) == 1


@with_authorizer
async def test_changes_of_roles_are_audited(harness: BrokerHarness) -> None:
    await alter(harness, on_orders(GRANT, "reader"))
    await alter(harness, on_orders(REVOKE, "writer"))
    await harness.broker.audit.finish()
    events = [
        (each.action, each.outcome.value, each.resource, each.detail)
        for each in await written(harness)
    ]
    assert events == [
        ("role.grant", "allowed", "role:reader", "user alice on topic:orders.*"),
        ("role.revoke", "failed", "role:writer", "user alice on topic:orders.*"),
    ]


@with_harness
async def test_without_an_authorizer_there_are_no_roles(harness: BrokerHarness) -> None:
    answer = await alter(harness, on_orders(GRANT, "reader"))
    assert answer.error_code == ErrorCode.SECURITY_DISABLED
