"""The TLS contexts of one listener: built from its settings, tried, and replaced without a restart.

A context is never changed once it is in use. A reload builds new contexts, tries them by a
handshake in memory, and only then uses them for new connections. If anything is wrong with the new
files, the old contexts stay in use. Open connections keep the context that they began with.

A new context accepts no TLS session of an old one. So a client whose authority is no longer trusted
cannot resume a session. Where clients show certificates, no session tickets are given out at all.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.net.tls_refused import TlsRefused
from penstock.security.certificates import CertificatesInvalid, Description, describe
from penstock.security.listener_security import (
    PEM_CHARS_MAX,
    ClientAuth,
    Keystore,
    Pem,
    TlsProtocol,
    TlsSettings,
)
from penstock.security.principal_rules import PrincipalRefused

ReadFile = Callable[[str], bytes]
"""Returns the contents of a file. Raises OSError."""

CONTEXT_USES_MAX: Final = 16
"""For how many connections a context is used that keeps the certificates of clients. OpenSSL
accepts 100 KiB of certificates from a client and keeps them in up to 600 KiB. So while a connection
is open, its context holds 10 MiB at most."""

_VERSIONS: Final = {
    TlsProtocol.TLS_1_2: ssl.TLSVersion.TLSv1_2,
    TlsProtocol.TLS_1_3: ssl.TLSVersion.TLSv1_3,
}
_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
_FLIGHTS_MAX: Final = 10
"""A handshake takes fewer turns than this."""
_PEM_LINE: Final = re.compile(r"--\s*(BEGIN|END)\b(?!.*(KEY|PARAMETERS))", re.IGNORECASE)
"""Finds the first and the last line of everything but keys, also if the line is damaged."""


@dataclass(frozen=True, slots=True)
class _Files:
    """What the settings refer to, as read."""

    chain: str = field(repr=False)
    private_key: str = field(repr=False)
    trusted: str | None = field(repr=False)


class _Server:
    """Returns the contexts of a listener's connections: one after the other, all alike."""

    def __init__(self, settings: TlsSettings, files: _Files) -> None:
        self._settings = settings
        self._files = files
        self._context = _server_context(settings, files)
        self._uses = 0
        self._keeps_certificates = (
            settings.client_auth is not ClientAuth.NONE
            and TlsProtocol.TLS_1_2 in settings.protocols
        )

    def context(self) -> ssl.SSLContext:
        """Returns the context for one more connection."""
        if self._keeps_certificates and self._uses >= CONTEXT_USES_MAX:
            self._context = _server_context(self._settings, self._files)
            self._uses = 0
        self._uses += 1
        return self._context


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Everything that a reload replaces."""

    settings: TlsSettings
    files: _Files
    server: _Server
    client: ssl.SSLContext
    chain: tuple[Description, ...]
    trusted: tuple[Description, ...]


class TlsContexts:
    """The contexts of one listener. Loading and reloading read files, so call them on a thread."""

    def __init__(
        self,
        settings: TlsSettings,
        read_file: ReadFile,
        now_ms: int,
        *,
        is_inter_broker: bool = False,
    ) -> None:
        """Loads the contexts. Raises `TlsRefused`.

        With `is_inter_broker`, brokers use the certificate also as clients of each other, so it
        must be one that the truststore accepts.
        """
        self._read_file = read_file
        self._is_inter_broker = is_inter_broker
        self._reloading = threading.Lock()
        self._loaded = self._load(settings, _read(settings, read_file), now_ms)
        self.reloads = 0
        """How often new files were put to use."""
        self.reloads_refused = 0
        """How often new files were refused."""

    def server(self) -> ssl.SSLContext:
        """Returns the context for the next connection that is accepted. Do not use it for others.

        Raises `TlsRefused` if no file descriptor is left: at times a new context is made.
        """
        return self._loaded.server.context()

    def client(self) -> ssl.SSLContext:
        """Returns the context for the next connection to another broker."""
        return self._loaded.client

    @property
    def settings(self) -> TlsSettings:
        return self._loaded.settings

    @property
    def certificate(self) -> Description:
        """The certificate in use."""
        return self._loaded.chain[0]

    @property
    def expires_ms(self) -> int:
        """When the first certificate of the chain in use expires."""
        return min(each.not_after_ms for each in self._loaded.chain)

    @property
    def trusted_expires_ms(self) -> int | None:
        """When the first certificate of the truststore expires. None without a truststore."""
        return min((each.not_after_ms for each in self._loaded.trusted), default=None)

    def reload(self, now_ms: int, settings: TlsSettings | None = None) -> bool:
        """Reads the files again, or those of new settings. Returns whether anything has changed.

        Raises `TlsRefused` if the new files cannot be used. The old contexts then stay in use.
        If another reload is under way, this one begins after it.
        """
        with self._reloading:
            try:
                new = self._reloaded(self._loaded, settings or self._loaded.settings, now_ms)
            except TlsRefused:
                self.reloads_refused += 1
                raise
            if new is None:
                return False
            self._loaded = new
            self.reloads += 1
            return True

    def _reloaded(self, old: _Loaded, settings: TlsSettings, now_ms: int) -> _Loaded | None:
        files = _read(settings, self._read_file)
        if files == old.files and settings == old.settings:
            return None
        new = self._load(settings, files, now_ms)
        _check_change(old.chain[0], new.chain[0], settings)
        if self._is_inter_broker:
            _check_pair(old, new)
        return new

    def _load(self, settings: TlsSettings, files: _Files, now_ms: int) -> _Loaded:
        keystore = _keystore_of(settings)
        chain = _described(keystore.chain, files.chain)
        _check_chain(keystore.chain, files.chain, chain, now_ms)
        trusted: tuple[Description, ...] = ()
        if settings.truststore is not None and files.trusted is not None:
            trusted = _described(settings.truststore, files.trusted)
            if not any(each.is_valid_at(now_ms) for each in trusted):
                raise TlsRefused(
                    f"{settings.truststore.key}: all certificates have expired, or are not valid "
                    "yet: replace them, and check the clock of this machine"
                )
        server = _Server(settings, files)
        client = _client_context(settings, files)
        _try(keystore, settings, files)
        loaded = _Loaded(settings, files, server, client, chain, trusted)
        if self._is_inter_broker:
            _check_pair(loaded, loaded)
        return loaded


def client_context(settings: TlsSettings, read_file: ReadFile) -> ssl.SSLContext:
    """Returns a context for a client, which may have no certificate. Raises `TlsRefused`."""
    return _client_context(settings, _read(settings, read_file))


class ClientContexts:
    """The contexts of a client. It makes a new one when the files have changed."""

    def __init__(self, settings: TlsSettings, read_file: ReadFile) -> None:
        self._settings = settings
        self._read_file = read_file
        self._loaded: tuple[_Files, ssl.SSLContext] | None = None

    def context(self) -> ssl.SSLContext:
        """Returns the context for the next connection. It reads files, so call it on a thread.

        Raises `TlsRefused`.
        """
        files = _read(self._settings, self._read_file)
        loaded = self._loaded
        if loaded is None or loaded[0] != files:
            loaded = self._loaded = (files, _client_context(self._settings, files))
        return loaded[1]


def peer_certificate(transport: Any, now_ms: int) -> bytes | None:
    """Returns the certificate of a connection's client in DER, already verified. None without one.

    Raises `PrincipalRefused` if it has expired: OpenSSL does not check this if a client of TLS 1.2
    resumes a session. `transport` is the one that `connection_made` received.
    """
    connection = transport.get_extra_info("ssl_object")
    if connection is None:
        return None
    certificate: bytes | None = connection.getpeercert(binary_form=True)
    if certificate is not None and connection.session_reused:
        try:
            (found,) = describe(ssl.DER_cert_to_PEM_cert(certificate))
        except (CertificatesInvalid, x509.InvalidVersion) as error:
            raise PrincipalRefused(f"the certificate cannot be read: {error}") from error
        if not found.is_valid_at(now_ms):
            raise PrincipalRefused(
                f"the certificate of {found.subject} has expired since its TLS session began"
            )
    return certificate


def _keystore_of(settings: TlsSettings) -> Keystore:
    if settings.keystore is None:
        raise TlsRefused("ssl.keystore.location is missing: a listener needs a key and certificate")
    return settings.keystore


def _read(settings: TlsSettings, read_file: ReadFile) -> _Files:
    chain = private_key = ""
    if settings.keystore is not None:
        chain = _text(settings.keystore.chain, read_file)
        private_key = chain
        if settings.keystore.private_key != settings.keystore.chain:
            private_key = _text(settings.keystore.private_key, read_file)
    trusted = None if settings.truststore is None else _text(settings.truststore, read_file)
    return _Files(chain, private_key, trusted)


def _text(pem: Pem, read_file: ReadFile) -> str:
    """Returns the PEM text. Characters that are not ASCII are left out: they can only be in
    comments."""
    if pem.text is not None:
        return pem.text.encode("ascii", "ignore").decode("ascii")
    path = pem.path or ""
    try:
        data = read_file(path)
    except OSError as error:
        raise TlsRefused(f"{pem.key}: cannot read {path}: {error.strerror or error}") from error
    if len(data) > PEM_CHARS_MAX:
        raise TlsRefused(f"{pem.key}: {path} has more than {PEM_CHARS_MAX} bytes")
    return data.decode("ascii", "ignore")


def _described(pem: Pem, text: str) -> tuple[Description, ...]:
    try:
        found = describe(text)
    except (CertificatesInvalid, x509.InvalidVersion) as error:
        raise TlsRefused(f"{pem.key}: {error}") from error
    lines = [match[1].upper() for match in _PEM_LINE.finditer(text)]
    for line in ("BEGIN", "END"):
        if lines.count(line) != len(found):
            raise TlsRefused(
                f"{pem.key}: only {len(found)} of its certificates can be read, but it has "
                f"{lines.count(line)} lines with -----{line}: it is damaged, or contains something "
                "other than certificates and keys"
            )
    return found


def _check_chain(pem: Pem, text: str, chain: tuple[Description, ...], now_ms: int) -> None:
    """Checks that clients can accept the certificates."""
    for each in chain:
        if not each.is_valid_at(now_ms):
            raise TlsRefused(
                f"{pem.key}: the certificate of {each.subject} has expired, or is not valid yet: "
                "replace it, and check the clock of this machine"
            )
    extensions = x509.load_pem_x509_certificates(text.encode())[0].extensions
    try:
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # it may be used for everything
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & {*uses}:
        raise TlsRefused(
            f"{pem.key}: the certificate of {chain[0].subject} is not for servers, so clients "
            "would refuse it: use one whose extended key usage has serverAuth"
        )


def _server_context(settings: TlsSettings, files: _Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _limit_suites(context, settings)
    _load_keystore(context, _keystore_of(settings), files)
    if settings.client_auth is not ClientAuth.NONE:
        if settings.truststore is None or files.trusted is None:
            raise TlsRefused(
                "ssl.truststore.location is missing: without it, client certificates cannot be "
                "checked"
            )
        _trust(context, settings.truststore, files.trusted)
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    context.verify_mode = _VERIFY_MODES[settings.client_auth]
    return context


def _client_context(settings: TlsSettings, files: _Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.verifies_host_name
    context.verify_mode = ssl.CERT_REQUIRED
    _limit_suites(context, settings)
    if settings.keystore is not None:
        _load_keystore(context, settings.keystore, files)
    if settings.truststore is not None and files.trusted is not None:
        _trust(context, settings.truststore, files.trusted)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _limit_suites(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = [_VERSIONS[protocol] for protocol in settings.protocols]
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)
    if settings.ciphers:
        try:
            context.set_ciphers(":".join(settings.ciphers))
        except ssl.SSLError as error:
            raise TlsRefused(
                f"ssl.cipher.suites: OpenSSL has none of {', '.join(settings.ciphers)}"
            ) from error


def _trust(context: ssl.SSLContext, pem: Pem, text: str) -> None:
    """Trusts these certificates, also if they are signed by others, as Java does."""
    try:
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise TlsRefused(
            f"{pem.key}: the certificates cannot be used ({_reason(error)})"
        ) from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _load_keystore(context: ssl.SSLContext, keystore: Keystore, files: _Files) -> None:
    # Without a password, OpenSSL would ask for one on the terminal.
    password = keystore.password or ""
    try:
        with _named(files.chain) as chain, _named(files.private_key) as private_key:
            context.load_cert_chain(chain, private_key, password)
    except (OSError, ValueError) as error:
        raise TlsRefused(
            f"{keystore.private_key.key}: the key cannot be used ({_reason(error)}): it must "
            f"belong to the first certificate of {keystore.chain.key}, and if it is encrypted, "
            "ssl.key.password must be its password"
        ) from error


def _reason(error: OSError | ValueError) -> str:
    """Returns OpenSSL's reason in words."""
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else str(error)


