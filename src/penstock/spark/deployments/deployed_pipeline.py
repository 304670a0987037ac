"""A pipeline on a worker: the driver of the tables that are served, and that of a recompute.

`Recomputation` decides; this module tells it what happens to both drivers, holds them, writes the
swap to the catalog, and deletes generations that are dead. The worker owns both with one lease: it
gives the pipeline up when nothing of either runs any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.client.errors import ClientError
from penstock.runtime import boot_time
from penstock.spark.deployments import generation_folders
from penstock.spark.deployments.checkpoint_folders import local_folder
from penstock.spark.deployments.checkpoint_offsets import behind, read_offsets
from penstock.spark.deployments.generations import (
    cancelled,
    dead_generations,
    expired,
    generation_storage,
    live_generations,
    recomputing,
    swapped,
)
from penstock.spark.deployments.metrics.figures import PipelineSample
from penstock.spark.deployments.metrics.reprocessing import (
    BackfillSample,
    BackfillWatch,
    RecomputeSample,
    RecomputeSeen,
    RecomputeWatch,
)
from penstock.spark.deployments.model import Deployment, Event, Status, Version
from penstock.spark.deployments.phase import Phase
from penstock.spark.deployments.pipeline_task import PipelineTask
from penstock.spark.deployments.recompute import QUIET, Recomputation, Seen, Stage, Step
from penstock.spark.deployments.recompute_parts import running_flows
from penstock.spark.deployments.recompute_requests import planned_graph
from penstock.spark.deployments.supervisor_events import Held, Now
from penstock.spark.deployments.surroundings import Surroundings
from penstock.spark.pipelines.driver_control import Assignment
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.events import RunView

_log = logging.getLogger(__name__)
_RETRY_S: Final = 1.0
_TOLD: Final = {"started": "recompute-started", "failed": "recompute-failed"}
"""What the history says about the driver of a recompute."""


class _Served:
    """The driver of the tables that are served."""

    def __init__(self, pipeline: DeployedPipeline, log_folder: Path) -> None:
        self._pipeline = pipeline
        self.log_folder = str(log_folder)

    def definition(self) -> tuple[Deployment | None, Version | None]:
        return self._pipeline.defined(self._pipeline.deployment)

    def previous(self) -> Status | None:
        return self._pipeline.around.catalog.statuses.get(self._pipeline.name)

    def assignment(self, assigned: Assignment) -> Assignment:
        return assigned

    def status(self, status: Status) -> Status:
        return self._pipeline.complete(status)

    def event(self, event: Event) -> Event:
        return event

    def on_driver_event(self, event: Mapping[str, Any]) -> None:
        """Nothing but the supervisor needs it."""

    def on_handled(self) -> None:
        self._pipeline.look()


class _Recomputed:
    """The driver of a recompute."""

    def __init__(self, pipeline: DeployedPipeline, log_folder: Path) -> None:
        self._pipeline = pipeline
        self.log_folder = str(log_folder / "recompute")

    def definition(self) -> tuple[Deployment | None, Version | None]:
        deployment = self._pipeline.deployment
        if deployment is None or not self._pipeline.has_room():
            return None, None
        return self._pipeline.defined(recomputing(deployment))

    def previous(self) -> None:
        return None

    def assignment(self, assigned: Assignment) -> Assignment:
        return self._pipeline.recompute_assignment(assigned)

    def status(self, _: Status) -> None:
        self._pipeline.main.mark_dirty()

    def event(self, event: Event) -> Event | None:
        what = _TOLD.get(event.what)
        return None if what is None else replace(event, what=what)

    def on_driver_event(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "refused":
            self._pipeline.refuse(str(event.get("text") or ""))

    def on_handled(self) -> None:
        self._pipeline.look()


class DeployedPipeline:
    """A pipeline that the worker owns or still ends. `run` does the work, until cancelled."""

    def __init__(
        self, name: str, around: Surroundings, has_room: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.name = name
        self.around = around
        self._has_room = has_room
        logs = around.folder.logs(name)
        self._machine = Recomputation()
        self._step = Step()
        self._is_looking = self._look_again = False
        self._news = asyncio.Event()
        self._events: list[tuple[str, str]] = []
        self._refused: tuple[int, str] | None = None
        self._tidied: tuple[object, ...] = ()
        self._backfill_watch = BackfillWatch()
        self._recompute_watch = RecomputeWatch()
        self.main = PipelineTask(name, around, _Served(self, logs))
        self.second = PipelineTask(name, around, _Recomputed(self, logs))

    # -- what the worker tells ------------------------------------------------------------------

    @property
    def deployment(self) -> Deployment | None:
        return self.around.catalog.deployments.get(self.name)

    def _runs_streams(self) -> bool:
        """Whether the driver of the served tables also writes to them between its rounds."""
        deployment, version = self.defined(self.deployment)
        is_project = version is not None and version.kind == "project"
        return is_project and deployment is not None and deployment.schedule.continuous

    @property
    def owned(self) -> bool:
        return self.main.machine.owned

    @property
    def tasks(self) -> tuple[PipelineTask, PipelineTask]:
        return self.main, self.second

    @property
    def is_starting(self) -> bool:
        return any(task.is_starting for task in self.tasks)

    @property
    def is_recomputing(self) -> bool:
        """Whether there is a second driver, or it is being prepared."""
        return self.second.machine.phase is not Phase.IDLE

    def define(self) -> None:
        """The deployment may have changed."""
        self.look()  # A driver that must be held is held before it knows.
        for task in self.tasks:
            task.define()
        self.main.mark_dirty()

    def take(self, lease_until: float) -> None:
        self.look()
        for task in self.tasks:
            task.take(lease_until)

    async def give_up(self) -> None:
        """Returns when nothing of the pipeline runs any more."""
        await asyncio.gather(*(task.give_up() for task in self.tasks))

    def lose(self) -> None:
        for task in self.tasks:
            task.lose()

    def renew(self, until: float) -> None:
        for task in self.tasks:
            task.renew(until)

    async def tell_progress(self) -> None:
        self.look()
        self._watch()
        deployment = self.deployment
        is_undefined = self.second.machine.status(self._now()) is None
        if is_undefined and deployment is not None and deployment.recompute is not None:
            self.second.define()  # There may be memory for it now.
        for task in self.tasks:
            await task.tell_progress()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for task in self.tasks:
                tasks.create_task(task.run())
            tasks.create_task(self._work())

    # -- what the drivers tell ------------------------------------------------------------------

    def defined(self, deployment: Deployment | None) -> tuple[Deployment | None, Version | None]:
        if deployment is None:
            return None, None
        return deployment, self.around.catalog.versions.get((self.name, deployment.version))

    def has_room(self) -> bool:
        """Whether the worker has memory for a second driver, or has started it already."""
        return self.second.generation is not None or self._has_room(self.name)

    def refuse(self, text: str) -> None:
        """The driver says that these tables cannot be computed again."""
        deployment = self.deployment
        if deployment is not None and deployment.recompute is not None:
            self._refused = deployment.recompute.generation, text
            self._news.set()

    def recompute_assignment(self, assigned: Assignment) -> Assignment:
        deployment = self.deployment
        if deployment is None or deployment.recompute is None:
            return assigned
        running = self.around.catalog.versions.get((self.name, deployment.version))
        told = self.around.catalog.statuses.get(self.name)
        graphs = planned_graph(told), self.main.view.graph
        flows = running_flows(() if running is None else running.flows, *graphs)
        return replace(assigned, recompute=list(deployment.recompute.tables), running_flows=flows)

    def complete(self, status: Status) -> Status:
        """Adds to a status what is known of the generations."""
        deployment = self.deployment
        if deployment is None:
            return status
        place = self.around.folder.storage(deployment)
        return replace(status, place=place, recompute=self._progress(deployment))

    def _progress(self, deployment: Deployment) -> dict[str, Any]:
        recompute = deployment.recompute
        if recompute is None:
            return {}
        found = self.second.machine.status(self._now())
        is_waiting = found is None and not self.has_room()
        return {
            "generation": recompute.generation,
            "version": recompute.version,
            "stage": self._machine.stage.value,
            "caught_up": self._machine.has_caught_up,
            "state": "WAITING FOR MEMORY" if is_waiting else found.state if found else "STOPPED",
            "error": found.error if found else "",
            "failures": found.failures if found else 0,
            "rounds": self.second.rounds.ended,
            "lag": _lag(self.second.view),
            "served_lag": _lag(self.main.view),
            "flows": self.second.view.as_dict()["flows"],
            "place": self._place(deployment, recompute.generation),
        }

    def sample(self, memory_bytes: int | None) -> PipelineSample:
        """Returns what metrics say about it. `memory_bytes` is that of the main driver."""
        backfills, recompute = self._watch()
        return replace(self.main.sample(memory_bytes), backfills=backfills, recompute=recompute)

    def _watch(self) -> tuple[list[BackfillSample], RecomputeSample | None]:
        """Measures the progress of the backfills and of the recompute."""
        now, deployment = self.around.clock.monotonic(), self.deployment
        if deployment is None or not self.owned:
            return [], self._recompute_watch.look(None, now)
        status, main = self.main.machine.status(self._now()), self.main
        if status is not None:
            status = replace(status, backfills=main.backfills.statuses)
        backfills = self._backfill_watch.look(deployment, status, main.figures.failures, now)
        return backfills, self._recompute_watch.look(self._recompute_seen(deployment), now)

    def _recompute_seen(self, deployment: Deployment) -> RecomputeSeen | None:
        progress, second = self._progress(deployment), self.second
        if not progress:
            return None
        return RecomputeSeen(
            progress["generation"],
            progress["state"],
            progress["rounds"],
            sum(flow.input_rows for flow in list(second.figures.flows.values())),
            [name for name, flow in list(second.view.flows.items()) if flow.status == "COMPLETED"],
            progress["lag"],
            progress["failures"],
        )

    # -- what is decided ------------------------------------------------------------------------

    def look(self) -> None:
        """Decides again. Called after everything that happens."""
        if self._is_looking:
            self._look_again = True
            return
        self._is_looking = True
        try:
            self._look_again = True
            while self._look_again:
                self._look_again = False
                self._apply(self._machine.look(self._seen(), boot_time()))
        finally:
            self._is_looking = False
        self._news.set()

    def _apply(self, step: Step) -> None:
        before, self._step = self._step, step
        self._events += step.events
        if step.events:
            self.main.mark_dirty()
        if before.hold != step.hold:
            self.main.handle(Held(step.hold, stops_streams=self._runs_streams()))
        if before.hold_recompute != step.hold_recompute:
            self.second.handle(Held(step.hold_recompute))

    def _seen(self) -> Seen:
        second = self.second
        status = second.machine.status(self._now())
        return Seen(
            deployment=self.deployment,
            owned=self.main.machine.reports(self._now()),
            is_quiet=self.main.machine.phase in QUIET,
            driver_generation=second.generation,
            begun=second.rounds.begun,
            ended=second.rounds.ended,
            round_s=second.rounds.last_s,
            failures=0 if status is None else status.failures,
        )

    def _now(self) -> Now:
        return Now(boot_time(), self.around.clock.wall_ms())

    # -- what is done ---------------------------------------------------------------------------

    async def _work(self) -> None:
        """Does what was decided, one thing after the other."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._do()
            except (ClientError, PipelineError, OSError) as error:
                _log.warning("cannot change the tables of %s: %s", self.name, error)
            except Exception:  # noqa: BLE001 - one error must not end the pipeline
                _log.exception("cannot change the tables of %s; trying again", self.name)
            else:
                continue
            await self.around.clock.sleep(_RETRY_S)
            self._news.set()

    async def _do(self) -> None:
        while self._events:
            what, text = self._events[0]
            await self._record(what, text)
            self._events.pop(0)
        deployment = self.deployment
        if deployment is None or not self._owns():
            return
        if self._refused is not None:
            generation, reason = self._refused
            await self._change(
                lambda known: cancelled(known) if _computes(known, generation) else known,
                "recompute-refused",
                reason,
            )
            self._refused = None
        elif self._step.swap:
            await self._swap(deployment)
        elif expired(deployment, self.around.clock.wall_ms()) != deployment:
            await self._change(
                lambda known: expired(known, self.around.clock.wall_ms()),
                "deleted-old-tables",
                "the time for which they were kept is over",
            )
        await self._tidy()

    async def _swap(self, deployment: Deployment) -> None:
        recompute = deployment.recompute
        assert recompute is not None, "it was decided that it is swapped"
        missing = await self._behind(deployment, recompute.generation)
        if missing:
            texts = [f"{flow} is {number:,} records behind" for flow, number in missing.items()]
            self._events += self._machine.put_off("; ".join(texts))
            self.look()
            return
        tables = ", ".join(recompute.tables)
        await self._change(
            lambda known: (
                swapped(known, recompute.generation, self.around.clock.wall_ms())
                if self._owns() and self._machine.stage is Stage.SWAPPING
                else known
            ),
            "swapped",
            f"{tables}: generation {recompute.generation} replaced generation "
            f"{deployment.generation}",
        )

    async def _behind(self, deployment: Deployment, generation: int) -> dict[str, int]:
        """Returns how much less the new tables have read. Empty if the storage is no folder."""
        old = local_folder(self._place(deployment, deployment.generation))
        new = local_folder(self._place(deployment, generation))
        if old is None or new is None:
            return {}
        return await self.around.executor.run(lambda: behind(read_offsets(old), read_offsets(new)))

    async def _tidy(self) -> None:
        """Lets readers find the served generation, and deletes dead ones."""
        deployment = self.deployment
        if deployment is None:
            return
        busy = {task.generation for task in self.tasks}
        todo = live_generations(deployment), deployment.storage, busy
        if todo == self._tidied or not self._owns():
            return
        folder = self.around.folder
        root = local_folder(folder.root_storage(deployment))
        places = {folder.own_storage(self.name), *(() if root is None else (root,))}

        def work() -> None:
            if root is not None:
                generation_folders.point(root, deployment.generation)
            for place in places:
                found = generation_folders.found_generations(place)
                dead = [each for each in dead_generations(deployment, found) if each not in busy]
                generation_folders.delete(place, dead)

        await self.around.executor.run(work)
        self._tidied = todo

    async def _change(
        self, change: Callable[[Deployment], Deployment], what: str, text: str
    ) -> None:
        by = self.around.identity.worker
        await self.around.catalog.change(self.name, change, what, text, by=by)

    async def _record(self, what: str, text: str) -> None:
        deployment = self.deployment
        recompute = None if deployment is None else deployment.recompute
        version = 0 if recompute is None else recompute.version
        now_ms, worker = self.around.clock.wall_ms(), self.around.identity.worker
        await self.around.catalog.record(Event(self.name, now_ms, what, text, version, worker))

    def _owns(self) -> bool:
        return self.main.machine.reports(self._now())

    def _place(self, deployment: Deployment, generation: int) -> str:
        return generation_storage(self.around.folder.root_storage(deployment), generation)


def _computes(deployment: Deployment, generation: int) -> bool:
    recompute = deployment.recompute
    return recompute is not None and recompute.generation == generation


def _lag(view: RunView) -> int | None:
    """Returns how many records are in the topics that the flows have not read; None if unknown."""
    known = [flow.lag for flow in list(view.flows.values()) if flow.lag is not None]
    return sum(known) if known else None
