"""Java, kafkajs and franz-go on a broker with TLS, logins and access control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compat.foreign_clients import KINDS, ForeignClient
from compat.secured_broker import PREFIX, SecuredBroker, allowed, token
from compat.token_endpoint import TokenEndpoint
from penstock import Admin, Producer
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import AclOperation, ResourceType

WAYS = ("TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
STEPS = ("create", "produce", "consume", "list", "other")
Name = Callable[[], str]


@pytest.fixture(scope="module", params=KINDS, ids=[each.name for each in KINDS])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ForeignClient:
    return ForeignClient(request.param, tmp_path_factory.mktemp("foreign"))


@pytest.mark.parametrize("way", WAYS)
def test_a_client_does_everything_with_its_rights(
    secured: SecuredBroker,
    endpoint: TokenEndpoint,
    client: ForeignClient,
    way: str,
    name: Name,
    other: str,
) -> None:
    topic = PREFIX + name()
    assert client.steps(secured.way(way).at(endpoint), topic, other) == {
        "create": "ok",
        "produce": "ok",
        "consume": "one two three",
        "list": "ok",
        # Clients without a login may do everything.
        "other": "ok" if way == "TLS" else client.kind.forbidden,
    }
    with Admin(secured.plain) as admin:
        committed = admin.group_offsets(topic)
    assert [each.offset for each in committed.values()] == [3]


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused(
    secured: SecuredBroker, client: ForeignClient, way: str, name: Name, other: str
) -> None:
    wrong = replace(secured.way(way), password="wrong")
    steps = client.steps(wrong, PREFIX + name(), other)
    assert steps == dict.fromkeys(STEPS, client.kind.denied)


def test_an_expired_token_is_refused(
    secured: SecuredBroker, endpoint: TokenEndpoint, client: ForeignClient, name: Name, other: str
) -> None:
    expired = replace(secured.way("OAUTHBEARER"), token=token(expires_in_s=-600))
    steps = client.steps(expired.at(endpoint), PREFIX + name(), other)
    assert tuple(steps) == STEPS
    assert {*steps.values()} <= client.kind.denied_token


@pytest.mark.parametrize("way", ["mTLS", "SCRAM-SHA-512"])
def test_a_right_that_is_taken_away_ends_on_open_connections(
    secured: SecuredBroker, client: ForeignClient, way: str, name: Name, other: str
) -> None:
    rules = [
        allowed(ResourceType.TOPIC, other, operation)
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    with Admin(secured.plain) as admin:
        assert not any(admin.create_acls(rules).values())
        with client.live(secured.way(way), PREFIX + name(), other) as program:
            assert program.before() == {"produce": "ok", "consume": "one"}
            deleted = admin.delete_acls([AclFilter(resource_name=other)])
            assert [len(each) for each in deleted if isinstance(each, list)] == [2]
            with Producer(secured.plain) as producer:
                producer.send(other, b"secret").result()
            forbidden = client.kind.forbidden
            assert program.after() == {"produce again": forbidden, "consume again": forbidden}