@contextmanager
def _named(text: str) -> Iterator[str]:
    """Gives a text a path: `ssl` loads keys only from paths. On Linux it stays in memory."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(text.encode("ascii"))
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as named:
            named.write(text)
            named.flush()
            yield named.name


def _try(keystore: Keystore, settings: TlsSettings, files: _Files) -> None:
    """Tries a handshake of each protocol with a client that accepts every server. The client has no
    certificate, so the server does not ask for one."""
    server = _server_context(settings, files)
    server.verify_mode = ssl.CERT_NONE
    for protocol in sorted(settings.protocols):
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        client.minimum_version = client.maximum_version = _VERSIONS[protocol]
        try:
            _shake_hands(server, client)
        except ssl.SSLError as error:
            raise TlsRefused(
                f"{keystore.chain.key}: a trial handshake of {protocol} with the new key and "
                f"certificate fails ({_reason(error)})"
            ) from error


def _check_pair(old: _Loaded, new: _Loaded) -> None:
    """Checks that brokers with the old and brokers with the new files can connect to each other,
    because not all brokers reload at the same time."""
    for server, client in ((old, new), (new, old)):
        trial = _client_context(client.settings, client.files)
        trial.check_hostname = False
        try:
            _shake_hands(server.server.context(), trial)
        except ssl.SSLError as error:
            raise TlsRefused(
                "brokers could not connect to each other: the truststore does not accept the "
                f"certificate of a broker ({_reason(error)}); add its CA to the truststore of all "
                "brokers first"
            ) from error


def _check_change(old: Description, new: Description, settings: TlsSettings) -> None:
    if old.subject != new.subject and not settings.allows_dn_changes:
        raise TlsRefused(
            f"the new certificate is for {new.subject}, the one in use for {old.subject}: set "
            "ssl.allow.dn.changes=true if this is intended"
        )
    if set(old.names) != set(new.names) and not settings.allows_san_changes:
        raise TlsRefused(
            f"the new certificate is for the hosts {', '.join(new.names)}, the one in use for "
            f"{', '.join(old.names)}: set ssl.allow.san.changes=true if this is intended"
        )


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Does a handshake in memory. Raises `ssl.SSLError` if one side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(sides)
    for _ in range(_FLIGHTS_MAX):
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            break
    else:
        raise ssl.SSLError("the handshake did not complete")
    # A server of TLS 1.3 may refuse the client's certificate after the client is done.
    with suppress(ssl.SSLWantReadError):
        sides[0].read(1)
