"""CreateAcls, DeleteAcls and DescribeAcls, and what the broker does with stored ACLs."""

from __future__ import annotations

import pytest

from broker.access.clients import AUTHORIZER, Client, create, delete, entry
from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.keys import ROLES_KEY, acl_key
from penstock.ports import Put
from penstock.security.acl_filters import CHANGES_MAX
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from penstock.security.roles import (
    READER,
    RoleAssignment,
    RoleBook,
    decode_roles,
    encode_roles,
    grant_role,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    MetadataRequest,
    MetadataResponse,
)

with_authorizer = with_harness_of(kafka=AUTHORIZER)
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ = AclOperation.READ
ALL = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
ALL_DELETED = DeleteAclsRequest.Filter(1, None, 1, None, None, 1, 1)


async def described(harness: BrokerHarness) -> list[tuple[int, str, int, str, str, int, int]]:
    response = await harness.ask(ALL, 3, DescribeAclsResponse)
    assert (response.error_code, response.error_message) == (0, None)
    return [
        (
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    ]


async def topics_seen(client: Client) -> list[str | None]:
    response = await client.ask(MetadataRequest(None), 12, MetadataResponse)
    return [topic.name for topic in response.topics]


@with_authorizer
async def test_acls_are_created_described_and_deleted(harness: BrokerHarness) -> None:
    entries = [
        entry("User:a", TOPIC, "orders", READ),
        entry("User:b", TOPIC, "or/d%", READ, PermissionType.DENY, host="::ffff:10.0.0.1"),
        entry("User:a", GROUP, "pre", READ, pattern_type=PatternType.PREFIXED),
    ]
    await create(harness, entries)
    await create(harness, entries)  # An ACL that exists counts as created.
    assert sorted(await described(harness)) == [
        (2, "or/d%", 3, "User:b", "10.0.0.1", 3, 2),
        (2, "orders", 3, "User:a", "*", 3, 3),
        (3, "pre", 4, "User:a", "*", 3, 3),
    ]
    await delete(harness, entries[:1])
    assert len(await described(harness)) == 2
    response = await harness.ask(DeleteAclsRequest([ALL_DELETED]), 1, DeleteAclsResponse)
    assert len(response.filter_results[0].matching_acls) == 2
    assert await described(harness) == []


@with_authorizer
async def test_each_entry_has_its_own_result(harness: BrokerHarness) -> None:
    good = entry("User:a", TOPIC, "orders", READ)
    bad = [
        entry("User:a", ResourceType.ANY, "orders", READ),
        entry("User:a", TOPIC, "", READ),
        entry("no-type", TOPIC, "orders", READ),
        CreateAclsRequest.Creation(4, "wrong", 3, "User:a", "*", 3, 3),
        CreateAclsRequest.Creation(99, "orders", 3, "User:a", "*", 3, 3),
    ]
    response = await harness.ask(CreateAclsRequest([*bad, good]), 3, CreateAclsResponse)
    assert [each.error_code for each in response.results] == [42] * 5 + [0]
    assert len(await described(harness)) == 1


@with_authorizer
async def test_more_patterns_than_fit_into_one_commit_are_created(harness: BrokerHarness) -> None:
    await create(harness, [entry("User:a", TOPIC, f"t{n}", READ) for n in range(250)])
    assert len(await described(harness)) == 250
    deleted = await harness.ask(DeleteAclsRequest([ALL_DELETED]), 3, DeleteAclsResponse)
    assert deleted.filter_results[0].error_code == ErrorCode.INVALID_REQUEST
    assert "nothing was deleted" in (deleted.filter_results[0].error_message or "")
    assert len(await described(harness)) == 250


@with_authorizer
async def test_a_request_for_too_many_acls_creates_none(harness: BrokerHarness) -> None:
    many = [entry(f"User:{n}", TOPIC, "t", READ) for n in range(CHANGES_MAX + 1)]
    response = await harness.ask(CreateAclsRequest(many), 3, CreateAclsResponse)
    assert {each.error_code for each in response.results} == {ErrorCode.POLICY_VIOLATION}
    assert await described(harness) == []


@with_harness
async def test_without_an_authorizer_acls_are_disabled_and_all_is_allowed(
    harness: BrokerHarness,
) -> None:
    created = CreateAclsRequest([entry("User:a", TOPIC, "t", READ)])
    answer = await harness.ask(created, 3, CreateAclsResponse)
    assert answer.results[0].error_code == ErrorCode.SECURITY_DISABLED
    listed = await harness.ask(ALL, 3, DescribeAclsResponse)
    assert listed.error_code == ErrorCode.SECURITY_DISABLED
    removed = await harness.ask(DeleteAclsRequest([ALL_DELETED]), 3, DeleteAclsResponse)
    assert removed.filter_results[0].error_code == ErrorCode.SECURITY_DISABLED
    await harness.create("t")
    assert await topics_seen(Client(harness, "User:anyone")) == ["t"]


@with_authorizer
async def test_acls_that_cannot_be_read_leave_access_to_super_users_only(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    await create(harness, [entry("User:a", TOPIC, "t", READ)])
    alice = Client(harness, "User:a")
    assert await topics_seen(alice) == ["t"]
    key = acl_key(ResourcePattern(GROUP, PatternType.LITERAL, "g"))
    store = harness.services.env.store
    await store.commit([], [Put(key, b'{"version": 99}', 0)])
    authorizer = harness.services.authorization.current
    await harness.until(lambda: harness.services.authorization.current is not authorizer)
    assert await topics_seen(alice) == []
    assert await topics_seen(Client(harness, "User:ANONYMOUS")) == ["t"]
    listed = await harness.ask(ALL, 3, DescribeAclsResponse)
    assert listed.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert key in (listed.error_message or "")
    created = CreateAclsRequest([entry("User:a", TOPIC, "other", READ)])
    refused = await harness.ask(created, 3, CreateAclsResponse)
    assert refused.results[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@with_authorizer
async def test_acls_of_a_role_that_are_also_created_by_hand_are_noted(
    harness: BrokerHarness,
) -> None:
    pattern = ResourcePattern(TOPIC, PatternType.LITERAL, "t")
    change = grant_role(RoleBook(), frozenset(), RoleAssignment(READER.name, "User:a", pattern))
    store = harness.services.env.store
    done = await store.commit([], [Put(ROLES_KEY, encode_roles(change.book).encode(), 0)])
    await harness.broker.cluster.wait_for(done.revision)
    await create(harness, [entry("User:a", TOPIC, "t", READ)])
    stored = await store.get(ROLES_KEY)
    assert stored is not None
    by_hand = AclBinding(TOPIC, PatternType.LITERAL, "t", "User:a", "*", READ, PermissionType.ALLOW)
    assert decode_roles(stored.value).made_by_hand == {by_hand}


@pytest.mark.parametrize(
    "name", ["org.apache.kafka.metadata.authorizer.StandardAuthorizer", "penstock", ""]
)
def test_kafkas_and_our_name_turn_the_authorizer_on(name: str) -> None:
    assert (
        BrokerConfigs({"authorizer.class.name": name}).text_value("authorizer.class.name") == name
    )


@pytest.mark.parametrize(
    ("setting", "value", "advice"),
    [
        ("authorizer.class.name", "com.example.Mine", "penstock"),
        ("super.users", "alice", "User:name"),
        ("allow.everyone.if.no.acl.found", "maybe", "true or false"),
    ],
)
def test_a_wrong_setting_says_what_to_set(setting: str, value: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        BrokerConfigs({setting: value})
