"""Clients on a broker with TLS, logins and access control.

Each client connects in each way that it knows, produces, consumes in a group, and administers. A
wrong password and an expired token are refused, and a right that is taken away ends at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compat.secured_broker import PREFIX, SecuredBroker, allowed, token
from compat.secured_clients import (
    CLIENTS,
    Denied,
    Forbidden,
    KafkaPythonSecured,
    SecuredClient,
)
from penstock import Admin
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.testing.slowness import patient

WAYS = ("TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
VALUES = [b"one", b"two", b"three"]
Name = Callable[[], str]


@pytest.fixture(params=list(CLIENTS))
def kind(request: pytest.FixtureRequest) -> type[SecuredClient]:
    return CLIENTS[request.param]


@pytest.mark.parametrize("way", WAYS)
def test_a_client_does_everything_with_its_rights(
    secured: SecuredBroker, kind: type[SecuredClient], way: str, name: Name
) -> None:
    client = kind(secured.way(way))
    topic = PREFIX + name()
    client.create_topic(topic)
    client.produce(topic, VALUES)
    assert client.consume(topic, topic, len(VALUES)) == VALUES
    assert topic in client.topics()
    with Admin(secured.plain) as admin:
        committed = admin.group_offsets(topic)
    assert [each.offset for each in committed.values()] == [len(VALUES)]


@pytest.mark.parametrize("way", ["mTLS", "SCRAM-SHA-512"])
def test_a_user_does_nothing_without_rights(
    secured: SecuredBroker, kind: type[SecuredClient], way: str, name: Name
) -> None:
    other = name()
    with Admin(secured.plain) as admin:
        admin.create_topic(other, partitions=1)
    client = kind(secured.way(way))
    with pytest.raises(Forbidden):
        client.create_topic(name())
    with pytest.raises(Forbidden):
        client.produce(other, VALUES)
    assert other not in client.topics()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python tries a login that fails again and again until its time is over."""
    monkeypatch.setattr(KafkaPythonSecured, "bootstrap_ms", int(patient(3000)))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused(
    secured: SecuredBroker, kind: type[SecuredClient], way: str
) -> None:
    right = secured.way(way)
    for wrong in (replace(right, password="wrong"), replace(right, user="nobody")):
        with pytest.raises(Denied):
            kind(wrong).topics()


@pytest.mark.usefixtures("impatient")
def test_an_expired_token_is_refused(secured: SecuredBroker, kind: type[SecuredClient]) -> None:
    way = secured.way("OAUTHBEARER")
    for bad in (token(expires_in_s=-600), token("x" * 300), way.token[:-8] + "AAAAAAAA"):
        with pytest.raises(Denied):
            kind(replace(way, token=bad)).topics()


def test_a_right_that_is_taken_away_ends_at_once(
    secured: SecuredBroker, kind: type[SecuredClient], name: Name
) -> None:
    topic = name()
    rules = [
        allowed(ResourceType.TOPIC, topic, operation)
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    client = kind(secured.way("SCRAM-SHA-256"))
    with Admin(secured.plain) as admin:
        admin.create_topic(topic, partitions=1)
        assert not any(admin.create_acls(rules).values())
        client.produce(topic, VALUES)
        assert client.consume(topic, PREFIX + topic, 3) == VALUES
        deny = AclBinding(
            ResourceType.TOPIC,
            PatternType.LITERAL,
            topic,
            rules[0].principal,
            "*",
            AclOperation.WRITE,
            PermissionType.DENY,
        )
        assert not any(admin.create_acls([deny]).values())
        with pytest.raises(Forbidden):
            client.produce(topic, VALUES)
        deleted = admin.delete_acls([AclFilter(resource_name=topic)])
        assert [len(each) for each in deleted if isinstance(each, list)] == [3]
        with pytest.raises(Forbidden):
            client.consume(topic, PREFIX + topic + "-again", 3)


def test_the_log_has_no_secret(secured: SecuredBroker, tmp_path: Path) -> None:
    """After all the logins above, good and bad."""
    text = secured.cluster.output(100_000)
    way = secured.way("PLAIN")
    assert way.password not in text
    assert "BEGIN PRIVATE KEY" not in text
    assert "eyJ" not in text  # the begin of every token
