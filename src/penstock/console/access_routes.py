"""The routes of the access and audit pages: users, access rules, roles, quotas, audit events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.console.audit import LIMIT_MAX
from penstock.console.requests import Body, number
from penstock.console.routes import Handler
from penstock.console.workspace import Workspace

_MECHANISM: Final = "SCRAM-SHA-512"


async def users(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.access.users(request.query_params.get("search", "")))


async def acls(request: Request, space: Workspace) -> Response:
    asked = request.query_params
    found = await space.access.acls(asked.get("user", ""), asked.get("resource", ""))
    return JSONResponse(found)


async def roles(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.access.roles())


async def quotas(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.access.quotas())


async def audit(request: Request, space: Workspace) -> Response:
    asked = request.query_params
    found = await space.audit.listed(
        asked.get("since", ""),
        asked.get("user", ""),
        asked.get("action", ""),
        asked.get("outcome", ""),
        number(request, "limit", 200, LIMIT_MAX),
    )
    return JSONResponse(found)


async def check(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    found = await space.access.check(
        body.text("user"), body.text("operation"), body.text("resource"), body.text("host", "")
    )
    return JSONResponse(found)


async def add_user(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    mechanism = body.text("mechanism", _MECHANISM)
    user, password = body.text("user"), body.text("password")
    done = await space.access.set_password(user, password, mechanism, is_new=True)
    return JSONResponse(done)


async def set_password(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    user, password = body.text("user"), body.text("password")
    done = await space.access.set_password(user, password, _MECHANISM, is_new=False)
    return JSONResponse(done)


async def delete_user(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    return JSONResponse(await space.access.delete_user(body.text("user"), body.text("typed")))


async def create_acl(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    done = await space.access.create_acl(
        body.text("user"),
        body.text("resource"),
        body.text("operation"),
        body.text("permission"),
        body.text("host", ""),
    )
    return JSONResponse(done)


async def delete_acl(request: Request, space: Workspace) -> Response:
    fields = (await Body.read(request)).pairs("acl")
    return JSONResponse(await space.access.delete_acl(fields))


async def define_role(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    return JSONResponse(await space.access.define_role(body.text("role"), body.texts("grants")))


async def delete_role(request: Request, space: Workspace) -> Response:
    return JSONResponse(await space.access.delete_role((await Body.read(request)).text("role")))


async def grant_role(request: Request, space: Workspace) -> Response:
    return await _assign(request, space, revoke=False)


async def revoke_role(request: Request, space: Workspace) -> Response:
    return await _assign(request, space, revoke=True)


async def _assign(request: Request, space: Workspace, *, revoke: bool) -> Response:
    body = await Body.read(request)
    done = await space.access.assign_role(
        body.text("role"),
        body.text("user"),
        body.text("resource", ""),
        body.text("host", ""),
        revoke=revoke,
    )
    return JSONResponse(done)


async def set_quota(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    entity, key, limit = body.pairs("entity"), body.text("key"), body.number("limit")
    return JSONResponse(await space.access.set_quota(entity, key, limit))


async def delete_quota(request: Request, space: Workspace) -> Response:
    body = await Body.read(request)
    return JSONResponse(await space.access.set_quota(body.pairs("entity"), body.text("key"), None))


READS: Final[Mapping[str, Handler]] = {
    "/api/access/users": users,
    "/api/access/acls": acls,
    "/api/access/roles": roles,
    "/api/access/quotas": quotas,
    "/api/audit": audit,
}
POSTS: Final[Mapping[str, Handler]] = {
    "/api/read/access": check,
    "/api/change/user": add_user,
    "/api/change/password": set_password,
    "/api/change/delete-user": delete_user,
    "/api/change/acl": create_acl,
    "/api/change/delete-acl": delete_acl,
    "/api/change/role": define_role,
    "/api/change/delete-role": delete_role,
    "/api/change/grant-role": grant_role,
    "/api/change/revoke-role": revoke_role,
    "/api/change/quota": set_quota,
    "/api/change/delete-quota": delete_quota,
}
