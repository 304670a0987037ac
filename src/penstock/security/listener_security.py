"""The security settings of one listener, under Kafka's names.

A setting such as `ssl.client.auth` holds for all listeners. With the prefix
`listener.name.external.` it holds only for the listener EXTERNAL, and takes precedence there. A
setting of one SASL mechanism also has the mechanism's name in lower case:
`listener.name.external.scram-sha-256.sasl.jaas.config`.

A setting that is missing, misspelled, or without effect is an error: a broker must not start with
less security than its settings ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from penstock.security.listeners import Listener
from penstock.security.principal_rules import PrincipalRules, RulesInvalid, parse_rules

PREFIX: Final = "listener.name."
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The SASL mechanisms that brokers support. Kafka's default, GSSAPI, is not among them, so
`sasl.enabled.mechanisms` must be set."""
PEM_CHARS_MAX: Final = 1 << 20
"""The longest PEM text of a certificate chain, a key or a truststore."""

_TLS_1_3_SUITES: Final = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
)
_TLS_1_2_SUITES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": "DHE-RSA-AES128-GCM-SHA256",
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": "DHE-RSA-AES256-GCM-SHA384",
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "DHE-RSA-CHACHA20-POLY1305",
}
"""Kafka's names for the suites of TLS 1.2 -> OpenSSL's. Older suites are not supported."""

