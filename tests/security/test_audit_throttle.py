"""The audit record: which events are combined, and what a flood of them cannot hide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import audit
from penstock.security.audit import Action, AuditEvent, LoginFailure, Origin, Outcome
from penstock.security.audit_throttle import (
    KEYS_MAX,
    SEVERAL,
    TRIED_CHARS_MAX,
    TRIED_MAX,
    AuditThrottle,
)

NOW_MS = 1_794_917_400_000
"""2026-11-17T12:10:00Z."""
ALICE = Origin("alice", "10.0.0.1", "CLIENTS", "Produce 17", "app")


def _denied(resource: str = "topic:orders", origin: Origin = ALICE) -> AuditEvent:
    return audit.access(origin, NOW_MS, False, "WRITE", resource, "no rule allows it")


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
    topics = "; ".join(f"topic:{number}" for number in range(11, 21))
    assert throttle.flush(0, everything=True) == [
        replace(_denied(), resource=SEVERAL, detail=f"{topics} and others", count=989)
    ]
    # Another user's refusal is not lost among them.
    assert throttle.offer(_denied(origin=replace(ALICE, user="bob")), 0) is not None


def test_a_flood_of_user_names_is_summed_up() -> None:
    throttle = AuditThrottle(keys_max=10)
    for number in range(5000):
        throttle.offer(_failed_login(f"user{number}", f"10.0.{number % 250}.1"), 0)
    assert len(throttle) == 21
    events = throttle.flush(0, everything=True)
    assert {event.user for event in events} == {SEVERAL}
    # Each of ten addresses has 20 failures, and the first one was written.
    found = {event.address: event.count for event in events}
    assert found == {f"10.0.{number}.1": 19 for number in range(10, 20)} | {SEVERAL: 5000 - 211}


def test_clients_without_a_user_are_told_apart_by_address() -> None:
    throttle = AuditThrottle(keys_max=1)
    for number in range(10):
        address = f"10.0.0.{number}"
        throttle.offer(audit.connection_refused(address, "CLIENTS", NOW_MS, "limit"), 0)
    again = audit.connection_refused("10.0.0.1", "CLIENTS", NOW_MS, "another limit")
    assert throttle.offer(again, 0) is None
    events = throttle.flush(0, everything=True)
    assert [(event.user, event.address, event.count) for event in events] == [
        (None, "10.0.0.1", 1),
        (None, SEVERAL, 7),
    ]


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


# Floods


def _failed_login(user: str, address: str = "192.0.2.66") -> AuditEvent:
    origin = Origin(user, address, "CLIENTS")
    return audit.login_denied(origin, NOW_MS, "PLAIN", LoginFailure.CREDENTIALS)


def _login(user: str, address: str = "10.0.0.1") -> AuditEvent:
    return audit.login(Origin(user, address, "CLIENTS"), NOW_MS, "PLAIN")


def _acl(acl: str, user: str = "eve") -> AuditEvent:
    origin = replace(ALICE, user=user)
    return audit.acl_change(origin, NOW_MS, True, acl, "topic:x", Outcome.DENIED)


def test_failed_logins_do_not_hide_a_successful_one() -> None:
    throttle = AuditThrottle()
    for number in range(3 * KEYS_MAX):
        throttle.offer(_failed_login(f"user{number}"), 0)
    for user in ("service", "admin", "other"):
        login = _login(user, "192.0.2.66")
        assert throttle.offer(login, 0) == login


def test_successful_logins_of_different_users_are_never_combined() -> None:
    throttle = AuditThrottle(keys_max=3)
    logins = [_login(f"user{number % 50}", f"10.0.0.{number}") for number in range(200)]
    written = [event for login in logins if (event := throttle.offer(login, 0))]
    written += throttle.flush(0, everything=True)
    assert SEVERAL not in {event.user for event in written}
    counts: Counter[str | None] = Counter()
    for event in written:
        counts[event.user] += event.count
    assert counts == {f"user{number}": 4 for number in range(50)}
    # The memory stays bounded.
    assert len(throttle) <= 6


def test_the_successful_logins_of_a_user_keep_their_addresses() -> None:
    throttle = AuditThrottle(keys_max=1)
    for number in range(4):
        throttle.offer(_login("admin", f"10.0.0.{number}"), 0)
    (event,) = throttle.flush(0, everything=True)
    assert (event.user, event.address, event.count) == ("admin", SEVERAL, 2)
    assert event.detail == "10.0.0.2; 10.0.0.3"


def test_a_flood_of_one_action_hides_no_other_action() -> None:
    throttle = AuditThrottle(keys_max=5)
    for number in range(100):
        throttle.offer(_denied(f"topic:{number}", replace(ALICE, user=str(number))), 0)
    for number in range(5):
        change = _acl("ALLOW ALL", f"user{number}")
        assert throttle.offer(change, 0) == change


def test_failed_logins_are_told_apart_by_address_whatever_names_they_claim() -> None:
    throttle = AuditThrottle(keys_max=10)
    for number in range(1000):
        throttle.offer(_failed_login(f"user{number}"), 0)
    other = _failed_login("user5", "198.51.100.7")
    assert throttle.offer(other, 0) == other
    (event,) = throttle.flush(0, everything=True)
    assert (event.user, event.address, event.count) == (SEVERAL, "192.0.2.66", 989)
    names = "; ".join(f"user{number}" for number in range(11, 21))
    assert event.detail == f"{names} and others"


def test_failed_logins_from_an_ipv6_network_count_as_one_address() -> None:
    throttle = AuditThrottle(keys_max=2)
    for number in range(100):
        throttle.offer(_failed_login("admin", f"2001:db8::{number:x}"), 0)
    assert len(throttle) == 3
    (event,) = throttle.flush(0, everything=True)
    assert (event.user, event.address, event.count) == ("admin", SEVERAL, 97)


@pytest.mark.parametrize(
    "make",
    [
        _acl,
        lambda text: audit.role_change(
            ALICE, NOW_MS, Action.ROLE_GRANT, "admin", text, Outcome.DENIED
        ),
        lambda text: audit.user_change(ALICE, NOW_MS, "bob", text, False, Outcome.DENIED),
        lambda text: audit.quota_change(ALICE, NOW_MS, "user bob", {text: 1.0}, Outcome.DENIED),
        lambda text: audit.topic_change(
            ALICE, NOW_MS, Action.TOPIC_ALTER, "a", Outcome.DENIED, text
        ),
        lambda text: audit.config_change(ALICE, NOW_MS, "topic:a", [text], Outcome.FAILED),
    ],
)
def test_a_refused_change_between_others_keeps_what_it_tried(
    make: Callable[[str], AuditEvent],
) -> None:
    throttle = AuditThrottle()
    events = [make(text) for text in ("first", "second", "first")]
    assert [throttle.offer(event, 0) for event in events] == [events[0], events[1], None]
    assert throttle.flush(0, everything=True) == [events[0]]


def test_many_refused_changes_are_listed_up_to_a_limit() -> None:
    throttle = AuditThrottle(keys_max=1)
    for number in range(6):
        throttle.offer(_acl(f"ALLOW ALL User:{number}"), 0)
    (event,) = throttle.flush(0, everything=True)
    assert (event.user, event.resource, event.count) == ("eve", "topic:x", 4)
    assert event.detail == "; ".join(f"topic:x ALLOW ALL User:{number}" for number in (2, 3, 4, 5))
    for number in range(1000):
        throttle.offer(_acl(f"{number}" * 1000), 0)
    (event,) = throttle.flush(0, everything=True)
    assert len(event.detail or "") <= TRIED_MAX * (TRIED_CHARS_MAX + 2) + len(" and others")
    assert (event.detail or "").endswith("... and others")
