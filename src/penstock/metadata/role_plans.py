"""Decisions about roles: the change of the role book and of the ACLs is one commit.

Roles become ACLs (`security.roles`), and only those decide. So a change of roles is a change of
ACLs: it is worked out from a snapshot, writes `acl-version`, and is in force when all brokers have
confirmed it (`metadata.acls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.metadata.acl_values import encode_pattern_acls
from penstock.metadata.acls import (
    COMMIT_BYTES_MAX,
    COMMIT_PATTERNS_MAX,
    AclPlan,
    AclSnapshot,
    require_readable,
    role_book,
)
from penstock.metadata.keys import acl_key
from penstock.security.acls import AclBinding
from penstock.security.role_edits import (
    DefineRole,
    DeleteRole,
    GrantRole,
    RevokeRole,
    RoleEdit,
)
from penstock.security.roles import (
    RoleBook,
    RoleChange,
    RoleRefused,
    define_role,
    delete_role,
    encode_roles,
    grant_role,
    revoke_role,
)
from penstock.wire.errors import ErrorCode, KafkaError

CHANGES_MAX: Final = 100
"""How many changes of roles one request can make."""


def plan_roles(snapshot: AclSnapshot, edits: Sequence[RoleEdit]) -> AclPlan[None]:
    """Plans all changes, in order. If one is refused, raises `KafkaError` and nothing changes."""
    require_readable(snapshot)
    before = role_book(snapshot.stored_roles)
    book, acls = before, snapshot.bindings()
    touched: set[str] = set()
    for edit in edits:
        try:
            change = _changed(book, acls, edit)
        except RoleRefused as refused:
            raise KafkaError(refused.code, f"{refused}.") from refused
        book = change.book
        acls = (acls | change.add) - change.remove
        touched.update(acl_key(acl.pattern) for acl in change.add | change.remove)
    roles = None if book == before else encode_roles(book).encode()
    values = _values(acls, touched)
    size = len(roles or b"") + sum(len(key) + len(each or b"") for key, each in values.items())
    if len(values) > COMMIT_PATTERNS_MAX or size > COMMIT_BYTES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The change affects ACLs of {len(values)} resource patterns with {size} bytes, but "
            f"one change can have at most {COMMIT_PATTERNS_MAX} patterns and {COMMIT_BYTES_MAX} "
            "bytes: make it in several steps, or assign roles on prefixes.",
        )
    return AclPlan(snapshot, values, None, roles)


def _changed(book: RoleBook, acls: frozenset[AclBinding], edit: RoleEdit) -> RoleChange:
    match edit:
        case DefineRole(role):
            return define_role(book, acls, role)
        case DeleteRole(name):
            return RoleChange(delete_role(book, name))
        case GrantRole(assignment):
            return grant_role(book, acls, assignment)
        case RevokeRole(assignment):
            return revoke_role(book, acls, assignment)


def _values(acls: frozenset[AclBinding], touched: set[str]) -> dict[str, bytes | None]:
    """Returns the new values of the keys whose ACLs change."""
    held: dict[str, set[AclBinding]] = {key: set() for key in sorted(touched)}
    for acl in acls:
        if (found := held.get(acl_key(acl.pattern))) is not None:
            found.add(acl)
    return {
        key: encode_pattern_acls(frozenset(found)) if found else None for key, found in held.items()
    }
