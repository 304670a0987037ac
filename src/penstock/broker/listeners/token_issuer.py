"""The keys of an issuer of tokens (OAUTHBEARER): fetched, refreshed, and used to check tokens.

`security.token_keys` decides when the keys are fetched, and `security.tokens` checks the tokens.
The keys come from the one address in `sasl.oauthbearer.jwks.endpoint.url`, an https: or file: URL,
or an http: URL of this machine. Nothing in a token can name another address.
"""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.broker.config import ConfigError
from penstock.broker.listeners.login_work import Done
from penstock.ports import Clock, Executor, Random
from penstock.runtime import read_file
from penstock.security.addresses import is_loopback
from penstock.security.exchange import KeyFetch
from penstock.security.token_keys import (
    AwaitFetch,
    FetchNow,
    KeyRefresh,
    RefreshPolicy,
    RefuseKid,
    WaitUntil,
)
from penstock.security.token_verdict import TokenVerdict
from penstock.security.tokens import (
    KEY_SET_BYTES_MAX,
    NO_KEYS,
    KeySet,
    KeySetRefused,
    TokenChecker,
    TokenRules,
    load_key_set,
)

WAITING_MAX: Final = 1000
"""How many logins may wait for the keys."""
_PREFIX: Final = "sasl.oauthbearer."
_POLL_S: Final = 1.0

_log = logging.getLogger(__name__)


def token_rules(settings: Mapping[str, str]) -> TokenRules:
    """Returns what tokens must be, by the `sasl.oauthbearer.` settings of a listener."""
    skew = settings.get(f"{_PREFIX}clock.skew.seconds", "30")
    if not skew.isascii() or not skew.isdigit():
        raise ConfigError(f"{_PREFIX}clock.skew.seconds is {skew!r}: it must be a whole number")
    audiences = settings.get(f"{_PREFIX}expected.audience", "").split(",")
    try:
        return TokenRules(
            settings.get(f"{_PREFIX}expected.issuer", "").strip(),
            frozenset(each.strip() for each in audiences if each.strip()),
            settings.get(f"{_PREFIX}sub.claim.name", "sub"),
            skew_ms=int(skew) * 1000,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def keys_url(settings: Mapping[str, str]) -> str:
    """Returns where the keys of the issuer are."""
    key = f"{_PREFIX}jwks.endpoint.url"
    url = settings.get(key, "").strip()
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ConfigError(f"{key} is not an address: {error}") from error
    if parts.scheme not in ("https", "http", "file"):
        raise ConfigError(
            f"{key} must be an https: address, or a file: path, of the issuer's key set (JWKS)"
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(
            f"{key} is an http: address of another machine. Anyone who can change its answer could "
            "sign tokens for every user: use an https: address, or save the key set and use a "
            "file: path"
        )
    return url


def read_keys(url: str, timeout_s: float) -> bytes:
    """Returns the text of a key set. Call it on a thread. Raises OSError or ValueError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        text = read_file(unquote(parts.path), KEY_SET_BYTES_MAX + 1)
    else:
        with _no_redirects.open(url, timeout=timeout_s) as response:  # the scheme was checked
            text = response.read(KEY_SET_BYTES_MAX + 1)
    if len(text) > KEY_SET_BYTES_MAX:
        raise ValueError(f"the key set has more than {KEY_SET_BYTES_MAX} bytes")
    return text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to any address, so it is an error."""

    def redirect_request(self, *_args: Any) -> None:
        return None


_no_redirects: Final = urllib.request.build_opener(_NoRedirect)


class TokenIssuer:
    """Checks the tokens of one issuer, and keeps its keys up to date."""

    def __init__(
        self,
        rules: TokenRules,
        url: str,
        clock: Clock,
        random: Random,
        executor: Executor,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        policy: RefreshPolicy | None = None,
        read: Callable[[str, float], bytes] = read_keys,
    ) -> None:
        self._checker = TokenChecker(rules)
        self._url = url
        self._clock = clock
        self._random = random
        self._executor = executor
        self._spawn = spawn
        self._read = read
        self._refresh = KeyRefresh(policy)
        self._keys: KeySet = NO_KEYS
        self._waiting: list[Done] = []

    def check(self, token: bytes, now_ms: int) -> TokenVerdict:
        """Checks a token at a time of the wall clock. Never raises."""
        usable = self._refresh.keys_usable(self._now_ms())
        return self._checker.check(token, self._keys if usable else NO_KEYS, now_ms)

    def fetch_keys(self, work: KeyFetch, done: Done) -> None:
        """Fetches the keys because a token has an unknown one, unless that was done just now."""
        step = self._refresh.on_unknown_kid(work.key_id, self._now_ms())
        if isinstance(step, RefuseKid) or len(self._waiting) >= WAITING_MAX:
            done(None)
            return
        self._waiting.append(done)
        if isinstance(step, FetchNow):
            self._spawn(self._fetch(step))

    async def run(self) -> None:
        """Fetches the keys at the start, and again when they are due, until cancelled."""
        while True:
            step = self._refresh.on_timer(self._now_ms())
            if isinstance(step, FetchNow):
                await self._fetch(step)
            elif isinstance(step, WaitUntil):
                left_s = max(0.0, (step.at_ms - self._now_ms()) / 1000)
                await self._clock.sleep(min(left_s, 60.0) + 0.001)
            else:
                assert isinstance(step, AwaitFetch)
                await self._clock.sleep(_POLL_S)

    async def _fetch(self, step: FetchNow) -> None:
        timeout_s = step.timeout_ms / 1000
        result: bytes | None = None
        try:
            text = await self._executor.run(lambda: self._read(self._url, timeout_s))
            keys = load_key_set(text)
        except (OSError, ValueError, KeySetRefused) as error:
            self._refresh.on_fetch_failed(self._now_ms(), self._random.uniform())
            _log.warning(
                "cannot fetch the keys of the token issuer from %s, the old ones stay in use: %s",
                self._url,
                error,
            )
        else:
            self._keys = keys
            self._refresh.on_fetched(keys.kids, self._now_ms())
            result = b""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(result)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
