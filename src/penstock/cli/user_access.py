"""What a user may do: its roles and access rules, which outlive the user."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from penstock.client.admin.admin import Admin
from penstock.client.errors import ApiNotServed, BrokerError
from penstock.security.access_text import pattern_text
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import AclBinding
from penstock.security.role_edits import RevokeRole
from penstock.security.roles import RoleAssignment
from penstock.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class UserAccess:
    roles: tuple[RoleAssignment, ...]
    acls: tuple[AclBinding, ...]
    """Also those that the roles cause."""

    @property
    def texts(self) -> list[str]:
        roles = (f"role {each.role} on {each.resource or 'its own names'}" for each in self.roles)
        return [*roles, *map(str, self.acls)]

    def commands(self, user: str) -> list[str]:
        """Returns the commands that remove the roles and rules."""
        name = shlex.quote(user)
        found = [
            "penstock role revoke "
            + " ".join(
                [
                    shlex.quote(held.role),
                    *([] if held.resource is None else [shlex.quote(pattern_text(held.resource))]),
                    f"--user {name}",
                    *([] if held.host == "*" else [f"--host {shlex.quote(held.host)}"]),
                ]
            )
            for held in self.roles
        ]
        resources = dict.fromkeys(pattern_text(acl.pattern) for acl in self.acls)
        found += [f"penstock acl delete {shlex.quote(each)} --user {name}" for each in resources]
        return found


async def find_access(admin: Admin, user: str) -> UserAccess:
    """Returns what is stored for a user. A cluster may have no roles, or no access control."""
    principal = f"User:{user}"
    roles: tuple[RoleAssignment, ...] = ()
    acls: tuple[AclBinding, ...] = ()
    try:
        acls = tuple(await admin.describe_acls(AclFilter(principal=principal)))
        roles = tuple((await admin.describe_roles(principal)).assignments)
    except ApiNotServed:
        pass  # Only Penstock has roles.
    except BrokerError as error:
        if error.code != ErrorCode.SECURITY_DISABLED:
            raise
    return UserAccess(roles, acls)


async def remove_access(admin: Admin, user: str) -> UserAccess:
    """Removes the roles and rules of a user, and returns them."""
    found = await find_access(admin, user)
    if found.roles:
        await admin.alter_roles([RevokeRole(each) for each in found.roles])
    if found.acls:
        for result in await admin.delete_acls([AclFilter(principal=f"User:{user}")]):
            if isinstance(result, BrokerError):
                raise result
    return found
