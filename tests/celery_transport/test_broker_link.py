"""How messages are put: due times and priorities only where the topic has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_transport.test_message_format import NOW_MS, message
from penstock.celery.broker_link import BrokerLink
from penstock.celery.message_format import MESSAGE, decode
from penstock.celery.queue_arguments import QueueArguments
from penstock.celery.settings import Settings, read_settings
from penstock.celery.topics import Abilities


class RecordedPuts:
    """Stands in for the client of a queue."""

    def __init__(self) -> None:
        self.puts: list[dict[str, Any]] = []

    def put(self, value: bytes, **options: Any) -> None:
        self.puts.append({"value": value, **options})


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedPuts]:
    recorded = RecordedPuts()
    monkeypatch.setattr("penstock.celery.topics.Topics.exists", lambda *_: True)
    monkeypatch.setattr("penstock.celery.broker_link.BrokerLink._putter", lambda *_: recorded)
    monkeypatch.setattr("penstock.runtime.SystemClock.wall_ms", lambda _: NOW_MS)
    yield recorded


def link_with(monkeypatch: pytest.MonkeyPatch, abilities: Abilities) -> BrokerLink:
    monkeypatch.setattr("penstock.celery.topics.Topics.abilities", lambda *_: abilities)
    return BrokerLink(Settings(("localhost:1",)))


LATER = "2027-01-15T08:00:10+00:00"


@pytest.mark.parametrize(("timed", "expected"), [(True, 10.0), (False, None)])
def test_an_eta_becomes_a_delay_only_if_the_topic_has_due_times(
    puts: RecordedPuts, monkeypatch: pytest.MonkeyPatch, timed: bool, expected: float | None
) -> None:
    link_with(monkeypatch, Abilities(timed, 0)).put("celery", message(eta=LATER))
    assert [each["delay"] for each in puts.puts] == [expected]


@pytest.mark.parametrize(("levels", "expected"), [(4, 3), (0, None)])
def test_a_priority_becomes_a_level_only_if_the_topic_has_them(
    puts: RecordedPuts, monkeypatch: pytest.MonkeyPatch, levels: int, expected: int | None
) -> None:
    urgent = message()
    urgent["properties"]["priority"] = 9
    link_with(monkeypatch, Abilities(False, levels)).put("celery", urgent)
    assert [each["priority"] for each in puts.puts] == [expected]


@pytest.mark.parametrize(
    ("timed", "expiration", "queue_ttl_ms", "eta", "expected"),
    [
        (True, "2500", None, None, 2.5),
        (True, "2500", 1000, None, 1.0),
        (True, "500", 1000, None, 0.5),
        (True, None, 1000, None, 1.0),
        (True, None, 0, None, 0.001),
        (True, "2500", None, LATER, 2.5),
        (True, "soon", None, None, None),
        (True, None, None, None, None),
        (False, "2500", 1000, None, None),
    ],
)
def test_an_expiration_becomes_a_time_to_live(
    puts: RecordedPuts,
    monkeypatch: pytest.MonkeyPatch,
    timed: bool,
    expiration: str | None,
    queue_ttl_ms: int | None,
    eta: str | None,
    expected: float | None,
) -> None:
    """It begins when the task is due. Of two limits the smaller counts, as with RabbitMQ."""
    monkeypatch.setattr("penstock.celery.topics.Topics.ensure_queue", lambda *_: None)
    link = link_with(monkeypatch, Abilities(timed, 0))
    link.declare_queue("celery", QueueArguments(ttl_ms=queue_ttl_ms))
    put = message(eta=eta)
    if expiration is not None:
        put["properties"]["expiration"] = expiration
    link.put("celery", put)
    assert [each["ttl"] for each in puts.puts] == [expected]


@pytest.mark.parametrize(
    ("expiration", "queue_ttl_ms", "expected"),
    [("0", None, None), ("0", 1000, 1.0), ("2500", None, 2.5)],
)
def test_a_task_that_has_expired_before_it_is_sent_reaches_a_worker(
    puts: RecordedPuts,
    monkeypatch: pytest.MonkeyPatch,
    expiration: str,
    queue_ttl_ms: int | None,
    expected: float | None,
) -> None:
    """The worker sets its result to REVOKED. For other messages, 0 is a time like any other."""
    monkeypatch.setattr("penstock.celery.topics.Topics.ensure_queue", lambda *_: None)
    link = link_with(monkeypatch, Abilities(timed=True, levels=0))
    link.declare_queue("celery", QueueArguments(ttl_ms=queue_ttl_ms))
    task = message()
    task["properties"]["expiration"] = expiration
    link.put("celery", task)
    task["headers"]["expires"] = "2026-11-01T00:00:00+00:00"
    link.put("celery", task)
    plain = 0.001 if expiration == "0" else expected
    assert [each["ttl"] for each in puts.puts] == [plain, expected]


def test_a_message_that_is_put_again_keeps_the_time_when_it_expires(
    puts: RecordedPuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = link_with(monkeypatch, Abilities(timed=True, levels=0))
    first = message()
    first["properties"]["expiration"] = "2500"
    link.put("celery", first)
    stored = puts.puts[0]
    again = decode(stored["value"], dict(stored["headers"])[MESSAGE], "1", redelivered=True)
    monkeypatch.setattr("penstock.runtime.SystemClock.wall_ms", lambda _: NOW_MS + 2000)
    link.put("celery", again)
    monkeypatch.setattr("penstock.runtime.SystemClock.wall_ms", lambda _: NOW_MS + 9000)
    link.put("celery", again)
    assert [each["ttl"] for each in puts.puts] == [2.5, 0.5, 0.001]


def given(**parts: Any) -> Settings:
    plain: dict[str, Any] = {
        **dict.fromkeys(("hostname", "port", "user", "password", "virtual_host")),
        "ssl": False,
        "options": {},
    }
    return read_settings(**{**plain, **parts})


def test_the_url_names_the_broker() -> None:
    assert given().servers == ("localhost:9092",)
    assert given(hostname="kafka", port=9093).servers == ("kafka:9093",)
    options = {"bootstrap_servers": "one:1, two:2", "max_retries": 3}
    assert given(options=options).servers == ("one:1", "two:2")


def test_a_user_logs_in() -> None:
    settings = given(user="ann", password="tea")
    assert settings.client == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "ann",
        "sasl_password": "tea",
    }
    other = given(
        user="ann", password="tea", options={"client_options": {"sasl_mechanism": "PLAIN"}}
    )
    assert other.client["sasl_mechanism"] == "PLAIN"


def test_tls_is_switched_on() -> None:
    assert given(ssl=True).client == {"security_protocol": "SSL"}
    settings = given(ssl={"ca_certs": "ca.pem", "certfile": None}, user="ann", password="tea")
    assert settings.client["security_protocol"] == "SASL_SSL"
    assert settings.client["ssl_ca"] == "ca.pem"
    assert "ssl_certificate" not in settings.client
