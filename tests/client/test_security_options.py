"""Tests the options for TLS and SASL: which fit together, and that no secret is shown."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from penstock.client.errors import AuthenticationFailed, ConnectFailed, OptionError
from penstock.client.oauth_tokens import EndpointSource, TokenEndpoint
from penstock.client.options import AdminOptions, ConsumerOptions, ProducerOptions
from penstock.client.security_options import SECRETS, SecurityOptions
from penstock.security.client_login import PasswordLogin

SASL = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}
ALICE = {"sasl_username": "alice", "sasl_password": "tea-4711"}
OAUTH = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
URL = {"sasl_oauth_token_url": "https://login.example/token"}


def options(**given: Any) -> AdminOptions:
    return AdminOptions.parse("localhost", given)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"security_protocol": "TLS"}, 'give one of "PLAINTEXT", "SSL"'),
        ({"ssl_ca": "ca.pem"}, 'set it to "SSL"'),
        ({"ssl_check_hostname": False}, 'set it to "SSL"'),
        ({"ssl_ca": "ca.pem", "sasl_mechanism": "PLAIN", **ALICE}, 'set it to "SASL_SSL"'),
        ({**ALICE}, 'sasl_password needs SASL.* set it to "SASL_SSL"'),
        ({"security_protocol": "SSL", "sasl_mechanism": "PLAIN"}, 'set it to "SASL_SSL"'),
        ({"security_protocol": "SASL_SSL", **ALICE}, "needs sasl_mechanism"),
        ({**SASL, "sasl_username": "alice"}, "needs sasl_password: give it too"),
        ({**SASL, "sasl_password": "tea"}, "needs sasl_username: give it too"),
        ({**SASL, "sasl_mechanism": "GSSAPI"}, 'give one of "PLAIN"'),
        ({**SASL, **ALICE, "sasl_oauth_token": "x"}, 'is for "OAUTHBEARER"'),
        ({**OAUTH, **ALICE}, "give sasl_oauth_token or sasl_oauth_token_url"),
        ({**OAUTH}, "needs sasl_oauth_token_url or sasl_oauth_token"),
        ({**OAUTH, **URL}, "needs sasl_oauth_client_id: give it too"),
        ({**OAUTH, **URL, "sasl_oauth_token": "x"}, "not both"),
        ({**OAUTH, "sasl_oauth_token_url": "http://a.example/t"}, "without TLS: use https"),
        ({"security_protocol": "SSL", "ssl_key": "k.pem"}, "give ssl_certificate"),
        ({"security_protocol": "SSL", "ssl_key_password": "k"}, "give ssl_certificate"),
        ({**SASL, **ALICE, "sasl_username": "*"}, "choose another"),
        ({**SASL, "sasl_mechanism": "PLAIN", **ALICE, "sasl_tokenauth": True}, "is for SCRAM"),
        ({"sasl_tokenauth": True}, "sasl_tokenauth needs SASL"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_advice(
    given: dict[str, Any], advice: str
) -> None:
    """When the client is made, before anything is sent."""
    with pytest.raises(OptionError, match=advice):
        options(**given)


def test_names_are_accepted_in_any_case() -> None:
    made = options(security_protocol="sasl_ssl", sasl_mechanism="scram-sha-256", **ALICE)
    login = made.connection_config().security.login
    assert isinstance(login, PasswordLogin)
    assert (login.mechanism, login.user) == ("SCRAM-SHA-256", "alice")


@pytest.mark.parametrize("kind", [AdminOptions, ConsumerOptions, ProducerOptions])
def test_no_secret_is_in_a_repr(kind: Any) -> None:
    """Neither of the options nor of what is made of them."""
    given = {**SASL, **ALICE, "ssl_certificate": "a.pem", "ssl_key_password": "tea-4711"}
    made = kind.parse("localhost", given)
    assert "tea-4711" not in repr(made)
    assert "tea-4711" not in repr(made.cluster_config())
    secret = {**OAUTH, **URL, "sasl_oauth_client_id": "a", "sasl_oauth_client_secret": "tea-4711"}
    assert "tea-4711" not in repr(kind.parse("localhost", secret).cluster_config())


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_no_secret_is_in_an_error(name: str) -> None:
    for wrong in (b"tea-4711", ["tea-4711"]):
        with pytest.raises(OptionError) as refused:
            options(**{name: wrong})
        assert "tea-4711" not in str(refused.value)


def test_every_secret_is_an_option() -> None:
    assert set(SecurityOptions.__dataclass_fields__) > SECRETS


@pytest.mark.parametrize(("protocol", "warns"), [("SASL_PLAINTEXT", True), ("SASL_SSL", False)])
def test_a_password_without_tls_causes_a_warning(
    protocol: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options(security_protocol=protocol, sasl_mechanism="PLAIN", **ALICE)
    assert ("sends the password as plain text" in caplog.text) is warns
    assert "tea-4711" not in caplog.text


# -- client credentials --------------------------------------------------------------------------


class Endpoint:
    """A token endpoint. `answers` are its answers, in order; the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                basic = self.headers["Authorization"].removeprefix("Basic ")
                outer.asked.append((base64.b64decode(basic).decode(), parse_qs(form)))
                kept = len(outer.answers) > 1
                status, answer = outer.answers.pop(0) if kept else outer.answers[0]
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", answer)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.source = EndpointSource(
            TokenEndpoint(
                f"http://127.0.0.1:{self.server.server_port}/token?x=y", "app", "s3cret:!", "kafka"
            )
        )


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(60)


async def _twice(source: EndpointSource) -> list[str]:
    return [await source(), await source()]


def test_a_token_is_fetched_with_client_credentials_and_used_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, {"access_token": "a.b.c", "expires_in": 3600})]
    assert asyncio.run(_twice(endpoint.source)) == ["a.b.c", "a.b.c"]
    assert endpoint.asked == [
        ("app:s3cret%3A%21", {"grant_type": ["client_credentials"], "scope": ["kafka"]})
    ]


def test_a_token_without_a_lifetime_is_not_kept(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, {"access_token": "one"}), (200, {"access_token": "two"})]
    assert asyncio.run(_twice(endpoint.source)) == ["one", "two"]


@pytest.mark.parametrize(
    ("status", "answer", "kind", "says"),
    [
        (401, {"error": "invalid_client"}, AuthenticationFailed, "401 invalid_client: check"),
        (401, {"error": "echo s3cret:!"}, AuthenticationFailed, "answered 401: check"),
        (302, "http://127.0.0.1:1/", AuthenticationFailed, "answered 302"),
        (200, {"token": "x"}, AuthenticationFailed, "no access_token"),
        (200, [], AuthenticationFailed, "no access_token"),
        (503, {}, ConnectFailed, "answered 503"),
    ],
)
def test_a_refusal_of_the_endpoint_is_explained(
    endpoint: Endpoint, status: int, answer: Any, kind: type[Exception], says: str
) -> None:
    """What may pass is retriable. A redirect is not followed, because it would get the secret."""
    endpoint.answers = [(status, answer)]
    with pytest.raises(kind, match=says) as failed:
        asyncio.run(_twice(endpoint.source))
    assert "s3cret" not in str(failed.value)
    assert "x=y" not in str(failed.value)


def test_an_endpoint_that_cannot_be_reached_is_retriable() -> None:
    source = EndpointSource(TokenEndpoint("http://127.0.0.1:1/token", "app", "secret"))
    with pytest.raises(ConnectFailed, match="cannot be reached"):
        asyncio.run(_twice(source))
