"""Checks at the end of a run that delegation tokens work as they should at every broker.

All faults are over. A token from the beginning of the run, which nobody has changed, and a new one
must be accepted by every broker, with the rights of their owner. When the new one is removed, every
broker must refuse it. What takes too long is a violation of E14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.sim.access_plan import HOLDER, HOLDER_GROUP
from penstock.sim.actors.rights_admin import ADMIN_TIMEOUT_MS
from penstock.sim.actors.shared_state import Actor
from penstock.sim.actors.token_bearer import log_in_with_token
from penstock.sim.actors.token_holder import create_token, expire_token
from penstock.sim.history import FAIL, INFO, OK, Probe

T = TypeVar("T")
_PAUSE_S: Final = 0.3


async def probe_tokens(actor: Actor) -> None:
    shared = actor.shared
    if not shared.scenario.tokens:
        return
    begun_ms, error = shared.now_ms(), ""
    step = ["delegation tokens"]
    holder = replace(actor, name=f"{actor.name}-holder", user=HOLDER)
    try:
        async with (
            asyncio.timeout(shared.scenario.mend_s),
            holder.cluster(ADMIN_TIMEOUT_MS) as cluster,
        ):
            await _probe(holder, cluster, step)
    except (ClientError, TimeoutError) as failed:
        error = f"{step[-1]}: {failed}"
    shared.history.add(
        Probe(
            process=actor.name,
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            what="delegation tokens",
        )
    )


async def _probe(holder: Actor, cluster: Cluster, step: list[str]) -> None:
    shared = holder.shared
    if shared.lasting_token:
        step.append("a token from the beginning is accepted everywhere")
        await _until_everywhere(holder, shared.lasting_token, OK)
    step.append("a token is created")
    token_id = await _until(lambda: create_token(holder, cluster), bool)
    step.append("a new token is accepted everywhere")
    await _until_everywhere(holder, token_id, OK)
    step.append("a token gives the rights of its owner")
    await _until(lambda: _served(holder, token_id), lambda groups: HOLDER_GROUP in groups)
    step.append("the token is removed")
    await _until(lambda: expire_token(holder, cluster, token_id, -1), lambda status: status == OK)
    step.append("a token that was removed is refused everywhere")
    await _until_everywhere(holder, token_id, FAIL)


async def _until_everywhere(actor: Actor, token_id: str, status: str) -> None:
    """Logs in at every broker, until it answers with this status."""
    for broker in range(actor.shared.scenario.brokers):
        log_in = partial(log_in_with_token, actor, token_id, broker)
        await _until(log_in, lambda login: login.status == status)


async def _until(work: Callable[[], Awaitable[T]], is_right: Callable[[T], object]) -> T:
    """Repeats the work until it has a right result."""
    while True:
        result = await work()
        if is_right(result):
            return result
        await asyncio.sleep(_PAUSE_S)


async def _served(actor: Actor, token_id: str) -> set[str]:
    """Returns the groups that some broker lets it use."""
    found: set[str] = set()
    for broker in range(actor.shared.scenario.brokers):
        found.update((await log_in_with_token(actor, token_id, broker)).served)
    return found
