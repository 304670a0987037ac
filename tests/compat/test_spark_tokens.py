"""Tokens that expire while Spark reads: the source fails with a clear error, or gets a new token.

The calls are those of Spark, without its JVM; `test_security_spark.py` has the same with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from compat.secured_broker import PREFIX, USER, SecuredBroker, token
from compat.token_endpoint import TokenEndpoint
from penstock import Admin, Producer
from penstock.errors import AuthenticationFailed
from penstock.testing.slowness import patient

pytest.importorskip("pyspark", reason="the source needs pyspark: pip install 'penstock[spark]'")

from spark.direct import Deadline, Stream, read_all

Name = Callable[[], str]
Options = dict[str, str]
WAIT_S = 90.0


def login(secured: SecuredBroker, mechanism: str) -> Options:
    way = secured.way(mechanism)
    return {
        "kafka.security.protocol": way.protocol,
        "kafka.ssl.ca": way.authority,
        "kafka.sasl.mechanism": mechanism,
    }


def put(secured: SecuredBroker, topic: str, *values: bytes) -> None:
    with Producer(secured.plain) as producer:
        for value in values:
            producer.send(topic, value).result()


def values_of(stream: Stream) -> list[bytes]:
    return [row["value"] for batch in stream.until_idle() for row in batch.rows]


@pytest.fixture
def topic(secured: SecuredBroker, name: Name) -> str:
    made = PREFIX + name()
    with Admin(secured.plain) as admin:
        admin.create_topic(made, partitions=1)
    put(secured, made, b"first")
    return made


def start(secured: SecuredBroker, topic: str, options: Options) -> Stream:
    bootstrap = secured.way("OAUTHBEARER").bootstrap
    return Stream(bootstrap, topic, startingOffsets="earliest", **options)


def failure(stream: Stream, awaited: str) -> AuthenticationFailed:
    """Runs micro-batches until one fails. Returns its error."""
    deadline = Deadline(WAIT_S)
    while True:
        try:
            stream.trigger()
        except AuthenticationFailed as error:
            return error
        deadline.check(awaited)


def test_an_expired_bearer_token_starts_no_query(secured: SecuredBroker, topic: str) -> None:
    expired = token(expires_in_s=-600)
    given = {**login(secured, "OAUTHBEARER"), "kafka.sasl.oauth.token": expired}
    with pytest.raises(AuthenticationFailed, match="cannot log in at localhost") as caught:
        read_all(secured.way("OAUTHBEARER").bootstrap, topic, **given)
    assert expired not in str(caught.value)


def test_a_query_fails_when_its_bearer_token_expires(secured: SecuredBroker, topic: str) -> None:
    """A token that is given as text cannot be renewed."""
    short = token(expires_in_s=int(patient(5)))
    given = {**login(secured, "OAUTHBEARER"), "kafka.sasl.oauth.token": short}
    with start(secured, topic, given) as stream:
        assert values_of(stream) == [b"first"]
        error = failure(stream, "the end of a token")
    assert "cannot log in at localhost" in str(error)
    assert short not in str(error)


def test_a_query_gets_new_bearer_tokens_from_an_endpoint(
    secured: SecuredBroker, endpoint: TokenEndpoint, topic: str
) -> None:
    """It goes on after its first tokens have expired."""
    life_s = int(patient(4))
    source = endpoint.register_source(lambda: token(expires_in_s=life_s), life_s)
    given = {
        **login(secured, "OAUTHBEARER"),
        "kafka.sasl.oauth.token.url": source.url,
        "kafka.sasl.oauth.client.id": source.client_id,
        "kafka.sasl.oauth.client.secret": source.secret,
    }
    with start(secured, topic, given) as stream:
        assert values_of(stream) == [b"first"]
        first = endpoint.asked[source.client_id]
        expired_at = time.time() + life_s
        deadline = Deadline(WAIT_S)
        while time.time() <= expired_at or endpoint.asked[source.client_id] == first:
            stream.trigger()
            deadline.check("a new token")
        put(secured, topic, b"second")
        assert values_of(stream) == [b"second"]


@pytest.mark.parametrize("period_ms", [-1, 1_500], ids=["at once", "later"])
def test_a_query_fails_when_its_delegation_token_expires(
    secured: SecuredBroker, topic: str, period_ms: int
) -> None:
    way = secured.way("SCRAM-SHA-512")
    as_alice: dict[str, Any] = {
        "security_protocol": way.protocol,
        "ssl_ca": way.authority,
        "sasl_mechanism": way.mechanism,
        "sasl_username": USER,
        "sasl_password": way.password,
    }
    with Admin(way.bootstrap, **as_alice) as admin:
        made = admin.create_delegation_token()
        given = {
            **login(secured, "SCRAM-SHA-512"),
            "kafka.sasl.username": made.token_id,
            "kafka.sasl.password": made.hmac,
            "kafka.sasl.tokenauth": "true",
        }
        with start(secured, topic, given) as stream:
            assert values_of(stream) == [b"first"]
            admin.expire_delegation_token(made.hmac, period_ms)
            error = failure(stream, "the end of a token")
            with pytest.raises(AuthenticationFailed):
                read_all(way.bootstrap, topic, **given)
    assert "cannot log in at localhost" in str(error)
    assert made.hmac not in str(error)
