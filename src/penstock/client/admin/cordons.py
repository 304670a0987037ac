"""Cordons brokers, so that they get no new partitions. A drain marks its broker this way.

This is Kafka's own setting (KIP-1066), `cordoned.log.dirs` of a broker, so other tools see it and
can remove it. It survives restarts of the broker, and is removed when the broker is unregistered.
The broker keeps its partitions, and a request that names its replicas explicitly is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from penstock.client.admin.admin import Admin
from penstock.client.errors import ClientError
from penstock.metadata.broker_configs import CORDONED

ALL: Final = "*"
_PATIENCE_S: Final = 3.0


async def cordon(admin: Admin, broker: int) -> None:
    """Prevents new partitions from being placed on a running broker."""
    await admin.alter_configs(broker=broker, set_values={CORDONED: ALL})


async def uncordon(admin: Admin, broker: int) -> bool:
    """Allows new partitions on the broker again. Returns whether it was cordoned."""
    was_cordoned = await _is_cordoned(admin, broker)
    if was_cordoned:
        await admin.alter_configs(broker=broker, delete=[CORDONED])
    return was_cordoned


async def find_cordoned(admin: Admin, brokers: Iterable[int]) -> frozenset[int]:
    """Returns which of these brokers are cordoned. One that does not answer soon counts as not
    cordoned."""
    found: set[int] = set()

    async def ask(broker: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if await _is_cordoned(admin, broker):
                    found.add(broker)
        except (ClientError, TimeoutError):
            return

    async with asyncio.TaskGroup() as tasks:
        for broker in brokers:
            tasks.create_task(ask(broker))
    return frozenset(found)


async def _is_cordoned(admin: Admin, broker: int) -> bool:
    entry = (await admin.describe_configs(broker=broker)).get(CORDONED)
    return entry is not None and bool(entry.value)
