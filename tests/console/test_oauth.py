"""Tests signing in at an OpenID provider: a real console, a real cluster, a stand-in provider."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from console.openid import CLIENT_ID, Provider, running_provider
from console.running import Answer, Browserless
from console.secured import Secured, oauth_options, oauth_settings, secured_cluster
from console.test_guard import HandClock
from penstock.client.errors import AuthenticationFailed
from penstock.console.config import OAuthConfig
from penstock.console.errors import NotLoggedIn, NotReached, TooManyAttempts
from penstock.console.oauth import PENDING_MAX, PENDING_S, OAuth, TokenKeeper, Tokens, is_safe
from penstock.runtime import SystemRandom, Threads
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.testing.slowness import patient


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as found:
        yield found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("oauth")
    with secured_cluster(directory / "data", oauth_settings(directory, provider)) as found:
        with found.admin() as admin:
            rule = AclBinding(
                ResourceType.TOPIC,
                PatternType.LITERAL,
                "orders",
                "User:dana",
                "*",
                AclOperation.READ,
                PermissionType.ALLOW,
            )
            assert admin.create_acls([rule]) == {rule: None}
        yield found


@pytest.fixture(scope="module")
def url(secured: Secured, provider: Provider) -> Iterator[str]:
    with secured.console(*oauth_options(provider)) as found:
        yield found


def begin(url: str) -> tuple[Browserless, str]:
    """Begins to sign in. Returns the browser, and where the provider sends it back to."""
    visitor = Browserless(url)
    started = visitor.get("/oauth/start")
    assert started.status == 303, started.body
    visitor.cookie = started.headers["set-cookie"].partition(";")[0]
    asked = urlsplit(started.headers["location"])
    connection = http.client.HTTPConnection(asked.hostname or "", asked.port, timeout=patient(120))
    connection.request("GET", f"{asked.path}?{asked.query}")
    back = urlsplit(connection.getresponse().headers["location"])
    connection.close()
    assert f"{back.scheme}://{back.netloc}/" == url
    return visitor, f"{back.path}?{back.query}"


def come_back(visitor: Browserless, path: str) -> Answer:
    """Follows the provider's redirect, as a browser does: the request comes from another site."""
    return visitor.send("GET", path, headers={"sec-fetch-site": "cross-site"})


def test_a_user_of_the_provider_acts_with_their_own_rights(url: str, provider: Provider) -> None:
    asked = Browserless(url).log_in().json
    assert (asked["needs"], asked["passwords"], asked["provider"]) == ("password", False, True)
    visitor, path = begin(url)
    answer = come_back(visitor, path)
    assert answer.status == 200, answer.body
    assert b"url=/" in answer.body
    (cookie,) = [each for each in answer.cookies if "-oauth=" not in each]
    assert "samesite=strict" in cookie.lower()
    visitor.cookie = cookie.partition(";")[0]
    session = visitor.log_in()
    assert session.json["user"] == "dana"
    visitor.csrf = session.json["csrf"]
    assert visitor.get("/api/topics/orders").status == 200
    assert visitor.get("/api/topics/salaries").status in (403, 404)
    assert visitor.post("/api/change/topic", {"name": "x"}).status == 403
    assert Browserless(url).sign_in("admin", "x").status == 401


def test_an_answer_that_this_browser_did_not_ask_for_is_refused(url: str) -> None:
    """Another browser's state, an unknown one, none, and the same one twice."""
    visitor, path = begin(url)
    other, _ = begin(url)
    for stranger in (other, Browserless(url)):
        refused = come_back(stranger, path)
        assert refused.status == 401
        assert "not started in this browser" in refused.body.decode()
        assert all('-oauth="";' in each for each in refused.cookies)  # deleted, and no other is set
    assert come_back(visitor, "/oauth/callback?code=x").status == 401
    assert come_back(visitor, path).status == 200
    assert come_back(visitor, path).status == 401


def test_a_code_that_the_provider_does_not_know_is_refused(url: str) -> None:
    visitor, path = begin(url)
    answer = come_back(visitor, path.replace("code=code-", "code=<b>other-"))
    assert answer.status == 401
    assert "refused the sign-in" in answer.body.decode()
    visitor, path = begin(url)
    state = path.partition("state=")[2]
    denied = come_back(visitor, f"/oauth/callback?error=access_denied&state={state}")
    assert denied.status == 401


