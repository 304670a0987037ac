"""Shell completion for names of topics, groups and transactional ids, read from the cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

import typer

from penstock.cli.output import CommandFailed
from penstock.cli.session import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, connect
from penstock.client.admin.admin import Admin
from penstock.client.errors import ClientError

_PATIENCE_S: Final = 1.0
"""After this time there is no completion: a user who pressed Tab does not want to wait."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [topic.name for topic in await admin.list_topics(internal=True)]

    return _matching(incomplete, _names(context, ask))


def groups(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [listing.group for listing in await admin.list_groups()]

    return _matching(incomplete, _names(context, ask))


def transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [listing.transactional_id for listing in await admin.list_transactions()]

    return _matching(incomplete, _names(context, ask))


def _names(
    context: typer.Context, ask: Callable[[Admin], Coroutine[Any, Any, list[str]]]
) -> list[str]:
    bootstrap = (
        context.params.get("bootstrap") or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    )

    async def main() -> list[str]:
        async with asyncio.timeout(_PATIENCE_S), connect(bootstrap) as admin:
            return await ask(admin)

    try:
        return asyncio.run(main())
    except (ClientError, CommandFailed, TimeoutError):
        return []


def _matching(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
