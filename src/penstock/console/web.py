"""The HTTP server of the console: sessions, static files, errors as one line of JSON.

Reads are GET, or POST under `/api/read` if a filter or schema would not fit into a URL. Changes are
POST under `/api/change`. `routes.py` and `access_routes.py` have what they do.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientError,
    OptionError,
    TopicNotFound,
)
from penstock.console import access_routes as access
from penstock.console import routes as common_routes
from penstock.console.errors import ConsoleError, NotFound, NotLoggedIn, NotReached
from penstock.console.guard import CSRF_HEADER, HEADERS, Guard
from penstock.console.requests import Body
from penstock.console.routes import Handler
from penstock.console.sessions import Sessions
from penstock.console.watch import is_denied

Answer = Callable[[Request], Awaitable[Response]]
_KINDS: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
_log = logging.getLogger(__name__)


class Web:
    """All routes of a console."""

    def __init__(self, guard: Guard, sessions: Sessions, *, is_https: bool) -> None:
        self._guard = guard
        self._sessions = sessions
        self._is_https = is_https
        self._files = _load_files()

    def app(self) -> Starlette:
        routes = [
            Route("/", self._answered(self._file), methods=["GET"]),
            Route("/static/{name}", self._answered(self._file), methods=["GET"]),
            Route("/api/session", self._answered(self._session), methods=["POST"]),
            Route("/api/sign-out", self._answered(self._sign_out), methods=["POST"]),
        ]
        for reads, posts in (
            (common_routes.READS, common_routes.POSTS),
            (access.READS, access.POSTS),
        ):
            for path, handler in reads.items():
                routes.append(Route(path, self._answered(self._known(handler)), methods=["GET"]))
            for path, handler in posts.items():
                answer = self._answered(self._known(handler, with_csrf=True))
                routes.append(Route(path, answer, methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})

    # -- access control -------------------------------------------------------------------------

    def _answered(self, handler: Answer) -> Answer:
        """Turns errors into one line of JSON, and adds the security headers to every answer."""

        async def answer(request: Request) -> Response:
            try:
                self._guard.check_origin(request.headers)
                response = await handler(request)
            except ConsoleError as error:
                response = _failed(str(error), error.status)
            except ClientError as error:
                response = _failed(str(error), _status(error))
            except Exception:  # noqa: BLE001 -- a bug of ours must not show its insides
                _log.exception("%s %s failed", request.method, request.url.path)
                response = _failed("internal error of the console: see its log", 500)
            response.headers.update(HEADERS)
            if request.url.path.startswith("/api/"):
                response.headers["cache-control"] = "no-store"
            return response

        return answer

    def _known(self, handler: Handler, *, with_csrf: bool = False) -> Answer:
        async def answer(request: Request) -> Response:
            session = self._guard.check_session(request.cookies.get(self._guard.cookie))
            if with_csrf:
                self._guard.check_csrf(session, request.headers.get(CSRF_HEADER))
            workspace = self._sessions.workspace(session)
            try:
                return await handler(request, workspace)
            except AuthenticationFailed as error:
                if self._sessions.needs_sign_in:
                    raise self._sessions.on_refused(session) from error
                raise

        return answer

    async def _session(self, request: Request) -> Response:
        """Returns a CSRF token for the browser's session, and opens a session if it has none.

        A new session needs a user name and password if users sign in, or the token if one is
        configured.
        """
        body = await Body.read(request)
        user, password = body.maybe_text("user"), body.maybe_text("password")
        cookie = request.cookies.get(self._guard.cookie)
        try:
            if user is not None and password is not None and self._sessions.needs_sign_in:
                cookie = await self._signed_in(request, user, password)
            session = self._guard.check_session(cookie)
            workspace = self._sessions.workspace(session)
        except ConsoleError as error:
            if self._sessions.needs_sign_in:
                return _failed(str(error), error.status, needs="password")
            token = body.maybe_text("token")
            if token is None and self._guard.needs_token:
                return _failed(str(error), error.status, needs="token")
            cookie = self._guard.open_session() if token is None else self._guard.login(token)
            session = self._guard.check_session(cookie)
            workspace = self._sessions.workspace(session)
        response = JSONResponse({"csrf": self._guard.csrf_token(session), "user": workspace.user})
        response.set_cookie(
            self._guard.cookie,
            cookie or "",
            httponly=True,
            samesite="strict",
            path="/",
            secure=self._is_https,
        )
        return response

    async def _signed_in(self, request: Request, user: str, password: str) -> str:
        cookie = self._guard.open_session()
        session = self._guard.check_session(cookie)
        address = "" if request.client is None else request.client.host
        try:
            await self._sessions.sign_in(session, user, password, address)
        except OptionError as error:
            # A name or password that no user can have. The message begins with the option's name.
            raise NotLoggedIn(str(error).partition(": ")[2] or str(error)) from None
        except ClientError as error:
            raise NotReached(str(error)) from error
        return cookie

    async def _sign_out(self, request: Request) -> Response:
        session = self._guard.check_session(request.cookies.get(self._guard.cookie))
        self._guard.check_csrf(session, request.headers.get(CSRF_HEADER))
        self._sessions.end(session, "signed out")
        response = JSONResponse({})
        response.delete_cookie(self._guard.cookie, path="/")
        return response

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            raise NotFound("there is no such file")
        content, kind, tag = self._files[name]
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)


def _load_files() -> dict[str, tuple[bytes, str, str]]:
    """Loads all static files. They are few and small, and so no path is made from a request."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for file in resources.files("penstock.console").joinpath("static").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return found


def _status(error: ClientError) -> int:
    match error:
        case TopicNotFound():
            return 404
        case BrokerError() if is_denied(error):
            return 403
        case BrokerError():
            return 409
        case OptionError():
            return 400
    return 503


def _failed(text: str, status: int, **more: str) -> Response:
    return JSONResponse({"error": text, **more}, status_code=status)


async def _missing(request: Request, error: Exception) -> Response:
    response = _failed("there is no such page", 404)
    response.headers.update(HEADERS)
    return response
