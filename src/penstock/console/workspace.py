"""What one user sees and does: a connection to the cluster, its snapshot, jobs and pages.

A console without sign-in has one workspace, which all browsers share. With sign-in every session
has its own, whose connections are logged in as the user. Nothing is shared between them, so a page
cannot show what another user may see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from penstock.client.environment import ClientEnv
from penstock.console.access import Access
from penstock.console.audit import Audit
from penstock.console.brokers import Brokers
from penstock.console.config import ConsoleConfig
from penstock.console.deploying import Deploying
from penstock.console.deployments import Deployments
from penstock.console.figures import Figures
from penstock.console.groups import Groups
from penstock.console.jobs import Jobs
from penstock.console.link import Link
from penstock.console.messages import Messages
from penstock.console.picture import Picture
from penstock.console.pipelines import Pipelines
from penstock.console.previews import Previews
from penstock.console.progress import Progress
from penstock.console.queries import Queries
from penstock.console.queues import Queues
from penstock.console.reprocessing import Reprocessing
from penstock.console.topics import Topics
from penstock.console.uploads import Uploads
from penstock.console.watch import Watch
from penstock.ports import Executor

T = TypeVar("T")


class Workspace:
    def __init__(
        self,
        config: ConsoleConfig,
        env: ClientEnv,
        executor: Executor,
        uploads: Uploads,
        security: Mapping[str, Any],
        user: str | None = None,
    ) -> None:
        self.user = user
        self._closed = asyncio.Event()
        self.link = link = Link(config, env, security, user)
        self.watch = watch = Watch(link, Picture(config.bootstrap, config.read_only))
        self.jobs = jobs = Jobs(watch.tell)
        progress = Progress(watch.picture.history)
        queries = Queries(link, watch, progress)
        self.topics = Topics(link, watch)
        self.messages = Messages(link, jobs)
        self.groups = Groups(link, watch)
        self.queues = Queues(link, watch, jobs)
        self.brokers = Brokers(link, watch, jobs)
        # The files of pipelines belong to the person who runs the console, not to its users.
        self.pipelines = Pipelines(executor, queries, progress, env.clock, with_files=user is None)
        self.deployments = Deployments(link, watch, progress)
        self.deploying = Deploying(link, self.deployments, uploads, self._closed.is_set)
        self.reprocessing = Reprocessing(link, watch, self.deployments)
        self.previews = Previews(
            link,
            self.messages,
            self.deployments.graph,
            self.deployments.check_runs,
            self.deployments.exists,
        )
        watch.picture.pipeline_problems = self.deployments.problems
        self.figures = Figures(
            watch,
            env.clock,
            {"queue": self.queues.exists, "pipeline": self.deployments.is_deployed},
        )
        self.access = Access(link)
        self.audit = Audit(link)
        self.used = env.clock.monotonic()
        """When a page last used it."""
        self._loops = (
            watch.run,
            jobs.run,
            queries.run,
            self.queues.run,
            self.pipelines.run,
            self.deployments.run,
        )

    def touch(self) -> None:
        self.used = self.link.env.clock.monotonic()

    async def run(self) -> None:
        """Polls the cluster and runs jobs until `close` is called."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(loop()) for loop in self._loops]
            await self._closed.wait()
            for task in running:
                task.cancel()
        await self.link.close()

    def close(self) -> None:
        """Ends streams, jobs and connections."""
        self._closed.set()

    async def until_closed(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yields the items of a stream. Ends it when the workspace is closed."""
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            while not closed.done():
                following = asyncio.ensure_future(anext(items))
                await asyncio.wait({closed, following}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    with suppress(asyncio.CancelledError, StopAsyncIteration):
                        await following
                    return
                try:
                    yield following.result()
                except StopAsyncIteration:
                    return
        finally:
            closed.cancel()
