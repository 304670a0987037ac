"""The OpenLineage events of a worker: of its pipelines, to where they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from penstock.client.environment import ClientEnv
from penstock.ports import Clock, Executor, Random
from penstock.spark.deployments.lineage.emitter import Emitter, checked, sender
from penstock.spark.deployments.lineage.run_events import (
    Namespaces,
    PipelineLineage,
    namespaces,
)


class Lineage:
    """See the module's docstring. Nothing is sent before `running`."""

    def __init__(self, target: str, bootstrap: str, env: ClientEnv, executor: Executor) -> None:
        """Raises `PipelineError` if `target` is not one."""
        send, self._close = sender(checked(target), bootstrap, env, executor)
        self.emitter = Emitter(send, env.clock)
        self._spaces = namespaces(bootstrap)
        self._env = env

    def of(self, name: str) -> TaskLineage:
        return TaskLineage(name, self._spaces, self.emitter, self._env.clock, self._env.random)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends events inside the block, and what is left at its end."""
        task = asyncio.create_task(self.emitter.run(), name="sends OpenLineage events")
        try:
            yield
        finally:
            await self.emitter.drain()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._close()


class TaskLineage:
    """The events of one pipeline."""

    def __init__(
        self, name: str, spaces: Namespaces, emitter: Emitter, clock: Clock, random: Random
    ) -> None:
        self._machine = PipelineLineage(
            name, spaces, lambda: str(UUID(bytes=random.bytes(16), version=4))
        )
        self._emitter = emitter
        self._clock = clock

    def on_event(self, event: Mapping[str, Any]) -> None:
        self._emitter.emit(self._machine.on_event(event, self._clock.wall_ms()))

    def on_end(self, *, completed: bool, error: str) -> None:
        now_ms = self._clock.wall_ms()
        self._emitter.emit(self._machine.on_end(now_ms, completed=completed, error=error))
