"""How roles are written in the messages of DescribeRoles and AlterRoles, for broker and client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.security.acls import AclOperation, PatternType, ResourcePattern, ResourceType
from penstock.security.roles import Grant, RoleAssignment

G = TypeVar("G")


class WireGrant(Protocol):
    resource_type: int
    operations: list[int]
    resource_name: str | None
    pattern_type: int


class WireAssignment(Protocol):
    role: str
    principal: str
    host: str
    resource_type: int
    pattern_type: int
    resource_name: str


def read_grant(grant: WireGrant) -> Grant:
    return Grant(
        ResourceType(grant.resource_type),
        frozenset(AclOperation(each) for each in grant.operations),
        grant.resource_name,
        PatternType(grant.pattern_type),
    )


def wire_grant(make: Callable[[int, list[int], str | None, int], G], grant: Grant) -> G:
    return make(
        int(grant.resource_type),
        sorted(map(int, grant.operations)),
        grant.name,
        int(grant.pattern_type),
    )


def read_assignment(given: WireAssignment) -> RoleAssignment:
    """Reads an assignment. Without a resource its type is 0. Raises `AclRefused`."""
    resource = None
    if given.resource_type:
        kind, pattern = ResourceType(given.resource_type), PatternType(given.pattern_type)
        resource = ResourcePattern(kind, pattern, given.resource_name)
    return RoleAssignment(given.role, given.principal, resource, given.host)
