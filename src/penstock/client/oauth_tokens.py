"""Bearer tokens for OAUTHBEARER: from a text, from a function, or from a token endpoint.

The endpoint is asked as OAuth 2.0 describes for client credentials (RFC 6749, section 4.4). A token
is used for all connections of a client until four fifths of its lifetime have passed. No error
contains a token or a secret.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from penstock.client.errors import AuthenticationFailed, ConnectFailed, OptionError
from penstock.client.loop_threads import LoopThreads

ANSWER_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 10.0
"""How long the token endpoint may take to connect, and for each part of its answer."""
REUSE_PART: Final = 0.8
"""For which part of its lifetime a token is used for new logins. Sessions are renewed later, at
85 % or more, so they get a new one."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")

TokenFunction = Callable[[], str | Awaitable[str]]
"""Returns a token, or a coroutine that returns one."""


def text_source(token: str) -> Callable[[], Awaitable[str]]:
    """Returns the same token for every login."""

    async def read() -> str:
        return token

    return read


def function_source(function: TokenFunction) -> Callable[[], Awaitable[str]]:
    """Calls a function of the user for every login: on a thread, unless it is a coroutine
    function, because it may block."""

    async def read() -> str:
        if inspect.iscoroutinefunction(function):
            token = await function()
        else:
            token = await LoopThreads().run(function)
            if inspect.isawaitable(token):
                token = await token
        if not isinstance(token, str):
            raise TypeError(f"sasl_oauth_token returned {type(token).__name__}, not a str")
        return token

    return read


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Where a client gets its tokens, and how it authenticates there."""

    url: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None

    @property
    def name(self) -> str:
        """The address without user, password and query, for errors."""
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def check_endpoint_url(url: str) -> None:
    """Raises `OptionError` for an address to which no secret should be sent."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("https", "http"):
        raise OptionError("sasl_oauth_token_url: give a URL such as https://login.example/token")
    if parts.scheme == "http" and host not in _LOCAL:
        raise OptionError(
            f"sasl_oauth_token_url: http://{host} would send the secret without TLS: use https"
        )


class _Token(NamedTuple):
    text: str
    lifetime_s: float


class EndpointSource:
    """Gets tokens from a token endpoint and keeps the last one. Callable, as a source of tokens."""

    def __init__(self, endpoint: TokenEndpoint) -> None:
        self._endpoint = endpoint
        self._lock = asyncio.Lock()
        self._token: str | None = None
        self._reuse_until = 0.0

    async def __call__(self) -> str:
        async with self._lock:
            loop = asyncio.get_running_loop()
            if self._token is None or loop.time() >= self._reuse_until:
                asked_at = loop.time()
                found = await LoopThreads().run(partial(_fetch, self._endpoint))
                self._token = found.text
                self._reuse_until = asked_at + found.lifetime_s * REUSE_PART
            return self._token


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the secret to an address that nobody has configured."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _fetch(endpoint: TokenEndpoint) -> _Token:
    form = {"grant_type": "client_credentials"}
    if endpoint.scope is not None:
        form["scope"] = endpoint.scope
    pair = f"{quote_plus(endpoint.client_id)}:{quote_plus(endpoint.client_secret)}"
    request = urllib.request.Request(  # noqa: S310 (`check_endpoint_url` allows http and https only)
        endpoint.url,
        urlencode(form).encode(),
        {
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "Accept": "application/json",
        },
    )
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    opener = urllib.request.build_opener(_NoRedirects, https)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            data = answer.read(ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(endpoint, error.code, _read_json(error.read(4096))) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ConnectFailed(
            endpoint.name, f"the token endpoint cannot be reached ({reason})"
        ) from None
    return _token(endpoint, data)


def _refusal(
    endpoint: TokenEndpoint, status: int, answer: dict[str, Any]
) -> AuthenticationFailed | ConnectFailed:
    code = answer.get("error")
    shown = f" {code}" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    if status >= 500 or status == 429:
        return ConnectFailed(endpoint.name, f"the token endpoint answered {status}{shown}")
    return AuthenticationFailed(
        endpoint.name,
        f"the token endpoint answered {status}{shown}: check sasl_oauth_client_id, "
        "sasl_oauth_client_secret and sasl_oauth_scope",
    )


def _token(endpoint: TokenEndpoint, data: bytes) -> _Token:
    answer = _read_json(data) if len(data) <= ANSWER_BYTES_MAX else {}
    token, lifetime = answer.get("access_token"), answer.get("expires_in", 0)
    if not isinstance(token, str) or not token:
        raise AuthenticationFailed(
            endpoint.name, "the token endpoint sent no access_token: check sasl_oauth_token_url"
        )
    is_number = isinstance(lifetime, int | float) and not isinstance(lifetime, bool)
    return _Token(token, max(float(lifetime), 0.0) if is_number else 0.0)


def _read_json(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