_TLS_KEYS: Final = (
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.principal.mapping.rules",
    "ssl.protocol",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
_REAUTH: Final = "connections.max.reauth.ms"
_MECHANISM_LIST: Final = "sasl.enabled.mechanisms"
_RECEIVE_SIZE: Final = "sasl.server.max.receive.size"
_DELAY: Final = "connection.failed.authentication.delay.ms"
_SASL_KEYS: Final = (_MECHANISM_LIST, _RECEIVE_SIZE, _REAUTH)
_LIMIT_KEYS: Final = (_DELAY, "max.connections", "max.connection.creation.rate")
_JAAS: Final = "sasl.jaas.config"


class SecurityInvalid(ValueError):
    """The security settings of a listener are invalid. The message names the setting."""


class ClientAuth(StrEnum):
    """Whether clients must show a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class TlsProtocol(StrEnum):
    TLS_1_2 = "TLSv1.2"
    TLS_1_3 = "TLSv1.3"


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text, or the path of a file that contains it."""

    key: str
    """The setting that it comes from, for errors."""
    text: str | None = field(default=None, repr=False)
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Keystore:
    """A private key, its certificate, and the certificates that lead to the authority."""

    chain: Pem
    private_key: Pem
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    keystore: Keystore | None
    """None only for a client without a certificate."""
    truststore: Pem | None
    """The authorities to trust. None: a server asks for no certificates, and a client trusts the
    authorities of its system."""
    client_auth: ClientAuth
    protocols: frozenset[TlsProtocol]
    ciphers: tuple[str, ...]
    """Suites for TLS 1.2, under OpenSSL's names. Empty for OpenSSL's default."""
    rules: PrincipalRules
    verifies_host_name: bool
    """As a client: whether the server's certificate must be for its host name."""
    allows_dn_changes: bool
    allows_san_changes: bool


@dataclass(frozen=True, slots=True)
class SaslSettings:
    mechanisms: tuple[str, ...]
    receive_bytes_max: int
    reauth_ms: Mapping[str, int]
    """By mechanism: after how long a client must authenticate again. 0 for never."""
    of_mechanism: Mapping[str, Mapping[str, str]] = field(repr=False)
    """By mechanism: all settings that begin with `sasl.`. They may contain passwords."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    listener: Listener
    tls: TlsSettings | None
    sasl: SaslSettings | None
    failed_authentication_delay_ms: int
    max_connections: int | None
    """The limit of this listener. The broker-wide `max.connections` holds in addition."""
    max_connection_creation_rate: int | None
    """The same, in connections per second."""


def parse_security(
    settings: Mapping[str, str], listeners: Sequence[Listener]
) -> Mapping[str, ListenerSecurity]:
    """Returns the security settings of each listener by its name. Raises `SecurityInvalid`."""
    own = _by_listener(settings, listeners)
    return MappingProxyType(
        {each.name: _security(each, settings, own[each.name]) for each in listeners}
    )


def parse_client_tls(settings: Mapping[str, str]) -> TlsSettings:
    """Reads the `ssl.` settings of a client. Its certificate is optional. Raises
    `SecurityInvalid`."""
    return _tls(_Values(settings, {}, ""), ClientAuth.NONE, is_server=False)


def _by_listener(
    settings: Mapping[str, str], listeners: Sequence[Listener]
) -> dict[str, dict[str, str]]:
    """Returns the settings with the prefix of each listener, without the prefix."""
    found: dict[str, dict[str, str]] = {each.name: {} for each in listeners}
    prefixes = {each.name.lower(): each.name for each in listeners}
    for key, value in settings.items():
        if not key.startswith(PREFIX):
            continue
        name, _, rest = key.removeprefix(PREFIX).partition(".")
        if name not in prefixes:
            raise SecurityInvalid(
                f"{key} is for a listener that does not exist: the listeners are "
                f"{', '.join(prefixes)}, to be written in lower case"
            )
        found[prefixes[name]][rest] = value
    return found


@dataclass(frozen=True, slots=True)
class _Values:
    """The settings of one listener, with their full names for errors."""

    shared: Mapping[str, str] = field(repr=False)
    own: Mapping[str, str] = field(repr=False)
    prefix: str

    def get(self, key: str) -> str | None:
        return self.own.get(key, self.shared.get(key))

    def name(self, key: str) -> str:
        """Returns the name under which the setting was given."""
        return self.prefix + key if key in self.own else key

    def invalid(self, key: str, problem: str) -> SecurityInvalid:
        return SecurityInvalid(f"{self.name(key)} {problem}")

    def items(self, key: str) -> list[str]:
        return [item.strip() for item in (self.get(key) or "").split(",") if item.strip()]

    def boolean(self, key: str) -> bool:
        value = (self.get(key) or "false").strip().lower()
        if value not in ("true", "false"):
            raise self.invalid(key, "must be true or false")
        return value == "true"

    def number(self, key: str, default: int) -> int:
        return _number(self.name(key), self.get(key), default)


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    digits = text.strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise SecurityInvalid(f"{name} is {text!r}; it must be a whole number, at least 0")
    return int(digits)


def _security(
    listener: Listener, shared: Mapping[str, str], own: Mapping[str, str]
) -> ListenerSecurity:
    prefix = f"{PREFIX}{listener.name.lower()}."
    values = _Values(shared, own, prefix)
    _check_names(listener, values)
    tls = sasl = None
    if listener.protocol.uses_tls:
        tls = _tls(values, _client_auth(listener, values), is_server=True)
    if listener.protocol.uses_sasl:
        sasl = _sasl(values)
    # Limits of a listener have only the prefixed name: the other one is the limit of the broker.
    limits = {
        key: _number(prefix + key, own[key], 0)
        for key in ("max.connections", "max.connection.creation.rate")
        if key in own
    }
    return ListenerSecurity(
        listener,
        tls,
        sasl,
        values.number(_DELAY, 100),
        limits.get("max.connections"),
        limits.get("max.connection.creation.rate"),
    )


def _check_names(listener: Listener, values: _Values) -> None:
    """Refuses settings of the listener that are unknown or would have no effect."""
    protocol = listener.protocol
    for key in values.own:
        mechanism = _mechanism_of(key)
        is_sasl = mechanism is not None or key in _SASL_KEYS or key.startswith("sasl.oauthbearer.")
        if key in _LIMIT_KEYS:
            continue
        if key not in _TLS_KEYS and not is_sasl:
            similar = get_close_matches(key, (*_TLS_KEYS, *_SASL_KEYS, *_LIMIT_KEYS), n=1)
            hint = f": did you mean {values.prefix}{similar[0]}?" if similar else ""
            raise values.invalid(key, f"is not a setting of a listener{hint}")
        if not (protocol.uses_sasl if is_sasl else protocol.uses_tls):
            raise values.invalid(
                key,
                f"has no effect: the listener {listener.name} uses {protocol}; change it in "
                "listener.security.protocol.map, or remove the setting",
            )


def _mechanism_of(key: str) -> str | None:
    """Returns the mechanism of a setting such as `scram-sha-256.sasl.jaas.config`."""
    name, dot, _ = key.partition(".")
    if dot and name.upper() in MECHANISMS and name == name.lower():
        return name.upper()
    return None


def _client_auth(listener: Listener, values: _Values) -> ClientAuth:
    """With SASL, only the listener's own setting counts, as in Kafka: the users there are those of
    SASL, and their clients usually have no certificate."""
    key = "ssl.client.auth"
    value = values.own.get(key) if listener.protocol.uses_sasl else values.get(key)
    if value is None:
        return ClientAuth.NONE
    try:
        return ClientAuth(value.strip())
    except ValueError:
        raise values.invalid(key, "must be none, requested or required") from None


def _tls(values: _Values, client_auth: ClientAuth, is_server: bool) -> TlsSettings:
    keystore = _keystore(values)
    if is_server and keystore is None:
        raise SecurityInvalid(
            f"{values.prefix}ssl.keystore.location is missing: a listener with TLS needs a PEM "
            "file with its key and certificates"
        )
    truststore = _truststore(values)
    if client_auth is not ClientAuth.NONE and truststore is None:
        raise SecurityInvalid(
            f"{values.prefix}ssl.truststore.location is missing: to check the certificates of "
            f"clients ({values.name('ssl.client.auth')}={client_auth}), a listener needs a PEM "
            "file with the authorities to trust"
        )
    protocols, ciphers = _suites(values, _protocols(values))
    rules = values.get("ssl.principal.mapping.rules")
    try:
        parsed = parse_rules("DEFAULT" if rules is None else rules)
    except RulesInvalid as error:
        raise SecurityInvalid(f"{values.name('ssl.principal.mapping.rules')}: {error}") from error
    return TlsSettings(
        keystore,
        truststore,
        client_auth,
        protocols,
        ciphers,
        parsed,
        _verifies_host_name(values),
        values.boolean("ssl.allow.dn.changes"),
        values.boolean("ssl.allow.san.changes"),
    )


def _verifies_host_name(values: _Values) -> bool:
    key = "ssl.endpoint.identification.algorithm"
    value = values.get(key)
    if value is not None and value.strip().lower() not in ("https", ""):
        raise values.invalid(key, "must be https, or empty to accept any host name")
    return value is None or bool(value.strip())


def _keystore(values: _Values) -> Keystore | None:
    _check_pem(values, "ssl.keystore")
    password = values.get("ssl.key.password")
    chain = _pem_text(values, "ssl.keystore.certificate.chain")
    private_key = _pem_text(values, "ssl.keystore.key")
    location = values.get("ssl.keystore.location")
    if location:
        if chain or private_key:
            raise values.invalid(
                "ssl.keystore.location", "is set, and so is a key or certificate: use one of them"
            )
        both = Pem(values.name("ssl.keystore.location"), path=location)
        return Keystore(both, both, password)
    if not chain and not private_key:
        return None
    if chain is None:
        raise SecurityInvalid(
            f"{values.prefix}ssl.keystore.certificate.chain is missing: ssl.keystore.key is set, "
            "and a key needs its certificate"
        )
    if private_key is None:
        raise SecurityInvalid(
            f"{values.prefix}ssl.keystore.key is missing: ssl.keystore.certificate.chain is set, "
            "and a certificate needs its key"
        )
    return Keystore(chain, private_key, password)


def _truststore(values: _Values) -> Pem | None:
    _check_pem(values, "ssl.truststore")
    text = _pem_text(values, "ssl.truststore.certificates")
    location = values.get("ssl.truststore.location")
    if not location:
        return text
    if text:
        raise values.invalid(
            "ssl.truststore.location", "is set, and so are certificates: use one of them"
        )
    return Pem(values.name("ssl.truststore.location"), path=location)


def _check_pem(values: _Values, store: str) -> None:
    kind = values.get(f"{store}.type")
    if kind is not None and kind.strip().upper() != "PEM":
        raise values.invalid(
            f"{store}.type", "must be PEM: convert the store with keytool and openssl"
        )
    if values.get(f"{store}.password"):
        raise values.invalid(
            f"{store}.password", "cannot be used with PEM: protect the key with ssl.key.password"
        )


def _pem_text(values: _Values, key: str) -> Pem | None:
    text = values.get(key)
    if not text or not text.strip():
        return None
    if "-----BEGIN " not in text or len(text) > PEM_CHARS_MAX:
        raise values.invalid(
            key, f"must be PEM text with -----BEGIN, of at most {PEM_CHARS_MAX} characters"
        )
    return Pem(values.name(key), text)


def _protocols(values: _Values) -> frozenset[TlsProtocol]:
    key = "ssl.enabled.protocols"
    if values.get(key) is None:
        return frozenset(TlsProtocol)
    try:
        found = frozenset(TlsProtocol(item) for item in values.items(key))
    except ValueError:
        found = frozenset()
    if not found:
        raise values.invalid(key, f"must be a list of {' and '.join(TlsProtocol)}")
    return found


def _suites(
    values: _Values, protocols: frozenset[TlsProtocol]
) -> tuple[frozenset[TlsProtocol], tuple[str, ...]]:
    """Returns the protocols that have a suite, and OpenSSL's names of the suites for TLS 1.2."""
    key = "ssl.cipher.suites"
    names = values.items(key)
    if not names:
        return protocols, ()
    known = {*_TLS_1_3_SUITES, *_TLS_1_2_SUITES, *_TLS_1_2_SUITES.values()}
    for name in names:
        if name not in known:
            raise values.invalid(key, f"has {name!r}, which is unknown or no longer secure")
    newer = set(names) & set(_TLS_1_3_SUITES)
    older = tuple(_TLS_1_2_SUITES.get(name, name) for name in names if name not in newer)
    usable = {TlsProtocol.TLS_1_2: bool(older), TlsProtocol.TLS_1_3: bool(newer)}
    remaining = frozenset(protocol for protocol in protocols if usable[protocol])
    if not remaining:
        raise values.invalid(key, "has no suite for a protocol in ssl.enabled.protocols")
    if TlsProtocol.TLS_1_3 in remaining and len(newer) < len(_TLS_1_3_SUITES):
        raise values.invalid(
            key,
            "has only some suites of TLS 1.3, which cannot be chosen one by one: list all of them "
            f"({', '.join(_TLS_1_3_SUITES)}) or none, which turns TLS 1.3 off",
        )
    return remaining, older


def _sasl(values: _Values) -> SaslSettings:
    mechanisms = tuple(dict.fromkeys(item.upper() for item in values.items(_MECHANISM_LIST)))
    if not mechanisms:
        raise SecurityInvalid(
            f"{values.prefix}{_MECHANISM_LIST} is missing: a listener with SASL needs at least one "
            f"of {', '.join(MECHANISMS)}"
        )
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise values.invalid(
                _MECHANISM_LIST,
                f"has {mechanism}, which is not supported; use {', '.join(MECHANISMS)}",
            )
    for key in values.own:
        if (mechanism := _mechanism_of(key) or "") and mechanism not in mechanisms:
            raise values.invalid(key, f"has no effect: {mechanism} is not in {_MECHANISM_LIST}")
    receive = values.number(_RECEIVE_SIZE, 524_288)
    if receive == 0:
        raise values.invalid(_RECEIVE_SIZE, "must be above 0")
    merged = {mechanism: _of_mechanism(values, mechanism) for mechanism in mechanisms}
    return SaslSettings(
        mechanisms,
        receive,
        MappingProxyType({each: _reauth(values, each) for each in mechanisms}),
        MappingProxyType({each: MappingProxyType(found) for each, found in merged.items()}),
    )


def _of_mechanism(values: _Values, mechanism: str) -> dict[str, str]:
    """Returns the `sasl.` settings of a mechanism. Credentials (JAAS) must name the mechanism."""
    prefix = f"{mechanism.lower()}."
    found = {
        key: value
        for source in (values.shared, values.own)
        for key, value in source.items()
        if key.startswith("sasl.") and key != _JAAS
    }
    found.update(
        (key.removeprefix(prefix), value)
        for key, value in values.own.items()
        if key.startswith(prefix)
    )
    return found


def _reauth(values: _Values, mechanism: str) -> int:
    key = f"{mechanism.lower()}.{_REAUTH}"
    if key in values.own:
        return _number(values.prefix + key, values.own[key], 0)
    return values.number(_REAUTH, 0)
