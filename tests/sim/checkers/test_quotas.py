"""The checks of client quotas: each rule detects a history that breaks it."""

from __future__ import annotations

from typing import Any

from penstock.sim.checkers.history_checks import check_history
from penstock.sim.history import INFO, OK, Entry, History, Metered
from penstock.sim.history_file import read_history

KEY = "producer_byte_rate"
VERSION = (0, 3)


def request(begun_ms: float, ended_ms: float, **more: Any) -> Metered:
    fields: dict[str, Any] = {
        "process": "c",
        "status": OK,
        "client_id": "tenant-a",
        "broker": 1,
        "connection": 1,
        "key": KEY,
        "version": VERSION,
        "limit": 100.0,
        **more,
    }
    return Metered(begun_ms=begun_ms, ended_ms=ended_ms, **fields)


def rules(*entries: Entry) -> list[str]:
    return [each.rule for each in check_history(History([*entries]), [])]


def steady(count: int, amount: float, pause_ms: float = 1000, **more: Any) -> list[Metered]:
    """Returns requests that use this much each, at the same pace."""
    return [
        request(number * pause_ms, number * pause_ms + 5, amount=amount, **more)
        for number in range(count)
    ]


def test_a_client_uses_its_limit_and_the_window_of_eleven_seconds() -> None:
    """E22: no more than that, and one request."""
    assert rules(*steady(60, 100)) == []
    assert rules(*steady(10, 200)) == []
    assert rules(*steady(60, 200)) == ["E22"]
    assert rules(*steady(12, 1_000)) == ["E22"]
    assert rules(request(0, 5, amount=90_000)) == []


def test_an_idle_client_saves_nothing_beyond_the_window() -> None:
    """E22: it is checked from every request to every later one."""
    late = [request(900_000 + each, 900_001 + each, amount=500) for each in range(10)]
    assert rules(*steady(2, 100), *late) == ["E22"]


def test_nothing_is_claimed_across_connections_changes_and_lost_answers() -> None:
    first = steady(10, 200)
    assert rules(*first, *steady(10, 200, connection=2)) == []
    assert rules(*first, *steady(10, 200, version=(0, 4))) == []
    assert rules(*first, *steady(10, 200, version=None, limit=None)) == []
    assert rules(*first, *steady(10, 0, status=INFO)) == []


def test_who_has_no_quota_is_not_throttled() -> None:
    """E23: a request during which the quotas changed proves nothing."""
    assert rules(request(0, 5, throttle_ms=10, limit=None)) == ["E23"]
    assert rules(request(0, 5, throttle_ms=10)) == []
    assert rules(request(0, 5, throttle_ms=10, limit=None, version=None)) == []


def test_a_throttled_connection_is_muted() -> None:
    """E24: until the throttle time is over, counted from the throttled request."""
    throttled = request(0, 10, throttle_ms=500)
    assert rules(throttled, request(20, 505)) == []
    assert rules(throttled, request(20, 400)) == ["E24"]
    assert rules(throttled, request(20, 400, connection=2)) == []
    assert rules(throttled, request(20, 400, status=INFO)) == []
    assert rules(throttled, request(20, 501), request(502, 503)) == []


def test_entries_survive_a_round_trip_through_json_lines() -> None:
    entries: list[Entry] = [request(1, 2), request(1, 2, version=None, limit=None)]
    assert read_history(History(entries).lines()).entries == entries
