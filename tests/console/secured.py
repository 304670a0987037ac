"""Runs a cluster that accepts only TLS and logins, for tests of the console's sign-in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.test_live import cluster
from console.openid import CLIENT_ID, KEYS, Provider
from console.running import Browserless, running_console
from penstock import Admin

PASSWORDS = ("--sign-in", "SCRAM-SHA-512", "--sign-in", "SCRAM-SHA-256")
BOB_PASSWORD = "a password of bob"


@dataclass(frozen=True)
class Secured:
    """A cluster with the topics `orders` and `salaries`. The user bob may read `orders`."""

    bootstrap: str
    folder: Path

    @property
    def admin_password(self) -> str:
        return (self.folder / "admin-password").read_text().strip()

    def login(self, user: str = "admin", password: str | None = None) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "ssl_ca": str(self.folder / "ca.pem"),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": password or self.admin_password,
        }

    def admin(self) -> Admin:
        return Admin(self.bootstrap, **self.login())

    @contextmanager
    def console(self, *options: str) -> Iterator[str]:
        """Runs a console with sign-in, by default with passwords. Yields its URL."""
        how = ("--security-protocol", "SASL_SSL", "--ssl-ca", str(self.folder / "ca.pem"))
        with running_console(self.bootstrap, *how, *(options or PASSWORDS)) as url:
            yield url


@contextmanager
def secured_cluster(
    directory: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Secured]:
    given = [
        word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")
    ]
    with cluster(directory, "--secure", "--no-console", *given) as (bootstrap, _):
        found = Secured(bootstrap, directory / "security")
        with found.admin() as admin:
            for topic in ("orders", "salaries"):
                admin.create_topic(topic, partitions=1)
            admin.upsert_scram_user("bob", BOB_PASSWORD)
        yield found


def oauth_settings(directory: Path, provider: Provider) -> dict[str, str]:
    """Returns the settings of brokers that accept the tokens of the provider."""
    keys = directory / "keys.json"
    keys.write_text(json.dumps(KEYS))
    login = "listener.name.secure.oauthbearer.sasl.oauthbearer."
    return {
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        f"{login}jwks.endpoint.url": f"file://{keys}",
        f"{login}expected.issuer": provider.url,
        f"{login}expected.audience": "penstock",
    }


def oauth_options(provider: Provider) -> tuple[str, ...]:
    """Returns the options of a console whose users sign in at the provider."""
    return (
        *("--sign-in", "OAUTHBEARER", "--oauth-issuer", provider.url),
        *("--oauth-client-id", CLIENT_ID),
    )


def signed_in(url: str, user: str, password: str) -> Browserless:
    visitor = Browserless(url)
    answer = visitor.sign_in(user, password)
    assert answer.status == 200, answer.body
    return visitor
