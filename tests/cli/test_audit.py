"""Tests `penstock audit`, with files and with a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cli.conftest import Runner
from penstock.security.audit import (
    Action,
    AuditEvent,
    LoginFailure,
    Origin,
    Outcome,
    login_denied,
    topic_change,
)
from penstock.testing.broker import Broker
from penstock.testing.slowness import patient

MINUTE_MS = 60_000


def now_ms() -> int:
    return int(time.time() * 1000)


def created(topic: str, user: str, minutes_ago: int) -> AuditEvent:
    origin = Origin(user, "192.0.2.7", "CLIENTS")
    at_ms = now_ms() - minutes_ago * MINUTE_MS
    return topic_change(origin, at_ms, Action.TOPIC_CREATE, topic, Outcome.ALLOWED, "1 partitions")


def write(path: Path, *events: AuditEvent) -> None:
    path.write_text("".join(f"{event.to_json()}\n" for event in events))


def resources(text: str) -> list[str]:
    return [json.loads(line)["resource"] for line in text.splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An audit log with a rotated file."""
    path = tmp_path / "audit.log"
    write(tmp_path / "audit.log.1", created("a", "alice", 300), created("b", "alice", 50))
    write(path, created("c", "bob", 20), created("d", "alice", 10))
    return path


def test_events_of_a_user_since_a_time(
    penstock: Runner, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = penstock("audit", "--file", str(file), "--since", "1h", "--user", "alice", "--json")
    assert resources(ended.out) == ["topic:b", "topic:d"]
    shown = penstock("audit", "--file", str(file), "--since", "1h").out
    assert "alice" in shown and "bob" in shown and "topic.create" in shown


def test_only_the_last_events_are_shown_and_the_others_counted(
    penstock: Runner, file: Path
) -> None:
    ended = penstock("audit", "--file", str(file), "--limit", "2", "--json")
    assert resources(ended.out) == ["topic:c", "topic:d"]
    assert "2 earlier events are not shown" in ended.err


def test_actions_and_outcomes_select_events(penstock: Runner, file: Path) -> None:
    origin = Origin("eve", "192.0.2.9", "CLIENTS")
    why = LoginFailure.CREDENTIALS
    with file.open("a") as log:
        log.write(login_denied(origin, now_ms(), "PLAIN", why).to_json() + "\nnot an event\n")
    ended = penstock("audit", "--file", str(file), "--outcome", "denied", "--action", "login")
    assert "eve" in ended.out and "alice" not in ended.out
    assert "1 records are not audit events" in ended.err
    assert penstock("audit", "--file", str(file), "--user", "nobody").out == "no events\n"


def test_options_that_are_not_valid_say_what_to_write(penstock: Runner, file: Path) -> None:
    assert "write 1h" in penstock("audit", "--since", "yesterday").err
    assert "allowed, denied, failed" in penstock("audit", "--outcome", "bad").err


def test_events_are_read_from_the_topic(penstock: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker({"audit.enabled": "true"}) as broker:
        monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap)
        monkeypatch.setenv("COLUMNS", "200")
        assert penstock("topic", "create", "orders").code == 0
        deadline = time.monotonic() + patient(60)
        while "topic:orders" not in (ended := penstock("audit", "--since", "1h")).out:
            assert time.monotonic() < deadline, ended
        assert "topic.create" in ended.out
        lines = penstock("audit", "--json", "--action", "topic").out.splitlines()
        assert resources("\n".join(lines)) == ["topic:orders"]
        assert penstock("audit", "--user", "nobody").out == "no events\n"
