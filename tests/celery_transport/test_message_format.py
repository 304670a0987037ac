"""Messages as records, their due times and their priorities."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.celery.message_format import (
    MESSAGE,
    ROUTING_KEY,
    NotAMessage,
    as_redelivered,
    decode,
    delay_s,
    encode,
    priority_level,
)

NOW_MS = 1_800_000_000_000
"""2027-01-15 08:00:00 UTC."""


def message(**headers: Any) -> dict[str, Any]:
    return {
        "body": "[[1, 2], {}, {}]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"priority": 0, "delivery_info": {"exchange": "", "routing_key": "celery"}},
    }


def test_the_value_is_the_body_and_a_header_has_the_rest() -> None:
    value, headers = encode(message(id="7"), "celery")
    assert value == b"[[1, 2], {}, {}]"
    assert [name for name, _ in headers] == [MESSAGE, ROUTING_KEY]
    found = decode(value, dict(headers)[MESSAGE], "tag-1", redelivered=False)
    assert found["headers"] == {"id": "7"}
    assert found["content-type"] == "application/json"
    assert found["properties"]["delivery_tag"] == "tag-1"
    assert found["properties"]["delivery_info"]["redelivered"] is False
    assert found["body"] == b"[[1, 2], {}, {}]"


def test_a_body_may_be_bytes() -> None:
    value, headers = encode({**message(), "body": b"\x80\x04"})
    assert value == b"\x80\x04"
    assert len(headers) == 1


def test_a_copy_of_a_message_stays_redelivered() -> None:
    original = message()
    value, headers = encode(as_redelivered(original))
    found = decode(value, dict(headers)[MESSAGE], "tag-2", redelivered=False)
    assert found["properties"]["delivery_info"]["redelivered"] is True
    assert "redelivered" not in original["properties"]["delivery_info"]


@pytest.mark.parametrize("header", [None, b"no json", b"[]", b"{}", b"\xff"])
def test_other_records_are_refused(header: bytes | None) -> None:
    with pytest.raises(NotAMessage):
        decode(b"", header, "tag", redelivered=False)


@pytest.mark.parametrize(
    ("eta", "expected"),
    [
        (None, None),
        ("2027-01-15T08:00:10+00:00", 10.0),
        ("2027-01-15T09:00:10+01:00", 10.0),
        ("2027-01-15T08:00:10", 10.0),
        ("2027-01-15T08:00:00+00:00", None),
        ("2027-01-15T07:59:00+00:00", None),
        ("soon", None),
        (17, None),
    ],
)
def test_the_delay_of_a_task_with_an_eta(eta: object, expected: float | None) -> None:
    assert delay_s(message(eta=eta), NOW_MS) == expected


def with_priority(priority: object) -> dict[str, Any]:
    return {"properties": {"priority": priority}}


def test_priorities_become_levels_of_the_topic() -> None:
    assert [priority_level(with_priority(each), 2) for each in range(10)] == [0] * 5 + [1] * 5
    assert [priority_level(with_priority(each), 4, 3) for each in range(5)] == [0, 1, 2, 3, 3]
    assert priority_level(with_priority(None), 4) == 0
    assert priority_level({"properties": {}}, 4) == 0
    assert priority_level(with_priority(-1), 4) == 0
