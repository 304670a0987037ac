# ruff: noqa: RUF009 (`option` is `field` with a reader; nothing it returns is shared or changed)
"""The options for TLS and SASL, which every client has, and how they fit together.

The names are those that librdkafka's and Python's clients share. Kafka's Java client reads keys
from keystores; here a certificate, a key or an authority is a PEM text or the path of a PEM file.
Values of options that hold secrets are in no error and no `repr`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.client import oauth_tokens
from penstock.client import option_values as values
from penstock.client.errors import OptionError
from penstock.client.oauth_tokens import TokenEndpoint, TokenFunction
from penstock.client.security_settings import SecuritySettings
from penstock.security.listeners import SecurityProtocol
from penstock.security.mechanism_names import MECHANISM_NAMES, OAUTHBEARER, PLAIN, SCRAM_NAMES
from penstock.security.user_names import name_problem

if TYPE_CHECKING:
    from penstock.security.client_login import Login
    from penstock.security.listener_security import Pem, TlsSettings

SECRETS: Final = frozenset(
    {
        "ssl_key",
        "ssl_key_password",
        "sasl_password",
        "sasl_oauth_token",
        "sasl_oauth_client_secret",
    }
)
"""The options whose values must not be shown."""
_ENDPOINT: Final = ("sasl_oauth_token_url", "sasl_oauth_client_id", "sasl_oauth_client_secret")
_PEM_MARK: Final = "-----BEGIN"

_log: Final = logging.getLogger("penstock.client")


def option(
    default: Any,
    read: values.Read,
    text: str,
    *,
    kafka: str | None = None,
    shown: str = "",
    is_secret: bool = False,
) -> Any:
    """Defines an option.

    `kafka` is the name of the same option in Kafka's Java client: empty if Kafka has none, and by
    default the name here with dots. `shown` is the default as a user writes it, if that differs.
    """
    metadata = {"read": read, "text": text, "kafka": kafka, "shown": shown}
    return field(default=default, metadata=metadata, repr=not is_secret)


def _protocol(name: str, given: Any) -> SecurityProtocol:
    try:
        return SecurityProtocol(given.upper() if isinstance(given, str) else given)
    except ValueError:
        names = ", ".join(f'"{protocol}"' for protocol in SecurityProtocol)
        raise values.refused(name, given, f"give one of {names}") from None


def _mechanism(name: str, given: Any) -> str:
    upper = given.upper() if isinstance(given, str) else given
    if upper not in MECHANISM_NAMES:
        names = ", ".join(f'"{mechanism}"' for mechanism in MECHANISM_NAMES)
        raise values.refused(name, given, f"give one of {names}")
    return str(upper)


def _user(name: str, given: Any) -> str:
    text = values.text(name, given)
    if (problem := name_problem(text)) is not None:
        raise OptionError(f"{name}: {problem}")
    return text


def _secret(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise OptionError(f"{name}: give a string that is not empty")
    return given


def _password(name: str, given: Any) -> str:
    from penstock.security.scram_credentials import (  # noqa: PLC0415 -- only with a password
        PasswordUnfit,
        password_bytes,
    )

    text = _secret(name, given)
    try:
        password_bytes(text)
    except PasswordUnfit as error:
        raise OptionError(f"{name}: {error}") from None
    return text


def _token_source(name: str, given: Any) -> str | TokenFunction:
    if callable(given):
        function: TokenFunction = given
        return function
    if not isinstance(given, str) or not given:
        raise OptionError(f"{name}: give a token, or a function that returns one")
    return given


def _url(name: str, given: Any) -> str:
    text = values.text(name, given)
    oauth_tokens.check_endpoint_url(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """How connections are encrypted, and how the client logs in."""

    security_protocol: SecurityProtocol = option(
        SecurityProtocol.PLAINTEXT,
        _protocol,
        'How to connect: "PLAINTEXT", "SSL" (TLS), "SASL_PLAINTEXT" (a login without TLS) or '
        '"SASL_SSL" (both).',
    )
    ssl_ca: str | None = option(
        None,
        values.maybe(values.name_text),
        "The authorities whose certificates are accepted: a PEM file or PEM text. None trusts "
        "those of the system.",
        kafka="ssl.truststore.location",
    )
    ssl_certificate: str | None = option(
        None,
        values.maybe(values.name_text),
        "The certificate of this client, for brokers that ask for one: a PEM file or PEM text.",
        kafka="ssl.keystore.certificate.chain",
    )
    ssl_key: str | None = option(
        None,
        values.maybe(_secret),
        "The private key of `ssl_certificate`: a PEM file or PEM text. None: it is in the same "
        "file.",
        kafka="ssl.keystore.key",
        is_secret=True,
    )
    ssl_key_password: str | None = option(
        None, values.maybe(_secret), "The password of the key, if it is encrypted.", is_secret=True
    )
    ssl_check_hostname: bool = option(
        True,
        values.flag,
        "Accepts a broker's certificate only if it is for the host name. Turn it off for tests "
        "only.",
        kafka="ssl.endpoint.identification.algorithm",
    )
    sasl_mechanism: str | None = option(
        None,
        values.maybe(_mechanism),
        'How to log in: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" or "OAUTHBEARER".',
    )
    sasl_username: str | None = option(
        None, values.maybe(_user), "The user of PLAIN and SCRAM.", kafka="sasl.jaas.config"
    )
    sasl_password: str | None = option(
        None,
        values.maybe(_password),
        "The password of PLAIN and SCRAM.",
        kafka="sasl.jaas.config",
        is_secret=True,
    )
    sasl_tokenauth: bool = option(
        False,
        values.flag,
        "Logs in with a delegation token: `sasl_username` is its id, `sasl_password` its HMAC, and "
        "the mechanism is SCRAM.",
        kafka="sasl.jaas.config",
    )
    sasl_oauth_token: str | TokenFunction | None = option(
        None,
        values.maybe(_token_source),
        "The token of OAUTHBEARER, or a function or coroutine function that returns one. It is "
        "called for each login.",
        kafka="sasl.login.callback.handler.class",
        is_secret=True,
    )
    sasl_oauth_token_url: str | None = option(
        None,
        values.maybe(_url),
        "Where to get tokens with client credentials, instead of `sasl_oauth_token`.",
        kafka="sasl.oauthbearer.token.endpoint.url",
    )
    sasl_oauth_client_id: str | None = option(
        None,
        values.maybe(values.name_text),
        "The client id at `sasl_oauth_token_url`.",
        kafka="sasl.oauthbearer.client.credentials.client.id",
    )
    sasl_oauth_client_secret: str | None = option(
        None,
        values.maybe(_secret),
        "The client secret at `sasl_oauth_token_url`.",
        kafka="sasl.oauthbearer.client.credentials.client.secret",
        is_secret=True,
    )
    sasl_oauth_scope: str | None = option(
        None,
        values.maybe(values.name_text),
        "The scope to ask for at `sasl_oauth_token_url`.",
        kafka="sasl.oauthbearer.scope",
    )


def check_security(options: SecurityOptions) -> None:
    """Raises `OptionError` for options that do not fit together."""
    protocol = options.security_protocol
    defaults = {"security_protocol"}
    defaults |= {"ssl_check_hostname"} if options.ssl_check_hostname else set()
    defaults |= set() if options.sasl_tokenauth else {"sasl_tokenauth"}
    given = {
        name
        for name in SecurityOptions.__dataclass_fields__
        if getattr(options, name) is not None and name not in defaults
    }
    tls = sorted(name for name in given if name.startswith("ssl_"))
    sasl = sorted(name for name in given if name.startswith("sasl_"))
    if tls and not protocol.uses_tls:
        raise OptionError(
            f'{tls[0]} needs TLS, but security_protocol is "{protocol}": set it to '
            f'"{"SASL_SSL" if protocol.uses_sasl or sasl else "SSL"}", or leave out {tls[0]}'
        )
    if sasl and not protocol.uses_sasl:
        secure = "" if protocol.uses_tls else ' ("SASL_PLAINTEXT" if the broker has no TLS)'
        raise OptionError(
            f'{sasl[0]} needs SASL, but security_protocol is "{protocol}": set it to '
            f'"SASL_SSL"{secure}, or leave out {sasl[0]}'
        )
    if "ssl_certificate" not in given:
        for name in ("ssl_key", "ssl_key_password"):
            if name in given:
                raise OptionError(f"{name} needs the certificate too: give ssl_certificate")
    if protocol.uses_sasl:
        _check_login(options, given)


def _check_login(options: SecurityOptions, given: set[str]) -> None:
    mechanism = options.sasl_mechanism
    if mechanism is None:
        raise OptionError(
            f'security_protocol "{options.security_protocol}" needs sasl_mechanism: give one of '
            f"{', '.join(MECHANISM_NAMES)}"
        )
    is_token = mechanism == OAUTHBEARER
    if options.sasl_tokenauth and mechanism not in SCRAM_NAMES:
        raise OptionError(
            f"sasl_tokenauth is for {' and '.join(SCRAM_NAMES)}, but sasl_mechanism is "
            f'"{mechanism}"'
        )
    for name in sorted(given):
        if name.startswith("sasl_oauth_") and not is_token:
            raise OptionError(f'{name} is for "OAUTHBEARER", but sasl_mechanism is "{mechanism}"')
        if name in ("sasl_username", "sasl_password") and is_token:
            raise OptionError(
                f'{name} is for PLAIN and SCRAM, but sasl_mechanism is "OAUTHBEARER": give '
                "sasl_oauth_token or sasl_oauth_token_url instead"
            )
    if not is_token:
        for name in ("sasl_username", "sasl_password"):
            if name not in given:
                raise OptionError(f'sasl_mechanism "{mechanism}" needs {name}: give it too')
        return
    endpoint = [name for name in (*_ENDPOINT, "sasl_oauth_scope") if name in given]
    if "sasl_oauth_token" in given:
        if endpoint:
            raise OptionError(f"use sasl_oauth_token or {endpoint[0]}, not both")
        return
    for name in _ENDPOINT:
        if name not in given:
            other = " or sasl_oauth_token" if not endpoint else ""
            raise OptionError(f'sasl_mechanism "OAUTHBEARER" needs {name}{other}: give it too')


def warn_of_plain_passwords(options: SecurityOptions) -> None:
    """Logs a warning if the password will cross the network as it is."""
    if options.sasl_mechanism in (PLAIN, OAUTHBEARER) and (not options.security_protocol.uses_tls):
        what = "password" if options.sasl_mechanism == PLAIN else "token"
        _log.warning(
            "sasl_mechanism %s without TLS sends the %s as plain text: set security_protocol to "
            "SASL_SSL",
            options.sasl_mechanism,
            what,
        )


def security_settings(options: SecurityOptions) -> SecuritySettings:
    """Returns what connections need to know."""
    protocol = options.security_protocol
    tls = _tls_settings(options) if protocol.uses_tls else None
    return SecuritySettings(tls, _login(options) if protocol.uses_sasl else None)


def _tls_settings(options: SecurityOptions) -> TlsSettings:
    from penstock.security.listener_security import (  # noqa: PLC0415 -- only with TLS
        ClientAuth,
        Keystore,
        TlsProtocol,
        TlsSettings,
    )
    from penstock.security.principal_rules import parse_rules  # noqa: PLC0415 -- only with TLS

    keystore = None
    if options.ssl_certificate is not None:
        chain = _pem("ssl_certificate", options.ssl_certificate)
        private_key = chain if options.ssl_key is None else _pem("ssl_key", options.ssl_key)
        keystore = Keystore(chain, private_key, options.ssl_key_password)
    return TlsSettings(
        keystore=keystore,
        truststore=None if options.ssl_ca is None else _pem("ssl_ca", options.ssl_ca),
        client_auth=ClientAuth.NONE,
        protocols=frozenset(TlsProtocol),
        ciphers=(),
        rules=parse_rules("DEFAULT"),
        verifies_host_name=options.ssl_check_hostname,
        allows_dn_changes=True,
        allows_san_changes=True,
    )


def _pem(key: str, given: str) -> Pem:
    from penstock.security.listener_security import Pem  # noqa: PLC0415 -- only with TLS

    return Pem(key, text=given) if _PEM_MARK in given else Pem(key, path=given)


def _login(options: SecurityOptions) -> Login:
    from penstock.security.client_login import (  # noqa: PLC0415 -- only with SASL
        PasswordLogin,
        TokenLogin,
    )

    match options:
        case SecurityOptions(sasl_mechanism=str(mechanism), sasl_username=str(user)):
            password = options.sasl_password or ""
            return PasswordLogin(mechanism, user, password, options.sasl_tokenauth)
        case SecurityOptions(sasl_oauth_token=str(token)):
            return TokenLogin(oauth_tokens.text_source(token))
        case SecurityOptions(sasl_oauth_token=function) if callable(function):
            return TokenLogin(oauth_tokens.function_source(function))
    endpoint = TokenEndpoint(
        options.sasl_oauth_token_url or "",
        options.sasl_oauth_client_id or "",
        options.sasl_oauth_client_secret or "",
        options.sasl_oauth_scope,
    )
    return TokenLogin(oauth_tokens.EndpointSource(endpoint))
