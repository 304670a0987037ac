"""The access page: users, access rules (ACLs), roles and quotas.

The console asks the brokers, with the rights of its user, and they decide. It keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.client.admin.access import ScramUser
from penstock.client.admin.fair_sharing import fair_sharing_text, find_fair_sharing
from penstock.client.errors import BrokerError
from penstock.console.errors import BadRequest
from penstock.console.link import Link
from penstock.security.access_text import (
    BadAccessText,
    acl_fields,
    assignment_fields,
    grant_text,
    named,
    parse_assignment,
    parse_grant,
    parse_resource,
    pattern_text,
)
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    host_warning,
)
from penstock.security.quotas import CLIENT_KEYS, ENTITY_TYPES, IP_KEYS, QuotaEntity
from penstock.security.role_edits import DefineRole, DeleteRole, GrantRole, RevokeRole, RoleEdit
from penstock.security.roles import Role

_PRINCIPAL: Final = "User:"
_DEFAULT: Final = "default"
"""What people write for everybody who has no quota of their own."""
_SHOWN_MAX: Final = 2_000
"""How many rules, users or quotas one answer lists. A search finds the others."""


class Access:
    def __init__(self, link: Link) -> None:
        self._link = link

    # -- users ----------------------------------------------------------------------------------

    async def users(self, search: str) -> dict[str, Any]:
        found = await (await self._link.reading()).describe_scram_users()
        rows = [
            {"user": user.user, "mechanisms": dict(user.mechanisms)}
            for user in found.values()
            if isinstance(user, ScramUser) and search.casefold() in user.user.casefold()
        ]
        return {"users": rows[:_SHOWN_MAX], "total": len(rows)}

    async def set_password(
        self, user: str, password: str, mechanism: str, *, is_new: bool
    ) -> dict[str, Any]:
        """Adds a user, or sets a new password for all mechanisms that the user has."""
        admin = await self._link.changing(f"{'add' if is_new else 'set the password of'} {user!r}")
        found = (await admin.describe_scram_users([user])).get(user)
        known = list(found.mechanisms) if isinstance(found, ScramUser) else []
        if is_new and mechanism in known:
            raise BadRequest(f"user {user!r} exists: set a new password instead")
        if not is_new and not known:
            raise BadRequest(f"there is no user {user!r}: add the user instead")
        for each in [mechanism] if is_new else known:
            await admin.upsert_scram_user(user, password, each)
        return {"user": user}

    async def delete_user(self, user: str, typed: str) -> dict[str, Any]:
        """Deletes a user. Returns how many access rules and roles of the user remain."""
        admin = await self._link.changing(f"delete user {user!r}")
        if typed != user:
            raise BadRequest(f"type the name of the user, {user}, to delete the user")
        await admin.delete_scram_user(user)
        acls = await admin.describe_acls(AclFilter(principal=_PRINCIPAL + user))
        return {"user": user, "rules_left": len(acls)}

    # -- access rules ---------------------------------------------------------------------------

    async def acls(self, user: str, resource: str) -> dict[str, Any]:
        """Returns the rules of a user, or those that apply to a resource, prefixes included."""
        wanted = _filter(user, resource)
        found = await (await self._link.reading()).describe_acls(wanted)
        rows = [{**acl_fields(acl), "resource": pattern_text(acl.pattern)} for acl in found]
        return {"acls": rows[:_SHOWN_MAX], "total": len(rows)}

    async def create_acl(
        self, user: str, resource: str, operation: str, permission: str, host: str
    ) -> dict[str, Any]:
        acl = _binding(user, resource, operation, permission, host)
        admin = await self._link.changing(f"create the rule {acl}")
        error = (await admin.create_acls([acl]))[acl]
        if error is not None:
            raise error
        return {"created": str(acl), "warning": host_warning(acl)}

    async def delete_acl(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Deletes one rule. The fields are those that `acls` returned."""
        wanted = _only(fields)
        what = f"{fields['permission']} {fields['operation']} on {fields['resource']!r}"
        admin = await self._link.changing(f"delete the rule {what} for {fields['principal']!r}")
        (outcome,) = await admin.delete_acls([wanted])
        if isinstance(outcome, BrokerError):
            raise outcome
        return {"deleted": len(outcome)}

    async def check(self, user: str, operation: str, resource: str, host: str) -> dict[str, Any]:
        """Says whether a user may do something, and by which rule."""
        try:
            pattern = parse_resource(resource)
            wanted = named(AclOperation, operation, "operation")
        except BadAccessText as error:
            raise BadRequest(str(error)) from error
        admin = await self._link.reading()
        answer = await admin.check_access(_PRINCIPAL + user, wanted, pattern, host or "*")
        return {"allowed": answer.allowed, "reason": answer.reason, "roles": list(answer.roles)}

    # -- roles ----------------------------------------------------------------------------------

    async def roles(self) -> dict[str, Any]:
        found = await (await self._link.reading()).describe_roles()
        return {
            "roles": [
                {
                    "role": role.name,
                    "built_in": role.name in found.built_in,
                    "grants": [grant_text(each) for each in role.grants],
                }
                for role in found.roles.values()
            ],
            "assignments": [assignment_fields(each) for each in found.assignments[:_SHOWN_MAX]],
            "total": len(found.assignments),
        }

    async def define_role(self, role: str, grants: Sequence[str]) -> dict[str, Any]:
        try:
            made = Role(role, tuple(parse_grant(each) for each in grants))
        except BadAccessText as error:
            raise BadRequest(str(error)) from error
        return await self._alter_role(f"define role {role!r}", DefineRole(made))

    async def delete_role(self, role: str) -> dict[str, Any]:
        return await self._alter_role(f"delete role {role!r}", DeleteRole(role))

    async def assign_role(
        self, role: str, user: str, resource: str, host: str, *, revoke: bool
    ) -> dict[str, Any]:
        try:
            assignment = parse_assignment(role, resource, user, host or "*")
        except BadAccessText as error:
            raise BadRequest(str(error)) from error
        on = f" on {resource!r}" if resource else ""
        if revoke:
            what, edit = f"revoke role {role!r}{on} from {user!r}", RevokeRole(assignment)
            return await self._alter_role(what, edit)
        return await self._alter_role(f"grant role {role!r}{on} to {user!r}", GrantRole(assignment))

    async def _alter_role(self, what: str, edit: RoleEdit) -> dict[str, Any]:
        admin = await self._link.changing(what)
        await admin.alter_roles([edit])
        return {"done": what}

    # -- quotas ---------------------------------------------------------------------------------

    async def quotas(self) -> dict[str, Any]:
        admin = await self._link.reading()
        found = await admin.describe_client_quotas()
        brokers = [each.id for each in (await admin.describe_cluster()).brokers]
        rows = [
            {"entity": _entity_fields(entity), "shown": str(entity), "key": key, "limit": limit}
            for entity, limits in found.items()
            for key, limit in limits.items()
        ]
        return {
            "quotas": rows[:_SHOWN_MAX],
            "total": len(rows),
            "keys": list(CLIENT_KEYS),
            "ip_keys": list(IP_KEYS),
            "fair_sharing": fair_sharing_text(await find_fair_sharing(admin, brokers)),
        }

    async def set_quota(
        self, entity: Mapping[str, str], key: str, limit: float | None
    ) -> dict[str, Any]:
        """Sets a limit, or deletes it if `limit` is None."""
        whose = {kind: None if name == _DEFAULT else name for kind, name in entity.items() if name}
        if not whose or not whose.keys() <= {*ENTITY_TYPES}:
            raise BadRequest("whose quota? Give a user, a client id or an address")
        what = "delete" if limit is None else f"set to {limit:g}"
        named_as = ", ".join(f"{kind} {name or _DEFAULT}" for kind, name in whose.items())
        admin = await self._link.changing(f"quota {key} of {named_as}: {what}")
        if limit is None:
            await admin.alter_client_quotas(whose, delete=[key])
        else:
            await admin.alter_client_quotas(whose, set_values={key: limit})
        return {"done": what}


