"""Signing in at an OpenID provider: the authorization code flow with PKCE (RFC 6749, RFC 7636).

The browser is sent to the provider, and comes back with a code, which the console exchanges for an
access token. The console then logs in to the brokers with that token (OAUTHBEARER). It does not
verify the token: the brokers do, and they decide who the user is.

- `state` binds the answer to the browser that began. It is random, used once, and also in a cookie.
- PKCE binds the code to this console: a code that somebody else has seen is of no use.
- The provider's addresses are read from `ISSUER/.well-known/openid-configuration`. They must be
  https, except on loopback.

No error or log line contains a code, a token or the secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from penstock.client.errors import AuthenticationFailed
from penstock.console.config import OAuthConfig
from penstock.console.errors import NotLoggedIn, NotReached, TooManyAttempts
from penstock.ports import Clock, Executor, Random
from penstock.security.addresses import is_loopback

PENDING_MAX: Final = 500
"""How many sign-ins can be under way at the provider."""
PENDING_S: Final = 600.0
_DISCOVERY_S: Final = 600.0
"""How long the provider's addresses are kept."""
_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_REUSE_PART: Final = 0.8
"""For which part of its lifetime a token is used before it is refreshed."""
_NAME_CHARS_MAX: Final = 100
_AGAIN: Final = "sign in again"


