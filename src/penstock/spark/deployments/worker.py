"""A worker: runs the pipelines that the group of workers assigns to it.

`Ownership` says which pipelines are its own and until when; the catalog says what they are to do;
each is run by a `DeployedPipeline`. The worker itself decides which pipelines it is able to run,
watches the memory of their drivers, and reports that it is there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from penstock.client.cluster import Cluster
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.options import AdminOptions
from penstock.runtime import Threads
from penstock.spark.deployments.archive_training import ArchiveTraining
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.cluster_watch import ClusterWatch
from penstock.spark.deployments.deployed_pipeline import DeployedPipeline
from penstock.spark.deployments.eligibility import eligible, settled
from penstock.spark.deployments.gone_workers import forget_gone
from penstock.spark.deployments.guard_process import GuardProcess
from penstock.spark.deployments.lineage.worker_lineage import Lineage
from penstock.spark.deployments.logged_errors import WRITE_ERRORS, FailedWrites, only_logged
from penstock.spark.deployments.memory_watch import MemoryWatch
from penstock.spark.deployments.metrics.endpoint import (
    MetricsEnv,
    MetricsOptions,
    Observed,
    serving,
)
from penstock.spark.deployments.metrics.figures import WorkerSample
from penstock.spark.deployments.metrics.start_times import StartTimes
from penstock.spark.deployments.model import WorkerStatus
from penstock.spark.deployments.needed_here import needed_here
from penstock.spark.deployments.ownership import Ownership, OwnershipOptions
from penstock.spark.deployments.preparation import DEFAULT_MEMORY_MB, Preparation
from penstock.spark.deployments.preview_server import PreviewServer
from penstock.spark.deployments.previews import Preview, PreviewRequest
from penstock.spark.deployments.spares import Spares
from penstock.spark.deployments.starting import Patience, is_in_round, is_starting
from penstock.spark.deployments.supervisor_events import Identity
from penstock.spark.deployments.surroundings import Surroundings
from penstock.spark.deployments.worker_folder import WorkerFolder

_log = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
_REPORT_EVERY: Final = 5
_MEMORY_EVERY: Final = 2
_FORGET_S: Final = 3.0
_WRITE_S: Final = 5.0
_THREADS: Final = 8
_PREPARING_THREADS: Final = 4
"""For preparations, which may be slow and must not delay the rest, such as the end of a driver."""
_CLEAN_S: Final = 3600.0
_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    bootstrap: str
    data: str
    memory_mb: int = 0
    """The memory for all of its pipelines together; 0: no limit."""
    secrets: str = ""
    """The folder of secrets."""
    spare: bool = True
    """Whether a driver is kept in reserve."""
    ownership: OwnershipOptions | None = None
    metrics: MetricsOptions | None = None
    """Where metrics are served. None: nowhere."""
    openlineage: str = ""
    """Where OpenLineage events are sent: a URL, topic:NAME or a file. Empty: nowhere."""


class Worker:
    """The owner of pipelines, for `Ownership`."""

    def __init__(
        self, options: WorkerOptions, catalog: Catalog, cluster: Cluster, env: ClientEnv
    ) -> None:
        self._options = options
        self._catalog = catalog
        self._env = env
        self._threads = Threads(_THREADS)
        self._preparing_threads = Threads(_PREPARING_THREADS)
        self._folder = WorkerFolder(options.data)
        host = socket.gethostname()
        self.id = f"{host}-{env.random.bytes(4).hex()}"
        storage_id = self._folder.prepare(env.random)
        self._folder.claim_spares(self.id)
        self._identity = Identity(self.id, host, storage_id)
        preparation = Preparation(
            catalog,
            self._folder,
            self._preparing_threads,
            env.clock,
            worker=self.id,
            bootstrap=options.bootstrap,
            secrets=options.secrets,
        )
        start_times = StartTimes(env.clock)
        self._lineage: Lineage | None = None
        if options.openlineage:
            self._lineage = Lineage(options.openlineage, options.bootstrap, env, self._threads)
        self._spares = Spares(
            preparation, self._folder, self._threads, env.clock, env.random, start_times
        )
        self._preparation = preparation
        self._patience = Patience()
        self._training = ArchiveTraining(preparation.archives, self._folder, self._threads)
        self._watch = ClusterWatch(
            options.bootstrap, cluster, lambda: self.ownership.lease_age_s, env.clock
        )
        self._around = Surroundings(
            catalog, self._folder, preparation, self._spares, self._threads, env.clock, env.random,
            self._identity, start_times, self._watch, self._lineage,
        )  # fmt: skip
        self._memory = MemoryWatch(self._threads)
        self.pipelines: dict[str, DeployedPipeline] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.ownership = Ownership(
            cluster,
            options.ownership,
            eligible=self._eligible,
            existing=lambda: frozenset(catalog.deployments),
            settled=self._settled,
            owner=self,
        )
        group = self.ownership.options.group_id
        self._guard = GuardProcess(self.id, options.bootstrap, group)
        self.on_metrics: Callable[[str], None] = lambda _: None
        """Called with the address of the metrics, once they are served."""
        self._unreported = FailedWrites("the status of this worker")
        self._started_ms = env.clock.wall_ms()
        self._stopping = False
        self._owning: asyncio.Future[None] | None = None
        self._known_eligible: tuple[frozenset[str], frozenset[str]] | None = None

    # -- the life of a worker -------------------------------------------------------------------

    async def run(self) -> None:
        """Runs pipelines until `stop` is called. Then gives up all of them and leaves the group."""
        sending = nullcontext() if self._lineage is None else self._lineage.running()
        try:
            async with sending, self._guard.running():
                await self._run()
        finally:
            self._preparing_threads.close()
            self._threads.close()

    async def _run(self) -> None:
        if self._stopping:
            return
        self._catalog.on_change(self._on_change)
        self._owning = asyncio.ensure_future(self.ownership.run())
        looking = asyncio.create_task(self._look(), name="looks after pipelines")
        cleaning = asyncio.create_task(self._clean(), name="removes old files")
        previews = PreviewServer(self._options.bootstrap, self._env, self._preview)
        serving_previews = asyncio.create_task(previews.run(), name="serves previews")
        try:
            async with self._metrics() as url:
                if url:
                    self.on_metrics(url)
                await asyncio.wait([self._owning, looking], return_when=asyncio.FIRST_COMPLETED)
            for task in (self._owning, looking):
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            self._owning.cancel()
            others = (looking, cleaning, serving_previews)
            for task in others:
                task.cancel()
            await asyncio.gather(self._owning, *others, return_exceptions=True)
            for running in self._running.values():
                running.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            await self._spares.close()
            await self._training.close()
            await self._threads.run(self._folder.release_spares)
            await self._forget()

    async def _forget(self) -> None:
        try:
            async with asyncio.timeout(_FORGET_S):
                await self._catalog.forget_worker(self.id)
        except (*WRITE_ERRORS, TimeoutError) as error:
            _log.warning("cannot remove the status of this worker: %s", error or "no answer")

    def stop(self) -> None:
        """Stops all pipelines after their rounds; a second call stops them at once."""
        if self._stopping:
            for pipeline in self.pipelines.values():
                pipeline.lose()
        self._stopping = True
        if self._owning is not None:
            self._owning.cancel()

    # -- ownership ------------------------------------------------------------------------------

    def take(self, name: str) -> None:
        pipeline = self.pipelines.get(name)
        if pipeline is None:
            pipeline = DeployedPipeline(name, self._around, self._has_room)
            self.pipelines[name] = pipeline
            self._running[name] = asyncio.create_task(
                self._keep_running(pipeline), name=f"pipeline {name}"
            )
        pipeline.take(self.ownership.lease_until)

    async def _keep_running(self, pipeline: DeployedPipeline) -> None:
        """Runs the task of a pipeline. An error that it does not handle itself must not end it."""
        while True:
            try:
                await pipeline.run()
            except Exception:  # noqa: BLE001 - one pipeline must not end silently
                _log.exception("the task of pipeline %s failed; restarting it", pipeline.name)
            pipeline.main.mark_dirty()
            await self._env.clock.sleep(_AGAIN_S)

    async def give_up(self, name: str) -> None:
        pipeline = self.pipelines.get(name)
        if pipeline is None:
            return
        await pipeline.give_up()
        if name not in self._catalog.deployments:
            await self._forget_pipeline(name)

    async def _forget_pipeline(self, name: str) -> None:
        self.pipelines.pop(name, None)
        if (running := self._running.pop(name, None)) is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _forget_deleted(self) -> None:
        """Drops what is known of pipelines that were deleted after they were given up."""
        self._catalog.forget_details_of_deleted()
        owned = self.ownership.owned
        for name in [each for each in self.pipelines if each not in self._catalog.deployments]:
            if name not in owned and not self.pipelines[name].owned:
                await self._forget_pipeline(name)

    def lose(self, name: str) -> None:
        pipeline = self.pipelines.get(name)
        if pipeline is not None:
            pipeline.lose()

    def renew(self, until: float) -> None:
        self._guard.tell_member(self.ownership.member_id)
        for pipeline in self.pipelines.values():
            if pipeline.owned:
                with only_logged("renew the lease of", pipeline.name):
                    pipeline.renew(until)

    def _eligible(self) -> frozenset[str]:
        owned = [name for name, task in self.pipelines.items() if task.owned]
        live = {worker.id for worker in self._catalog.live_workers()} - {self.id}
        return eligible(
            self._catalog.deployments,
            self._catalog.statuses,
            storage_id=self._identity.storage_id,
            memory_mb=self._options.memory_mb,
            owned=frozenset(owned),
            live=frozenset(live),
        )

    def _on_change(self) -> None:
        for pipeline in self.pipelines.values():
            with only_logged("change", pipeline.name):
                pipeline.define()
        self._refresh()

    def _refresh(self) -> None:
        known = self._eligible(), frozenset(self._catalog.deployments)
        if known != self._known_eligible and not self._stopping:
            self._known_eligible = known
            self.ownership.refresh()

    def _settled(self) -> frozenset[str]:
        catalog = self._catalog
        return settled(catalog.statuses, catalog.live_workers(), self._env.clock.wall_ms())

    # -- looking after pipelines ----------------------------------------------------------------

    async def _look(self) -> None:
        number = 0
        while True:
            try:
                await self._look_once(number)
            except Exception:  # noqa: BLE001 - whatever it is, pipelines go on
                _log.exception("the periodic check of the pipelines failed; retrying")
            number += 1
            await self._env.clock.sleep(_LOOK_S)

    async def _look_once(self, number: int) -> None:
        self._watch.look()
        # Brokers that do not answer must not delay the rest.
        await _within(_WRITE_S, *(self._tell(each) for each in self.pipelines.values()))
        if number % _REPORT_EVERY == 0:
            await _within(_WRITE_S, self._report())
            self._refresh()
            self.ownership.balance()
            await self._forget_deleted()
        if number % _MEMORY_EVERY == 0:
            await self._check_memory()
        await self._keep_spare()

    @staticmethod
    async def _tell(pipeline: DeployedPipeline) -> None:
        with only_logged("report the progress of", pipeline.name):
            await pipeline.tell_progress()

    async def _keep_spare(self) -> None:
        may_work = self._may_work()
        wanted = self._wants_spare(may_work=may_work)
        await self._spares.keep(wanted=wanted)
        is_warm = wanted and self._spares.states()["warm"]
        if is_warm and may_work and self._spares.rehearse():
            await self._training.begin(self._preparation.training_environment)

    async def _clean(self) -> None:
        while True:
            try:
                await forget_gone(self._catalog, self.id)
                await self._preparation.clean()
                await self._drop_unused()
            except Exception:  # noqa: BLE001 - whatever it is, pipelines go on
                _log.exception("cannot remove old files; trying again")
            await self._env.clock.sleep(_CLEAN_S)

    async def _drop_unused(self) -> None:
        """Removes the files and logs of pipelines that are not needed in this folder."""
        here = [name for name, each in self.pipelines.items() if each.owned]
        catalog, now_ms = self._catalog, self._env.clock.wall_ms()
        needed = needed_here(
            catalog.deployments, catalog.statuses, catalog.live_workers(),
            storage_id=self._identity.storage_id, here=[*here, *self.ownership.owned],
        )  # fmt: skip
        await self._threads.run(lambda: self._folder.drop_unused(needed, now_ms))

    async def _report(self) -> None:
        status = WorkerStatus(
            id=self.id,
            host=self._identity.host,
            storage_id=self._identity.storage_id,
            started_ms=self._started_ms,
            updated_ms=self._env.clock.wall_ms(),
            pipelines=sorted(self.ownership.owned),
            spark=_installed("pyspark"),
            penstock=_installed("penstock"),
            memory_mb=self._options.memory_mb,
            stopping=self._stopping,
        )
        try:
            await self._catalog.report_worker(status)
        except WRITE_ERRORS as error:
            self._unreported.note(error)
        else:
            self._unreported.worked()

    async def _check_memory(self) -> None:
        tasks = [task for pipeline in self.pipelines.values() for task in pipeline.tasks]
        await self._memory.look(tasks, [self._spares.pid])

    def _has_room(self, name: str) -> bool:
        """Whether there is memory for a second driver of a pipeline, for a recompute."""
        if not self._options.memory_mb:
            return True
        deployments = self._catalog.deployments
        owned = self.ownership.owned
        taken = [each for each in owned if each in deployments]
        taken += [
            each
            for each, pipeline in self.pipelines.items()
            if each != name and each in deployments and pipeline.is_recomputing
        ]
        taken.append(name)
        return sum(deployments[each].memory_mb for each in taken) <= self._options.memory_mb

    def _preview(self, request: PreviewRequest) -> Awaitable[Preview] | None:
        pipeline = self.pipelines.get(request.name)
        if pipeline is None or not pipeline.owned:
            return None
        return pipeline.main.preview(request)

    # -- metrics --------------------------------------------------------------------------------

    def _metrics(self) -> AbstractAsyncContextManager[str]:
        env = MetricsEnv(self._env.network, self._env.clock, self._threads)
        return serving(env, self._options.metrics, Observed(self.sample, self._is_ready))

    def _is_ready(self) -> bool:
        """Whether it can run pipelines: it has joined its group and has a lease."""
        return self.ownership.lease_age_s is not None and not self._stopping

    def sample(self) -> WorkerSample:
        """Returns what metrics say about this worker and its pipelines."""
        catalog = self._catalog
        owned = [each for _, each in sorted(self.pipelines.items()) if each.owned]
        return WorkerSample(
            self.id,
            self._identity.host,
            _installed("penstock"),
            _installed("pyspark"),
            self._env.clock.wall_ms(),
            [each.sample(self._memory.used.get(each.main.pid or 0)) for each in owned],
            len(self.ownership.owned),
            self._spares.states(),
            sum(self._memory.used.values()),
            self._options.memory_mb << 20,
            self._around.start_times.histogram,
            self.ownership.lease_age_s,
            self._lineage_events(),
            len(catalog.live_workers()),
            sum(
                catalog.state(name) == "WAITING FOR A WORKER"
                for name, each in list(catalog.deployments.items())
                if each.wanted == "RUNNING"
            ),
        )

    def _lineage_events(self) -> dict[str, int]:
        if self._lineage is None:
            return {}
        emitter = self._lineage.emitter
        return {"sent": emitter.sent, "dropped": emitter.dropped}

    def _wants_spare(self, *, may_work: bool) -> bool:
        deployments = self._catalog.deployments.values()
        if self._stopping or not self._options.spare:
            return False
        if self._options.memory_mb:
            owned = self.ownership.owned
            taken_mb = sum(each.memory_mb for each in deployments if each.name in owned)
            if taken_mb + DEFAULT_MEMORY_MB > self._options.memory_mb:
                return False
        if self._spares.pid is None and not may_work:
            return False  # It would take processor time from a pipeline that needs it.
        return any(each.wanted == "RUNNING" for each in deployments)

    def _may_work(self) -> bool:
        """Whether work that can wait may begin."""
        if self._is_one_starting():
            return False
        statuses, now_ms = self._catalog.statuses, self._env.clock.wall_ms()
        in_round = any(
            is_in_round(statuses[name], now_ms)
            for name, each in self._catalog.deployments.items()
            if each.wanted == "RUNNING"
            and name in statuses
            and statuses[name].host == self._identity.host
        )
        return self._patience.may_begin(is_quiet=not in_round, now_ms=now_ms)

    def _is_one_starting(self) -> bool:
        """Whether a pipeline of this worker, or of another one, is about to run."""
        statuses, now_ms = self._catalog.statuses, self._env.clock.wall_ms()
        return any(each.is_starting for each in self.pipelines.values()) or any(
            is_starting(statuses[name], now_ms)
            for name, each in self._catalog.deployments.items()
            if each.wanted == "RUNNING" and name in statuses
        )


async def _within(seconds: float, *work: Coroutine[Any, Any, None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*work)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


async def run_worker(
    options: WorkerOptions,
    on_ready: Callable[[Worker], None] = lambda _: None,
    env: ClientEnv | None = None,
) -> None:
    """Runs a worker until it is stopped. `on_ready` gets the worker that `stop` is called on."""
    env = env or default_environment()
    config = AdminOptions.parse(options.bootstrap, {}).cluster_config()
    async with (
        Catalog(options.bootstrap, env=env) as catalog,
        Cluster(config, env.network, env.clock, env.random) as cluster,
    ):
        await catalog.caught_up()
        worker = Worker(options, catalog, cluster, env)
        on_ready(worker)
        await worker.run()
