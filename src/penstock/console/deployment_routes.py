"""The routes of deployed pipelines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from penstock.client.errors import ClientError
from penstock.console.deploying import Wish
from penstock.console.errors import BadRequest
from penstock.console.requests import Body, number, uploaded
from penstock.console.routes import Handler
from penstock.console.workspace import Workspace

_ACTIONS: Final = (
    "start", "stop", "restart", "rollback", "backfill", "cancel-backfill", "recompute",
    "cancel-recompute", "swap", "swap-back",
)  # fmt: skip


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


async def plan_backfill(request: Request, space: Workspace) -> Response:
    body, name = await Body.read(request), request.path_params["name"]
    return JSONResponse(await space.reprocessing.plan_backfill(name, **_backfill(body)))


async def plan_recompute(request: Request, space: Workspace) -> Response:
    body, name = await Body.read(request), request.path_params["name"]
    return JSONResponse(await space.reprocessing.plan_recompute(name, *_recompute(body)))


async def change(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    name, action = request.path_params["name"], body.text("action")
    deployments, reprocessing = space.deployments, space.reprocessing
    match action:
        case "start":
            done = await deployments.start(name)
        case "stop":
            done = await deployments.stop(name)
        case "restart":
            done = await deployments.restart(name)
        case "rollback":
            done = await deployments.roll_back(
                name, body.whole("version", least=1), body.texts("reset"), body.texts("keep")
            )
        case "backfill":
            done = await reprocessing.backfill(name, **_backfill(body))
        case "cancel-backfill":
            done = await reprocessing.cancel_backfill(name, body.text("flow"))
        case "recompute":
            done = await reprocessing.recompute(name, *_recompute(body))
        case "cancel-recompute":
            done = await reprocessing.cancel_recompute(name)
        case "swap":
            done = await reprocessing.swap(name)
        case "swap-back":
            done = await reprocessing.swap_back(name)
        case _:
            raise BadRequest(f"the action must be one of {', '.join(_ACTIONS)}, not {action!r}")
    return JSONResponse(done)


def _backfill(body: Body) -> dict[str, Any]:
    return {
        "flow": body.text("flow"),
        "since": body.text("from"),
        "to": body.text("to", ""),
        "again": body.flag("again"),
    }


def _recompute(body: Body) -> tuple[list[str], str, str]:
    return body.texts("tables"), body.text("swap", "when-caught-up"), body.text("keep", "7d")


async def delete(request: Request, space: Workspace) -> Response:
    typed = (await Body.read(request)).text("typed")
    return JSONResponse(await space.deployments.delete(request.path_params["name"], typed))


async def upload_limits(request: Request, space: Workspace) -> Response:
    return JSONResponse(space.deploying.limits())


async def plan_deploy(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.deploying.plan(_wish(request), uploaded(request)))


async def deploy(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.deploying.deploy(_wish(request), uploaded(request)))


def _wish(request: Request) -> Wish:
    """Reads what the form says. It is in the URL, because the body is the archive."""
    asked = request.query_params
    return Wish(
        name=asked.get("name", ""),
        is_new=asked.get("new") == "true",
        script=asked.get("script", ""),
        schedule=asked.get("schedule", ""),
        when=asked.get("when", ""),
        note=asked.get("note", ""),
        stopped=asked.get("stopped") == "true",
        expected=number(request, "expected", 0, 2**31),
        files=asked.get("files", ""),
        reset=asked.getlist("reset"),
        keep=asked.getlist("keep"),
    )


READS: Final[Mapping[str, Handler]] = {
    "/api/pipelines": pipeline_list,
    "/api/deployments/{name}": deployment,
    "/api/upload-limits": upload_limits,
}
POSTS: Final[Mapping[str, Handler]] = {
    "/api/read/logs/{name}": logs,
    "/api/read/preview/{name}": preview,
    "/api/read/backfill/{name}": plan_backfill,
    "/api/read/recompute/{name}": plan_recompute,
    "/api/read/deploy": plan_deploy,
    "/api/change/deploy": deploy,
    "/api/change/deployment/{name}": change,
    "/api/change/delete-deployment/{name}": delete,
}
