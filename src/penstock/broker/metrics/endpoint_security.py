"""The token and the certificate of the metrics endpoint. Both are replaced without a restart."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, Protocol

from penstock.broker.config import ConfigError
from penstock.broker.listeners.certificates import RELOAD_S, ListenerCertificates, TlsEnv
from penstock.broker.metrics.endpoint import Endpoint
from penstock.broker.metrics.token_guard import Exposed, TokenGuard, read_token
from penstock.ports import Network
from penstock.security.listener_security import (
    ClientAuth,
    Keystore,
    Pem,
    TlsProtocol,
    TlsSettings,
)
from penstock.security.principal_rules import parse_rules

_NAME: Final = "metrics"
"""In log lines, the endpoint is a listener of this name."""
_log = logging.getLogger(__name__)


class EndpointEnv(TlsEnv, Protocol):
    """What an endpoint needs of the ports of its node."""

    @property
    def network(self) -> Network: ...


class EndpointSecurity:
    def __init__(self, env: EndpointEnv, config: Exposed, endpoint: Endpoint) -> None:
        self._env = env
        self._config = config
        self._endpoint = endpoint
        self._certificates: ListenerCertificates | None = None
        self._token: str | None = None

    @property
    def scheme(self) -> str:
        return "https" if self._config.metrics_keystore else "http"

    async def load(self) -> Network:
        """Reads the token and the certificate, and returns the network to listen on.

        Raises `ConfigError` if one cannot be used."""
        self._token = await self._read_token()
        self._endpoint.guard = TokenGuard(self._token)
        if not self._config.metrics_keystore:
            return self._env.network
        settings = {_NAME: tls_settings(self._config.metrics_keystore)}
        self._certificates = ListenerCertificates(self._env, settings, "")
        await self._certificates.load()
        return self._certificates.network(_NAME, lambda _address: None)

    async def run(self) -> None:
        """Reads both again and again, until cancelled."""
        while True:
            await self._env.clock.sleep(RELOAD_S)
            await self.reload()

    async def reload(self) -> None:
        """Reads both again. If a new one cannot be used, the old one stays in use."""
        if self._certificates is not None:
            await self._certificates.reload()
        try:
            token = await self._read_token()
        except ConfigError as error:
            _log.error("%s; the token that was read before stays in use", error)
            return
        if token != self._token:
            self._token = token
            self._endpoint.guard = TokenGuard(token)
            _log.info("the metrics endpoint uses a new token")

    async def _read_token(self) -> str | None:
        return await self._env.executor.run(partial(read_token, self._config))


def tls_settings(path: str) -> TlsSettings:
    """Returns the settings of a server with a key and its certificates in one PEM file. Clients
    need no certificate."""
    pem = Pem("metrics_keystore", path=path)
    return TlsSettings(
        keystore=Keystore(chain=pem, private_key=pem),
        truststore=None,
        client_auth=ClientAuth.NONE,
        protocols=frozenset(TlsProtocol),
        ciphers=(),
        rules=parse_rules("DEFAULT"),
        verifies_host_name=True,
        allows_dn_changes=True,
        allows_san_changes=True,
    )
