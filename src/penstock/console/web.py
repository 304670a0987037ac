"""The HTTP routes of the console: JSON in and out.

Reads are GET, or POST under `/api/read` if a filter or schema would not fit into a URL. Changes are
POST under `/api/change`. A route only parses its request and calls a service. `link.py` decides
whether a change is allowed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.client.errors import BrokerError, ClientError, OptionError, TopicNotFound
from penstock.console.brokers import Brokers
from penstock.console.errors import ConsoleError, NotFound
from penstock.console.groups import Groups
from penstock.console.guard import CSRF_HEADER, HEADERS, Guard
from penstock.console.jobs import Jobs
from penstock.console.messages import Messages, typed_bytes
from penstock.console.pipelines import Pipelines
from penstock.console.requests import Body, number
from penstock.console.topics import Topics
from penstock.console.watch import Watch

Handler = Callable[[Request], Awaitable[Response]]
_BEAT_S: Final = 5.0
"""The longest pause of a stream. After a longer one the page assumes that the console is gone."""
_KINDS: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
_log = logging.getLogger(__name__)


class Web:
    """All routes of a console."""

    def __init__(
        self,
        guard: Guard,
        watch: Watch,
        jobs: Jobs,
        topics: Topics,
        messages: Messages,
        groups: Groups,
        brokers: Brokers,
        pipelines: Pipelines,
    ) -> None:
        self._guard = guard
        self._watch = watch
        self._jobs = jobs
        self._topics = topics
        self._messages = messages
        self._groups = groups
        self._brokers = brokers
        self._pipelines = pipelines
        self._files = _load_files()

    def app(self) -> Starlette:
        get: dict[str, Handler] = {
            "/api/live": self._live,
            "/api/topics": self._topic_list,
            "/api/topics/{name}": self._topic,
            "/api/topics/{name}/configs": self._configs,
            "/api/topics/{name}/raw": self._raw,
            "/api/groups": self._group_list,
            "/api/group": self._group,
            "/api/pipelines": self._pipeline_list,
        }
        post: dict[str, Handler] = {
            "/api/read/messages/{name}": self._browse,
            "/api/read/message/{name}": self._message,
            "/api/read/tail/{name}": self._tail,
            "/api/read/reset": self._plan_reset,
            "/api/read/plan": self._plan,
            "/api/change/topic": self._create,
            "/api/change/configs/{name}": self._configure,
            "/api/change/partitions/{name}": self._grow,
            "/api/change/delete/{name}": self._delete,
            "/api/change/produce/{name}": self._produce,
            "/api/change/replay/{name}": self._replay,
            "/api/change/reset": self._reset,
            "/api/change/delete-group": self._delete_group,
            "/api/change/rebalance": self._rebalance,
            "/api/change/undrain": self._undrain,
            "/api/change/elect": self._elect,
            "/api/change/cancel-moves": self._cancel_moves,
            "/api/change/stop-job": self._stop_job,
        }
        routes = [
            Route("/", self._answered(self._file), methods=["GET"]),
            Route("/static/{name}", self._answered(self._file), methods=["GET"]),
            Route("/api/session", self._answered(self._session), methods=["POST"]),
        ]
        for path, handler in get.items():
            routes.append(Route(path, self._answered(self._known(handler)), methods=["GET"]))
        for path, handler in post.items():
            routes.append(Route(path, self._answered(self._trusted(handler)), methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})

    # -- access control -------------------------------------------------------------------------

    def _answered(self, handler: Handler) -> Handler:
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

    def _known(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            self._guard.check_session(request.cookies.get(self._guard.cookie))
            return await handler(request)

        return answer

    def _trusted(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            session = self._guard.check_session(request.cookies.get(self._guard.cookie))
            self._guard.check_csrf(session, request.headers.get(CSRF_HEADER))
            return await handler(request)

        return answer

    async def _session(self, request: Request) -> Response:
        """Returns a CSRF token for the browser's session, and opens a session if it has none.

        A new session needs the token, if one is configured.
        """
        cookie = request.cookies.get(self._guard.cookie)
        token = (await Body.read(request)).maybe_text("token")
        try:
            session = self._guard.check_session(cookie)
        except ConsoleError:
            if token is None and self._guard.needs_token:
                raise
            cookie = self._guard.open_session() if token is None else self._guard.login(token)
            session = self._guard.check_session(cookie)
        response = JSONResponse({"csrf": self._guard.csrf_token(session)})
        response.set_cookie(
            self._guard.cookie, cookie or "", httponly=True, samesite="strict", path="/"
        )
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

    # -- reading --------------------------------------------------------------------------------

    async def _live(self, request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            while True:
                summary = self._watch.picture.summary(self._jobs.listed())
                yield f"data: {json.dumps(summary)}\n\n"
                try:
                    async with asyncio.timeout(_BEAT_S):
                        await self._watch.changed()
                except TimeoutError:
                    continue

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _topic_list(self, request: Request) -> Response:
        asked = request.query_params
        found = await self._topics.listed(
            asked.get("search", ""),
            asked.get("sort", "name"),
            asked.get("descending") == "true",
            asked.get("internal") == "true",
            number(request, "offset", 0),
            number(request, "limit", 100),
        )
        return JSONResponse(found)

    async def _topic(self, request: Request) -> Response:
        return JSONResponse(await self._topics.described(request.path_params["name"]))

    async def _configs(self, request: Request) -> Response:
        return JSONResponse(await self._topics.configs(request.path_params["name"]))

    async def _raw(self, request: Request) -> Response:
        name = request.path_params["name"]
        partition, offset = number(request, "partition", 0, 2**31), number(request, "offset", 0)
        content = await self._messages.raw(name, partition, offset)
        disposition = f'attachment; filename="{partition}-{offset}.bin"'
        headers = {"content-disposition": disposition}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def _browse(self, request: Request) -> Response:
        query = (await Body.read(request)).query()
        return JSONResponse(await self._messages.browse(request.path_params["name"], query))

    async def _message(self, request: Request) -> Response:
        body = await Body.read(request)
        found = await self._messages.one(
            request.path_params["name"],
            body.whole("partition"),
            body.whole("offset"),
            body.format(whole=True),
        )
        return JSONResponse(found)

    async def _tail(self, request: Request) -> Response:
        body = await Body.read(request)
        name, partitions = request.path_params["name"], body.partitions()
        following = self._messages.follow(name, partitions, body.test(), body.format())
        # Read before the answer begins, so that an error can still become the answer.
        first = await anext(following)

        async def lines() -> AsyncIterator[str]:
            yield json.dumps(first) + "\n"
            try:
                async for found in following:
                    yield json.dumps(found) + "\n"
            except ClientError as error:
                yield json.dumps({"error": str(error)}) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _group_list(self, request: Request) -> Response:
        search = request.query_params.get("search", "")
        offset, limit = number(request, "offset", 0), number(request, "limit", 100)
        return JSONResponse(await self._groups.listed(search, offset, limit))

    async def _group(self, request: Request) -> Response:
        return JSONResponse(await self._groups.described(request.query_params.get("name", "")))

    async def _plan_reset(self, request: Request) -> Response:
        body = await Body.read(request)
        found = await self._groups.plan_reset(
            body.text("group"),
            body.texts("topics"),
            body.text("target"),
            body.whole("value", 0, least=-(2**62)),
        )
        return JSONResponse(found)

    async def _plan(self, request: Request) -> Response:
        return JSONResponse(await self._brokers.plan((await Body.read(request)).wholes("drain")))

    async def _pipeline_list(self, request: Request) -> Response:
        return JSONResponse(await self._pipelines.listed())

    # -- changing -------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Response:
        body = await Body.read(request)
        created = await self._topics.create(
            body.text("name"),
            body.maybe_whole("partitions", least=1),
            body.maybe_whole("replicas", least=1),
            body.pairs("configs"),
        )
        return JSONResponse(created)

    async def _configure(self, request: Request) -> Response:
        body = await Body.read(request)
        name = request.path_params["name"]
        found = await self._topics.configure(name, body.pairs("set"), body.texts("delete"))
        return JSONResponse(found)

    async def _grow(self, request: Request) -> Response:
        total = (await Body.read(request)).whole("total", least=1)
        return JSONResponse(await self._topics.grow(request.path_params["name"], total))

    async def _delete(self, request: Request) -> Response:
        typed = (await Body.read(request)).text("typed")
        return JSONResponse(await self._topics.delete(request.path_params["name"], typed))

    async def _produce(self, request: Request) -> Response:
        body = await Body.read(request)
        sent = await self._messages.produce(
            request.path_params["name"],
            typed_bytes(body.maybe_text("key"), body.text("key_encoding", "text")),
            typed_bytes(body.maybe_text("value"), body.text("value_encoding", "text")),
            [
                (header.text("name"), header.text("value", "").encode())
                for header in body.objects("headers")
            ],
            body.maybe_whole("partition"),
        )
        return JSONResponse(sent)

    async def _replay(self, request: Request) -> Response:
        body = await Body.read(request)
        ranges = {
            each.whole("partition"): (each.whole("from"), each.whole("to"))
            for each in body.objects("ranges")
        }
        job = await self._messages.replay(
            request.path_params["name"],
            body.text("target"),
            ranges,
            body.test(),
            keep_partitions=body.flag("keep_partitions"),
        )
        return JSONResponse(job)

    async def _reset(self, request: Request) -> Response:
        body = await Body.read(request)
        return JSONResponse(await self._groups.reset(body.text("group"), body.offsets("moves")))

    async def _delete_group(self, request: Request) -> Response:
        body = await Body.read(request)
        return JSONResponse(await self._groups.delete(body.text("group"), body.text("typed")))

    async def _rebalance(self, request: Request) -> Response:
        body = await Body.read(request)
        throttle = body.maybe_whole("throttle", least=0)
        return JSONResponse(await self._brokers.rebalance(body.wholes("drain"), throttle))

    async def _undrain(self, request: Request) -> Response:
        return JSONResponse(await self._brokers.undrain((await Body.read(request)).whole("broker")))

    async def _elect(self, request: Request) -> Response:
        return JSONResponse(await self._brokers.elect())

    async def _cancel_moves(self, request: Request) -> Response:
        return JSONResponse(await self._brokers.cancel_moves())

    async def _stop_job(self, request: Request) -> Response:
        self._jobs.stop((await Body.read(request)).whole("number"))
        return JSONResponse({})


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
