"""How this broker connects to other brokers: with TLS, a login, or both, as its settings say.

Brokers log in to each other with a certificate, or as a user. Then
`sasl.mechanism.inter.broker.protocol` names the mechanism, whose `sasl.jaas.config` has the user
name and password, as in Kafka.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.listeners.certificates import ListenerCertificates
from penstock.broker.peers.connection import PeerSecurity
from penstock.ports import Env
from penstock.security.client_login import PasswordLogin
from penstock.security.listener_security import ListenerSecurity
from penstock.security.plain import JaasInvalid, jaas_entry

MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
_JAAS: Final = "sasl.jaas.config"
_WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def peer_security(
    config: BrokerConfig, env: Env, certificates: ListenerCertificates | None
) -> PeerSecurity | None:
    """Returns how to connect to other brokers; None for plain text. Raises `ConfigError`."""
    name = config.listeners.inter_broker
    security = config.listener_security[name]
    if security.tls is None and security.sasl is None:
        return None

    def context() -> ssl.SSLContext:
        assert certificates is not None
        return certificates.contexts[name].client()

    return PeerSecurity(
        env.random,
        env.executor,
        context if security.tls is not None else None,
        _login(dict(config.kafka), security) if security.sasl is not None else None,
    )


def _login(settings: Mapping[str, str], security: ListenerSecurity) -> PasswordLogin:
    assert security.sasl is not None
    name = security.listener.name
    mechanism = settings.get(MECHANISM, "").strip().upper()
    if mechanism not in _WITH_PASSWORD or mechanism not in security.sasl.mechanisms:
        usable = [each for each in security.sasl.mechanisms if each in _WITH_PASSWORD]
        raise ConfigError(
            f"{MECHANISM} is {mechanism or 'not set'!r}: brokers log in to each other on the "
            f"listener {name}, so set it to one of {', '.join(usable) or 'its mechanisms'}"
        )
    key = f"listener.name.{name.lower()}.{mechanism.lower()}.{_JAAS}"
    text = security.sasl.of_mechanism[mechanism].get(_JAAS) or settings.get(_JAAS, "")
    try:
        options = jaas_entry(text).options if text.strip() else {}
    except JaasInvalid as error:
        raise ConfigError(f"{key}: {error}") from error
    user, password = options.get("username"), options.get("password")
    if not user or not password:
        raise ConfigError(
            f"{key} has no username and password: brokers need them to log in to each other"
        )
    return PasswordLogin(mechanism, user, password)
