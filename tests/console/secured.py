"""Runs a cluster that accepts only TLS and logins, for tests of the console's sign-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.test_live import cluster
from console.running import Browserless, running_console
from penstock import Admin

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
        """Runs a console with sign-in. Yields its URL."""
        how = ("--security-protocol", "SASL_SSL", "--ssl-ca", str(self.folder / "ca.pem"))
        mechanisms = ("--sign-in", "SCRAM-SHA-512", "--sign-in", "SCRAM-SHA-256")
        with running_console(self.bootstrap, *how, *mechanisms, *options) as url:
            yield url


@contextmanager
def secured_cluster(directory: Path) -> Iterator[Secured]:
    with cluster(directory, "--secure", "--no-console") as (bootstrap, _):
        found = Secured(bootstrap, directory / "security")
        with found.admin() as admin:
            for topic in ("orders", "salaries"):
                admin.create_topic(topic, partitions=1)
            admin.upsert_scram_user("bob", BOB_PASSWORD)
        yield found


def signed_in(url: str, user: str, password: str) -> Browserless:
    visitor = Browserless(url)
    answer = visitor.sign_in(user, password)
    assert answer.status == 200, answer.body
    return visitor
