"""Lists, creates and deletes ACLs as Kafka's DescribeAcls, CreateAcls and DeleteAcls do.

Functions take the existing ACLs as a set and return the new set, so that the caller can store it at
once or not at all. Each entry of a request gets its own result.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from penstock.security.acls import (
    WILDCARD,
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    PermissionType,
    ResourceType,
    check_binding,
    normalized_host,
)
from penstock.wire.errors import ErrorCode

CHANGES_MAX: Final = 10_000
"""How many ACLs one request may create or delete. A request for more changes nothing."""

COMPARISONS_MAX: Final = 10_000_000
"""How many comparisons of a filter with an ACL one DeleteAcls may take: some seconds of work, so
run it on a thread if there are many ACLs. A filter that names exactly one ACL takes none."""


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs. A text that is None, and the value ANY, select all."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    """With MATCH: the ACLs that apply to a resource of this name. Otherwise the ACL's own name."""
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    def __post_init__(self) -> None:
        if self.host is not None:
            object.__setattr__(self, "host", normalized_host(self.host))

    def matches(self, acl: AclBinding) -> bool:
        """Returns whether this filter selects the ACL.

        As in Kafka, the operation ALL selects only ACLs of ALL, and the host `*` or the principal
        `User:*` only ACLs with just that text.
        """
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (PermissionType.ANY, acl.permission)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self._matches_pattern(acl)
        )

    def exact(self) -> AclBinding | None:
        """Returns the only ACL that this filter can select, or None if it can select several."""
        if self.resource_name is None or self.principal is None or self.host is None:
            return None
        acl = AclBinding(
            self.resource_type,
            self.pattern_type,
            self.resource_name,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )
        try:
            check_binding(acl)
        except AclRefused:
            return None
        return acl

    def _matches_pattern(self, acl: AclBinding) -> bool:
        if self.pattern_type == PatternType.MATCH and self.resource_name is not None:
            if acl.pattern_type == PatternType.PREFIXED:
                return self.resource_name.startswith(acl.resource_name)
            return acl.resource_name in (WILDCARD, self.resource_name)
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        return self.resource_name is None or self.resource_name == acl.resource_name


def check_filter(wanted: AclFilter) -> None:
    """Raises `AclRefused` if a field of the filter is UNKNOWN."""
    for what, value in (
        ("resource type", wanted.resource_type),
        ("pattern type", wanted.pattern_type),
        ("operation", wanted.operation),
        ("permission", wanted.permission),
    ):
        if value == 0:
            raise AclRefused(
                f"the {what} of the filter is unknown: use one that this broker knows, or ANY"
            )


def describe_acls(existing: Set[AclBinding], wanted: AclFilter) -> list[AclBinding]:
    """Returns the ACLs that the filter selects, sorted, or raises `AclRefused`."""
    check_filter(wanted)
    exact = wanted.exact()
    if exact is not None:
        return [exact] if exact in existing else []
    return sorted(acl for acl in existing if wanted.matches(acl))


@dataclass(frozen=True, slots=True)
class CreateResult:
    """The result of one entry of CreateAcls."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class CreatedAcls:
    """What CreateAcls changes, and a result for each entry in the order of the request."""

    acls: frozenset[AclBinding]
    """All ACLs afterwards."""
    added: frozenset[AclBinding]
    results: tuple[CreateResult, ...]


def create_acls(existing: frozenset[AclBinding], new: Sequence[AclBinding]) -> CreatedAcls:
    """Adds the valid ACLs of a request. An ACL that already exists counts as created.

    A request that adds more than `CHANGES_MAX` adds none: as in Kafka, every entry then gets
    POLICY_VIOLATION.
    """
    added: set[AclBinding] = set()
    results: list[CreateResult] = []
    for acl in new:
        try:
            check_binding(acl)
        except AclRefused as refused:
            results.append(CreateResult(refused.code, str(refused)))
            continue
        if acl not in existing:
            added.add(acl)
            if len(added) > CHANGES_MAX:
                refusal = CreateResult(
                    ErrorCode.POLICY_VIOLATION,
                    f"the request creates more than {CHANGES_MAX} ACLs: use several requests",
                )
                return CreatedAcls(existing, frozenset(), (refusal,) * len(new))
        results.append(CreateResult())
    return CreatedAcls(existing | added, frozenset(added), tuple(results))


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result of one filter of DeleteAcls: the ACLs that it selected, sorted."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    matching: tuple[AclBinding, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletedAcls:
    """What DeleteAcls changes, and a result for each filter in the order of the request."""

    acls: frozenset[AclBinding]
    """All ACLs afterwards."""
    removed: frozenset[AclBinding]
    results: tuple[DeleteResult, ...]


def delete_acls(existing: frozenset[AclBinding], filters: Sequence[AclFilter]) -> DeletedAcls:
    """Removes the ACLs that at least one valid filter selects.

    An ACL that several filters select is in the result of each. If the filters select more than
    `CHANGES_MAX` ACLs together, none is removed and every filter gets INVALID_REQUEST. An ACL
    counts once for each filter that selects it, so that the size of the results is limited too.
    """
    removed: set[AclBinding] = set()
    selected_count = comparison_count = 0
    results: list[DeleteResult] = []
    for wanted in filters:
        if wanted.exact() is None:
            comparison_count += len(existing)
            if comparison_count > COMPARISONS_MAX:
                return _delete_nothing(existing, filters, "the request has too many filters")
        try:
            matching = describe_acls(existing, wanted)
        except AclRefused as refused:
            results.append(DeleteResult(refused.code, str(refused)))
            continue
        selected_count += len(matching)
        if selected_count > CHANGES_MAX:
            problem = f"the filters select more than {CHANGES_MAX} ACLs"
            return _delete_nothing(existing, filters, problem)
        removed.update(matching)
        results.append(DeleteResult(matching=tuple(matching)))
    return DeletedAcls(existing - removed, frozenset(removed), tuple(results))


def _delete_nothing(
    existing: frozenset[AclBinding], filters: Sequence[AclFilter], problem: str
) -> DeletedAcls:
    refusal = DeleteResult(
        ErrorCode.INVALID_REQUEST,
        f"{problem}: nothing was deleted; use narrower filters and several requests",
    )
    return DeletedAcls(existing, frozenset(), (refusal,) * len(filters))
