"""Roles: named sets of grants that become ACLs, so that every Kafka tool shows what they allow.

A role is assigned to a principal, usually on a resource: `reader` on the topics that start with
`orders.`. The assignment becomes ALLOW ACLs, and only those decide. `RoleBook` records the custom
roles and the assignments. Its functions return the ACLs to add and to remove:

- Revoking removes an ACL only if no other assignment of the principal needs it.
- An ACL that existed before an assignment needed it was made by hand and is never removed.
- Deleting a role's ACL with DeleteAcls takes effect. Only granting that role again restores it.

The caller stores the new book and the changed ACLs together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from penstock.security.acl_filters import CHANGES_MAX
from penstock.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
    acl_of_row,
    acl_row,
    check_binding,
    normalized_host,
)
from penstock.wire.errors import ErrorCode

ROLES_MAX: Final = 1000
"""How many custom roles a cluster can have."""

GRANTS_MAX: Final = 100
"""How many grants a role can have."""

ASSIGNMENTS_MAX: Final = 10_000
"""How many assignments of roles a cluster can have."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RoleRefused(ValueError):
    """A role or an assignment was refused; `code` is the Kafka error to answer with."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class StoredRolesInvalid(ValueError):
    """The stored roles cannot be read. ACLs decide without them, but roles cannot be changed."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Operations on one type of resource.

    A grant without a name is about the resource that the role is assigned on. A grant with a name
    is always about that name, and a grant on the CLUSTER is always about the cluster.
    """

    resource_type: ResourceType
    operations: frozenset[AclOperation]
    name: str | None = None
    pattern_type: PatternType = PatternType.LITERAL

    @property
    def fixed_pattern(self) -> ResourcePattern | None:
        """The resources of this grant if they do not depend on the assignment."""
        if self.resource_type == ResourceType.CLUSTER:
            return ResourcePattern(ResourceType.CLUSTER, PatternType.LITERAL, CLUSTER_NAME)
        if self.name is None:
            return None
        return ResourcePattern(self.resource_type, self.pattern_type, self.name)


@dataclass(frozen=True, slots=True)
class Role:
    """A named list of grants."""

    name: str
    grants: tuple[Grant, ...]


def _grant(
    resource_type: ResourceType, *operations: AclOperation, name: str | None = None
) -> Grant:
    return Grant(resource_type, frozenset(operations), name)


READER: Final = Role(
    "reader",
    (
        _grant(ResourceType.TOPIC, AclOperation.READ, AclOperation.DESCRIBE),
        _grant(ResourceType.GROUP, AclOperation.READ, AclOperation.DESCRIBE),
    ),
)
"""Consumes. Assigned on a topic: READ and DESCRIBE of the topic. Assigned on a group: READ and
DESCRIBE of the group. A consumer needs both."""

WRITER: Final = Role(
    "writer",
    (
        _grant(ResourceType.TOPIC, AclOperation.WRITE, AclOperation.DESCRIBE),
        _grant(ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, AclOperation.DESCRIBE),
    ),
)
"""Produces. Assigned on a topic: WRITE and DESCRIBE of the topic, which also allows idempotent
producers. Assigned on a transactional id: WRITE and DESCRIBE of the id. It cannot create topics."""

OWNER: Final = Role(
    "owner",
    (
        _grant(ResourceType.TOPIC, AclOperation.ALL),
        _grant(ResourceType.GROUP, AclOperation.ALL),
        _grant(ResourceType.TRANSACTIONAL_ID, AclOperation.ALL),
    ),
)
"""Does everything with its resources, such as creating and deleting topics with a prefix. Assigned
on a topic, a group or a transactional id: ALL on it."""

ADMIN: Final = Role(
    "admin",
    (
        _grant(
            ResourceType.CLUSTER,
            AclOperation.CREATE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
        ),
        _grant(ResourceType.TOPIC, AclOperation.ALL, name=WILDCARD),
        _grant(ResourceType.GROUP, AclOperation.ALL, name=WILDCARD),
        _grant(ResourceType.TRANSACTIONAL_ID, AclOperation.ALL, name=WILDCARD),
        _grant(ResourceType.DELEGATION_TOKEN, AclOperation.ALL, name=WILDCARD),
        _grant(ResourceType.USER, AclOperation.ALL, name=WILDCARD),
    ),
)
"""Administers the cluster. Assigned without a resource: CREATE, ALTER, DESCRIBE, DESCRIBE_CONFIGS,
ALTER_CONFIGS and IDEMPOTENT_WRITE on the cluster, and ALL on every topic, group, transactional id,
delegation token and user. It does not get CLUSTER_ACTION, so it cannot act as a broker."""

BUILT_IN_ROLES: Final[Mapping[str, Role]] = MappingProxyType(
    {role.name: role for role in (READER, WRITER, OWNER, ADMIN)}
)
"""The roles that every cluster has. They cannot be changed."""


def check_role(role: Role) -> None:
    """Raises `RoleRefused` if this cannot be a custom role."""
    if not _NAME.fullmatch(role.name):
        raise RoleRefused(
            f"{role.name[:64]!r} cannot be the name of a role: use 1 to 64 letters, digits, dots, "
            "underscores and hyphens"
        )
    if role.name in BUILT_IN_ROLES:
        raise RoleRefused(f"the role {role.name} is built in: choose another name")
    if not 1 <= len(role.grants) <= GRANTS_MAX:
        raise RoleRefused(
            f"the role {role.name} has {len(role.grants)} grants: use 1 to {GRANTS_MAX}"
        )
    for grant in role.grants:
        if not grant.operations:
            raise RoleRefused(f"a grant of the role {role.name} has no operation: name one, or ALL")
        pattern = grant.fixed_pattern
        name = WILDCARD if pattern is None else pattern.name
        kind = grant.pattern_type if pattern is None else pattern.pattern_type
        for operation in grant.operations:
            sample = _allow(ResourcePattern(grant.resource_type, kind, name), "User:a", operation)
            try:
                check_binding(sample)
            except AclRefused as refused:
                raise RoleRefused(f"a grant of the role {role.name}: {refused}") from refused


def expand(
    role: Role, principal: str, resource: ResourcePattern | None = None, host: str = WILDCARD
) -> list[AclBinding]:
    """Returns the ACLs that a role becomes for a principal, sorted.

    `resource` is what the role is assigned on: its type, and a name or a prefix. The type ANY
    stands for every type in the role. Raises `RoleRefused` if role and resource do not fit.
    """
    patterns = [(grant, _pattern_of(grant, resource)) for grant in role.grants]
    uses_resource = any(grant.fixed_pattern is None and pattern for grant, pattern in patterns)
    if resource is None and any(pattern is None for _, pattern in patterns):
        raise RoleRefused(f"the role {role.name} needs a resource: name a topic or a prefix")
    if resource is not None and not uses_resource:
        raise RoleRefused(
            f"the role {role.name} has no grant for the resource type "
            f"{resource.resource_type.name}: assign it on another resource, or without one"
        )
    acls = {
        _allow(pattern, principal, operation, host)
        for grant, pattern in patterns
        if pattern is not None
        for operation in grant.operations
    }
    try:
        for acl in acls:
            check_binding(acl)
    except AclRefused as refused:
        raise RoleRefused(f"the role {role.name} cannot be assigned: {refused}") from refused
    return sorted(acls)


def _pattern_of(grant: Grant, resource: ResourcePattern | None) -> ResourcePattern | None:
    if grant.fixed_pattern is not None or resource is None:
        return grant.fixed_pattern
    if resource.resource_type not in (ResourceType.ANY, grant.resource_type):
        return None
    return ResourcePattern(grant.resource_type, resource.pattern_type, resource.name)


def _allow(
    pattern: ResourcePattern, principal: str, operation: AclOperation, host: str = WILDCARD
) -> AclBinding:
    return AclBinding(
        pattern.resource_type,
        pattern.pattern_type,
        pattern.name,
        principal,
        host,
        operation,
        PermissionType.ALLOW,
    )


@dataclass(frozen=True, slots=True)
class RoleAssignment:
    """A role that a principal has, on a resource unless all its grants have names."""

    role: str
    principal: str
    resource: ResourcePattern | None = None
    host: str = WILDCARD

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", normalized_host(self.host))


@dataclass(frozen=True, slots=True)
class RoleBook:
    """The custom roles and the assignments of a cluster."""

    custom_roles: Mapping[str, Role] = field(default_factory=lambda: MappingProxyType({}))
    assignments: frozenset[RoleAssignment] = frozenset()
    made_by_hand: frozenset[AclBinding] = frozenset()
    """The ACLs that an assignment needs, but that were there without it: they stay when it goes."""

    def role(self, name: str) -> Role:
        """Returns a built-in or custom role, or raises `RoleRefused`."""
        role = BUILT_IN_ROLES.get(name) or self.custom_roles.get(name)
        if role is None:
            raise RoleRefused(f"there is no role {name[:64]!r}: create it first")
        return role

    def acls_of(self, assignment: RoleAssignment) -> list[AclBinding]:
        """Returns the ACLs that an assignment needs, sorted."""
        role = self.role(assignment.role)
        return expand(role, assignment.principal, assignment.resource, assignment.host)

    def assignments_of(self, principal: str) -> frozenset[RoleAssignment]:
        """Returns the assignments of one principal."""
        return frozenset(each for each in self.assignments if each.principal == principal)

    def needed(self, assignments: Iterable[RoleAssignment]) -> set[AclBinding]:
        """Returns the ACLs that at least one of the assignments needs."""
        return {acl for assignment in assignments for acl in self.acls_of(assignment)}


@dataclass(frozen=True, slots=True)
class RoleChange:
    """The book after a change, and the ACLs to add and to remove together with it."""

    book: RoleBook
    add: frozenset[AclBinding] = frozenset()
    remove: frozenset[AclBinding] = frozenset()


def grant_role(book: RoleBook, existing: Set[AclBinding], assignment: RoleAssignment) -> RoleChange:
    """Assigns a role. Granting it again adds the ACLs of it that were deleted."""
    wanted = set(book.acls_of(assignment))
    assignments = book.assignments | {assignment}
    if len(assignments) > ASSIGNMENTS_MAX:
        raise RoleRefused(
            f"there are {ASSIGNMENTS_MAX} assignments of roles: revoke some, or assign on prefixes",
            ErrorCode.POLICY_VIOLATION,
        )
    before = book.needed(book.assignments_of(assignment.principal))
    added = wanted - existing
    by_hand = (book.made_by_hand | (wanted - added - before)) - added
    changed = replace(book, assignments=assignments, made_by_hand=by_hand)
    return RoleChange(changed, frozenset(added))


def revoke_role(
    book: RoleBook, existing: Set[AclBinding], assignment: RoleAssignment
) -> RoleChange:
    """Removes an assignment, and the ACLs that nothing else needs."""
    if assignment not in book.assignments:
        raise RoleRefused(
            f"{assignment.principal[:120]!r} does not have the role {assignment.role[:64]!r} on "
            "this resource: list the roles of the principal to see what it has"
        )
    return _without(book, existing, assignment.principal, frozenset({assignment}))


def revoke_all_roles(book: RoleBook, existing: Set[AclBinding], principal: str) -> RoleChange:
    """Removes all assignments of a principal, for example because the user is deleted.

    Raises `RoleRefused` if that removes more than `CHANGES_MAX` ACLs. Then the user must not be
    deleted either: a new user of that name would have its ACLs.
    """
    return _without(book, existing, principal, book.assignments_of(principal))


def _without(
    book: RoleBook, existing: Set[AclBinding], principal: str, revoked: frozenset[RoleAssignment]
) -> RoleChange:
    kept = book.needed(book.assignments_of(principal) - revoked)
    dropped: set[AclBinding] = set()
    for assignment in revoked:
        dropped.update(acl for acl in book.acls_of(assignment) if acl not in kept)
        _check_changes(len(dropped), "revoke the roles of the principal one by one")
    changed = replace(
        book,
        assignments=book.assignments - revoked,
        made_by_hand=book.made_by_hand - dropped,
    )
    removed = (dropped & existing) - book.made_by_hand
    return RoleChange(changed, remove=frozenset(removed))


def define_role(book: RoleBook, existing: Set[AclBinding], role: Role) -> RoleChange:
    """Creates a custom role, or replaces it: its assignments then get the new ACLs.

    Raises `RoleRefused` if the role is not valid or does not fit one of its assignments, or if
    its assignments gain and lose more than `CHANGES_MAX` ACLs together.
    """
    check_role(role)
    roles = {**book.custom_roles, role.name: role}
    if len(roles) > ROLES_MAX:
        raise RoleRefused(
            f"there are {ROLES_MAX} custom roles: delete some", ErrorCode.POLICY_VIOLATION
        )
    changed = replace(book, custom_roles=MappingProxyType(roles))
    gained, dropped = _difference(book, changed, role.name)
    added = gained - existing
    removed = (dropped & existing) - book.made_by_hand
    by_hand = (book.made_by_hand | (gained - added)) - dropped - added
    changed = replace(changed, made_by_hand=by_hand)
    return RoleChange(changed, frozenset(added), frozenset(removed))


def _difference(book: RoleBook, changed: RoleBook, role: str) -> tuple[set[AclBinding], ...]:
    """Returns the ACLs that are needed only after the change of a role, and only before it."""
    advice = "revoke the role from some principals first, or create another role"
    of_principal: dict[str, list[RoleAssignment]] = {}
    for each in book.assignments:
        of_principal.setdefault(each.principal, []).append(each)
    gained, dropped = set[AclBinding](), set[AclBinding]()
    for principal in {each.principal for each in book.assignments if each.role == role}:
        assignments = of_principal[principal]
        before, after = book.needed(assignments), set[AclBinding]()
        for each in assignments:
            needed = changed.acls_of(each)
            after.update(needed)
            gained.update(acl for acl in needed if acl not in before)
            _check_changes(len(gained) + len(dropped), advice)
        dropped |= before - after
    _check_changes(len(gained) + len(dropped), advice)
    return gained, dropped


def _check_changes(count: int, advice: str) -> None:
    if count > CHANGES_MAX:
        raise RoleRefused(
            f"this changes more than {CHANGES_MAX} ACLs: {advice}", ErrorCode.POLICY_VIOLATION
        )


def delete_role(book: RoleBook, name: str) -> RoleBook:
    """Removes a custom role that is not assigned."""
    if name in BUILT_IN_ROLES:
        raise RoleRefused(f"the role {name} is built in: it cannot be deleted")
    book.role(name)
    count = sum(assignment.role == name for assignment in book.assignments)
    if count:
        raise RoleRefused(f"the role {name} is assigned {count} times: revoke it first")
    roles = {each: role for each, role in book.custom_roles.items() if each != name}
    return replace(book, custom_roles=MappingProxyType(roles))


def record_created_acls(book: RoleBook, created: Iterable[AclBinding]) -> RoleBook:
    """Returns the book after CreateAcls, which may name ACLs that an assignment already made.

    Those then stay when the assignment goes.
    """
    made = set(created)
    principals = {acl.principal for acl in made}
    affected = [each for each in book.assignments if each.principal in principals]
    by_hand = book.made_by_hand | (made & book.needed(affected))
    return book if by_hand == book.made_by_hand else replace(book, made_by_hand=by_hand)


_STORED_VERSION: Final = 1


def encode_roles(book: RoleBook) -> str:
    """Returns the stored form of a book: equal books have equal texts."""
    document = {
        "version": _STORED_VERSION,
        "roles": {name: _role_row(role) for name, role in book.custom_roles.items()},
        "assignments": sorted(_assignment_row(each) for each in book.assignments),
        "made_by_hand": [acl_row(acl) for acl in sorted(book.made_by_hand)],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def decode_roles(text: str | bytes) -> RoleBook:
    """Returns the book of a text that `encode_roles` made, or raises `StoredRolesInvalid`."""
    try:
        return _book_of(json.loads(text))
    except StoredRolesInvalid:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StoredRolesInvalid(
            f"the stored roles are not valid ({type(error).__name__}: {str(error)[:200]}): upgrade "
            "this broker, or restore them from a copy"
        ) from error


def _book_of(document: dict[str, Any]) -> RoleBook:
    if document["version"] != _STORED_VERSION:
        raise StoredRolesInvalid(
            f"the stored roles do not have version {_STORED_VERSION}: upgrade this broker"
        )
    roles = {name: _role_of(name, rows) for name, rows in document["roles"].items()}
    for role in roles.values():
        check_role(role)
    assignments = frozenset(_assignment_of(*row) for row in document["assignments"])
    by_hand = frozenset(acl_of_row(row) for row in document["made_by_hand"])
    book = RoleBook(MappingProxyType(roles), assignments, by_hand)
    book.needed(assignments)
    return book


def _role_row(role: Role) -> list[list[object]]:
    return [
        [
            grant.resource_type.name,
            [operation.name for operation in sorted(grant.operations)],
            grant.pattern_type.name,
            grant.name,
        ]
        for grant in role.grants
    ]


def _role_of(name: str, rows: list[list[object]]) -> Role:
    grants = []
    for kind, operations, pattern_type, resource_name in rows:
        if not isinstance(operations, list) or not isinstance(resource_name, str | None):
            raise StoredRolesInvalid(f"a stored grant of the role {name!r} is not valid")
        found = frozenset(AclOperation[operation] for operation in operations)
        pattern = PatternType[str(pattern_type)]
        grants.append(Grant(ResourceType[str(kind)], found, resource_name, pattern))
    return Role(name, tuple(grants))


def _assignment_row(assignment: RoleAssignment) -> list[str]:
    row = [assignment.role, assignment.principal, assignment.host]
    resource = assignment.resource
    if resource is not None:
        row += [resource.resource_type.name, resource.pattern_type.name, resource.name]
    return row


def _assignment_of(role: str, principal: str, host: str, *resource: str) -> RoleAssignment:
    if not all(isinstance(text, str) for text in (role, principal, host, *resource)):
        raise StoredRolesInvalid("a stored assignment of a role is not a list of strings")
    pattern = None
    if resource:
        kind, pattern_type, name = resource
        pattern = ResourcePattern(ResourceType[kind], PatternType[pattern_type], name)
    return RoleAssignment(role, principal, pattern, host)
