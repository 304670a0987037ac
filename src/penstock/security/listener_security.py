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

from penstock.security.listeners import Listener, SecurityProtocol
from penstock.security.mechanism_names import MECHANISM_NAMES
from penstock.security.principal_rules import PrincipalRules, RulesInvalid, parse_rules

PREFIX: Final = "listener.name."
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
    f"TLS_{exchange}_WITH_{cipher}": f"{exchange.replace('_', '-')}-{openssl}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for cipher, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""Kafka's names for the suites of TLS 1.2 -> OpenSSL's. Older suites are not supported."""

_TLS_NAMES: Final = """
    ssl.allow.dn.changes ssl.allow.san.changes ssl.cipher.suites ssl.client.auth
    ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.key.password
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.principal.mapping.rules ssl.truststore.certificates
    ssl.truststore.location ssl.truststore.password ssl.truststore.type"""
_OAUTH_NAMES: Final = """
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name"""
_TLS_KEYS: Final = tuple(_TLS_NAMES.split())
_OAUTH_KEYS: Final = tuple(_OAUTH_NAMES.split())
_AUTH: Final = "ssl.client.auth"
_REAUTH: Final = "connections.max.reauth.ms"
_MECHANISM_LIST: Final = "sasl.enabled.mechanisms"
_RECEIVE_SIZE: Final = "sasl.server.max.receive.size"
_DELAY: Final = "connection.failed.authentication.delay.ms"
_SASL_KEYS: Final = (_MECHANISM_LIST, _RECEIVE_SIZE, _REAUTH, *_OAUTH_KEYS)
_LIMIT_KEYS: Final = (_DELAY, "max.connections", "max.connection.creation.rate")
_JAAS: Final = "sasl.jaas.config"

_NO_EFFECT: Final = {
    "OpenSSL does this, not Java": """ssl.keymanager.algorithm ssl.provider
        ssl.secure.random.implementation ssl.trustmanager.algorithm""",
    "GSSAPI is not supported": "sasl.kerberos.",
    "there is no listener for controllers": "sasl.mechanism.controller.protocol",
    "it configures how Kafka's brokers log in to other servers": """sasl.login.
        sasl.client.callback.handler.class sasl.oauthbearer.assertion.
        sasl.oauthbearer.client.credentials. sasl.oauthbearer.header.urlencode
        sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.token.endpoint.url""",
}
"""Why a setting of Kafka has no effect -> the begins of such settings. None of them is a check, so
without them a broker is as secure. They cause a warning."""
_JAVA_CLASS: Final = "names a Java class, and its checks cannot run here: remove the setting"
_REFUSED: Final = {
    "ssl.protocol": "has no effect: write the protocols into ssl.enabled.protocols",
    "ssl.engine.factory.class": _JAVA_CLASS,
    "sasl.oauthbearer.jwt.validator.class": _JAVA_CLASS,
    "sasl.server.callback.handler.class": _JAVA_CLASS,
}
"""Settings of Kafka that would leave a gap if they were ignored -> the error."""
_KAFKA_CLASSES: Final = "org.apache.kafka.common.security."
"""Kafka's own classes make the checks that Penstock makes too, so naming one is no error."""
_ELSEWHERE: Final = ("connections.max.idle.ms", "sasl.mechanism.inter.broker.protocol")
_OF_BROKER: Final = (*_TLS_KEYS, *_SASL_KEYS, *_REFUSED, *_ELSEWHERE, _DELAY, _JAAS)
_OF_LISTENER: Final = (*_TLS_KEYS, *_SASL_KEYS, *_REFUSED, *_LIMIT_KEYS)
_OF_MECHANISM: Final = (_JAAS, _REAUTH, *(name for name in _REFUSED if name.startswith("sasl.")))
_MISPLACED: Final = ("listener.n", "listeners.", *(f"{name.lower()}." for name in MECHANISM_NAMES))
_CHECKED: Final = ("ssl.", "sasl.", "connection", *_MISPLACED)
"""A setting outside of a listener that begins so must be known. It may be a setting of a listener
whose prefix is misspelled or missing."""


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
    warnings: tuple[str, ...] = ()
    """Settings that have no effect on this listener, and why."""


def parse_security(
    settings: Mapping[str, str], listeners: Sequence[Listener]
) -> Mapping[str, ListenerSecurity]:
    """Returns the security settings of each listener by its name. Raises `SecurityInvalid`."""
    own = _by_listener(settings, listeners)
    for key in settings:
        if key.lower().startswith(_CHECKED) and not key.startswith(PREFIX):
            _check_known("", key, _OF_BROKER)
    return MappingProxyType(
        {each.name: _security(each, settings, own[each.name]) for each in listeners}
    )


