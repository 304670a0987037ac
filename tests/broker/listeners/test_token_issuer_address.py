"""The keys of an issuer must come from an address that nobody else can answer for."""

from __future__ import annotations

import pytest

from penstock.broker.config import ConfigError
from penstock.broker.listeners.token_issuer import keys_url

KEY = "sasl.oauthbearer.jwks.endpoint.url"


@pytest.mark.parametrize(
    "url",
    [
        "https://issuer.example/keys",
        "file:///etc/keys.json",
        "http://localhost:8080/keys",
        "http://127.0.0.7/keys",
        "http://[::1]:8080/keys",
    ],
)
def test_keys_come_over_tls_or_from_this_machine(url: str) -> None:
    assert keys_url({KEY: url}) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/keys",
        "http://10.0.0.7/keys",
        "http://localhost.example/keys",
        "http://127.0.0.1@issuer.example/keys",
        "HTTP://issuer.example/keys",
    ],
)
def test_keys_in_plain_text_from_another_machine_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="use an https: address"):
        keys_url({KEY: url})


@pytest.mark.parametrize("url", ["", "ftp://issuer.example/keys", "http://[::1/keys"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=KEY):
        keys_url({KEY: url})
