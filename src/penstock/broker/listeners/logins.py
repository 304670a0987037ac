"""The logins of a broker's listeners with SASL."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from penstock.broker.access.credentials import UserCredentials
from penstock.broker.audit.trail import AuditTrail
from penstock.broker.dispatch import Dispatcher
from penstock.broker.identity import Identity
from penstock.broker.listeners.login_work import LoginWork
from penstock.broker.listeners.mechanisms import OAUTHBEARER, offered_mechanisms
from penstock.broker.listeners.sasl_login import LoginService, SaslLogin
from penstock.net.session import Peer, Session
from penstock.ports import Env
from penstock.security.listener_security import ListenerSecurity
from penstock.security.sasl_session import SaslSettings

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class ListenerLogins:
    """Makes the sessions of connections whose clients must authenticate."""

    def __init__(
        self,
        env: Env,
        credentials: UserCredentials,
        dispatcher: Dispatcher,
        new_session: Callable[[Peer, Identity], Session],
        spawn: Spawn,
        audit: AuditTrail,
    ) -> None:
        self._env = env
        self._credentials = credentials
        self._dispatcher = dispatcher
        self._new_session = new_session
        self._spawn = spawn
        self._audit = audit
        self._work = LoginWork(env.executor, spawn)
        self.services: dict[str, LoginService] = {}
        """By the name of the listener."""

    def sessions(self, security: ListenerSecurity) -> Callable[[Peer], Session]:
        """Returns what makes the sessions of a listener's connections."""
        name, sasl = security.listener.name, security.sasl
        if sasl is None:
            raise ValueError(f"listener {name} has no SASL")
        issuer = None
        if OAUTHBEARER in sasl.mechanisms:
            # Loads a library for keys and signatures, which most brokers do not need.
            from penstock.broker.listeners import token_issuer  # noqa: PLC0415

            settings = sasl.of_mechanism[OAUTHBEARER]
            issuer = token_issuer.TokenIssuer(
                token_issuer.token_rules(settings),
                token_issuer.keys_url(settings),
                self._env.clock,
                self._env.random,
                self._env.executor,
                self._spawn,
            )
            self._spawn(issuer.run())
        mechanisms = offered_mechanisms(
            sasl, self._credentials, self._env.random, None if issuer is None else issuer.check
        )
        self.services[name] = LoginService(
            name,
            SaslSettings(
                failure_delay_ms=security.failed_authentication_delay_ms,
                frame_bytes_max=sasl.receive_bytes_max,
            ),
            mechanisms,
            self._env.clock,
            self._dispatcher,
            self._new_session,
            self._work,
            self._audit,
            None if issuer is None else issuer.fetch_keys,
            self._credentials.tokens.is_valid,
        )
        return partial(SaslLogin, self.services[name])
