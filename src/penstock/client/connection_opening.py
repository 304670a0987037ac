"""Opens a connection to a broker: TCP, TLS, API versions, login. Each failure says what to do."""

from __future__ import annotations

import errno
import socket

from penstock.client.address import Address
from penstock.client.connection import Connection, ConnectionConfig
from penstock.client.errors import (
    ConnectFailed,
    ConnectionLost,
    OptionError,
    RequestTimedOut,
    TlsFailed,
)
from penstock.net.client_tls import CLIENT_SETTINGS, ConnectionSecurity, tls_problem
from penstock.net.tls_refused import TlsRefused
from penstock.ports import Network


async def open_connection(
    network: Network,
    address: Address,
    config: ConnectionConfig,
    security: ConnectionSecurity | None = None,
) -> Connection:
    """Opens a connection, negotiates API versions and logs in, or raises a `ClientError`."""
    connection = Connection(address, config, security)
    limit_s = config.connect_timeout_s
    try:
        if security is None:
            await network.connect(address.host, address.port, lambda: connection, limit_s)
        else:
            await security.connect(network, address, lambda: connection, limit_s)
    except TlsRefused as error:
        raise OptionError(str(error)) from error
    except OSError as error:
        raise _connect_error(error, address, config, security) from error
    try:
        await connection.negotiate()
        await connection.log_in()
    except BaseException as error:
        connection.abort()
        # Nothing was requested yet, so nothing can have taken effect: it is safe to try another
        # broker.
        match error:
            case ConnectionLost():
                raise ConnectFailed(str(address), connection.closed_early) from error
            case RequestTimedOut():
                silent = f"it did not answer within {config.request_timeout_s:g} s"
                raise ConnectFailed(str(address), silent) from error
        raise
    return connection


def _connect_error(
    error: OSError, address: Address, config: ConnectionConfig, security: ConnectionSecurity | None
) -> ConnectFailed:
    if security is not None and security.tls is not None:
        problem = tls_problem(error, address.host, CLIENT_SETTINGS)
        if problem is not None:
            kind = TlsFailed if problem.is_lasting else ConnectFailed
            return kind(str(address), problem.reason)
    return ConnectFailed(str(address), _reason(error, config.connect_timeout_s))


def _reason(error: OSError, timeout_s: float) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    # If several addresses of one name fail, the combined error has no errno.
    if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    return error.strerror or str(error)