def parse_client_tls(settings: Mapping[str, str]) -> TlsSettings:
    """Reads the `ssl.` settings of a client. Raises `SecurityInvalid`."""
    for key in settings:
        if key.lower().startswith("ssl."):
            _check_known("", key, _TLS_KEYS)
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
    most, rate = (
        _number(prefix + key, own[key], 0) if key in own else None for key in _LIMIT_KEYS[1:]
    )
    delay = values.number(_DELAY, 100)
    return ListenerSecurity(listener, tls, sasl, delay, most, rate, _warnings(listener, values))


def _check_known(prefix: str, key: str, known: Sequence[str]) -> None:
    if key not in known and _no_effect(key) is None:
        place = "a listener" if prefix else "the broker or client"
        similar = get_close_matches(key, known, n=1)
        hint = f": did you mean {prefix}{similar[0]}?" if similar else ": remove it"
        raise SecurityInvalid(f"{prefix}{key} is not a setting of {place}{hint}")


def _no_effect(key: str) -> str | None:
    """Returns why the setting has no effect."""
    found = (why for why, begins in _NO_EFFECT.items() if key.startswith((*begins.split(),)))
    return next(found, None)


def _is_used(key: str, protocol: SecurityProtocol) -> bool:
    is_sasl = key.startswith("sasl.") or key == _REAUTH
    return protocol.uses_sasl if is_sasl else protocol.uses_tls and key.startswith("ssl.")


def _check_names(listener: Listener, values: _Values) -> None:
    """Refuses settings of the listener that are unknown or would have no effect."""
    for key in values.own:
        mechanism, name = _mechanism_of(key)
        known = _OF_MECHANISM if mechanism else _OF_LISTENER
        oauth = _OAUTH_KEYS if mechanism == "OAUTHBEARER" else ()
        _check_known(values.prefix + key.removesuffix(name), name, (*known, *oauth))
        if name not in _LIMIT_KEYS and not _is_used(name, listener.protocol):
            problem = f"has no effect: {listener.name} uses {listener.protocol}; remove the setting"
            raise values.invalid(key, problem)


def _warnings(listener: Listener, values: _Values) -> tuple[str, ...]:
    """Returns which settings have no effect. Raises `SecurityInvalid` if that leaves a gap."""
    found: list[str] = []
    for key, value in {**values.shared, **values.own}.items():
        name = _mechanism_of(key)[1]
        if not _is_used(name, listener.protocol):
            continue
        if name in _REFUSED and not value.strip().startswith(_KAFKA_CLASSES):
            raise values.invalid(key, _REFUSED[name])
        why = _no_effect(name)
        if key == _JAAS:
            why = f"write {values.prefix}MECHANISM.{_JAAS}"
        elif key == _AUTH and _client_auth(listener, values) != value.strip():
            why = f"with SASL, only {values.prefix}{_AUTH} asks clients for a certificate"
        if why:
            found.append(f"{values.name(key)} has no effect on {listener.name}: {why}")
    return tuple(found)


def _mechanism_of(key: str) -> tuple[str | None, str]:
    """Returns the mechanism of a setting such as `scram-sha-256.sasl.jaas.config`, and the rest."""
    name, dot, rest = key.partition(".")
    if dot and name.upper() in MECHANISM_NAMES and name == name.lower():
        return name.upper(), rest
    return None, key


def _client_auth(listener: Listener, values: _Values) -> ClientAuth:
    """With SASL, only the listener's own setting counts, as in Kafka: the users there are those of
    SASL, and their clients usually have no certificate."""
    value = values.own.get(_AUTH) if listener.protocol.uses_sasl else values.get(_AUTH)
    if value is None:
        return ClientAuth.NONE
    try:
        return ClientAuth(value.strip())
    except ValueError:
        raise values.invalid(_AUTH, "must be none, requested or required") from None


def _tls(values: _Values, client_auth: ClientAuth, is_server: bool) -> TlsSettings:
    keystore = _keystore(values)
    if is_server and keystore is None:
        raise SecurityInvalid(
            f"{values.prefix}ssl.keystore.location is missing: a listener with TLS needs a PEM "
            "file with its key and certificates"
        )
    authorities = _pem_text(values, "ssl.truststore.certificates")
    truststore = _store(values, "ssl.truststore", authorities) or authorities
    if client_auth is not ClientAuth.NONE and truststore is None:
        raise SecurityInvalid(
            f"{values.prefix}ssl.truststore.location is missing: to check client certificates "
            f"({values.name(_AUTH)}={client_auth}), a listener needs a PEM file with the CAs to "
            "trust"
        )
    protocols, ciphers = _suites(values, _protocols(values))
    rules = values.get("ssl.principal.mapping.rules")
    try:
        parsed = parse_rules("DEFAULT" if rules is None else rules)
    except RulesInvalid as error:
        raise SecurityInvalid(f"{values.name('ssl.principal.mapping.rules')}: {error}") from error
    verifies = _verifies_host_name(values)
    dn, san = (values.boolean(f"ssl.allow.{kind}.changes") for kind in ("dn", "san"))
    return TlsSettings(
        keystore, truststore, client_auth, protocols, ciphers, parsed, verifies, dn, san
    )


