"""How a client secures its connections. Without TLS and SASL, nothing of either is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.net.client_tls import ConnectionSecurity
from penstock.ports import Executor, Random
from penstock.runtime import read_file

if TYPE_CHECKING:
    from penstock.client.connection_login import ConnectionLogin, Line
    from penstock.security.client_login import Login
    from penstock.security.listener_security import TlsSettings


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """How a client secures its connections, as its options say."""

    tls: TlsSettings | None = None
    login: Login | None = None

    def for_connections(self, random: Random, executor: Executor) -> ConnectionSecurity | None:
        """Returns what connections need; None for plain text."""
        if self.tls is None and self.login is None:
            return None
        if self.tls is None:
            return ConnectionSecurity(random, executor, None, self.login)
        from penstock.net.tls import ClientContexts  # noqa: PLC0415 -- only with TLS

        contexts = ClientContexts(self.tls, read_file)
        return ConnectionSecurity(random, executor, contexts.context, self.login)


def new_login(
    line: Line, address: str, security: ConnectionSecurity | None, timeout_s: float
) -> ConnectionLogin | None:
    """Returns the login of a connection; None if it needs none."""
    if security is None or security.login is None:
        return None
    from penstock.client.connection_login import ConnectionLogin  # noqa: PLC0415 -- only with SASL

    return ConnectionLogin(line, address, security.login, security, timeout_s)
