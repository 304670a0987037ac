"""Tests the filter language: what it selects, what it refuses, and that no input makes it fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.console.filters import LENGTH_MAX, BadFilter, Candidate, compile_filter

ORDER = Candidate(
    partition=2,
    offset=1000,
    timestamp=1_750_000_000_000,
    key=b"Alice",
    value=json.dumps(
        {
            "user": {"id": 42, "name": "Ann", "vip": True, "note": None},
            "items": [{"sku": "a-1"}, {"sku": "b 2"}],
            "total": 12.5,
            "a.b": "dotted",
            "size": "17",
        }
    ).encode(),
    headers=(("trace-id", b"t1"), ("empty", None)),
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "ann",
        '"b 2"',
        "t1",
        "key = Alice",
        "key ~ aLI",
        "value.user.id = 42",
        "value.user.id >= 42 and value.user.id < 43",
        "value.user.vip = true",
        "value.user.vip",
        "not value.user.note",
        "value.user.note = null",
        "value.nothing = null",
        "value.nothing != 5",
        'value.items[1].sku = "b 2"',
        'value.items[1].sku ~ "B"',
        'value["a.b"] = dotted',
        "value.total > 12.4",
        "value.size > 3",
        "value !~ zzz",
        "header.trace-id = t1",
        'header["trace-id"]',
        'headers ~ "trace-id=t1"',
        "partition = 2 and offset >= 1000",
        "timestamp > 1749999999999",
        "key = Bob or key = Alice",
        "NOT (key = Bob OR partition = 1)",
        "key = Bob or key = Alice and partition = 2",
        "key = 'Alice'",
    ],
)
def test_matching_filters(text: str) -> None:
    """Words, fields, paths, comparisons, and their combinations."""
    assert compile_filter(text)(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "bob",
        "key = alice",
        "value.user.id = 43",
        'value.user.name > "Anna"',
        "value.user.vip = 1",
        "value.items[2].sku",
        "value.user.id.deeper",
        "header.empty",
        "header.other",
        "not ann",
        "key = Alice and partition = 1",
        "value.user.name > 5",
        "offset < 1000",
    ],
)
def test_filters_that_do_not_match(text: str) -> None:
    """A missing field matches no comparison."""
    assert not compile_filter(text)(ORDER)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("key =", "a value after ="),
        ("= 5", "no field before it"),
        ("(key", "a closing parenthesis"),
        ("key = 1 key", "join conditions with and, or"),
        ("key and", "the filter is incomplete: a field or text"),
        ('"open', "quotes"),
        ("offset.x = 1", "offset has no fields"),
        ("value..x", "cannot be parsed"),
        ("header = 1", "header needs a name"),
        ("key = =", "is not a value"),
        ("not " * 40 + "key", "levels"),
        ("x" * (LENGTH_MAX + 1), "longer than"),
    ],
)
def test_an_invalid_filter_is_explained(text: str, reason: str) -> None:
    """In one sentence."""
    with pytest.raises(BadFilter, match=reason):
        compile_filter(text)


def test_values_that_are_not_json_have_no_fields() -> None:
    """They are not an error, because a topic may contain anything."""
    record = Candidate(0, 0, 0, None, b"\xff{", ())
    assert not compile_filter("value.x")(record)
    assert not compile_filter("value.x = 1")(Candidate(0, 0, 0, None, None, ()))
    assert compile_filter("value = null")(Candidate(0, 0, 0, None, None, ()))
    assert not compile_filter("value.a")(Candidate(0, 0, 0, None, b"[" * 100_000, ()))


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [
                "key", "value", "value.a", "header.x", "offset", "and", "or", "not", "(", ")",
                "=", "!=", "<", "~", "1", "-2.5", '"t"', "null", "true", "word", "value[0]", "'",
            ]
        )
        | st.text(max_size=4),
        max_size=12,
    ),
    st.binary(max_size=30) | st.none(),
)  # fmt: skip
def test_no_input_breaks_the_filter(words: list[str], value: bytes | None) -> None:
    """The result is either a filter that works for any record, or `BadFilter`."""
    try:
        test = compile_filter(" ".join(words))
    except BadFilter:
        return
    record = Candidate(0, 5, 7, value, value, (("x", value),))
    assert test(record) in (True, False)
