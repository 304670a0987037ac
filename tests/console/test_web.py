"""Tests a real console over HTTP, with a client that ignores the rules of browsers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from console.running import Browserless, eventually, running_console
from penstock import Admin, NewTopic
from penstock.testing.broker import Broker
from penstock.topic_partition import TopicPartition

TOKEN = "a-token-of-some-length"
UPLOT_SHA256 = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
"""Of uPlot.iife.min.js in release 1.6.32."""
CHANGES = (
    "topic", "configs/t", "partitions/t", "delete/t", "produce/t", "replay/t", "reset",
    "delete-group", "rebalance", "undrain", "elect", "cancel-moves", "user", "password",
    "delete-user", "acl", "delete-acl", "role", "delete-role", "grant-role", "revoke-role", "quota",
    "delete-quota",
)  # fmt: skip
ACL = {
    "resource_type": "topic", "pattern_type": "literal", "resource_name": "t", "host": "*",
    "principal": "User:u", "operation": "read", "permission": "allow", "resource": "topic:t",
}  # fmt: skip


@pytest.fixture(scope="module")
def url(penstock_broker: Broker) -> Iterator[str]:
    with running_console(penstock_broker.bootstrap) as found:
        yield found


@pytest.fixture
def visitor(url: str) -> Browserless:
    found = Browserless(url)
    assert found.log_in().status == 200
    return found


def test_every_response_has_security_headers(url: str, visitor: Browserless) -> None:
    """Pages, data, errors and missing paths."""
    for path in ("/", "/static/main.js", "/api/topics", "/api/topics/none", "/nowhere"):
        headers = visitor.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    cookie = Browserless(url).post("/api/session", {}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_without_a_session_nothing_is_readable(url: str) -> None:
    """And nothing can be changed."""
    stranger = Browserless(url)
    assert stranger.get("/api/topics").status == 401
    assert stranger.get("/api/live").status == 401
    assert stranger.post("/api/change/topic", {"name": "x"}).status == 401


def test_a_change_needs_the_csrf_token_and_the_consoles_own_page(
    visitor: Browserless, penstock_broker: Broker
) -> None:
    """A request with only the cookie, or from another site, creates no topic."""
    body = {"name": "forged"}
    token = visitor.csrf
    visitor.csrf = ""
    assert visitor.post("/api/change/topic", body).status == 403
    visitor.csrf = token
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        assert visitor.send("POST", "/api/change/topic", body, headers).status == 403
    plain = visitor.send("POST", "/api/change/topic", body, {"content-type": "text/plain"})
    assert plain.status == 400
    with Admin(penstock_broker.bootstrap) as admin:
        assert "forged" not in {topic.name for topic in admin.list_topics()}


def test_a_read_only_console_changes_nothing(penstock_broker: Broker) -> None:
    """For every kind of change. Reading still works."""
    name = penstock_broker.new_topic()
    with running_console(penstock_broker.bootstrap, "--read-only") as url:
        visitor = Browserless(url)
        visitor.log_in()
        body = {
            "name": "x", "set": {"retention.ms": "1"}, "total": 9, "typed": name, "value": "v",
            "target": "y", "ranges": [], "group": "g", "broker": 0,
            "moves": [{"topic": name, "partition": 0, "to": 0}], "user": "u", "password": "p",
            "resource": "topic:t", "operation": "read", "permission": "allow", "role": "reader",
            "entity": {"user": "u"}, "key": "producer_byte_rate", "limit": 1, "acl": ACL,
        }  # fmt: skip
        for path in CHANGES:
            answer = visitor.post(f"/api/change/{path.replace('/t', f'/{name}')}", body)
            assert (answer.status, "read-only" in answer.error) == (403, True), path
        assert visitor.get(f"/api/topics/{name}").status == 200
        assert visitor.post(f"/api/read/messages/{name}", {}).status == 200


def test_a_token_is_required_to_log_in(penstock_broker: Broker) -> None:
    """The printed URL contains it in its fragment."""
    environment = {"PENSTOCK_CONSOLE_TOKEN": TOKEN}
    with running_console(penstock_broker.bootstrap, environment=environment) as url:
        assert url.endswith(f"/#token={TOKEN}")
        visitor = Browserless(url)
        assert visitor.log_in().status == 401
        assert visitor.log_in("wrong").status == 401
        assert visitor.get("/api/topics").status == 401
        assert visitor.log_in(TOKEN).status == 200
        assert visitor.get("/api/topics").status == 200


def test_invalid_requests_are_refused(visitor: Browserless, penstock_broker: Broker) -> None:
    """With a reason in one line, never with a stack trace."""
    name = penstock_broker.new_topic()
    bad: list[tuple[str, object]] = [
        (f"messages/{name}", {"limit": "many"}),
        (f"messages/{name}", {"start": "sideways"}),
        (f"messages/{name}", {"filter": "=="}),
        (f"messages/{name}", {"format": "avro", "avro_schema": "{"}),
        (f"messages/{name}", {"format": "avro", "avro_schema": '{"type": "nonsense"}'}),
        (f"messages/{name}", {"cursor": {"x": 1}}),
        (f"messages/{name}", [1]),
        (f"message/{name}", {"partition": 0}),
        ("reset", {"group": "g", "target": "up"}),
        ("plan", {"drain": ["0"]}),
    ]
    for path, body in bad:
        answer = visitor.post(f"/api/read/{path}", body)
        assert (answer.status, bool(answer.error)) == (400, True), (path, body)
    assert visitor.get("/api/topics?limit=-1").status == 400
    assert visitor.get("/api/topics?sort=mood").status == 400
    assert visitor.get("/api/topics/nothing").status == 404
    assert visitor.post(f"/api/read/messages/{name}", {"partitions": [7]}).status == 404
    assert visitor.post(f"/api/read/message/{name}", {"partition": 0, "offset": 9}).status == 404
    assert visitor.get("/static/../web.py").status == 404


def test_a_raw_value_is_a_download(visitor: Browserless, penstock_broker: Broker) -> None:
    """Never a page, whatever it contains."""
    name = penstock_broker.new_topic()
    content = "<script>alert(1)</script>"
    assert visitor.post(f"/api/change/produce/{name}", {"value": content}).status == 200
    answer = visitor.get(f"/api/topics/{name}/raw?partition=0&offset=0")
    assert answer.body.decode() == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_pages_of_messages_have_each_message_once(
    visitor: Browserless, penstock_broker: Broker
) -> None:
    """Backward and forward, over partitions of different sizes, with and without a filter."""
    name = penstock_broker.new_topic(partitions=3)
    for number in range(25):
        body = {"value": str(number), "partition": 0 if number % 5 else number % 3}
        assert visitor.post(f"/api/change/produce/{name}", body).status == 200
    for start in ("newest", "oldest"):
        for text in ("", "value ~ 1"):
            seen: list[str] = []
            cursor = None
            # A page ends early if its time is used up, so their number depends on the machine.
            for _ in range(200):
                asked = {"start": start, "limit": 4, "cursor": cursor, "filter": text}
                found = visitor.post(f"/api/read/messages/{name}", asked).json
                seen += [record["value"]["text"] for record in found["records"]]
                cursor = found["cursor"]
                if found["at_end"]:
                    break
            wanted = [str(number) for number in range(25) if not text or "1" in str(number)]
            assert sorted(seen) == sorted(wanted), (start, text)


def test_topics_are_listed_in_pages(visitor: Browserless, penstock_broker: Broker) -> None:
    """Searched and sorted by the server. A topic created in the console is listed at once."""
    names = [f"many-{number:02}" for number in range(30)]
    with Admin(penstock_broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in names])
    assert visitor.post("/api/change/topic", {"name": "many-last"}).status == 200

    def page() -> dict[str, Any] | None:
        """Returns None until the console knows all topics. On a busy
        machine a survey may fail once."""
        shown: dict[str, Any] = visitor.get("/api/topics?search=MANY&offset=25&limit=100").json
        return shown if shown["total"] == 31 else None

    found = eventually(page)
    assert [topic["name"] for topic in found["topics"]] == [*names[25:], "many-last"]
    backwards = visitor.get("/api/topics?search=many&limit=1&descending=true").json
    assert [topic["name"] for topic in backwards["topics"]] == ["many-last"]


def test_a_console_survives_an_outage_of_its_cluster() -> None:
    """It may start before the cluster. While the cluster is unreachable the console says so, and
    afterwards it shows its content."""
    with Broker() as broker:
        bootstrap = broker.bootstrap
        broker.stop()
        with running_console(bootstrap) as url:
            visitor = Browserless(url)
            visitor.log_in()
            answer = visitor.get("/api/topics")
            assert (answer.status, "cannot connect" in answer.error) == (503, True)
            broker.start()
            with Admin(bootstrap) as admin:
                admin.create_topic("late", partitions=1)
                admin.alter_group_offsets("g", {TopicPartition("late", 0): 0})
            found = eventually(lambda: visitor.get("/api/topics").json.get("topics"))
            assert [topic["name"] for topic in found] == ["late"]
            assert eventually(lambda: visitor.get("/api/groups").json.get("groups"))


def test_the_history_is_read_by_kind_name_and_range(visitor: Browserless) -> None:
    """What is not known has no figures. What cannot be asked for is refused."""
    found = eventually(
        lambda: (
            (answer := visitor.get("/api/history?kind=cluster&range=900").json)["figures"]
            and answer
        )
    )
    assert (found["range_s"], found["step_ms"], found["steps"]) == (900, 2_000, 450)
    assert len(found["figures"]["problems"]["lines"]["critical"]) == 450
    assert visitor.get("/api/history?kind=topic&name=nowhere").json["figures"] == {}
    assert "range must be one of 300" in visitor.get("/api/history?kind=cluster&range=7").error
    assert "kind must be one of" in visitor.get("/api/history?kind=other").error


def test_the_history_needs_a_session(url: str) -> None:
    assert Browserless(url).get("/api/history?kind=cluster").status == 401


def test_third_party_code_is_served_with_its_license(visitor: Browserless) -> None:
    """Unchanged, so that it can be compared with what its authors released."""
    script = visitor.get("/static/uPlot.iife.min.js")
    assert hashlib.sha256(script.body).hexdigest() == UPLOT_SHA256
    assert b"Permission is hereby granted" in visitor.get("/static/uPlot.LICENSE.txt").body
