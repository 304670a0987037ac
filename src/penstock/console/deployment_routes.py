"""The routes of deployed pipelines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from penstock.client.errors import ClientError
from penstock.console.errors import BadRequest
from penstock.console.requests import Body
from penstock.console.routes import Handler
from penstock.console.workspace import Workspace

_ACTIONS: Final = ("start", "stop", "restart", "rollback")


async def pipeline_list(request: Request, space: Workspace) -> Response:
    return JSONResponse({**await space.pipelines.listed(), **space.deployments.listed()})


async def deployment(request: Request, space: Workspace) -> Response:
    return JSONResponse(space.deployments.described(request.path_params["name"]))


async def logs(request: Request, space: Workspace) -> Response:
    await Body.read(request)
    following = space.deployments.logs(request.path_params["name"])
    # Read before the answer begins, so that an error can still become the answer.
    first = await anext(following)

    async def lines() -> AsyncIterator[str]:
        yield json.dumps(first) + "\n"
        try:
            async for found in following:
                yield json.dumps(found) + "\n"
        except ClientError as error:
            yield json.dumps({"error": str(error)}) + "\n"

    return StreamingResponse(space.until_closed(lines()), media_type="application/x-ndjson")


async def preview(request: Request, space: Workspace) -> Response:
    node = (await Body.read(request)).text("node")
    return JSONResponse(await space.previews.rows(request.path_params["name"], node))


async def change(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    name, action = request.path_params["name"], body.text("action")
    match action:
        case "start":
            done = await space.deployments.start(name)
        case "stop":
            done = await space.deployments.stop(name)
        case "restart":
            done = await space.deployments.restart(name)
        case "rollback":
            done = await space.deployments.roll_back(
                name, body.whole("version", least=1), body.texts("reset"), body.texts("keep")
            )
        case _:
            raise BadRequest(f"the action must be one of {', '.join(_ACTIONS)}, not {action!r}")
    return JSONResponse(done)


async def delete(request: Request, space: Workspace) -> Response:
    typed = (await Body.read(request)).text("typed")
    return JSONResponse(await space.deployments.delete(request.path_params["name"], typed))


READS: Final[Mapping[str, Handler]] = {
    "/api/pipelines": pipeline_list,
    "/api/deployments/{name}": deployment,
}
POSTS: Final[Mapping[str, Handler]] = {
    "/api/read/logs/{name}": logs,
    "/api/read/preview/{name}": preview,
    "/api/change/deployment/{name}": change,
    "/api/change/delete-deployment/{name}": delete,
}
