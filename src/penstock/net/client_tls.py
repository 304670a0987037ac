"""Connections with TLS on the side that connects, and what a failed handshake means.

A connection with TLS always uses real sockets: `ports.Network` knows nothing of TLS. Certificates
are read again for each connection, so that new files are used without a restart.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.net.sockets import tune
from penstock.net.tls_handshake import TlsHandshake
from penstock.net.tls_layer import TlsLayer
from penstock.ports import Executor, Network, Random, Receiver, Transport

if TYPE_CHECKING:
    from penstock.security.client_login import Login


@dataclass(frozen=True, slots=True)
class ConnectionSecurity:
    """How connections to brokers are secured. One value serves all connections of a client."""

    random: Random
    executor: Executor
    """Hashes passwords, reads certificates, and does TLS handshakes."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the context of the next connection; called on the executor. None: no TLS.
    `TlsContexts.client` and `ClientContexts.context` are such functions."""
    login: Login | None = None
    """None: no SASL."""

    async def connect(
        self,
        network: Network,
        address: tuple[str, int],
        receiver: Callable[[], Receiver],
        timeout_s: float,
    ) -> Transport:
        """Connects, with TLS if it is on. Raises OSError, and what `tls` raises.

        With TLS it uses real sockets instead of `network`.
        """
        if self.tls is None:
            return await network.connect(*address, receiver, timeout_s)
        context = await self.executor.run(self.tls)
        return await connect_tls(context, address, receiver, timeout_s, self.executor)


async def connect_tls(
    context: ssl.SSLContext,
    address: tuple[str, int],
    receiver: Callable[[], Receiver],
    timeout_s: float,
    executor: Executor,
) -> Transport:
    """Connects. Raises OSError, which includes TimeoutError and a failed handshake."""
    async with asyncio.timeout(timeout_s):
        sock = await _connected(*address)
        layer: TlsLayer | None = None
        try:
            tune(sock)
            secured = await TlsHandshake(sock, lambda: context, address[0]).run(executor)
            layer = TlsLayer(secured, receiver())
            protocol = cast(Callable[[], asyncio.Protocol], lambda: layer)
            await asyncio.get_running_loop().create_connection(protocol, sock=sock)
        except BaseException:
            # The caller gets no transport, so it cannot close it. The socket belongs to the
            # transport if there is one.
            if layer is None:
                sock.close()
            else:
                layer.abort()
            raise
    if layer.refusal is not None:
        raise layer.refusal
    return layer


async def _connected(host: str, port: int) -> socket.socket:
    """Returns a socket that is connected to one of the addresses of a host. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(f"{host!r} has no address to connect to")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # the system has no IPv6, or no file descriptor is left
            failure = error
            continue
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
        sock.close()
    raise failure


class SettingNames(NamedTuple):
    """The names of the settings that errors suggest."""

    authority: str
    certificate: str
    host_check: str
    protocol: str


CLIENT_SETTINGS: Final = SettingNames(
    "ssl_ca", "ssl_certificate and ssl_key", "ssl_check_hostname=False", "security_protocol"
)
BROKER_SETTINGS: Final = SettingNames(
    "ssl.truststore.location",
    "ssl.keystore.location",
    "an empty ssl.endpoint.identification.algorithm",
    "listener.security.protocol.map",
)


class TlsProblem(NamedTuple):
    """Why a connection with TLS failed."""

    reason: str
    """What happened, and what to do."""
    is_lasting: bool
    """Whether another attempt would fail in the same way until someone changes something."""


def tls_problem(error: BaseException, host: str, names: SettingNames) -> TlsProblem | None:
    """Returns why TLS failed, or None if the error has nothing to do with TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsProblem(_distrust(error, host, names), True)
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | ConnectionAbortedError):
        return TlsProblem(
            "it closed the connection during the TLS handshake: check that this port uses TLS "
            f"({names.protocol}), and whether the broker has logged the reason",
            False,
        )
    if isinstance(error, TimeoutError):
        return TlsProblem(
            "no answer in time: check that it is running, and that this port uses TLS "
            f"({names.protocol})",
            False,
        )
    if isinstance(error, ssl.SSLError):
        return TlsProblem(_refusal(error, names), True)
    return None


def _distrust(error: ssl.SSLCertVerificationError, host: str, names: SettingNames) -> str:
    """Explains why this side does not accept the broker's certificate."""
    match error.verify_code:
        case 10:
            return (
                "the broker's certificate has expired: replace it, or check the clock of this "
                "machine"
            )
        case 9:
            return "the broker's certificate is not valid yet: check the clock of this machine"
        case 62 | 64:
            return (
                f"the broker's certificate is not for {host}: connect by a name that it contains, "
                f"issue one for {host}, or accept any name with {names.host_check}"
            )
        case 2 | 18 | 19 | 20 | 21:
            return (
                "the broker's certificate was issued by a CA that is not trusted: set "
                f"{names.authority} to that CA's certificate"
            )
    return f"the broker's certificate is not accepted: {error.verify_message}"


_REFUSALS: Final = {
    "CERTIFICATE_REQUIRED": "the broker requires a certificate: set {certificate}",
    "UNKNOWN_CA": (
        "the broker does not trust the CA that issued the certificate sent to it: use another "
        "certificate with {certificate}, or add the CA to the broker's truststore"
    ),
    "CERTIFICATE_EXPIRED": (
        "the certificate sent to the broker has expired: replace it in {certificate}"
    ),
    "CERTIFICATE_REVOKED": (
        "the certificate sent to the broker is revoked: replace it in {certificate}"
    ),
    "BAD_CERTIFICATE": (
        "the broker does not accept the certificate sent to it: check {certificate}"
    ),
    "HANDSHAKE_FAILURE": (
        "the broker requires a certificate, or the two sides share no cipher suite: set "
        "{certificate}"
    ),
    "PROTOCOL_VERSION": "the two sides share no TLS version: use TLS 1.2 or 1.3",
    "WRONG_VERSION_NUMBER": (
        "it answers without TLS: set {protocol} to the protocol of this port, or use another port"
    ),
}
"""By the last words of OpenSSL's reason."""


def _refusal(error: ssl.SSLError, names: SettingNames) -> str:
    """Explains why the broker refused this side, or what it sent instead of TLS."""
    reason = error.reason or ""
    for words, text in _REFUSALS.items():
        if reason.endswith(words):
            return text.format(certificate=names.certificate, protocol=names.protocol)
    shown = reason.lower().replace("_", " ") if reason else str(error)
    return f"the TLS handshake failed ({shown})"
