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
from penstock.console import deployment_routes, queue_routes
from penstock.console import routes as common_routes
from penstock.console.errors import ConsoleError, NotFound
from penstock.console.guard import CSRF_HEADER, HEADERS, Guard
from penstock.console.routes import Handler
from penstock.console.sessions import Sessions
from penstock.console.sign_in import CALLBACK, SignIn
from penstock.console.watch import is_denied

Answer = Callable[[Request], Awaitable[Response]]
_KINDS: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
_log = logging.getLogger(__name__)


class Web:
    """All routes of a console."""

    def __init__(self, guard: Guard, sessions: Sessions, sign_in: SignIn) -> None:
        self._guard = guard
        self._sessions = sessions
        self._sign_in = sign_in
        self._files = _load_files()

    def app(self) -> Starlette:
        routes = [
            Route("/", self._answered(self._file), methods=["GET"]),
            Route("/static/{name}", self._answered(self._file), methods=["GET"]),
            Route("/api/session", self._answered(self._sign_in.session), methods=["POST"]),
            Route("/api/sign-out", self._answered(self._sign_in.sign_out), methods=["POST"]),
            Route("/oauth/start", self._answered(self._sign_in.start), methods=["GET"]),
            Route(
                CALLBACK,
                self._answered(self._sign_in.callback, from_anywhere=True),
                methods=["GET"],
            ),
        ]
        for reads, posts in (
            (common_routes.READS, common_routes.POSTS),
            (access.READS, access.POSTS),
            (queue_routes.READS, queue_routes.POSTS),
            (deployment_routes.READS, deployment_routes.POSTS),
        ):
            for path, handler in reads.items():
                routes.append(Route(path, self._answered(self._known(handler)), methods=["GET"]))
            for path, handler in posts.items():
                answer = self._answered(self._known(handler, with_csrf=True))
                routes.append(Route(path, answer, methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})

    # -- access control -------------------------------------------------------------------------

    def _answered(self, handler: Answer, *, from_anywhere: bool = False) -> Answer:
        """Turns errors into one line of JSON, and adds the security headers to every answer.

        `from_anywhere`: another site may send the browser here. Only the host name is checked.
        """

        async def answer(request: Request) -> Response:
            try:
                if from_anywhere:
                    self._guard.check_host(request.headers)
                else:
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


def _failed(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status_code=status)


async def _missing(request: Request, error: Exception) -> Response:
    response = _failed("there is no such page", 404)
    response.headers.update(HEADERS)
    return response
