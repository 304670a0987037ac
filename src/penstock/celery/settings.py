"""What the broker URL and Celery's `broker_transport_options` say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.celery.names import Names

PORT: Final = 9092
LOG_PARTITIONS: Final = 8
LOG_RETENTION_MS: Final = 3_600_000
"""Messages in the logs of exchanges are for clients that read them now."""
_LOCK_EXTEND_MAX_MS: Final = 7 * 86_400_000
"""Celery decides how long a task may take, and how long a worker keeps one that is not due yet."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a connection reaches the brokers, and how it creates topics."""

    servers: tuple[str, ...]
    names: Names = field(default_factory=Names)
    client: Mapping[str, Any] = field(default_factory=dict)
    """Options of all clients, such as those for TLS and the login."""
    queue: Mapping[str, Any] = field(default_factory=dict)
    """Options of `Queue`, beside those of all clients."""
    partitions: int = -1
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    """Settings of the topics of queues, when they are created."""

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the brokers and the virtual host."""
        return (*self.servers, self.names.virtual_host)


def read_settings(
    *,
    hostname: str | None,
    port: int | None,
    user: str | None,
    password: str | None,
    virtual_host: str | None,
    ssl: bool | Mapping[str, Any],
    options: Mapping[str, Any],
) -> Settings:
    """Reads the parts of a kombu connection. Celery puts options of its own beside ours."""
    servers = options.get("bootstrap_servers") or f"{hostname or 'localhost'}:{port or PORT}"
    if isinstance(servers, str):
        servers = servers.split(",")
    client: dict[str, Any] = {}
    if ssl:
        client["security_protocol"] = "SSL"
        if isinstance(ssl, Mapping):
            client |= {ours: ssl[theirs] for theirs, ours in _TLS.items() if ssl.get(theirs)}
    if user:
        client["security_protocol"] = "SASL_SSL" if ssl else "SASL_PLAINTEXT"
        client |= {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": user}
        client["sasl_password"] = password or ""
    client |= options.get("client_options") or {}
    queue = {"lock_extend_max_ms": _LOCK_EXTEND_MAX_MS, **(options.get("queue_options") or {})}
    return Settings(
        servers=tuple(each.strip() for each in servers),
        names=Names(virtual_host or "/"),
        client=client,
        queue=queue,
        partitions=int(options.get("partitions", -1)),
        topic_configs=dict(options.get("topic_configs") or {}),
    )


_TLS: Final = {"ca_certs": "ssl_ca", "certfile": "ssl_certificate", "keyfile": "ssl_key"}
