"""The audit record: its encoding, and queries."""

from __future__ import annotations

import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import audit
from penstock.security.audit import (
    TEXT_CHARS_MAX,
    Action,
    AuditEvent,
    AuditQuery,
    LoginFailure,
    Origin,
    Outcome,
    format_time,
    parse_time,
)

NOW_MS = 1_794_917_400_000
"""2026-11-17T12:10:00Z."""
ALICE = Origin("alice", "10.0.0.1", "CLIENTS", "Produce 17", "app")


def _denied(resource: str = "topic:orders", origin: Origin = ALICE) -> AuditEvent:
    return audit.access(origin, NOW_MS, False, "WRITE", resource, "no rule allows it")


# Events

EVENTS = [
    audit.login(ALICE, NOW_MS, "SCRAM-SHA-256"),
    audit.login(ALICE, NOW_MS, "OAUTHBEARER", again=True),
    audit.login_denied(ALICE, NOW_MS, "PLAIN", LoginFailure.CREDENTIALS),
    audit.login_denied(ALICE, NOW_MS, "PLAIN", LoginFailure.PRINCIPAL, again=True),
    audit.access(ALICE, NOW_MS, True, "READ", "topic:orders", "super user"),
    _denied(),
    audit.connection_refused("10.0.0.1", "CLIENTS", NOW_MS, "max.connections.per.ip"),
    audit.topic_change(
        ALICE, NOW_MS, Action.TOPIC_CREATE, "orders", Outcome.ALLOWED, "6 partitions"
    ),
    audit.config_change(ALICE, NOW_MS, "broker:1", ["ssl.key.password"], Outcome.ALLOWED),
    audit.acl_change(ALICE, NOW_MS, True, "ALLOW READ User:bob from *", "topic:a", Outcome.ALLOWED),
    audit.role_change(ALICE, NOW_MS, Action.ROLE_GRANT, "reader", "bob", Outcome.ALLOWED),
    audit.user_change(ALICE, NOW_MS, "bob", "SCRAM-SHA-512", False, Outcome.ALLOWED),
    audit.quota_change(
        ALICE,
        NOW_MS,
        "user bob",
        {"producer_byte_rate": 1048576.0, "request_percentage": None},
        Outcome.FAILED,
    ),
    audit.cluster_change(
        ALICE, NOW_MS, Action.GROUP_DELETE, "group:g", "3 offsets", Outcome.ALLOWED
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.action)
def test_an_event_survives_its_encoding(event: AuditEvent) -> None:
    assert AuditEvent.from_json(event.to_json()) == event


def test_the_names_of_the_fields_do_not_change() -> None:
    """Programs of others read them."""
    assert json.loads(_denied().to_json()) == {
        "v": 1,
        "time": "2026-11-17T12:10:00.000Z",
        "action": "access.write",
        "outcome": "denied",
        "user": "alice",
        "address": "10.0.0.1",
        "listener": "CLIENTS",
        "resource": "topic:orders",
        "rule": "no rule allows it",
        "request_id": "Produce 17",
        "client_id": "app",
        "count": 1,
    }


def test_the_events_say_what_happened() -> None:
    texts = [(event.action, event.resource, event.rule, event.detail) for event in EVENTS]
    assert texts[2] == ("login", None, "unknown user or wrong password", "mechanism PLAIN")
    assert texts[8] == ("config.alter", "broker:1", None, "ssl.key.password")
    assert texts[12] == (
        "quota.alter",
        "quota:user bob",
        None,
        "producer_byte_rate=1048576, request_percentage removed",
    )


def test_no_function_takes_a_secret() -> None:
    """Every argument of the functions that make events is named here. A new one needs a thought:
    can it ever contain a password, a token, a key or the value of a setting?"""
    makers = [
        maker
        for _, maker in inspect.getmembers(audit, inspect.isfunction)
        if inspect.signature(maker).return_annotation == "AuditEvent"
    ]
    arguments = {name for maker in makers for name in inspect.signature(maker).parameters}
    assert len(makers) == 15
    assert arguments == {
        *("origin", "now_ms", "action", "outcome", "resource", "rule", "detail", "mechanism"),
        *("again", "why", "allowed", "operation", "address", "listener", "limit", "topic"),
        *("settings", "created", "acl", "role", "grantee", "name", "deleted", "entity", "limits"),
        *("count", "outlet", "token_id", "owner", "expires_ms"),
    }


@given(st.text(max_size=600), st.text(max_size=600), st.text(max_size=600))
def test_an_event_is_one_line_of_ascii_whatever_a_client_sends(
    user: str, client_id: str, resource: str
) -> None:
    origin = Origin(user, "10.0.0.1", "CLIENTS", None, client_id)
    event = _denied(resource, origin)
    line = event.to_json()
    assert line.isascii()
    assert line.isprintable()
    assert AuditEvent.from_json(line) == event
    assert len(event.user or "") <= TEXT_CHARS_MAX
    assert len(event.client_id or "") <= TEXT_CHARS_MAX


def test_a_client_cannot_forge_a_line() -> None:
    forged = 'x"}\n{"v":1,"user":"root"'
    line = _denied(forged, Origin(forged, forged, forged, forged, forged)).to_json()
    assert "\n" not in line
    assert json.loads(line)["user"] == forged


def test_a_long_client_id_is_shortened() -> None:
    event = _denied(origin=Origin("alice", "10.0.0.1", "CLIENTS", None, "x" * 32768))
    assert event.client_id == "x" * (TEXT_CHARS_MAX - 3) + "..."
    names = [f"setting.{number}" for number in range(1000)]
    event = audit.config_change(ALICE, NOW_MS, "topic:a", names, Outcome.ALLOWED)
    assert (event.detail or "").endswith("setting.19 and 980 more")


def test_an_unknown_operation_is_not_copied_into_the_action() -> None:
    event = audit.access(ALICE, NOW_MS, False, "WRITE\nX", "topic:a", "")
    assert event.action == "access.unknown"


@pytest.mark.parametrize("time_ms", [-5, 10**18])
def test_a_wrong_clock_does_not_prevent_an_event(time_ms: int) -> None:
    event = audit.login(ALICE, time_ms, "PLAIN")
    assert AuditEvent.from_json(event.to_json()) == event


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        '{"v":2}',
        '{"v":1}',
        '{"v":1,"time":"x","action":"a","outcome":"denied","address":"","listener":""}',
        '{"v":1,"time":"2026-11-17","action":"a","outcome":"no","address":"","listener":""}',
        '{"v":1,"time":"2026-11-17","action":1,"outcome":"denied","address":"","listener":""}',
        '{"v":1,"time":"2026-11-17","outcome":"denied","address":"","listener":""}',
        '{"v":1,"time":"2026-11-17","action":"a","outcome":"denied","address":"","count":0}',
    ],
)
def test_a_line_that_is_not_an_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"audit event|Outcome|time|Expecting"):
        AuditEvent.from_json(line)


