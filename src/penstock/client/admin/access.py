"""Access rules, SCRAM users and client quotas of a cluster, through an admin client.

A password never leaves this process: the client derives the salted password, and the broker stores
keys that are derived from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, OptionError, check, outcome
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    PermissionType,
    ResourceType,
    check_binding,
)
from penstock.security.quotas import Limits, QuotaEntity, parse_entity
from penstock.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    PasswordUnfit,
    ScramMechanism,
    check_new_password,
    password_hash,
)
from penstock.security.user_names import name_problem
from penstock.wire.errors import KafkaError
from penstock.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

Entity = Mapping[str, str | None]
"""Whose quotas: names by type ("user", "client-id" or "ip"). The name None is the default."""
ANY_NAME: Final = "*"
"""In a filter of quotas: every name of this type."""
_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user that can log in with SCRAM or PLAIN."""

    user: str
    mechanisms: Mapping[str, int]
    """The mechanisms for which the user has a password, with their iterations."""


# -- access rules --------------------------------------------------------------------------------


async def create_acls(
    cluster: Cluster, acls: Sequence[AclBinding]
) -> dict[AclBinding, BrokerError | None]:
    for acl in acls:
        try:
            check_binding(acl)
        except AclRefused as error:
            raise OptionError(str(error)) from None
    request = CreateAclsRequest(
        [
            CreateAclsRequest.Creation(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
    )
    answer = await cluster.ask_controller(
        request,
        CreateAclsResponse,
        lambda answer: [result.error_code for result in answer.results],
        idempotent=True,
    )
    return {
        acl: outcome(result.error_code, result.error_message, str(acl))
        for acl, result in zip(acls, answer.results, strict=True)
    }


async def describe_acls(cluster: Cluster, wanted: AclFilter) -> list[AclBinding]:
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    answer = await cluster.ask_any(request, DescribeAclsResponse)
    check(answer.error_code, answer.error_message, "the access rules")
    return sorted(
        AclBinding(
            ResourceType(resource.resource_type),
            PatternType(resource.pattern_type),
            resource.resource_name,
            acl.principal,
            acl.host,
            AclOperation(acl.operation),
            PermissionType(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    )


async def delete_acls(
    cluster: Cluster, filters: Sequence[AclFilter]
) -> list[list[AclBinding] | BrokerError]:
    request = DeleteAclsRequest(
        [
            DeleteAclsRequest.Filter(
                resource_type_filter=each.resource_type,
                resource_name_filter=each.resource_name,
                pattern_type_filter=each.pattern_type,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in filters
        ]
    )
    # A repeated request would not return what the first one has deleted.
    answer = await cluster.ask_controller(
        request,
        DeleteAclsResponse,
        lambda answer: [result.error_code for result in answer.filter_results],
    )
    return [_deleted(result) for result in answer.filter_results]


def _deleted(result: DeleteAclsResponse.FilterResult) -> list[AclBinding] | BrokerError:
    refused = outcome(result.error_code, result.error_message, "the access rules")
    if refused is not None:
        return refused
    return sorted(
        AclBinding(
            ResourceType(acl.resource_type),
            PatternType(acl.pattern_type),
            acl.resource_name,
            acl.principal,
            acl.host,
            AclOperation(acl.operation),
            PermissionType(acl.permission_type),
        )
        for acl in result.matching_acls
        if not acl.error_code
    )


# -- users ---------------------------------------------------------------------------------------


async def describe_scram_users(
    cluster: Cluster, users: Sequence[str] | None
) -> dict[str, ScramUser | BrokerError]:
    wanted = None
    if users is not None:
        wanted = [DescribeUserScramCredentialsRequest.User(name) for name in users]
    answer = await cluster.ask_any(
        DescribeUserScramCredentialsRequest(wanted), DescribeUserScramCredentialsResponse
    )
    check(answer.error_code, answer.error_message, "the users")
    found: dict[str, ScramUser | BrokerError] = {}
    for result in sorted(answer.results, key=lambda each: each.user):
        refused = outcome(result.error_code, result.error_message, f"user {result.user}")
        mechanisms = {
            ScramMechanism(info.mechanism).sasl_name: info.iterations
            for info in result.credential_infos
            if info.mechanism in set(ScramMechanism)
        }
        found[result.user] = refused or ScramUser(result.user, mechanisms)
    return found


async def upsert_scram_user(
    cluster: Cluster, user: str, password: str, mechanism: str, iterations: int
) -> None:
    if (problem := name_problem(user)) is not None:
        raise OptionError(problem)
    try:
        check_new_password(password)
    except PasswordUnfit as error:
        raise OptionError(str(error)) from None
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise OptionError(f"iterations is {iterations}: give {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    kind = _mechanism(mechanism)
    salt = cluster.random.bytes(SALT_BYTES)
    salted = await cluster.executor.run(password_hash(kind, password, salt, iterations).run)
    change = AlterUserScramCredentialsRequest.Upsertion(user, kind, iterations, salt, salted)
    await _alter_user(cluster, user, AlterUserScramCredentialsRequest(upsertions=[change]))


async def delete_scram_user(cluster: Cluster, user: str, mechanism: str | None) -> None:
    if mechanism is None:
        found = (await describe_scram_users(cluster, [user])).get(user)
        if isinstance(found, BrokerError):
            raise found
        names = [] if found is None else list(found.mechanisms)
    else:
        names = [mechanism]
    # The broker refuses two changes of one user in one request.
    for name in names:
        change = AlterUserScramCredentialsRequest.Deletion(user, _mechanism(name))
        await _alter_user(cluster, user, AlterUserScramCredentialsRequest(deletions=[change]))


def _mechanism(name: str) -> ScramMechanism:
    found = SCRAM_MECHANISMS.get(name.upper())
    if found is None:
        raise OptionError(f"mechanism is {name!r}: give one of {', '.join(SCRAM_MECHANISMS)}")
    return found


async def _alter_user(
    cluster: Cluster, user: str, request: AlterUserScramCredentialsRequest
) -> None:
    answer = await cluster.ask_controller(
        request,
        AlterUserScramCredentialsResponse,
        lambda answer: [result.error_code for result in answer.results],
        idempotent=bool(request.upsertions),
    )
    for result in answer.results:
        check(result.error_code, result.error_message, f"user {user}")


# -- quotas --------------------------------------------------------------------------------------


async def describe_client_quotas(
    cluster: Cluster, wanted: Entity, strict: bool
) -> dict[QuotaEntity, dict[str, float]]:
    request = DescribeClientQuotasRequest(
        [
            DescribeClientQuotasRequest.Component(
                kind,
                _MATCH_ANY
                if name == ANY_NAME
                else _MATCH_DEFAULT
                if name is None
                else _MATCH_EXACT,
                None if name == ANY_NAME else name,
            )
            for kind, name in wanted.items()
        ],
        strict,
    )
    answer = await cluster.ask_any(request, DescribeClientQuotasResponse)
    check(answer.error_code, answer.error_message, "the client quotas")
    return {
        parse_entity((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries or ()
    }


async def alter_client_quotas(
    cluster: Cluster,
    entity: Entity,
    set_values: Limits,
    delete: Sequence[str],
) -> None:
    try:
        whose = parse_entity(entity.items())
    except KafkaError as error:
        raise OptionError(error.message) from None
    changes = [AlterClientQuotasRequest.Op(key, value) for key, value in set_values.items()]
    changes += [AlterClientQuotasRequest.Op(key, 0.0, True) for key in delete]
    parts = [AlterClientQuotasRequest.Entity(kind, name) for kind, name in whose.parts]
    answer = await cluster.ask_controller(
        AlterClientQuotasRequest([AlterClientQuotasRequest.Entry(parts, changes)]),
        AlterClientQuotasResponse,
        lambda answer: [entry.error_code for entry in answer.entries],
        idempotent=True,
    )
    for entry in answer.entries:
        check(entry.error_code, entry.error_message, f"the quotas of {whose}")
