"""One broker with a listener for each way to authenticate, with access control, and its users."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from compat.cluster import SETTINGS, Cluster, free_ports
from compat.token_endpoint import ClientCredentials, TokenEndpoint
from penstock import Admin
from penstock.runtime import SystemClock, SystemRandom
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.security.certificates import Subject, new_authority, new_client, new_server
from security.signed_tokens import jwk, make

USER = "alice"
PASSWORD = "correct horse; battery=staple"
ISSUER = "https://issuer.example"
PREFIX = "secured-"
"""The topics and groups with this prefix are the user's."""
_LISTENERS = ("PLAINTEXT", "TLS", "MUTUAL", "LOGIN")


@dataclass(frozen=True)
class Way:
    """How a client authenticates."""

    name: str
    bootstrap: str
    protocol: str
    authority: str
    """The path of the authority that signed the broker's certificate."""
    certificate: str = ""
    """The path of the client's certificate, and ..."""
    key: str = ""
    """... of its key."""
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: ClientCredentials | None = None
    """With these a client gets the token itself."""

    @property
    def host(self) -> str:
        return self.bootstrap.rpartition(":")[0]

    def at(self, endpoint: TokenEndpoint) -> Way:
        """Returns the same way for clients that get their token from an endpoint."""
        return replace(self, credentials=endpoint.register(self.token) if self.token else None)


def token(user: str = USER, expires_in_s: int = 3600) -> str:
    now_s = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": "penstock",
        "sub": user,
        "iat": min(now_s, now_s + expires_in_s) - 60,
        "exp": now_s + expires_in_s,
    }
    return make(claims).decode()


class SecuredBroker:
    """A broker process. `way` says how clients connect to it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        first = free_ports(len(_LISTENERS))
        self._addresses = {
            name: f"localhost:{first + number}" for number, name in enumerate(_LISTENERS)
        }
        self._write_files()
        (directory / "keys.json").write_text(json.dumps({"keys": [jwk("RS256")]}))
        self.cluster = Cluster(directory / "data", settings=SETTINGS | self._settings())
        self.cluster.command.append("--no-console")

    @property
    def plain(self) -> str:
        """The address where everyone may do everything."""
        return self._addresses["PLAINTEXT"]

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def _write_files(self) -> None:
        now_ms, random = SystemClock().wall_ms(), SystemRandom().bytes
        authority = new_authority(Subject("test authority"), now_ms, random)
        hosts = ["localhost", "127.0.0.1"]
        server = new_server(authority, Subject("broker"), hosts, now_ms, random)
        client = new_client(authority, Subject(USER, organization="Acme, Inc"), now_ms, random)
        for name, text in {
            "ca.pem": authority.certificate,
            "broker.pem": server.key + server.certificate,
            "client.pem": client.certificate,
            "client.key": client.key,
        }.items():
            Path(self.path(name)).write_text(text)

    def _settings(self) -> dict[str, str]:
        login = "listener.name.login."
        protocols = dict(zip(_LISTENERS, ("PLAINTEXT", "SSL", "SSL", "SASL_SSL"), strict=True))
        return {
            "listeners": ",".join(f"{k}://{v}" for k, v in self._addresses.items()),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "ssl.keystore.location": self.path("broker.pem"),
            "ssl.truststore.location": self.path("ca.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/",
            f"{login}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{login}oauthbearer.sasl.oauthbearer.jwks.endpoint.url": (
                f"file://{self.path('keys.json')}"
            ),
            f"{login}oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
            f"{login}oauthbearer.sasl.oauthbearer.expected.audience": "penstock",
            "delegation.token.secret.key": "a secret key for tests",
            "authorizer.class.name": "penstock",
            # Clients without a login are used to prepare tests.
            "super.users": "User:ANONYMOUS",
        }

    def start(self) -> None:
        self.cluster.start()
        rules = [
            *(allowed(kind, PREFIX, AclOperation.ALL) for kind in _OWNED),
            allowed(ResourceType.CLUSTER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE),
        ]
        with Admin(self.plain) as admin:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                admin.upsert_scram_user(USER, PASSWORD, mechanism)
            assert not any(admin.create_acls(rules).values())

    def way(self, name: str) -> Way:
        """Returns how to connect with TLS, mTLS, or a mechanism of SASL."""
        tls = Way(name, self._addresses["TLS"], "SSL", self.path("ca.pem"))
        if name == "TLS":
            return tls
        if name == "mTLS":
            return replace(
                tls,
                bootstrap=self._addresses["MUTUAL"],
                certificate=self.path("client.pem"),
                key=self.path("client.key"),
            )
        login = replace(
            tls, bootstrap=self._addresses["LOGIN"], protocol="SASL_SSL", mechanism=name, user=USER
        )
        if name == "OAUTHBEARER":
            return replace(login, token=token())
        return replace(login, password=PASSWORD)


_OWNED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def allowed(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    """Returns an ACL for the user."""
    is_cluster = kind is ResourceType.CLUSTER
    pattern = PatternType.LITERAL if is_cluster else PatternType.PREFIXED
    return AclBinding(kind, pattern, name, f"User:{USER}", "*", operation, PermissionType.ALLOW)
