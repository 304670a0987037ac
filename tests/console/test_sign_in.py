"""Tests the sign-in of a real console, with a cluster that accepts only TLS and logins."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from console.running import Browserless, eventually
from console.secured import BOB_PASSWORD, PASSWORDS, Secured, secured_cluster, signed_in
from penstock import Producer
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.testing.slowness import patient

EVE_PASSWORD = "a password of eve"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as found:
        with found.admin() as admin:
            rule = AclBinding(
                ResourceType.TOPIC,
                PatternType.LITERAL,
                "orders",
                "User:bob",
                "*",
                AclOperation.READ,
                PermissionType.ALLOW,
            )
            assert admin.create_acls([rule]) == {rule: None}
        with Producer(found.bootstrap, **found.login()) as producer:
            for topic in ("orders", "salaries"):
                producer.send(topic, b"a record").result(timeout_s=patient(60))
        yield found


@pytest.fixture(scope="module")
def url(secured: Secured) -> Iterator[str]:
    with secured.console() as found:
        yield found


def test_nothing_is_readable_before_signing_in(url: str) -> None:
    """And the answer tells the page what to ask for."""
    stranger = Browserless(url)
    answer = stranger.log_in()
    assert (answer.status, answer.json["needs"]) == (401, "password")
    for path in ("/api/topics", "/api/live", "/api/access/users", "/api/audit"):
        assert stranger.get(path).status == 401
    assert stranger.post("/api/change/topic", {"name": "x"}).status == 401


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("bob", "wrong"),
        ("nobody", BOB_PASSWORD),
        ("", "of nobody"),
        ("bob", ""),
        ("a\x00b", "of a"),
    ],
)
def test_a_wrong_password_and_an_unknown_user_are_refused(
    url: str, user: str, password: str
) -> None:
    """Without a cookie for a session."""
    visitor = Browserless(url)
    answer = visitor.sign_in(user, password)
    assert (answer.status, answer.json["needs"]) == (401, "password")
    assert "set-cookie" not in answer.headers
    assert password not in answer.error or not password


def test_users_see_and_do_what_they_may(url: str, secured: Secured) -> None:
    """The admin sees all topics, bob only the one that he may read, at the same time."""
    admin = signed_in(url, "admin", secured.admin_password)
    bob = signed_in(url, "bob", BOB_PASSWORD)

    def names(visitor: Browserless) -> set[str]:
        return {topic["name"] for topic in visitor.get("/api/topics").json.get("topics", ())}

    eventually(lambda: names(admin) == {"orders", "salaries"})
    eventually(lambda: names(bob) == {"orders"})
    found = bob.post("/api/read/messages/orders", {}).json
    assert [record["value"]["text"] for record in found["records"]] == ["a record"]
    assert bob.post("/api/read/messages/salaries", {}).status in (403, 404)
    assert bob.get("/api/topics/salaries").status in (403, 404)
    answer = bob.post("/api/change/topic", {"name": "of-bob"})
    assert answer.status == 403, answer.body
    assert bob.post("/api/change/produce/orders", {"value": "x"}).status == 403
    assert bob.get("/api/access/users").status == 403
    assert admin.post("/api/change/topic", {"name": "of-the-admin"}).status == 200
    assert admin.post("/api/change/delete/of-the-admin", {"typed": "of-the-admin"}).status == 200


def test_users_have_charts_of_what_they_may_see(url: str, secured: Secured) -> None:
    """Each session has its own history. What another user sees is not in it."""
    admin = signed_in(url, "admin", secured.admin_password)
    bob = signed_in(url, "bob", BOB_PASSWORD)

    def figures(visitor: Browserless, topic: str) -> set[str]:
        return {*visitor.get(f"/api/history?kind=topic&name={topic}").json["figures"]}

    eventually(lambda: {"records", "bytes", "size"} == figures(admin, "salaries"))
    eventually(lambda: "records" in figures(bob, "orders"))
    assert figures(bob, "salaries") == set()


def test_the_cookie_of_one_user_does_not_work_with_the_csrf_token_of_another(
    url: str, secured: Secured
) -> None:
    admin = signed_in(url, "admin", secured.admin_password)
    bob = signed_in(url, "bob", BOB_PASSWORD)
    bob.csrf, own = admin.csrf, bob.csrf
    assert bob.post("/api/read/messages/orders", {}).status == 403
    bob.csrf = own
    assert bob.post("/api/read/messages/orders", {}).status == 200


def test_signing_out_ends_the_session_and_its_streams(url: str) -> None:
    bob = signed_in(url, "bob", BOB_PASSWORD)
    other = signed_in(url, "bob", BOB_PASSWORD)
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=patient(120)
    )
    connection.request("GET", "/api/live", headers={"cookie": bob.cookie})
    stream = connection.getresponse()
    assert stream.readline().startswith(b"data: ")
    assert bob.post("/api/sign-out", {}).status == 200
    while stream.readline():
        pass
    connection.close()
    assert bob.get("/api/topics").status == 401
    assert other.get("/api/topics").status == 200


def test_a_deleted_user_cannot_sign_in(url: str, secured: Secured) -> None:
    with secured.admin() as admin:
        admin.upsert_scram_user("eve", EVE_PASSWORD)
        assert signed_in(url, "eve", EVE_PASSWORD).get("/api/topics").status == 200
        admin.delete_scram_user("eve")
    assert Browserless(url).sign_in("eve", EVE_PASSWORD).status == 401


def test_too_many_wrong_passwords_are_refused_for_a_while(url: str, secured: Secured) -> None:
    """Even the right one, for this user. Others can sign in."""
    with secured.admin() as admin:
        admin.upsert_scram_user("zoe", EVE_PASSWORD)
    for _ in range(5):
        assert Browserless(url).sign_in("zoe", "guess").status == 401
    answer = Browserless(url).sign_in("zoe", EVE_PASSWORD)
    assert (answer.status, answer.json["needs"]) == (429, "password")
    signed_in(url, "bob", BOB_PASSWORD)


def test_a_user_of_the_second_mechanism_can_sign_in(url: str, secured: Secured) -> None:
    with secured.admin() as admin:
        admin.upsert_scram_user("old", EVE_PASSWORD, "SCRAM-SHA-256")
    assert signed_in(url, "old", EVE_PASSWORD).get("/api/topics").status == 200


def test_changes_are_in_the_audit_record_with_the_name_of_the_user(
    url: str, secured: Secured
) -> None:
    admin = signed_in(url, "admin", secured.admin_password)
    assert admin.post("/api/change/topic", {"name": "audited"}).status == 200

    def event() -> bool:
        # The topic is created with the first events.
        found = admin.get("/api/audit?since=1h&action=topic.create").json.get("events", ())
        return ("admin", "topic:audited") in {(each["user"], each["resource"]) for each in found}

    eventually(event)
    assert admin.get("/api/audit?since=yesterday").status == 400
    assert admin.get("/api/audit?outcome=perhaps").status == 400
    bob = signed_in(url, "bob", BOB_PASSWORD)
    assert bob.get("/api/audit").status == 403


def test_https_with_a_certificate(secured: Secured) -> None:
    """The cookie is then sent with TLS only."""
    keystore = str(secured.folder / "broker.pem")
    with secured.console(*PASSWORDS, "--tls-certificate", keystore) as url:
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
        visitor = Browserless(url, tls=context)
        answer = visitor.sign_in("bob", BOB_PASSWORD)
        assert answer.status == 200
        assert "; secure" in answer.headers["set-cookie"].lower()
        assert visitor.get("/api/topics").status == 200
