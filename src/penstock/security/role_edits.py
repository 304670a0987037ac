"""Changes of roles, as AlterRoles asks for them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.security.roles import Role, RoleAssignment


@dataclass(frozen=True, slots=True)
class DefineRole:
    """Creates a custom role, or replaces it."""

    role: Role


@dataclass(frozen=True, slots=True)
class DeleteRole:
    """Deletes a custom role that is not assigned."""

    name: str


@dataclass(frozen=True, slots=True)
class GrantRole:
    """Assigns a role to a principal."""

    assignment: RoleAssignment


@dataclass(frozen=True, slots=True)
class RevokeRole:
    """Takes an assignment of a role back."""

    assignment: RoleAssignment


RoleEdit = DefineRole | DeleteRole | GrantRole | RevokeRole
