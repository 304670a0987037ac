"""The audit record: its encoding, repeats, and queries."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import audit
from penstock.security.audit import (
    KEYS_MAX,
    SEVERAL,
    TEXT_CHARS_MAX,
    Action,
    AuditEvent,
    AuditQuery,
    AuditThrottle,
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
    assert len(makers) == 12
    assert arguments == {
        *("origin", "now_ms", "action", "outcome", "resource", "rule", "detail", "mechanism"),
        *("again", "why", "allowed", "operation", "address", "listener", "limit", "topic"),
        *("settings", "created", "acl", "role", "grantee", "name", "deleted", "entity", "limits"),
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


# Repeats


def test_a_repeated_refusal_is_written_once_per_interval() -> None:
    throttle = AuditThrottle(interval_ms=60_000)
    assert throttle.offer(_denied(), 0) == _denied()
    for second in range(1, 60):
        assert throttle.offer(_denied(), second * 1000) is None
    assert throttle.flush(59_999) == []
    assert throttle.flush(60_000) == [replace(_denied(), count=59)]
    # The next interval begins with what was written.
    assert throttle.offer(_denied(), 61_000) is None
    assert throttle.flush(120_000) == [_denied()]


def test_a_refusal_after_a_quiet_interval_is_written_at_once() -> None:
    throttle = AuditThrottle(interval_ms=60_000)
    throttle.offer(_denied(), 0)
    assert throttle.flush(60_000) == []
    assert len(throttle) == 0
    assert throttle.offer(_denied(), 60_001) == _denied()


def test_the_end_of_an_interval_needs_no_flush() -> None:
    throttle = AuditThrottle(interval_ms=1000)
    throttle.offer(_denied(), 0)
    throttle.offer(_denied(), 1)
    assert throttle.offer(_denied(), 1000) == replace(_denied(), count=2)


def test_the_count_comes_with_the_last_of_the_repeats() -> None:
    throttle = AuditThrottle()
    throttle.offer(_denied(), 0)
    throttle.offer(_denied(), 1)
    last = replace(_denied(), time_ms=NOW_MS + 5, request_id="Produce 99", client_id="other")
    assert throttle.offer(last, 2) is None
    assert throttle.flush(2, everything=True) == [replace(last, count=2)]


@pytest.mark.parametrize(
    "other",
    [
        _denied("topic:other"),
        _denied(origin=replace(ALICE, user="bob")),
        _denied(origin=replace(ALICE, address="10.0.0.2")),
        _denied(origin=replace(ALICE, listener="BROKERS")),
        replace(_denied(), rule="DENY"),
        replace(_denied(), action="access.read"),
        replace(_denied(), outcome=Outcome.FAILED),
    ],
)
def test_a_different_refusal_is_written(other: AuditEvent) -> None:
    throttle = AuditThrottle()
    throttle.offer(_denied(), 0)
    assert throttle.offer(other, 0) == other


def test_a_changing_client_id_does_not_make_a_new_refusal() -> None:
    throttle = AuditThrottle()
    events = [
        _denied(origin=replace(ALICE, client_id=str(number), request_id=str(number)))
        for number in range(100)
    ]
    assert [event for event in events if throttle.offer(event, 0)] == events[:1]
    assert len(throttle) == 1


def test_changes_are_always_written_and_logins_are_combined() -> None:
    throttle = AuditThrottle()
    change = audit.config_change(ALICE, NOW_MS, "topic:a", ["x"], Outcome.ALLOWED)
    assert [throttle.offer(change, 0) for _ in range(3)] == [change] * 3
    login = audit.login(ALICE, NOW_MS, "PLAIN")
    assert [throttle.offer(login, 0) for _ in range(3)] == [login, None, None]


def test_a_user_that_probes_many_topics_is_summed_up() -> None:
    throttle = AuditThrottle(keys_max=10)
    written = [
        event for number in range(1000) if (event := throttle.offer(_denied(f"topic:{number}"), 0))
    ]
    assert len(written) == 11
    assert throttle.flush(0, everything=True) == [
        replace(
            _denied(), address=SEVERAL, listener=SEVERAL, resource=SEVERAL, rule=None, count=989
        )
    ]
    # Another user's refusal is not lost among them.
    assert throttle.offer(_denied(origin=replace(ALICE, user="bob")), 0) is not None


def test_a_flood_of_user_names_is_summed_up() -> None:
    throttle = AuditThrottle(keys_max=10)
    for number in range(5000):
        origin = Origin(f"user{number}", f"10.0.{number % 256}.1", "CLIENTS")
        failure = LoginFailure.CREDENTIALS
        throttle.offer(audit.login_denied(origin, NOW_MS, "PLAIN", failure), 0)
    assert len(throttle) == 21
    (event,) = throttle.flush(0, everything=True)
    assert (event.action, event.user, event.address) == (Action.LOGIN, SEVERAL, SEVERAL)
    assert event.count == 5000 - 21


def test_clients_without_a_user_are_told_apart_from_users() -> None:
    throttle = AuditThrottle(keys_max=1)
    for number in range(10):
        address = f"10.0.0.{number}"
        throttle.offer(audit.connection_refused(address, "CLIENTS", NOW_MS, "limit"), 0)
    (event,) = throttle.flush(0, everything=True)
    assert (event.user, event.address, event.count) == (None, SEVERAL, 8)


def test_a_single_event_that_was_held_back_keeps_its_fields() -> None:
    throttle = AuditThrottle(keys_max=1)
    for name in ("first", "second"):
        throttle.offer(_denied(f"topic:{name}"), 0)
    assert throttle.offer(_denied("topic:third"), 0) is None
    assert throttle.flush(0, everything=True) == [_denied("topic:third")]


def test_a_refusal_that_is_over_makes_room_for_another() -> None:
    throttle = AuditThrottle(interval_ms=1000, keys_max=1)
    throttle.offer(_denied("topic:first"), 0)
    throttle.flush(1000)
    for _ in range(3):
        throttle.offer(_denied("topic:second"), 1000)
    assert throttle.flush(2000) == [replace(_denied("topic:second"), count=2)]


def test_the_memory_is_bounded_by_default() -> None:
    throttle = AuditThrottle()
    for number in range(3 * KEYS_MAX):
        throttle.offer(_denied(f"topic:{number}", replace(ALICE, user=str(number))), 0)
    assert len(throttle) == 2 * KEYS_MAX + 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alice", "bob", "carol", None]),
            st.sampled_from(["topic:a", "topic:b", "topic:c", None]),
            st.integers(0, 700),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_no_event_is_lost_and_no_key_is_written_too_often(
    steps: list[tuple[str | None, str | None, int, bool]], keys_max: int
) -> None:
    throttle = AuditThrottle(interval_ms=1000, keys_max=keys_max)
    now_ms, offered, written = 0, 0, 0
    times: Counter[tuple[str | None, str | None]] = Counter()
    for user, resource, pause_ms, is_flush in steps:
        now_ms += pause_ms
        event = replace(_denied(origin=replace(ALICE, user=user)), resource=resource)
        offered += 1
        events = throttle.flush(now_ms) if is_flush else []
        if found := throttle.offer(event, now_ms):
            events.append(found)
        written += sum(each.count for each in events)
        times.update((each.user, each.resource) for each in events)
        assert len(throttle) <= 2 * keys_max + 1
    written += sum(each.count for each in throttle.flush(now_ms, everything=True))
    assert written == offered
    # Once for itself and once for each sum that it is part of, in each interval that has begun.
    assert all(count <= 3 * (now_ms // 1000 + 1) for count in times.values())
    throttle.flush(now_ms, everything=True)
    assert len(throttle) == 0


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
