"""Decides which requests the console accepts. Pure except for the ports that it is given.

A console on loopback can be reached by every page that is open in its user's browser. So:

- Host must be one of a few names. This stops DNS rebinding, where the name of another site is made
  to point to this console: that site's page sends its own name.
- A request that the browser marks as coming from another site (Origin, Sec-Fetch-Site) is refused,
  except where an OpenID provider sends the browser back. That request needs the state of a sign-in.
- Everything except static files and the login needs a session: a cookie, HttpOnly and
  SameSite=Strict. If a token is configured, a browser must send it to get a session. If users sign
  in, `sessions.py` decides who gets one.
- Every POST except the login needs the session's CSRF token in a header. Only the console's own
  page can read that token.

Cookies are signed. The signing key lasts as long as the process. Only the sessions of users who
signed in are stored, and their number is limited.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from penstock.console.config import ConsoleConfig
from penstock.console.errors import (
    LOG_IN,
    SIGN_IN,
    NotAllowed,
    NotLoggedIn,
    TooManyAttempts,
)
from penstock.ports import Clock, Random

CSRF_HEADER: Final = "x-csrf-token"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_ATTEMPTS_MAX: Final = 5
_ATTEMPTS_WINDOW_S: Final = 60.0

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The security headers of every answer."""


class Guard:
    def __init__(self, config: ConsoleConfig, port: int, clock: Clock, random: Random) -> None:
        self._token = config.token
        self._not_logged_in = SIGN_IN if config.sign_in else LOG_IN
        self._clock = clock
        self._random = random
        self._key = random.bytes(32)
        self._hosts = {*_LOOPBACK, *(host.lower() for host in config.allowed_hosts)}
        if not _is_any_address(config.host):
            self._hosts.add(config.host.lower())
        self._failures: list[float] = []
        self.cookie = f"penstock-console-{port}"
        """The cookie's name contains the port, since a host's cookies are shared by all ports."""

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raises `NotAllowed` if the browser uses a host name that is not the console's."""
        host = headers.get("host", "")
        if _hostname(f"//{host}") not in self._hosts:
            raise NotAllowed(
                f"the host name {host[:100]!r} is not allowed: start the console with --allow-host"
            )

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raises `NotAllowed` if the request does not come from the console's own page."""
        self.check_host(headers)
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise NotAllowed("the request comes from another site: open the console's own page")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise NotAllowed("the request comes from another site: open the console's own page")

    # -- sessions -------------------------------------------------------------------------------

    def open_session(self) -> str:
        """Returns the cookie of a new session. The caller has checked the token, if one is set."""
        name = self._random.bytes(16).hex()
        return f"{name}.{self._sign('session', name)}"

    def login(self, token: str) -> str:
        now = self._clock.monotonic()
        self._failures = [at for at in self._failures if now - at < _ATTEMPTS_WINDOW_S]
        if len(self._failures) >= _ATTEMPTS_MAX:
            raise TooManyAttempts("too many wrong tokens: wait a minute, then try again")
        if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
            self._failures.append(now)
            raise NotLoggedIn("this is not the token that the console printed")
        self._failures.clear()
        return self.open_session()

    @property
    def needs_token(self) -> bool:
        return bool(self._token)

    def check_session(self, cookie: str | None) -> str:
        """Returns the name of the cookie's session, or raises `NotLoggedIn`."""
        name, _, signature = (cookie or "").partition(".")
        if not name or not hmac.compare_digest(
            signature.encode(), self._sign("session", name).encode()
        ):
            raise NotLoggedIn(self._not_logged_in)
        return name

    def csrf_token(self, session: str) -> str:
        return self._sign("csrf", session)

    def check_csrf(self, session: str, given: str | None) -> None:
        if not hmac.compare_digest((given or "").encode(), self.csrf_token(session).encode()):
            raise NotAllowed("the CSRF token of this session is missing: reload the page")

    def _sign(self, purpose: str, name: str) -> str:
        return hmac.new(self._key, f"{purpose}:{name}".encode(), hashlib.sha256).hexdigest()


def _hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _is_any_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
