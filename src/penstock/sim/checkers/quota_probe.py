"""Checks at the end of a run that quotas take effect, and end, at every broker.

All faults are over. A tenant gets a quota, and must be throttled by each broker. It ignores that,
and must be answered again when its mute ends. Then the quota is removed, and no broker may throttle
the tenant any more. No topic may exist that was refused because of a quota. What takes too long is
a violation of E14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.security.quotas import PRODUCER_BYTE_RATE
from penstock.sim.access_plan import TENANT
from penstock.sim.actors.quota_admin import (
    QUOTA_ADMIN_TIMEOUT_MS,
    Changes,
    NotAltered,
    all_quotas,
    alter,
)
from penstock.sim.actors.sends import batch_of
from penstock.sim.actors.shared_state import Actor
from penstock.sim.actors.tenants import Tenant, Used, produce_request
from penstock.sim.history import INFO, OK, Metered, Probe
from penstock.sim.quota_plan import HASTY_WRITER, entities_for
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import ProduceResponse

_PAUSE_S: Final = 0.3
_LIMIT: Final = 100.0
_NOWHERE: Final = TopicPartition("no-such-topic", 0)
"""Refused requests count for the quota too, at every broker."""


async def probe_quotas(actor: Actor) -> None:
    """Throttles a tenant at every broker, and lets it go again."""
    shared = actor.shared
    if not shared.scenario.quotas:
        return
    begun_ms, error, step = shared.now_ms(), "", ["connecting"]
    try:
        async with (
            asyncio.timeout(shared.scenario.mend_s),
            actor.cluster(QUOTA_ADMIN_TIMEOUT_MS) as cluster,
        ):
            await _throttle_everywhere(actor, cluster, step)
    except (ClientError, TimeoutError) as failed:
        error = f"{step[-1]}: {failed}"
    for what, found in (("throttling a client", error), ("refusing topics", _created(actor))):
        shared.history.add(
            Probe(
                process=actor.name,
                status=INFO if found else OK,
                begun_ms=begun_ms,
                ended_ms=shared.now_ms(),
                error=found,
                what=what,
            )
        )


def _created(actor: Actor) -> str:
    """Returns which refused topics exist all the same."""
    refused = [
        entry.refused_topic
        for entry in actor.shared.history.entries
        if isinstance(entry, Metered) and entry.refused_topic
    ]
    found = [name for name in refused if actor.shared.is_known(name)]
    return f"{', '.join(found)} exist, although they were refused" if found else ""


async def _throttle_everywhere(actor: Actor, cluster: Cluster, step: list[str]) -> None:
    user = actor.shared.tenant_user
    tenant = Tenant(replace(actor, name=f"{actor.name}-tenant", user=TENANT), HASTY_WRITER)
    quota = entities_for(HASTY_WRITER, user)[0], PRODUCER_BYTE_RATE
    step.append("all quotas are removed")
    await _until_made(actor, cluster, dict.fromkeys(all_quotas(user)))
    step.append("a quota is set")
    await _until_made(actor, cluster, {quota: _LIMIT})
    async with tenant.cluster() as of_tenant:
        for broker in sorted(of_tenant.brokers):
            send = partial(_send, tenant, of_tenant, broker)
            step.append(f"broker {broker} throttles the tenant")
            await _until(send, lambda used: used.throttle_ms > 0)
            step.append(f"broker {broker} answers the tenant after its mute")
            await _until(send, lambda used: used.status == OK)
        step.append("the quota is removed")
        await _until_made(actor, cluster, {quota: None})
        for broker in sorted(of_tenant.brokers):
            step.append(f"broker {broker} throttles the tenant no longer")
            send = partial(_send, tenant, of_tenant, broker)
            await _until(send, lambda used: used.status == OK and not used.throttle_ms)


async def _until(send: Callable[[], Awaitable[Used]], holds: Callable[[Used], bool]) -> None:
    """Repeats the request until its result is the right one."""
    while True:
        if holds(await send()):
            return
        await asyncio.sleep(_PAUSE_S)


async def _send(tenant: Tenant, cluster: Cluster, broker: int) -> Used:
    """Sends more than the quota of a second. It is refused, because the topic does not exist."""
    batch = batch_of(tenant.actor, ["x" * int(3 * _LIMIT)])

    async def work(connection: Connection) -> Used:
        answer = await connection.call(produce_request(_NOWHERE, batch), ProduceResponse)
        return Used(OK, answer.throttle_time_ms, len(batch))

    return await tenant.request(cluster, broker, work)


async def _until_made(actor: Actor, cluster: Cluster, changes: Changes) -> None:
    while True:
        try:
            await alter(actor, cluster, changes)
        except (ClientError, NotAltered):
            await asyncio.sleep(_PAUSE_S)
        else:
            return
