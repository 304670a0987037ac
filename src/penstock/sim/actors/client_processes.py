"""Starts the clients of a run, each in its own process, and restarts those that are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.sim.access_plan import APP
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.world import World

Plan = Callable[[Actor], Coroutine[Any, Any, None]]
"""What a client does, from start to end."""


class ClientProcesses:
    """Starts all clients. Most of them may be killed and restarted."""

    def __init__(
        self,
        world: World,
        shared: SharedState,
        plans: dict[str, Plan],
        users: Mapping[str, str],
    ) -> None:
        """`users` says as whom clients log in, by the first part of their names."""
        self._world = world
        self._shared = shared
        self._plans = plans
        self._users = users
        self._lives = dict.fromkeys(plans, 0)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for name in plans:
            self._start(name)

    @property
    def mortal(self) -> list[str]:
        """Clients that may be killed: readers and workers. A killed plain producer could not
        report its unfinished sends."""
        return [name for name in self._plans if name[0] in "rmw"]

    @property
    def writers(self) -> list[str]:
        """Clients that write in transactions. They report their unfinished work, so they may
        be killed. Tenants do not."""
        return [name for name in self._plans if name[0] in "tcs" and name[1:].isdecimal()]

    @property
    def owners(self) -> list[str]:
        """Workers that own pipelines, members of consumer groups, which own partitions, and
        members of share groups, which hold records."""
        return [name for name in self._plans if name[0] == "w" or name[:2] in ("mc", "ms", "mq")]

    @property
    def names(self) -> list[str]:
        return [*self._plans]

    def restart(self, name: str) -> None:
        """Kills a client and starts a new one in its place."""
        node = self._world.client(name)
        node.kill()
        self._shared.on_killed(self._process(name))
        self._lives[name] += 1
        node.start()
        self._start(name)

    def _process(self, name: str) -> str:
        life = self._lives[name]
        return f"{name}/{life}" if life else name

    def _start(self, name: str) -> None:
        node, process = self._world.client(name), self._process(name)
        draws = self._world.draws(process)
        user = self._users.get(name.partition("-")[0], APP)
        actor = Actor(self._shared, node.env, process, draws, user=user)
        self._tasks[name] = node.spawn(self._plans[name](actor), name=process)

    async def finish(self) -> None:
        """Waits until all clients have ended by themselves after the load. One that does not
        is stuck."""
        await self._world.until(
            lambda: all(task.done() for task in self._tasks.values()),
            timeout_s=self._shared.scenario.mend_s,
            poll_s=0.25,
            what="the end of all clients",
        )
        for task in self._tasks.values():
            task.result()
