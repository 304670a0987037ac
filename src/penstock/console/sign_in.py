"""How a browser gets a session: at once, with the token, with a password, or at a provider."""

from __future__ import annotations

import hmac
import html
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from penstock.client.errors import ClientError, OptionError
from penstock.console.config import ConsoleConfig
from penstock.console.errors import ConsoleError, NotFound, NotLoggedIn, NotReached
from penstock.console.guard import CSRF_HEADER, Guard
from penstock.console.oauth import PENDING_S, OAuth
from penstock.console.requests import Body
from penstock.console.sessions import Login, Sessions
from penstock.security.oauthbearer import MECHANISM as OAUTHBEARER

CALLBACK: Final = "/oauth/callback"
_OAUTH_PATH: Final = "/oauth"


class SignIn:
    def __init__(
        self, config: ConsoleConfig, guard: Guard, sessions: Sessions, oauth: OAuth | None
    ) -> None:
        self._mechanisms = config.password_mechanisms
        self._is_https = bool(config.tls_certificate)
        self._guard = guard
        self._sessions = sessions
        self._oauth = oauth
        self._state_cookie = f"{guard.cookie}-oauth"

    async def session(self, request: Request) -> Response:
        """Returns a CSRF token for the browser's session, and opens a session if it has none.

        A new session needs a user name and password if users sign in, or the token if one is
        configured.
        """
        body = await Body.read(request)
        user, password = body.maybe_text("user"), body.maybe_text("password")
        cookie = request.cookies.get(self._guard.cookie)
        try:
            if user is not None and password is not None and self._sessions.needs_sign_in:
                cookie = await self._with_password(request, user, password)
            session = self._guard.check_session(cookie)
            workspace = self._sessions.workspace(session)
        except ConsoleError as error:
            if self._sessions.needs_sign_in:
                return self._refused(error, "password")
            token = body.maybe_text("token")
            if token is None and self._guard.needs_token:
                return self._refused(error, "token")
            cookie = self._guard.open_session() if token is None else self._guard.login(token)
            session = self._guard.check_session(cookie)
            workspace = self._sessions.workspace(session)
        response = JSONResponse({"csrf": self._guard.csrf_token(session), "user": workspace.user})
        self._set_cookie(response, cookie or "")
        return response

    async def sign_out(self, request: Request) -> Response:
        session = self._guard.check_session(request.cookies.get(self._guard.cookie))
        self._guard.check_csrf(session, request.headers.get(CSRF_HEADER))
        self._sessions.end(session, "signed out")
        response = JSONResponse({})
        response.delete_cookie(self._guard.cookie, path="/")
        return response

    # -- a provider -----------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        """Sends the browser to the provider."""
        address, state = await self._provider().begin(self._callback_url(request))
        response = RedirectResponse(address, status_code=303)
        response.set_cookie(
            self._state_cookie,
            state,
            max_age=int(PENDING_S),
            path=_OAUTH_PATH,
            httponly=True,
            # The provider sends the browser back here: a strict cookie would not be sent then.
            samesite="lax",
            secure=self._is_https,
        )
        return response

    async def callback(self, request: Request) -> Response:
        """Opens a session for the code with which the provider sent the browser back."""
        try:
            cookie = await self._with_code(request)
        except (ConsoleError, ClientError) as error:
            status = error.status if isinstance(error, ConsoleError) else 503
            response = _page("Not signed in", f"{error}", status)
        else:
            # The browser does not send a strict cookie after a redirect from another site, but
            # after this page it does.
            response = _page("Signed in", "", 200)
            self._set_cookie(response, cookie)
        response.delete_cookie(self._state_cookie, path=_OAUTH_PATH)
        response.headers["cache-control"] = "no-store"
        return response

    async def _with_code(self, request: Request) -> str:
        oauth = self._provider()
        asked = request.query_params
        state, expected = asked.get("state", ""), request.cookies.get(self._state_cookie, "")
        if not state or not hmac.compare_digest(state.encode(), expected.encode()):
            raise NotLoggedIn("this sign-in was not started in this browser: sign in again")
        if "code" not in asked:
            raise NotLoggedIn("the provider refused the sign-in: sign in again")
        tokens = await oauth.finish(state, asked["code"])
        login = {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token": oauth.keeper(tokens).token}
        return await self._begin(request, tokens.user, [login])

    def _provider(self) -> OAuth:
        if self._oauth is None:
            raise NotFound("this console has no provider: sign in with name and password")
        return self._oauth

    def _callback_url(self, request: Request) -> str:
        # The host name has been checked.
        scheme = "https" if self._is_https else "http"
        return f"{scheme}://{request.headers['host']}{CALLBACK}"

    # -- all ------------------------------------------------------------------------------------

    async def _with_password(self, request: Request, user: str, password: str) -> str:
        if not self._mechanisms:
            raise NotLoggedIn("sign in at the provider: passwords are not accepted")
        logins = [
            {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password}
            for mechanism in self._mechanisms
        ]
        return await self._begin(request, user, logins)

    async def _begin(self, request: Request, user: str, logins: Sequence[Login]) -> str:
        """Returns the cookie of a new session."""
        cookie = self._guard.open_session()
        session = self._guard.check_session(cookie)
        address = "" if request.client is None else request.client.host
        try:
            await self._sessions.sign_in(session, user, logins, address)
        except OptionError as error:
            # A name or password that no user can have. The message begins with the option's name.
            raise NotLoggedIn(str(error).partition(": ")[2] or str(error)) from None
        except ClientError as error:
            raise NotReached(str(error)) from error
        return cookie

    def _refused(self, error: ConsoleError, needs: str) -> Response:
        """Tells the page what to ask for."""
        offers = {"passwords": bool(self._mechanisms), "provider": self._oauth is not None}
        return JSONResponse(
            {"error": str(error), "needs": needs, **offers}, status_code=error.status
        )

    def _set_cookie(self, response: Response, cookie: str) -> None:
        response.set_cookie(
            self._guard.cookie,
            cookie,
            httponly=True,
            samesite="strict",
            path="/",
            secure=self._is_https,
        )


def _page(title: str, text: str, status: int) -> Response:
    """Returns a page without scripts. Without a text it opens the console."""
    forward = "" if text else '<meta http-equiv="refresh" content="0;url=/">'
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{forward}<title>{title}'
        f'</title></head><body><h1>{title}</h1><p>{html.escape(text)}</p><p><a href="/">Open the '
        "console</a></p></body></html>",
        status_code=status,
    )
