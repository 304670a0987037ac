"""How people write operations and resources on the command line, for rules and roles."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from penstock.cli.output import CommandFailed, printable
from penstock.security.acls import PatternType, ResourcePattern, ResourceType

N = TypeVar("N", bound=IntEnum)


def split_list(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def named(kind: type[N], text: str, what: str) -> N:
    found = kind.__members__.get(text.upper().replace("-", "_"))
    if found is None or found <= 1:
        names = ", ".join(
            name.lower().replace("_", "-") for name, n in kind.__members__.items() if n > 1
        )
        raise CommandFailed(f"there is no {what} {printable(text)!r}: use one of {names}")
    return found


def parse_resource(text: str) -> tuple[ResourceType, PatternType, str]:
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise CommandFailed(
            f"{printable(text)!r} is not a resource: write TYPE:NAME, such as topic:orders"
        )
    found = named(ResourceType, kind, "type of resource")
    if len(name) > 1 and name.endswith("*"):
        return found, PatternType.PREFIXED, name[:-1]
    return found, PatternType.LITERAL, name


def text_of(value: IntEnum) -> str:
    return value.name.lower().replace("_", "-")


def pattern_text(pattern: ResourcePattern) -> str:
    """Returns a resource as `parse_resource` reads it."""
    star = "*" if pattern.pattern_type == PatternType.PREFIXED else ""
    return f"{text_of(pattern.resource_type)}:{pattern.name}{star}"
