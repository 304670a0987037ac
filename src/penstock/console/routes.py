"""What each route does: reads the request, calls a service of the user's workspace, answers JSON.

`link.py` decides whether a change is allowed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from penstock.client.errors import ClientError
from penstock.console.messages import typed_bytes
from penstock.console.requests import Body, number
from penstock.console.workspace import Workspace

Handler = Callable[[Request, Workspace], Awaitable[Response]]
_BEAT_S: Final = 5.0
"""The longest pause of a stream. After a longer one the page assumes that the console is gone."""


# -- reading --------------------------------------------------------------------------------


async def live(request: Request, space: Workspace) -> Response:
    async def events() -> AsyncIterator[str]:
        while True:
            space.touch()
            summary = space.watch.picture.summary(space.jobs.listed())
            yield f"data: {json.dumps(summary)}\n\n"
            try:
                async with asyncio.timeout(_BEAT_S):
                    await space.watch.changed()
            except TimeoutError:
                continue

    return StreamingResponse(space.until_closed(events()), media_type="text/event-stream")


async def topic_list(request: Request, space: Workspace) -> Response:
    asked = request.query_params
    found = await space.topics.listed(
        asked.get("search", ""),
        asked.get("sort", "name"),
        asked.get("descending") == "true",
        asked.get("internal") == "true",
        number(request, "offset", 0),
        number(request, "limit", 100),
    )
    return JSONResponse(found)


async def topic(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.topics.described(request.path_params["name"]))


async def configs(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.topics.configs(request.path_params["name"]))


async def raw(request: Request, space: Workspace) -> Response:
    name = request.path_params["name"]
    partition, offset = number(request, "partition", 0, 2**31), number(request, "offset", 0)
    content = await space.messages.raw(name, partition, offset)
    disposition = f'attachment; filename="{partition}-{offset}.bin"'
    headers = {"content-disposition": disposition}
    return Response(content, media_type="application/octet-stream", headers=headers)


async def browse(request: Request, space: Workspace) -> Response:
    query = (await Body.read(request)).query()
    return JSONResponse(await space.messages.browse(request.path_params["name"], query))


async def message(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    found = await space.messages.one(
        request.path_params["name"],
        body.whole("partition"),
        body.whole("offset"),
        body.format(whole=True),
    )
    return JSONResponse(found)


async def tail(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    name, partitions = request.path_params["name"], body.partitions()
    following = space.messages.follow(name, partitions, body.test(), body.format())
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


async def group_list(request: Request, space: Workspace) -> Response:
    search = request.query_params.get("search", "")
    offset, limit = number(request, "offset", 0), number(request, "limit", 100)
    return JSONResponse(await space.groups.listed(search, offset, limit))


async def group(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.groups.described(request.query_params.get("name", "")))


async def plan_reset(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    found = await space.groups.plan_reset(
        body.text("group"),
        body.texts("topics"),
        body.text("target"),
        body.whole("value", 0, least=-(2**62)),
    )
    return JSONResponse(found)


async def plan(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.brokers.plan((await Body.read(request)).wholes("drain")))


async def history(request: Request, space: Workspace) -> Response:
    asked = request.query_params
    range_s = number(request, "range", 300)
    found = space.figures.read(asked.get("kind", ""), asked.get("name", ""), range_s)
    return JSONResponse(found)


# -- changing -------------------------------------------------------------------------------


async def create(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    created = await space.topics.create(
        body.text("name"),
        body.maybe_whole("partitions", least=1),
        body.maybe_whole("replicas", least=1),
        body.pairs("configs"),
    )
    return JSONResponse(created)


async def configure(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    name = request.path_params["name"]
    found = await space.topics.configure(name, body.pairs("set"), body.texts("delete"))
    return JSONResponse(found)


async def grow(request: Request, space: Workspace) -> Response:
    total = (await Body.read(request)).whole("total", least=1)
    return JSONResponse(await space.topics.grow(request.path_params["name"], total))


async def delete(request: Request, space: Workspace) -> Response:
    typed = (await Body.read(request)).text("typed")
    return JSONResponse(await space.topics.delete(request.path_params["name"], typed))


async def produce(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    sent = await space.messages.produce(
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


async def replay(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    ranges = {
        each.whole("partition"): (each.whole("from"), each.whole("to"))
        for each in body.objects("ranges")
    }
    job = await space.messages.replay(
        request.path_params["name"],
        body.text("target"),
        ranges,
        body.test(),
        keep_partitions=body.flag("keep_partitions"),
    )
    return JSONResponse(job)


async def reset(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    return JSONResponse(await space.groups.reset(body.text("group"), body.offsets("moves")))


async def delete_group(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    return JSONResponse(await space.groups.delete(body.text("group"), body.text("typed")))


async def rebalance(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    throttle = body.maybe_whole("throttle", least=0)
    return JSONResponse(await space.brokers.rebalance(body.wholes("drain"), throttle))


async def undrain(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.brokers.undrain((await Body.read(request)).whole("broker")))


async def elect(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.brokers.elect())


async def cancel_moves(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.brokers.cancel_moves())


async def stop_job(request: Request, space: Workspace) -> Response:
    space.jobs.stop((await Body.read(request)).whole("number"))
    return JSONResponse({})


READS: Final[Mapping[str, Handler]] = {
    "/api/live": live,
    "/api/topics": topic_list,
    "/api/topics/{name}": topic,
    "/api/topics/{name}/configs": configs,
    "/api/topics/{name}/raw": raw,
    "/api/groups": group_list,
    "/api/group": group,
    "/api/history": history,
}
"""Answered for GET."""
POSTS: Final[Mapping[str, Handler]] = {
    "/api/read/messages/{name}": browse,
    "/api/read/message/{name}": message,
    "/api/read/tail/{name}": tail,
    "/api/read/reset": plan_reset,
    "/api/read/plan": plan,
    "/api/change/topic": create,
    "/api/change/configs/{name}": configure,
    "/api/change/partitions/{name}": grow,
    "/api/change/delete/{name}": delete,
    "/api/change/produce/{name}": produce,
    "/api/change/replay/{name}": replay,
    "/api/change/reset": reset,
    "/api/change/delete-group": delete_group,
    "/api/change/rebalance": rebalance,
    "/api/change/undrain": undrain,
    "/api/change/elect": elect,
    "/api/change/cancel-moves": cancel_moves,
    "/api/change/stop-job": stop_job,
}
"""Answered for POST, with the CSRF token of the session."""
