"""The TLS of a broker's listeners: certificates that are replaced without a restart, and the users
that the certificates of clients stand for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from penstock.broker.config import ConfigError
from penstock.net.session import Peer, SessionRefused
from penstock.net.tls import TlsContexts, peer_certificate
from penstock.net.tls_gate import HandshakeCounters, TlsGate
from penstock.net.tls_refused import TlsRefused
from penstock.ports import Clock, Executor, Network
from penstock.runtime import read_file
from penstock.security.acls import user_principal
from penstock.security.exchange import NAME_BYTES_MAX
from penstock.security.listener_security import TlsSettings
from penstock.security.principal_rules import (
    CertificateInvalid,
    PrincipalRefused,
    distinguished_name,
)
from penstock.security.user_names import name_problem

RELOAD_S: Final = 10.0
"""How often the files of certificates are read, to use new ones without a restart."""
EXPIRY_WARNING_DAYS: Final = 14
"""A certificate that expires within so many days is logged once a day."""
_DAY_MS: Final = 24 * 3600 * 1000
_log = logging.getLogger(__name__)


class TlsEnv(Protocol):
    """What certificates need of the ports of their node."""

    @property
    def clock(self) -> Clock: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def handshakes(self) -> Executor | None: ...


class ListenerCertificates:
    """The certificates of all listeners with TLS."""

    def __init__(self, env: TlsEnv, settings: Mapping[str, TlsSettings], inter_broker: str) -> None:
        self._env = env
        self._settings = settings
        self._inter_broker = inter_broker
        self._warned_ms: dict[str, int] = {}
        self.contexts: dict[str, TlsContexts] = {}
        """By the name of the listener."""
        self.handshakes: dict[str, HandshakeCounters] = {}

    async def load(self) -> None:
        """Reads the certificates. Raises `ConfigError` if one cannot be used."""
        now_ms = self._env.clock.wall_ms()
        for name, settings in self._settings.items():
            make = partial(
                TlsContexts,
                settings,
                read_file,
                now_ms,
                is_inter_broker=name == self._inter_broker,
            )
            try:
                contexts = self.contexts[name] = await self._env.executor.run(make)
            except TlsRefused as error:
                raise ConfigError(f"listener {name}: {error}") from error
            _log.info("listener %s uses %s", name, _described(contexts))
            self._warn_of_expiry(name, contexts, now_ms)

    async def run(self) -> None:
        """Reads the files again and again, until cancelled."""
        while True:
            await self._env.clock.sleep(RELOAD_S)
            await self.reload()

    async def reload(self) -> None:
        """Reads the files again. If a new certificate cannot be used, the old one stays in use."""
        now_ms = self._env.clock.wall_ms()
        for name, contexts in self.contexts.items():
            try:
                changed = await self._env.executor.run(partial(contexts.reload, now_ms))
            except TlsRefused as error:
                _log.error(
                    "listener %s: the new certificate is refused, and the old one stays in use: %s",
                    name,
                    error,
                )
                continue
            if changed:
                _log.info("listener %s now uses %s", name, _described(contexts))
            self._warn_of_expiry(name, contexts, now_ms)

    def network(self, name: str, on_bad_certificate: Callable[[str], None]) -> Network:
        """Returns a network with TLS for the connections of a listener.

        `on_bad_certificate` is called with the address of a client whose certificate is not
        accepted."""
        contexts = self.contexts[name]
        executor = self._env.handshakes or self._env.executor
        gate = TlsGate(self._env.clock, contexts.server, contexts.client, executor)
        gate.on_bad_certificate = on_bad_certificate
        self.handshakes[name] = gate.counters
        return gate

    def principal(self, name: str, peer: Peer) -> str | None:
        """Returns the user of a client's certificate; None without one. Raises
        `SessionRefused`."""
        try:
            certificate = peer_certificate(peer, self._env.clock.wall_ms())
            if certificate is None:
                return None
            user = self._settings[name].rules.user(distinguished_name(certificate))
        except (CertificateInvalid, PrincipalRefused) as error:
            raise SessionRefused(f"its certificate does not map to a user: {error}") from error
        # A distinguished name may be longer than the name of another user.
        is_long = user.isprintable() and len(user.encode()) > NAME_BYTES_MAX
        if not is_long and (problem := name_problem(user)) is not None:
            raise SessionRefused(f"its certificate does not map to a user: {problem}")
        return user_principal(user)

    def _warn_of_expiry(self, name: str, contexts: TlsContexts, now_ms: int) -> None:
        days = (contexts.expires_ms - now_ms) // _DAY_MS
        if days > EXPIRY_WARNING_DAYS or now_ms - self._warned_ms.get(name, 0) < _DAY_MS:
            return
        self._warned_ms[name] = now_ms
        when = f"expires in {days} days" if days >= 0 else "has expired"
        _log.warning(
            "listener %s: %s %s: replace the file, and the broker will use the new one within %g s",
            name,
            _described(contexts),
            when,
            RELOAD_S,
        )


def _described(contexts: TlsContexts) -> str:
    found = contexts.certificate
    return f"the certificate of {found.subject}, issued by {found.issuer}"