def _verifies_host_name(values: _Values) -> bool:
    key = "ssl.endpoint.identification.algorithm"
    value = values.get(key)
    if value is not None and value.strip().lower() not in ("https", ""):
        raise values.invalid(key, "must be https, or empty to accept any host name")
    return value is None or bool(value.strip())


def _keystore(values: _Values) -> Keystore | None:
    password = values.get("ssl.key.password")
    chain = _pem_text(values, "ssl.keystore.certificate.chain")
    private_key = _pem_text(values, "ssl.keystore.key")
    if (both := _store(values, "ssl.keystore", chain or private_key)) is not None:
        return Keystore(both, both, password)
    if chain is not None and private_key is not None:
        return Keystore(chain, private_key, password)
    if chain is None and private_key is None:
        return None
    missing, given = ("certificate.chain", "key") if private_key else ("key", "certificate.chain")
    raise SecurityInvalid(
        f"{values.prefix}ssl.keystore.{missing} is missing: ssl.keystore.{given} is set, and a key "
        "and its certificate belong together"
    )


def _store(values: _Values, store: str, text: Pem | None) -> Pem | None:
    """Returns the file of a store, which must be PEM, and the only source."""
    kind = values.get(f"{store}.type")
    if kind is not None and kind.strip().upper() != "PEM":
        raise values.invalid(f"{store}.type", "must be PEM: convert it with keytool and openssl")
    if values.get(f"{store}.password"):
        raise values.invalid(f"{store}.password", "is not for PEM: use ssl.key.password instead")
    key = f"{store}.location"
    if not (location := values.get(key)):
        return None
    if text is not None:
        raise values.invalid(key, f"is set, and so is {text.key}: use one of them")
    return Pem(values.name(key), path=location)


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
    found = values.items(key)
    if not found or not {*found} <= {*TlsProtocol}:
        raise values.invalid(key, f"must be a list of {' and '.join(TlsProtocol)}")
    return frozenset(map(TlsProtocol, found))


def _suites(
    values: _Values, protocols: frozenset[TlsProtocol]
) -> tuple[frozenset[TlsProtocol], tuple[str, ...]]:
    """Returns the protocols that have a suite, and OpenSSL's names of the suites for TLS 1.2."""
    key = "ssl.cipher.suites"
    if not (names := values.items(key)):
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
            f"of {', '.join(MECHANISM_NAMES)}"
        )
    if unknown := ", ".join(each for each in mechanisms if each not in MECHANISM_NAMES):
        problem = f"has {unknown}, which is not supported; use {', '.join(MECHANISM_NAMES)}"
        raise values.invalid(_MECHANISM_LIST, problem)
    for key in values.own:
        if (other := _mechanism_of(key)[0]) is not None and other not in mechanisms:
            raise values.invalid(key, f"has no effect: {other} is not in {_MECHANISM_LIST}")
    receive = values.number(_RECEIVE_SIZE, 524_288)
    if receive == 0:
        raise values.invalid(_RECEIVE_SIZE, "must be above 0")
    reauth = {each: _reauth(values, each) for each in mechanisms}
    merged = {each: MappingProxyType(_of_mechanism(values, each)) for each in mechanisms}
    return SaslSettings(mechanisms, receive, MappingProxyType(reauth), MappingProxyType(merged))


def _of_mechanism(values: _Values, mechanism: str) -> dict[str, str]:
    """Returns the `sasl.` settings of a mechanism. Credentials (JAAS) must name the mechanism."""
    prefix = f"{mechanism.lower()}."
    both = {**values.shared, **values.own}
    found = {key: both[key] for key in both if key.startswith("sasl.") and key != _JAAS}
    own = {
        key.removeprefix(prefix): values.own[key] for key in values.own if key.startswith(prefix)
    }
    return found | own


def _reauth(values: _Values, mechanism: str) -> int:
    key = f"{mechanism.lower()}.{_REAUTH}"
    if key in values.own:
        return _number(values.prefix + key, values.own[key], 0)
    return values.number(_REAUTH, 0)
