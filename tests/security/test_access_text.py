"""Tests how people write resources, grants and assignments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.access_text import (
    BadAccessText,
    assignment_fields,
    grant_text,
    named,
    parse_assignment,
    parse_grant,
    parse_resource,
    pattern_text,
)
from penstock.security.acls import AclOperation, PatternType, ResourcePattern, ResourceType

NAMED = [each for each in ResourceType if each > 1]
NAMES = st.text("abc.-:*", min_size=1).filter(lambda name: name == "*" or not name.endswith("*"))


@given(st.sampled_from(NAMED), NAMES, st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)))
def test_a_resource_is_read_as_it_is_shown(
    kind: ResourceType, name: str, pattern_type: PatternType
) -> None:
    """Names that end in a star cannot be written, except the star alone."""
    pattern = ResourcePattern(kind, pattern_type, name)
    if name == "*" and pattern_type == PatternType.PREFIXED:
        return
    assert parse_resource(pattern_text(pattern)) == pattern


@pytest.mark.parametrize("text", ["orders", "topic:", ":orders", "", "table:orders", "any:x"])
def test_a_text_that_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(BadAccessText, match=r"write TYPE:NAME|use one of topic"):
        parse_resource(text)


def test_an_error_shows_no_control_characters() -> None:
    with pytest.raises(BadAccessText) as caught:
        parse_resource("\x1b[2J" + "x" * 1000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text", ["topic=read,describe", "topic:__audit=read", "group:a*=read", "cluster=alter"]
)
def test_a_grant_is_read_as_it_is_shown(text: str) -> None:
    assert parse_grant(grant_text(parse_grant(text))) == parse_grant(text)


@pytest.mark.parametrize("text", ["topic", "topic=", "=read", "topic=dance", "table=read"])
def test_a_text_that_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(BadAccessText):
        parse_grant(text)


def test_an_assignment_is_read_as_it_is_shown() -> None:
    """The type `any` stands for all types, and an empty resource for none."""
    for resource in ("topic:orders", "any:billing.*", None):
        held = parse_assignment("owner", resource, "ann", "*")
        fields = assignment_fields(held)
        assert fields == {"user": "ann", "role": "owner", "resource": resource, "host": "*"}
    assert parse_assignment("admin", "", "ann", "*").resource is None


def test_operations_are_named_in_any_case() -> None:
    assert named(AclOperation, "Alter-Configs", "operation") == AclOperation.ALTER_CONFIGS
    with pytest.raises(BadAccessText, match="use one of all, read"):
        named(AclOperation, "unknown", "operation")
