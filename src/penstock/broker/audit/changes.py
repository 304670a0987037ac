"""What the requests that change something have changed, for the audit record.

A function for each of these APIs reads a request and its response, and yields the changes. Requests
contain the values of settings and the salted passwords of users: no function here reads them.

A change that was refused because a right is missing is not among them, since the refusal of the
right is recorded itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.security.audit import (
    Action,
    AuditEvent,
    Origin,
    Outcome,
    acl_change,
    cluster_change,
    config_change,
    quota_change,
    role_change,
    topic_change,
    user_change,
)
from penstock.security.scram_credentials import ScramMechanism
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.wire.messages import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
        AlterConfigsRequest,
        AlterConfigsResponse,
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        AlterRolesRequest,
        AlterRolesResponse,
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
        CreateAclsRequest,
        CreateAclsResponse,
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeleteAclsRequest,
        DeleteAclsResponse,
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DeleteTopicsRequest,
        DeleteTopicsResponse,
        ElectLeadersRequest,
        ElectLeadersResponse,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        UnregisterBrokerRequest,
        UnregisterBrokerResponse,
    )

EVENTS_MAX: Final = 1000
"""How many changes of one request are recorded one by one. One event counts the others."""
_REFUSED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_CONFIG_KINDS: Final = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics"}


class Change(NamedTuple):
    code: int
    """The error code of its answer."""
    event: Callable[..., AuditEvent]
    """Makes the event of an origin, a time and an `outcome`."""


Changes = Iterator[Change]


def changes_of(request: Any, response: Any) -> Changes:
    """Yields the changes of a request, in the order of its response."""
    return AUDITED[ApiKey(request.API_KEY)](request, response)


def change_events(
    origin: Origin, now_ms: int, changes: Iterable[Change]
) -> Iterator[AuditEvent | None]:
    """Yields the events of one request, and None for each change without an event of its own."""
    recorded = others = 0
    for change in changes:
        if change.code in _REFUSED:
            yield None
            continue
        if recorded == EVENTS_MAX:
            others += 1
            yield None
            continue
        recorded += 1
        if change.code == ErrorCode.NONE:
            yield change.event(origin, now_ms, outcome=Outcome.ALLOWED)
        else:
            failed = change.event(origin, now_ms, outcome=Outcome.FAILED)
            yield replace(failed, rule=_name(change.code))
    if others:
        detail = f"{others} more changes of the same request"
        action, outcome = Action.CLUSTER_ALTER, Outcome.ALLOWED
        yield cluster_change(origin, now_ms, action, "cluster", detail, outcome)


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _topic(code: int, action: Action, topic: str, detail: str) -> Change:
    return Change(code, partial(topic_change, action=action, topic=topic, detail=detail))


def _cluster(code: int, action: Action, resource: str, detail: str) -> Change:
    return Change(code, partial(cluster_change, action=action, resource=resource, detail=detail))


def _create_topics(request: CreateTopicsRequest, response: CreateTopicsResponse) -> Changes:
    if request.validate_only:
        return
    asked = {topic.name: topic for topic in request.topics}
    for topic in response.topics:
        wanted = asked.get(topic.name)
        count = topic.num_partitions
        if count < 0 and wanted is not None:
            count = len(wanted.assignments) or wanted.num_partitions
        detail = f"{count} partitions" if count > 0 else "the default number of partitions"
        yield _topic(topic.error_code, Action.TOPIC_CREATE, topic.name, detail)


def _delete_topics(request: DeleteTopicsRequest, response: DeleteTopicsResponse) -> Changes:
    for topic in response.responses:
        name = topic.name if topic.name is not None else f"id {topic.topic_id.hex()}"
        yield _topic(topic.error_code, Action.TOPIC_DELETE, name, "all partitions")


def _create_partitions(
    request: CreatePartitionsRequest, response: CreatePartitionsResponse
) -> Changes:
    if request.validate_only:
        return
    counts = {topic.name: topic.count for topic in request.topics}
    for topic in response.results:
        detail = f"{counts.get(topic.name, 0)} partitions"
        yield _topic(topic.error_code, Action.TOPIC_ALTER, topic.name, detail)


def _delete_records(request: DeleteRecordsRequest, response: DeleteRecordsResponse) -> Changes:
    for topic in response.topics:
        for each in topic.partitions:
            detail = f"partition {each.partition_index}"
            if not each.error_code:
                detail += f" up to offset {each.low_watermark}"
            yield _topic(each.error_code, Action.RECORDS_DELETE, topic.name, detail)


def _delete_groups(request: DeleteGroupsRequest, response: DeleteGroupsResponse) -> Changes:
    for group in response.results:
        resource = f"group:{group.group_id}"
        yield _cluster(group.error_code, Action.GROUP_DELETE, resource, "with its offsets")


def _alter_configs(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    response: AlterConfigsResponse | IncrementalAlterConfigsResponse,
) -> Changes:
    if request.validate_only:
        return
    names = {
        (each.resource_type, each.resource_name): [config.name for config in each.configs]
        for each in request.resources
    }
    for answer in response.responses:
        key = answer.resource_type, answer.resource_name
        kind = _CONFIG_KINDS.get(answer.resource_type, "resource")
        resource = f"{kind}:{answer.resource_name}"
        event = partial(config_change, resource=resource, settings=names.get(key, []))
        yield Change(answer.error_code, event)


def _create_acls(request: CreateAclsRequest, response: CreateAclsResponse) -> Changes:
    for acl, result in zip(request.creations, response.results, strict=False):
        yield _acl(
            result.error_code,
            True,
            acl.resource_type,
            acl.resource_pattern_type,
            acl.resource_name,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )


def _delete_acls(request: DeleteAclsRequest, response: DeleteAclsResponse) -> Changes:
    for result in response.filter_results:
        if result.error_code:
            yield _cluster(result.error_code, Action.ACL_DELETE, "acl:by filter", "nothing")
        for acl in result.matching_acls:
            yield _acl(
                acl.error_code,
                False,
                acl.resource_type,
                acl.pattern_type,
                acl.resource_name,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )


def _acl(
    code: int,
    created: bool,
    resource_type: int,
    pattern_type: int,
    name: str,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> Change:
    kind = ResourceType(resource_type)
    acl = AclBinding(
        kind,
        PatternType(pattern_type),
        name,
        principal,
        host,
        AclOperation(operation),
        PermissionType(permission),
    )
    resource = f"{kind.name.lower()}:{name}"
    return Change(code, partial(acl_change, created=created, acl=str(acl), resource=resource))


def _alter_users(
    request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Changes:
    codes = {each.user: each.error_code for each in response.results}
    for deletion in request.deletions:
        yield _user(codes, deletion.name, deletion.mechanism, deleted=True)
    for upsertion in request.upsertions:
        yield _user(codes, upsertion.name, upsertion.mechanism, deleted=False)


def _user(codes: Mapping[str, int], name: str, mechanism: int, *, deleted: bool) -> Change:
    try:
        text = ScramMechanism(mechanism).sasl_name
    except ValueError:
        text = str(mechanism)
    event = partial(user_change, name=name, mechanism=text, deleted=deleted)
    return Change(codes.get(name, ErrorCode.UNKNOWN_SERVER_ERROR), event)


def _alter_quotas(
    request: AlterClientQuotasRequest, response: AlterClientQuotasResponse
) -> Changes:
    if request.validate_only:
        return
    for asked, answer in zip(request.entries, response.entries, strict=False):
        named = (
            f"{each.entity_type}={'(default)' if each.entity_name is None else each.entity_name}"
            for each in asked.entity
        )
        limits = {each.key: None if each.remove else each.value for each in asked.ops}
        entity = ",".join(named)
        yield Change(answer.error_code, partial(quota_change, entity=entity, limits=limits))


def _reassign(
    request: AlterPartitionReassignmentsRequest, response: AlterPartitionReassignmentsResponse
) -> Changes:
    if response.error_code:
        yield _cluster(response.error_code, Action.CLUSTER_ALTER, "cluster", "a reassignment")
    replicas = {
        (topic.name, each.partition_index): each.replicas
        for topic in request.topics
        for each in topic.partitions
    }
    for topic in response.responses:
        for answer in topic.partitions:
            wanted = replicas.get((topic.name, answer.partition_index))
            where = "is no longer reassigned" if wanted is None else f"moves to brokers {wanted}"
            detail = f"partition {answer.partition_index} {where}"
            yield _topic(answer.error_code, Action.TOPIC_ALTER, topic.name, detail)


def _elect(request: ElectLeadersRequest, response: ElectLeadersResponse) -> Changes:
    if response.error_code:
        yield _cluster(response.error_code, Action.CLUSTER_ALTER, "cluster", "an election")
    kind = "preferred" if request.election_type == 0 else "unclean"
    for topic in response.replica_election_results:
        for answer in topic.partition_result:
            if answer.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                detail = f"{kind} election in partition {answer.partition_id}"
                yield _topic(answer.error_code, Action.TOPIC_ALTER, topic.topic, detail)


def _unregister(request: UnregisterBrokerRequest, response: UnregisterBrokerResponse) -> Changes:
    resource = f"broker:{request.broker_id}"
    yield _cluster(response.error_code, Action.CLUSTER_ALTER, resource, "unregistered")


_ROLE_ACTIONS: Final = (
    Action.ROLE_ALTER,
    Action.ROLE_ALTER,
    Action.ROLE_GRANT,
    Action.ROLE_REVOKE,
)
"""By the action of AlterRoles: define, delete, grant, revoke."""


def _alter_roles(request: AlterRolesRequest, response: AlterRolesResponse) -> Changes:
    for each in request.changes:
        is_known = 0 <= each.action < len(_ROLE_ACTIONS)
        action = _ROLE_ACTIONS[each.action] if is_known else Action.ROLE_ALTER
        grantee = each.principal.removeprefix("User:") or None
        if grantee is not None and each.resource_type:
            kind = ResourceType(each.resource_type).name.lower()
            star = "*" if each.pattern_type == PatternType.PREFIXED else ""
            grantee += f" on {kind}:{each.resource_name}{star}"
        event = partial(role_change, action=action, role=each.role, grantee=grantee)
        yield Change(response.error_code, event)


AUDITED: Final[Mapping[ApiKey, Callable[[Any, Any], Changes]]] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_ROLES: _alter_roles,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_users,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.ELECT_LEADERS: _elect,
    ApiKey.UNREGISTER_BROKER: _unregister,
}
"""The APIs that change something, with what reads their changes."""
