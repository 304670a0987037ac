"""The listeners of one broker: opens them, each with its own TLS, authentication and sessions.

A connection to a listener without SASL belongs to the user of the client's certificate, or to
User:ANONYMOUS if there is none. On a listener with SASL, the client logs in first (`sasl_login`).

The modules for TLS and for logins are loaded only if a listener needs them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access.credentials import UserCredentials
from penstock.broker.access.quotas import ClientQuotas
from penstock.broker.audit.trail import AuditTrail, origin_of
from penstock.broker.config import BrokerConfig
from penstock.broker.dispatch import Dispatcher
from penstock.broker.identity import ANONYMOUS, Identity
from penstock.broker.listeners.accept_rates import AcceptRates
from penstock.broker.listeners.address_limits import AddressLimits
from penstock.broker.listeners.connection_rates import ConnectionRates
from penstock.broker.peers.connector import PeerConnector
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.model import PLAINTEXT
from penstock.net.open_listener import OpenListener
from penstock.net.server import Server
from penstock.net.session import Peer, Session, SessionRefused
from penstock.ports import Env
from penstock.security.audit import LoginFailure, Origin, login, login_denied
from penstock.security.listener_security import ListenerSecurity
from penstock.security.listeners import Listener

if TYPE_CHECKING:
    from penstock.broker.listeners.certificates import ListenerCertificates
    from penstock.broker.listeners.logins import ListenerLogins

_CERTIFICATE: Final = "certificate"
"""The mechanism of a login by TLS, in the audit record."""
_log = logging.getLogger(__name__)


class ListenerSet:
    """Opens the listeners of a broker, and keeps their certificates up to date."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        credentials: UserCredentials,
        dispatcher: Dispatcher,
        new_session: Callable[[Peer, Identity], Session],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        quotas: ClientQuotas,
        audit: AuditTrail,
    ) -> None:
        self._env = env
        self._audit = audit
        self._listeners = config.listeners
        self._security = config.listener_security
        self._new_session = new_session
        self._quotas = quotas
        self.accept_rates = AcceptRates(quotas.now_ms)
        self._address_limits = AddressLimits(env)
        self.certificates: ListenerCertificates | None = None
        """None if no listener has TLS."""
        self.logins: ListenerLogins | None = None
        """None if no listener has SASL."""
        encrypted = {name: each.tls for name, each in self._security.items() if each.tls}
        if encrypted:
            from penstock.broker.listeners import certificates  # noqa: PLC0415 - if needed

            inter_broker = self._listeners.inter_broker
            self.certificates = certificates.ListenerCertificates(env, encrypted, inter_broker)
        if any(each.sasl is not None for each in self._security.values()):
            from penstock.broker.listeners import logins  # noqa: PLC0415 - only if needed

            self.logins = logins.ListenerLogins(
                env, credentials, dispatcher, new_session, spawn, audit
            )

    def peer_connector(self, config: BrokerConfig) -> PeerConnector:
        """Returns what connects to other brokers. Raises `ConfigError`."""
        name = self._listeners.inter_broker
        protocol = self._security[name].listener.protocol
        if not protocol.uses_tls and not protocol.uses_sasl:
            return PeerConnector(self._env.network, name)
        from penstock.broker.listeners import peer_security  # noqa: PLC0415 - only if needed

        security = peer_security.peer_security(config, self._env, self.certificates)
        return PeerConnector(self._env.network, name, security)

    async def load(self) -> None:
        """Reads the certificates. Raises `ConfigError` if one cannot be used."""
        for security in self._security.values():
            for warning in security.warnings:
                _log.warning("%s", warning)
        if self.certificates is not None:
            await self.certificates.load()

    async def open(self, server: Server, machine_host: str) -> tuple[Listener, ...]:
        """Opens all listeners. Returns what to advertise. Raises OSError if that fails."""
        ports: dict[str, int] = {}
        for each in self._listeners.bound:
            security = self._security[each.name]
            new_session, is_protected = self._sessions(security), self._is_for_brokers(each.name)
            if not is_protected:
                new_session = ConnectionRates(new_session, self._quotas).session
            opened = OpenListener(
                each.name,
                new_session,
                security.max_connections,
                self.accept_rates.pace(
                    each.name, security.max_connection_creation_rate, is_protected=is_protected
                ),
                is_protected,
            )
            network = self._env.network
            if security.tls is not None and self.certificates is not None:
                network = self.certificates.network(
                    each.name, partial(self._record_bad_certificate, each.name)
                )
            ports[each.name] = (await server.open(opened, network, each.host, each.port))[1]
        return self._listeners.endpoints(ports, machine_host)

    def inter_broker(self, endpoints: tuple[Listener, ...]) -> Listener:
        """Returns the endpoint that other brokers connect to."""
        name = self._listeners.inter_broker
        return next(each for each in endpoints if each.name == name)

    def _is_for_brokers(self, name: str) -> bool:
        """Returns whether brokers have this listener, and clients another one."""
        return name == self._listeners.inter_broker and len(self._listeners.bound) > 1

    def apply_limits(self, configs: BrokerConfigs, server: Server) -> None:
        """Applies the limits that can be changed while the broker runs."""
        admission = server.admission
        server.turns.is_enabled = configs.bool_value("fair.sharing.enabled")
        admission.connections_max = configs.int_value("max.connections")
        admission.per_address_max = configs.int_value("max.connections.per.ip")
        self.accept_rates.set_rate(configs.int_value("max.connection.creation.rate"))
        overrides = configs.text_value("max.connections.per.ip.overrides")
        self._address_limits.apply(overrides, admission)

    async def run(self) -> None:
        """Keeps the certificates and the addresses of hosts up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._address_limits.run())
            if self.certificates is not None:
                tasks.create_task(self.certificates.run())

    def _sessions(self, security: ListenerSecurity) -> Callable[[Peer], Session]:
        if security.sasl is not None and self.logins is not None:
            return self.logins.sessions(security)
        return partial(self._session, security)

    def _session(self, security: ListenerSecurity, peer: Peer) -> Session:
        """Returns a session for the user of the client's certificate, if it has one."""
        name, user = security.listener.name, None
        if security.tls is not None and self.certificates is not None:
            user = self._certificate_user(name, peer, self.certificates)
        return self._new_session(peer, Identity(user or ANONYMOUS, peer.host, name))

    def _certificate_user(
        self, name: str, peer: Peer, certificates: ListenerCertificates
    ) -> str | None:
        try:
            user = certificates.principal(name, peer)
        except SessionRefused:
            self._record_bad_certificate(name, peer.host)
            raise
        if user is not None:
            origin = origin_of(Identity(user, peer.host, name))
            self._audit.record(login(origin, self._audit.now_ms(), _CERTIFICATE))
        return user

    def _record_bad_certificate(self, name: str, address: str) -> None:
        origin, why = Origin(None, address, name), LoginFailure.CERTIFICATE
        self._audit.record(login_denied(origin, self._audit.now_ms(), _CERTIFICATE, why))


def stored_endpoints(endpoints: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """Returns what a broker registers: nothing if its only listener is PLAINTEXT."""
    return () if [each.name for each in endpoints] == [PLAINTEXT] else endpoints