@dataclass(frozen=True, slots=True)
class _Pending:
    verifier: str = field(repr=False)
    redirect_uri: str
    began: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the provider gave for a code."""

    access: str = field(repr=False)
    refresh: str | None = field(repr=False)
    lifetime_s: float | None

    @property
    def user(self) -> str:
        """A name to show. The brokers decide who the user is."""
        try:
            payload = self.access.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            name = claims.get("preferred_username") or claims.get("sub")
        except (ValueError, IndexError, AttributeError, RecursionError):
            name = None
        shown = name if isinstance(name, str) and name.isprintable() and name else "user"
        return shown[:_NAME_CHARS_MAX]


class OAuth:
    def __init__(
        self, config: OAuthConfig, clock: Clock, random: Random, executor: Executor
    ) -> None:
        self._config = config
        self._clock = clock
        self._random = random
        self._executor = executor
        self._pending: dict[str, _Pending] = {}
        self._provider: dict[str, str] = {}
        self._provider_at = 0.0

    async def begin(self, redirect_uri: str) -> tuple[str, str]:
        """Returns the address to which the browser is sent, and the state."""
        provider = await self._discovered()
        now = self._clock.monotonic()
        self._pending = {
            state: each for state, each in self._pending.items() if now - each.began < PENDING_S
        }
        if len(self._pending) >= PENDING_MAX:
            raise TooManyAttempts("too many people are signing in at the moment: try again later")
        state, verifier = _text(self._random.bytes(24)), _text(self._random.bytes(48))
        self._pending[state] = _Pending(verifier, redirect_uri, now)
        question = {
            "response_type": "code",
            "client_id": self._config.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._config.scope,
            "state": state,
            "code_challenge": _text(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        address = provider["authorization_endpoint"]
        return f"{address}{'&' if '?' in address else '?'}{urlencode(question)}", state

    async def finish(self, state: str, code: str) -> Tokens:
        """Exchanges the code for tokens. A state can be used once."""
        pending = self._pending.pop(state, None)
        if pending is None or self._clock.monotonic() - pending.began >= PENDING_S:
            raise NotLoggedIn(f"this sign-in is unknown or has expired: {_AGAIN}")
        return await self._ask(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": pending.redirect_uri,
                "code_verifier": pending.verifier,
            }
        )

    async def refreshed(self, tokens: Tokens) -> Tokens:
        """Returns new tokens. The provider may keep the refresh token as it is."""
        assert tokens.refresh is not None
        found = await self._ask({"grant_type": "refresh_token", "refresh_token": tokens.refresh})
        return Tokens(found.access, found.refresh or tokens.refresh, found.lifetime_s)

    def keeper(self, tokens: Tokens) -> TokenKeeper:
        return TokenKeeper(self, tokens, self._clock)

    async def _ask(self, form: Mapping[str, str]) -> Tokens:
        provider = await self._discovered()
        answer = await self._executor.run(
            partial(_post, provider["token_endpoint"], form, self._config)
        )
        access, refresh = answer.get("access_token"), answer.get("refresh_token")
        lifetime = answer.get("expires_in")
        if not isinstance(access, str) or not access:
            raise NotLoggedIn(f"the provider sent no access token: {_AGAIN}")
        is_number = isinstance(lifetime, int | float) and not isinstance(lifetime, bool)
        return Tokens(
            access,
            refresh if isinstance(refresh, str) and refresh else None,
            float(lifetime) if is_number and lifetime is not None and lifetime > 0 else None,
        )

    async def _discovered(self) -> dict[str, str]:
        now = self._clock.monotonic()
        if not self._provider or now - self._provider_at >= _DISCOVERY_S:
            url = self._config.issuer.rstrip("/") + "/.well-known/openid-configuration"
            answer = await self._executor.run(partial(_get, url))
            self._provider = _addresses(answer, self._config.issuer)
            self._provider_at = now
        return self._provider


class TokenKeeper:
    """Returns the token of a user for each login at a broker, and refreshes it before it expires.

    Without a refresh token, the session ends when the brokers do not accept the token any more.
    """

    def __init__(self, oauth: OAuth, tokens: Tokens, clock: Clock) -> None:
        self._oauth = oauth
        self._tokens = tokens
        self._clock = clock
        self._since = clock.monotonic()

    async def token(self) -> str:
        tokens = self._tokens
        is_old = tokens.lifetime_s is not None and (
            self._clock.monotonic() - self._since >= tokens.lifetime_s * _REUSE_PART
        )
        if is_old and tokens.refresh is not None:
            try:
                found = await self._oauth.refreshed(tokens)
            except NotLoggedIn as error:
                raise AuthenticationFailed("the provider", str(error)) from None
            if self._tokens is tokens:
                self._tokens, self._since = found, self._clock.monotonic()
        return self._tokens.access


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _addresses(answer: Mapping[str, Any], issuer: str) -> dict[str, str]:
    if str(answer.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
        raise NotReached(
            f"{issuer} reports a different issuer: correct --oauth-issuer of the console"
        )
    found: dict[str, str] = {}
    for name in ("authorization_endpoint", "token_endpoint"):
        url = answer.get(name)
        if not isinstance(url, str) or not is_safe(url):
            raise NotReached(f"the provider {issuer} has no {name} that uses https")
        found[name] = url
    return found


def is_safe(url: str) -> bool:
    """Returns whether secrets can be sent to this address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send a code or a secret to an address that nobody has configured."""

    def redirect_request(self, *_: object) -> None:
        return None


def _get(url: str) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    return _answer(urllib.request.Request(url, headers=headers))  # noqa: S310 (`is_safe`)


def _post(url: str, form: Mapping[str, str], config: OAuthConfig) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    fields = dict(form)
    if config.client_secret:
        pair = f"{quote_plus(config.client_id)}:{quote_plus(config.client_secret)}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        fields["client_id"] = config.client_id
    return _answer(
        urllib.request.Request(url, urlencode(fields).encode(), headers)  # noqa: S310 (`is_safe`)
    )


def _answer(request: urllib.request.Request) -> dict[str, Any]:
    """Sends a request. Blocks: for a thread."""
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    host = urlsplit(request.full_url).netloc.rpartition("@")[2]
    try:
        with urllib.request.build_opener(_NoRedirects, https).open(
            request, timeout=_TIMEOUT_S
        ) as response:
            data = response.read(_ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500:
                raise NotReached(
                    f"the provider {host} answered with status {error.code}: try again later"
                ) from None
            raise NotLoggedIn(
                f"the provider {host} refused the sign-in ({error.code}): {_AGAIN}"
            ) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NotReached(f"the provider {host} cannot be reached ({reason})") from None
    try:
        answer = json.loads(data) if len(data) <= _ANSWER_BYTES_MAX else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise NotReached(f"the provider {host} did not answer with JSON")
    return answer
