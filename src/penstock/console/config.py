"""The configuration of a console, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.security.addresses import is_loopback
from penstock.security.listeners import SecurityProtocol
from penstock.security.mechanism_names import MECHANISM_NAMES
from penstock.security.oauthbearer import MECHANISM as OAUTHBEARER

DEFAULT_PORT: Final = 8090
TOKEN_LENGTH_MIN: Final = 16


class BadConsoleConfig(ValueError):
    """The message says what is wrong and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """An OpenID provider at which people sign in."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    """Empty for a public client, which proves itself with PKCE only."""
    scope: str = "openid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    bootstrap: str
    host: str = "127.0.0.1"
    token: str = ""
    """The token that browsers must send. May be empty on loopback, and if users sign in."""
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The options with which the console connects to the cluster. See `SecurityOptions`."""
    sign_in: tuple[str, ...] = ()
    """SASL mechanisms. If there are any, users sign in with their names and passwords of the
    cluster, and each acts with their own rights."""
    oauth: OAuthConfig | None = None
    """The provider, if people can sign in with OAUTHBEARER."""
    tls_certificate: str = ""
    """A PEM file with the certificate of the console, for https."""
    tls_key: str = ""
    """A PEM file with its key. Empty: the key is in the same file."""
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Host names that browsers may use, in addition to those of loopback and `host`."""
    look_interval_s: float = 1.0
    """The time between two polls of the brokers."""
    survey_interval_s: float = 2.0
    """The time between two surveys of all topics, groups and disks; longer if a survey is slow."""

    def __post_init__(self) -> None:
        if self.sign_in:
            self._check_sign_in()
        elif not self.is_loopback and not self.token:
            raise BadConsoleConfig(
                f"{self.host} can be reached from other machines: give a token, or listen on "
                "127.0.0.1"
            )
        if self.token and len(self.token) < TOKEN_LENGTH_MIN:
            raise BadConsoleConfig(
                f"the token has {len(self.token)} characters: use {TOKEN_LENGTH_MIN} or more"
            )

    def _check_sign_in(self) -> None:
        for name in self.sign_in:
            if name not in MECHANISM_NAMES:
                raise BadConsoleConfig(
                    f"users cannot sign in with {name}: use {', '.join(MECHANISM_NAMES)}"
                )
        if (OAUTHBEARER in self.sign_in) != (self.oauth is not None):
            raise BadConsoleConfig(
                "--oauth-issuer, --oauth-client-id and --mechanism OAUTHBEARER belong together: "
                "give all three or none"
            )
        protocol = self.security.get("security_protocol")
        if protocol not in (SecurityProtocol.SASL_SSL, SecurityProtocol.SASL_PLAINTEXT):
            raise BadConsoleConfig(
                "signing in needs a cluster with SASL: set the security protocol to SASL_SSL, or "
                "do not ask users to sign in"
            )
        if not self.is_loopback and not self.tls_certificate:
            raise BadConsoleConfig(
                f"{self.host} can be reached from other machines, and passwords would be sent "
                "without TLS: give a certificate with --tls-certificate, or listen on 127.0.0.1"
            )

    @property
    def password_mechanisms(self) -> tuple[str, ...]:
        """The mechanisms with which users sign in by name and password."""
        return tuple(name for name in self.sign_in if name != OAUTHBEARER)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)
