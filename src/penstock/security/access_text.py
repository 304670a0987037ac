"""How people write operations, resources and grants: on the command line and in the console.

A resource is TYPE:NAME, such as `topic:orders`. A name that ends in `*` is a prefix. A grant is
TYPE=OPERATIONS or TYPE:NAME=OPERATIONS, such as `topic=read,describe`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeVar

from penstock.security.acls import (
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from penstock.security.roles import Grant, RoleAssignment

N = TypeVar("N", bound=IntEnum)
_ANY: Final = "any"
_PRINCIPAL: Final = "User:"
_SHOWN_CHARS_MAX: Final = 100
"""How much of a person's text an error repeats."""


class BadAccessText(ValueError):
    """The text cannot be read. The message says how to write it."""


def split_list(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def named(kind: type[N], text: str, what: str) -> N:
    """Returns the member with this name. Members up to 1 are "unknown" and "any"."""
    found = kind.__members__.get(text.upper().replace("-", "_"))
    if found is None or found <= 1:
        names = ", ".join(text_of(each) for each in kind if each > 1)
        raise BadAccessText(f"there is no {what} {_shown(text)}: use one of {names}")
    return found


def parse_resource(text: str) -> ResourcePattern:
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise BadAccessText(
            f"{_shown(text)} is not a resource: write TYPE:NAME, such as topic:orders"
        )
    return _pattern(named(ResourceType, kind, "type of resource"), name)


def parse_assignment(role: str, resource: str | None, user: str, host: str) -> RoleAssignment:
    """Returns the assignment of a role. The type `any` stands for all types in the role."""
    pattern = None
    if resource:
        kind, colon, name = resource.partition(":")
        is_any = kind.lower() == _ANY and colon and name
        pattern = _pattern(ResourceType.ANY, name) if is_any else parse_resource(resource)
    try:
        return RoleAssignment(role, _PRINCIPAL + user, pattern, host)
    except AclRefused as error:
        raise BadAccessText(str(error)) from None


def parse_grant(text: str) -> Grant:
    resource, equals, operations = text.rpartition("=")
    given = split_list(operations)
    if not equals or not given:
        raise BadAccessText(
            f"{_shown(text)} is not a grant: write TYPE=OPERATIONS, such as topic=read,alter"
        )
    rights = frozenset(named(AclOperation, each, "operation") for each in given)
    if ":" in resource:
        pattern = parse_resource(resource)
        return Grant(pattern.resource_type, rights, pattern.name, pattern.pattern_type)
    return Grant(named(ResourceType, resource, "type of resource"), rights)


def text_of(value: IntEnum) -> str:
    return value.name.lower().replace("_", "-")


def pattern_text(pattern: ResourcePattern) -> str:
    """Returns a resource as `parse_resource` reads it."""
    star = "*" if pattern.pattern_type == PatternType.PREFIXED else ""
    return f"{text_of(pattern.resource_type)}:{pattern.name}{star}"


def grant_text(grant: Grant) -> str:
    """Returns a grant as `parse_grant` reads it."""
    rights = ",".join(text_of(each) for each in sorted(grant.operations))
    pattern = grant.fixed_pattern if grant.name is not None else None
    resource = text_of(grant.resource_type) if pattern is None else pattern_text(pattern)
    return f"{resource}={rights}"


def assignment_fields(held: RoleAssignment) -> dict[str, str | None]:
    """Returns what lists show of an assignment."""
    return {
        "user": held.principal.removeprefix(_PRINCIPAL),
        "role": held.role,
        "resource": None if held.resource is None else pattern_text(held.resource),
        "host": held.host,
    }


def acl_fields(acl: AclBinding) -> dict[str, str]:
    """Returns an ACL in words, as JSON output has it."""
    return {
        "resource_type": text_of(acl.resource_type),
        "pattern_type": text_of(acl.pattern_type),
        "resource_name": acl.resource_name,
        "principal": acl.principal,
        "host": acl.host,
        "permission": text_of(acl.permission),
        "operation": text_of(acl.operation),
    }


def _pattern(kind: ResourceType, name: str) -> ResourcePattern:
    if len(name) > 1 and name.endswith("*"):
        return ResourcePattern(kind, PatternType.PREFIXED, name[:-1])
    return ResourcePattern(kind, PatternType.LITERAL, name)


def _shown(text: str) -> str:
    """Quotes and escapes a text, so that it cannot control a terminal."""
    return ascii(text[:_SHOWN_CHARS_MAX])
