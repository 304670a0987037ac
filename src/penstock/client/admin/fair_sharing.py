"""Shows which brokers divide themselves between users when they are overloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from penstock.client.admin.operations import ConfigEntry
from penstock.client.errors import ClientError

SETTING: Final = "fair.sharing.enabled"
_PATIENCE_S: Final = 3.0


class DescribesConfigs(Protocol):
    """The method of `Admin` that this needs."""

    async def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None
    ) -> dict[str, ConfigEntry]: ...


async def find_fair_sharing(admin: DescribesConfigs, brokers: Iterable[int]) -> dict[int, bool]:
    """Returns whether fair sharing is on, by broker. Brokers that do not answer soon, that have no
    such setting, or that do not show it to this user are left out."""
    found: dict[int, bool] = {}

    async def ask(broker: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                entry = (await admin.describe_configs(broker=broker)).get(SETTING)
        except (ClientError, TimeoutError):
            return
        if entry is not None:
            found[broker] = entry.value == "true"

    async with asyncio.TaskGroup() as tasks:
        for broker in brokers:
            tasks.create_task(ask(broker))
    return dict(sorted(found.items()))


def fair_sharing_text(found: Mapping[int, bool]) -> str:
    """Returns one line for people."""
    on = [str(broker) for broker, is_on in found.items() if is_on]
    if not found:
        return "fair sharing: unknown"
    if len(on) == len(found):
        return "fair sharing: on"
    return f"fair sharing: on at brokers {', '.join(on)} only" if on else "fair sharing: off"
