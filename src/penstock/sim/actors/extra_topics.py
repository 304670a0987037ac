"""Topics that members of consumer groups subscribe to by name or by regular expression, and that an
administrator creates, enlarges and deletes. Nobody writes to them."""

from __future__ import annotations

from typing import Any, Final

from penstock.aio import Admin
from penstock.client.errors import ClientError
from penstock.sim.actors.shared_state import Actor

_TOPICS: Final = ("extra0", "extra1", "extra2")
_PARTITIONS_MAX: Final = 5


async def run_extra_topics(actor: Actor) -> None:
    """Changes topics until the load is over."""
    shared = actor.shared
    keywords: dict[str, Any] = {**actor.keywords, "default_api_timeout_ms": 5_000}
    while not shared.over.is_set():
        await shared.rest(0.5 + 6 * actor.draws.random())
        try:
            async with Admin(shared.bootstrap, env=actor.env, **keywords) as admin:
                await _change(actor, admin, actor.draws.choice(_TOPICS))
        except ClientError:
            shared.count("extra_topics_refused")


async def _change(actor: Actor, admin: Admin, name: str) -> None:
    known = {topic.name: topic for topic in await admin.list_topics()}.get(name)
    if known is None:
        replicas = min(3, actor.shared.scenario.brokers)
        configs = {"durability": "fsync"}
        await admin.create_topic(name, actor.draws.randint(1, 3), replicas, configs)
        actor.shared.count("extra_topics_created")
    elif actor.draws.random() < 0.5 and len(known.partitions) < _PARTITIONS_MAX:
        await admin.create_partitions(name, len(known.partitions) + 1)
        actor.shared.count("extra_topics_enlarged")
    else:
        await admin.delete_topic(name)
        actor.shared.count("extra_topics_deleted")