def _filter(user: str, resource: str) -> AclFilter:
    principal = _PRINCIPAL + user if user else None
    if not resource:
        return AclFilter(principal=principal)
    try:
        pattern = parse_resource(resource)
    except BadAccessText as error:
        raise BadRequest(str(error)) from error
    return AclFilter(pattern.resource_type, PatternType.MATCH, pattern.name, principal)


def _only(fields: Mapping[str, str]) -> AclFilter:
    """Returns the filter that selects just this rule."""
    try:
        return AclFilter(
            named(ResourceType, fields["resource_type"], "type of resource"),
            named(PatternType, fields["pattern_type"], "type of pattern"),
            fields["resource_name"],
            fields["principal"],
            fields["host"],
            named(AclOperation, fields["operation"], "operation"),
            named(PermissionType, fields["permission"], "permission"),
        )
    except (KeyError, ValueError) as error:
        raise BadRequest(f"the rule cannot be read: {error}; reload the page") from error


def _binding(user: str, resource: str, operation: str, permission: str, host: str) -> AclBinding:
    try:
        pattern = parse_resource(resource)
        return AclBinding(
            pattern.resource_type,
            pattern.pattern_type,
            pattern.name,
            _PRINCIPAL + user,
            host or "*",
            named(AclOperation, operation, "operation"),
            named(PermissionType, permission, "permission"),
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _entity_fields(entity: QuotaEntity) -> dict[str, str]:
    return {kind: _DEFAULT if name is None else name for kind, name in entity.parts}