def test_a_token_that_the_brokers_do_not_accept_opens_no_session(
    url: str, provider: Provider
) -> None:
    visitor, path = begin(url)
    provider.expires_in_s = -600
    try:
        answer = come_back(visitor, path)
    finally:
        provider.expires_in_s = 3600
    assert answer.status == 401
    assert "does not accept this login" in answer.body.decode()


def test_other_requests_from_other_sites_stay_forbidden(url: str) -> None:
    other_site = {"sec-fetch-site": "cross-site"}
    assert Browserless(url).send("GET", "/oauth/start", headers=other_site).status == 403
    forged = {"host": "evil.example"}
    assert Browserless(url).send("GET", "/oauth/callback?code=1", headers=forged).status == 403


def test_a_provider_that_is_down_is_told(url: str, provider: Provider) -> None:
    visitor, path = begin(url)
    provider.is_down = True
    try:
        answer = come_back(visitor, path)
    finally:
        provider.is_down = False
    assert answer.status == 503
    assert "answered with status 503" in answer.body.decode()


# -- without a console -----------------------------------------------------------------------------


def oauth(provider: Provider, clock: HandClock, threads: Threads) -> OAuth:
    config = OAuthConfig(issuer=provider.url, client_id=CLIENT_ID)
    return OAuth(config, clock, SystemRandom(), threads)


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(1)
    yield made
    made.close()


def test_a_sign_in_expires_and_their_number_is_limited(
    provider: Provider, threads: Threads
) -> None:
    clock = HandClock()
    made = oauth(provider, clock, threads)

    async def main() -> None:
        _, state = await made.begin("http://localhost/oauth/callback")
        for _ in range(PENDING_MAX - 1):
            await made.begin("http://localhost/oauth/callback")
        with pytest.raises(TooManyAttempts):
            await made.begin("http://localhost/oauth/callback")
        clock.now += PENDING_S
        with pytest.raises(NotLoggedIn, match="has expired"):
            await made.finish(state, "code")
        await made.begin("http://localhost/oauth/callback")

    asyncio.run(main())


def test_a_token_is_refreshed_before_it_expires(provider: Provider, threads: Threads) -> None:
    clock = HandClock()
    made = oauth(provider, clock, threads)
    first = Tokens("old", "refresh-me", 100.0)

    async def main() -> None:
        keeper = TokenKeeper(made, first, clock)
        clock.now += 79
        assert await keeper.token() == "old"
        clock.now += 2
        renewed = await keeper.token()
        assert renewed != "old"
        assert await keeper.token() == renewed
        clock.now += provider.expires_in_s
        await keeper.token()
        refused = TokenKeeper(made, replace(first, refresh="other"), clock)
        clock.now += 81
        with pytest.raises(AuthenticationFailed):
            await refused.token()
        without = TokenKeeper(made, replace(first, refresh=None), clock)
        clock.now += 1000
        assert await without.token() == "old"

    asyncio.run(main())


def test_a_provider_that_says_it_is_another_is_not_used(
    provider: Provider, threads: Threads
) -> None:
    clock = HandClock()
    config = OAuthConfig(issuer=provider.url.replace("127.0.0.1", "localhost"), client_id="c")
    made = OAuth(config, clock, SystemRandom(), threads)
    with pytest.raises(NotReached, match="a different issuer"):
        asyncio.run(made.begin("http://localhost/oauth/callback"))


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://login.example/x", True),
        ("http://127.0.0.1:1/x", True),
        ("http://login.example", False),
        ("file:///etc/passwd", False),
        ("https://", False),
        ("https://[", False),
        ("", False),
    ],
)
def test_secrets_are_sent_with_tls_only(url: str, safe: bool) -> None:
    assert is_safe(url) == safe


def test_the_name_that_is_shown_comes_from_the_token_and_tokens_are_not_shown() -> None:
    for access in ("", "a.b.c", "a.bm90IGpzb24.c", "a.W10.c"):
        tokens = Tokens(access, None, None)
        assert tokens.user == "user"
    assert "secret" not in repr(Tokens("secret", "secret", 1.0))
