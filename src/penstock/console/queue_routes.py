"""The routes of queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.console.queues import PEEK_MAX, Selection
from penstock.console.requests import Body, number
from penstock.console.routes import Handler
from penstock.console.workspace import Workspace


async def queue_list(request: Request, space: Workspace) -> Response:
    search = request.query_params.get("search", "")
    offset, limit = number(request, "offset", 0), number(request, "limit", 100)
    return JSONResponse(await space.queues.listed(search, offset, limit))


async def queue(request: Request, space: Workspace) -> Response:
    asked = request.query_params
    return JSONResponse(
        await space.queues.described(asked.get("topic", ""), asked.get("group", ""))
    )


async def jobs(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    limit = max(1, min(body.whole("limit", 20), PEEK_MAX))
    found = await space.queues.jobs(body.text("topic"), body.text("group"), limit, body.format())
    return JSONResponse(found)


async def plan_redrive(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    return JSONResponse(await space.queues.plan_redrive(body.text("group"), _selection(body)))


async def redrive(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    return JSONResponse(await space.queues.redrive(body.text("group"), _selection(body)))


def _selection(body: Body) -> Selection:
    return Selection(
        body.text("to", "").strip(), body.text("error", ""), body.maybe_whole("limit", least=1)
    )


READS: Final[Mapping[str, Handler]] = {
    "/api/queues": queue_list,
    "/api/queue": queue,
}
POSTS: Final[Mapping[str, Handler]] = {
    "/api/read/jobs": jobs,
    "/api/read/redrive": plan_redrive,
    "/api/change/redrive": redrive,
}
