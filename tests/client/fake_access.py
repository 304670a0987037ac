"""Access rules, users and quotas of a fake broker, by the machines of the real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from client.fake_broker import FakeBroker
from penstock.security import acl_filters, quotas
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.security.scram_credentials import (
    ScramCredential,
    ScramMechanism,
    from_salted_password,
)
from penstock.wire import messages
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.base import Response
from penstock.wire.schema.notation import Versions

VERSIONS: Mapping[ApiKey, Versions] = {
    ApiKey.DESCRIBE_ACLS: Versions(1, 3),
    ApiKey.CREATE_ACLS: Versions(1, 3),
    ApiKey.DELETE_ACLS: Versions(1, 3),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Versions(0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Versions(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Versions(0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: Versions(0, 1),
}


@dataclass
class FakeAccess:
    acls: frozenset[AclBinding] = frozenset()
    users: dict[str, dict[ScramMechanism, ScramCredential]] = field(default_factory=dict)
    quotas: dict[quotas.QuotaEntity, quotas.Limits] = field(default_factory=dict)

    def serve(self, fake: FakeBroker) -> None:
        """Answers the requests of a fake broker from now on."""
        fake.versions.update(VERSIONS)
        # Like Kafka, it has no roles.
        fake.versions.pop(ApiKey.DESCRIBE_ROLES, None)
        answers = {
            ApiKey.DESCRIBE_ACLS: self.describe_acls,
            ApiKey.CREATE_ACLS: self.create_acls,
            ApiKey.DELETE_ACLS: self.delete_acls,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe_users,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter_users,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe_quotas,
            ApiKey.ALTER_CLIENT_QUOTAS: self.alter_quotas,
        }
        for key, answer in answers.items():
            fake.next(key, *[answer] * 20)

    def describe_acls(self, request: Any) -> Response:
        found = acl_filters.describe_acls(self.acls, _filter(request))
        return messages.DescribeAclsResponse(
            resources=[
                messages.DescribeAclsResponse.Resource(
                    acl.resource_type,
                    acl.resource_name,
                    acl.pattern_type,
                    [
                        messages.DescribeAclsResponse.Acl(
                            acl.principal, acl.host, acl.operation, acl.permission
                        )
                    ],
                )
                for acl in found
            ]
        )

    def create_acls(self, request: Any) -> Response:
        new = [
            AclBinding(
                ResourceType(each.resource_type),
                PatternType(each.resource_pattern_type),
                each.resource_name,
                each.principal,
                each.host,
                AclOperation(each.operation),
                PermissionType(each.permission_type),
            )
            for each in request.creations
        ]
        self.acls |= frozenset(new)
        return messages.CreateAclsResponse(
            results=[messages.CreateAclsResponse.Result(0, None) for _ in new]
        )

    def delete_acls(self, request: Any) -> Response:
        results = []
        for each in request.filters:
            gone = acl_filters.describe_acls(self.acls, _filter(each))
            self.acls -= set(gone)
            matching = [
                messages.DeleteAclsResponse.MatchingAcl(
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in gone
            ]
            results.append(messages.DeleteAclsResponse.FilterResult(0, None, matching))
        return messages.DeleteAclsResponse(filter_results=results)

    def describe_users(self, request: Any) -> Response:
        named = [user.name for user in request.users or ()] or sorted(self.users)
        kind = messages.DescribeUserScramCredentialsResponse
        results = [
            kind.User(
                name,
                0,
                None,
                [kind.Credential(key, one.iterations) for key, one in self.users[name].items()],
            )
            if name in self.users
            else kind.User(name, ErrorCode.RESOURCE_NOT_FOUND, None)
            for name in named
        ]
        return kind(results=results)

    def alter_users(self, request: Any) -> Response:
        for each in request.upsertions:
            mechanism = ScramMechanism(each.mechanism)
            self.users.setdefault(each.name, {})[mechanism] = from_salted_password(
                mechanism, bytes(each.salted_password), bytes(each.salt), each.iterations
            )
        for each in request.deletions:
            del self.users[each.name][ScramMechanism(each.mechanism)]
            if not self.users[each.name]:
                del self.users[each.name]
        kind = messages.AlterUserScramCredentialsResponse
        names = {each.name for each in (*request.upsertions, *request.deletions)}
        return kind(results=[kind.User(name, 0, None) for name in sorted(names)])

    def describe_quotas(self, request: Any) -> Response:
        filters = [
            quotas.QuotaFilter(each.entity_type, each.match_type, each.match)
            for each in request.components
        ]
        found = quotas.describe(self.quotas, filters, strict=request.strict)
        kind = messages.DescribeClientQuotasResponse
        return kind(
            entries=[
                kind.Entry(
                    [kind.Entity(*part) for part in entity.parts],
                    [kind.Value(key, value) for key, value in limits.items()],
                )
                for entity, limits in found
            ]
        )

    def alter_quotas(self, request: Any) -> Response:
        kind = messages.AlterClientQuotasResponse
        entries = []
        for each in request.entries:
            entity = quotas.parse_entity(
                (part.entity_type, part.entity_name) for part in each.entity
            )
            limits = dict(self.quotas.get(entity, {}))
            for op in each.ops:
                limits.pop(op.key, None)
                if not op.remove:
                    limits[op.key] = op.value
            self.quotas[entity] = limits
            if not limits:
                del self.quotas[entity]
            entries.append(kind.Entry(0, None, [kind.Entity(*part) for part in entity.parts]))
        return kind(entries=entries)


def _filter(given: Any) -> acl_filters.AclFilter:
    return acl_filters.AclFilter(
        ResourceType(given.resource_type_filter),
        PatternType(given.pattern_type_filter),
        given.resource_name_filter,
        given.principal_filter,
        given.host_filter,
        AclOperation(given.operation),
        PermissionType(given.permission_type),
    )