def test_fields_of_a_newer_version_are_ignored() -> None:
    fields = json.loads(_denied().to_json()) | {"new": [1, 2]}
    assert AuditEvent.from_json(json.dumps(fields)) == _denied()


# Queries


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("1h", 3_600_000),
        ("30m", 1_800_000),
        ("45s", 45_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("1d12h", 129_600_000),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_time_ago(text: str, ago_ms: int) -> None:
    assert parse_time(text, NOW_MS) == NOW_MS - ago_ms


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-17", "2026-11-17T00:00:00.000Z"),
        ("2026-11-17T12:30", "2026-11-17T12:30:00.000Z"),
        ("2026-11-17 12:30:05.25", "2026-11-17T12:30:05.250Z"),
        ("2026-11-17T12:30:00Z", "2026-11-17T12:30:00.000Z"),
        ("2026-11-17T12:30:00+02:00", "2026-11-17T10:30:00.000Z"),
        ("999999999w", "1970-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_read_as_utc(text: str, shown: str) -> None:
    assert format_time(parse_time(text, NOW_MS)) == shown


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_survives_its_text(time_ms: int) -> None:
    assert parse_time(format_time(time_ms), NOW_MS) == time_ms


@pytest.mark.parametrize(
    "text", ["", "h", "1", "1x", "-1h", "1h 30m", "30m1h", "yesterday", "1.5h"]
)
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: write 1h or 30m"):
        parse_time(text, NOW_MS)


def test_a_query_selects_events() -> None:
    event = _denied()
    for query in [
        AuditQuery(),
        AuditQuery.parse(NOW_MS + 1000, since="1h", user="alice"),
        AuditQuery.parse(NOW_MS, user="User:alice", action="access", outcome="denied"),
        AuditQuery.parse(NOW_MS, since="0s", action="access.write"),
    ]:
        assert query.matches(event)
    for query in [
        AuditQuery.parse(NOW_MS + 3_600_001, since="1h"),
        AuditQuery.parse(NOW_MS, until="0s"),
        AuditQuery.parse(NOW_MS, user="bob"),
        AuditQuery.parse(NOW_MS, action="acc"),
        AuditQuery.parse(NOW_MS, action="topic"),
        AuditQuery.parse(NOW_MS, outcome="allowed"),
    ]:
        assert not query.matches(event)


def test_a_query_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="1h is not before 2h"):
        AuditQuery.parse(NOW_MS, since="1h", until="2h")
    with pytest.raises(ValueError, match="use allowed, denied, failed"):
        AuditQuery.parse(NOW_MS, outcome="refused")
