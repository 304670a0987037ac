"""Runs one pipeline on a worker: does what its supervisor decides, and tells it what happens.

Effects are done in their order, one after the other, because some must be durable before the next
one: a report that flows were reset comes before the round. Two effects never wait for others: the
preparation of files, and the end of a driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from penstock.client.dataclass_json import plain
from penstock.runtime import boot_time
from penstock.spark.deployments.backfill_progress import BackfillProgress
from penstock.spark.deployments.driver_endings import error_of, is_end
from penstock.spark.deployments.driver_log import DriverLog
from penstock.spark.deployments.driver_process import DriverProcess
from penstock.spark.deployments.lineage.worker_lineage import TaskLineage
from penstock.spark.deployments.logged_errors import WRITE_ERRORS
from penstock.spark.deployments.metrics.figures import PipelineFigures, PipelineSample
from penstock.spark.deployments.model import Event, Status
from penstock.spark.deployments.phase import Phase
from penstock.spark.deployments.pipeline_part import Part, Rounds
from penstock.spark.deployments.preparation import NotPreparable, PreparationTasks, PreparedVersion
from penstock.spark.deployments.preview_server import PreviewDesk
from penstock.spark.deployments.previews import Preview, PreviewRequest, refused, table_named
from penstock.spark.deployments.rollback import roll_back
from penstock.spark.deployments.starting import is_starting
from penstock.spark.deployments.status_writer import StatusWriter
from penstock.spark.deployments.supervisor import Supervisor
from penstock.spark.deployments.supervisor_events import (
    ACTIONS,
    BeginRound,
    Defined,
    DriverEnded,
    DriverReady,
    Effect,
    GivenUp,
    Happening,
    LeaseRenewed,
    Lost,
    NotPrepared,
    Now,
    Prepare,
    Prepared,
    Record,
    Released,
    Report,
    RollBack,
    RoundEnded,
    StartDriver,
    StopDriver,
    Taken,
    Tick,
)
from penstock.spark.deployments.surroundings import Surroundings
from penstock.spark.pipelines.driver_control import LEASE_ENDED
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.events import RunView
from penstock.spark.stream_position import BackfillRequest

_log = logging.getLogger(__name__)
_TICK_MOST_S: Final = 5.0
"""A timer does not count suspended time, so the clock is looked at again after this."""
_FLUSH_S: Final = 10.0
"""How long the last lines of a log may take to reach the cluster."""


class PipelineTask:
    """A driver of a pipeline that the worker owns or still ends. `run` does the work, until
    cancelled."""

    def __init__(self, name: str, around: Surroundings, part: Part) -> None:
        self.name = name
        self._around = around
        self._part = part
        self.rounds = Rounds()
        self.generation: int | None = None
        """The generation of tables that its driver may write to; None if nothing of it runs."""
        self.machine = Supervisor(name, around.identity, around.random.uniform)
        self._effects: asyncio.Queue[Effect] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._driver: DriverProcess | None = None
        self._cancelled: dict[int, str] = {}
        """Attempts that were stopped before their driver was started, and the error because of
        which that was done; empty for none."""
        self._preparations = PreparationTasks()
        self._prepared: PreparedVersion | None = None
        self._lease_until = 0.0
        self._killed_for = ""
        """Why this worker has killed the driver; empty if it was no failure."""
        self._gives_up = False
        self._released = asyncio.Event()
        self.backfills = BackfillProgress()
        self._told_backfills: list[BackfillRequest] = []
        self._told_dropped = ""
        self.view = RunView(name)
        self.figures = PipelineFigures()
        self._previews = PreviewDesk()
        self._lineage = None if around.lineage is None else around.lineage.of(name)
        self._log = DriverLog(
            part.log_folder,
            around.executor,
            lambda version, lines: around.catalog.log(name, version, lines),
            name,
        )
        self._told = StatusWriter(
            name, around.catalog, around.clock, self._may_write, self._completed
        )

    # -- what the worker tells ------------------------------------------------------------------

    def define(self) -> None:
        """The deployment may have changed."""
        defined = Defined(*self._part.definition())
        self.handle(defined)
        self._preparations.end_unwanted(defined, self.machine.run)
        self._tell_backfills()

    def take(self, lease_until: float) -> None:
        self._released.clear()
        self._gives_up = False
        previous = self._part.previous()
        self._told.resume(previous)
        self.backfills.resume(previous)
        self.define()
        self.handle(Taken(previous))
        self.renew(lease_until)

    async def give_up(self) -> None:
        self._released.clear()
        self._gives_up = True
        self.handle(GivenUp())
        await self._released.wait()

    def lose(self) -> None:
        self._gives_up = False
        self.handle(Lost())

    def renew(self, until: float) -> None:
        self._lease_until = until
        if self._driver is not None and self.machine.owned:
            self._driver.send({"lease": until})
        self.handle(LeaseRenewed(until))

    def kill_for_memory(self, used: int, limit: int) -> None:
        """The driver takes more memory than it may."""
        self._break_off(
            f"the driver took {used >> 20:,} MiB of memory, and {limit >> 20:,} MiB are "
            "allowed: deploy it with more --memory, or read less per round"
        )

    @property
    def pid(self) -> int | None:
        return None if self._driver is None else self._driver.pid

    @property
    def memory_max(self) -> int:
        """The bytes that all processes of its driver may take together."""
        deployment = self._around.catalog.deployments.get(self.name)
        memory_mb = 0 if deployment is None else deployment.memory_mb
        return ((2 * memory_mb) << 20) + (1 << 30)

    # -- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Does what the supervisor decides, until cancelled. Then kills what still runs."""
        try:
            while True:
                await self._try(await self._effects.get())
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._driver is not None:
                self._driver.kill()
            for task in list(self._tasks):
                if task.get_name() != "driver":
                    task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._log.close(_FLUSH_S)

    async def _try(self, effect: Effect) -> None:
        """Does something. An error that nobody has foreseen ends the attempt, and not the task."""
        try:
            await self._do(effect)
        except Exception as error:  # noqa: BLE001 - one error must not end the pipeline
            self._fail(f"cannot {ACTIONS[type(effect)]}", error)
            if isinstance(effect, StartDriver) and self._driver is None:
                self._end(effect.run, self._cancelled.pop(effect.run, ""))

    def _fail(self, what: str, error: Exception) -> None:
        if isinstance(error, WRITE_ERRORS):
            self._break_off(str(error))
        else:
            _log.exception("pipeline %s: %s; trying again", self.name, what)
            self._break_off(f"{what}: {type(error).__name__}: {error}; see the log of its worker")

    def _break_off(self, why: str) -> None:
        """Ends the attempt that is under way: it has failed, and the next one follows a pause."""
        if self._driver is not None:
            self._killed_for = why
            self._driver.kill()
        elif self.machine.phase is Phase.STARTING:
            self._cancelled[self.machine.run] = why

    async def tell_progress(self) -> None:
        """Writes the log, and the status if rows were read since the last call."""
        await self._log.flush()
        now = self._now()
        status = self.machine.status(now)
        if status is not None and self.machine.reports(now):
            await self._told.progress(status)

    def mark_dirty(self) -> None:
        """What is reported beside the status of the driver has changed."""
        self._told.mark_dirty()

    def handle(self, happening: Happening) -> None:
        now = self._now()
        effects = self.machine.handle(happening, now)
        if self.machine.phase in (Phase.IDLE, Phase.PREPARING):
            self.generation = None
        for effect in effects:
            if isinstance(effect, StartDriver):
                self.generation = effect.deployment.generation
            elif isinstance(effect, BeginRound):
                self.rounds.begun += 1
                self.rounds.began_at = now.boot
            match effect:
                case Prepare():
                    task = self._spawn(self._prepare(effect), "preparation")
                    self._preparations.add(effect, task)
                case StopDriver():
                    self._stop(effect)
                case _:
                    self._effects.put_nowait(effect)
            if isinstance(effect, Record) and effect.event.what == "failed":
                self.figures.failures += 1
        self._set_timer()
        self._part.on_handled()

    def _now(self) -> Now:
        return Now(boot_time(), self._around.clock.wall_ms())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self.machine.wake_at
        if wake_at is not None:
            rest_s = min(max(wake_at - boot_time(), 0.0), _TICK_MOST_S)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(rest_s, self._on_timer)

    def _on_timer(self) -> None:
        try:
            self.handle(Tick())
        except Exception as error:  # noqa: BLE001 - one error must not end the pipeline
            self._fail("the pipeline's timer failed", error)
            self._timer = asyncio.get_running_loop().call_later(_TICK_MOST_S, self._on_timer)

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- effects --------------------------------------------------------------------------------

    async def _do(self, effect: Effect) -> None:
        match effect:
            case Report(status):
                await self._told.report(status)
            case Record(event):
                if (told := self._part.event(event)) is not None:
                    await self._told.record(told)
            case StartDriver():
                await self._start(effect)
            case BeginRound(run):
                if self._driver is not None and run == self.machine.run:
                    self._driver.send({"round": True})
            case RollBack():
                worker, now_ms = self._around.identity.worker, self._now().wall_ms
                await roll_back(self._around.catalog, effect, worker=worker, now_ms=now_ms)
            case Released():
                await self._told.finish()
                self._released.set()

    def _may_write(self) -> bool:
        """Whether no other worker writes the status: also while it is given up."""
        is_leaving = self._gives_up and boot_time() < self._lease_until
        return is_leaving or self.machine.reports(self._now())

    def _completed(self, status: Status) -> Status | None:
        view, backfills = self.view.as_dict(), self.backfills.statuses
        return self._part.status(replace(status, run=view, backfills=backfills))

    async def _prepare(self, effect: Prepare) -> None:
        loop = asyncio.get_running_loop()

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(self._tell_phase, text)

        try:
            prepared = await self._around.preparation.prepare(
                effect.deployment, effect.version, tell
            )
        except NotPreparable as error:
            self.handle(NotPrepared(effect.run, str(error), error.lasting, error.outside))
        except Exception as error:  # noqa: BLE001 - one pipeline must not end the worker
            _log.exception("cannot prepare %s", self.name)
            self.handle(NotPrepared(effect.run, f"{type(error).__name__}: {error}", lasting=False))
        else:
            if effect.run == self.machine.run:
                self._prepared = prepared
            self.handle(Prepared(effect.run))

    def _tell_phase(self, text: str) -> None:
        self.view.apply({"event": "phase", "text": text})
        self._told.mark_dirty()

    async def _start(self, effect: StartDriver) -> None:
        prepared = self._prepared
        assert prepared is not None, "a driver is started after its preparation"
        is_script = effect.version.kind == "script"
        if effect.reset_flows and is_script:
            try:
                await self._around.executor.run(lambda: prepared.reset(effect.reset_flows))
            except (PipelineError, OSError) as error:
                self._end(effect.run, str(error))
                return
        if effect.run in self._cancelled:
            self._end(effect.run, self._cancelled.pop(effect.run))
            return
        self.view = RunView(self.name)
        self.figures.starts += 1
        ended: dict[str, Any] = {}
        version = effect.version.number

        def on_event(event: Mapping[str, Any]) -> None:
            if is_end(event):
                ended.update(event)
            self._on_event(effect.run, event)

        def on_lines(lines: list[str]) -> None:
            self._log.add(version, lines)

        self._killed_for = ""
        driver, task, assignment = self._around.driver(self.name, prepared, on_event, on_lines)
        self._driver = driver
        self._spawn(self._follow(effect.run, task, ended), "driver")
        if not is_script:
            # Spark itself lets the flows of a project begin again, in the first round.
            assignment = replace(assignment, reset=list(effect.reset_flows))
        assignment = self._part.assignment(assignment)
        self._told_backfills = self._wanted_backfills()
        driver.send(
            {
                "lease": self._lease_until,
                "assign": asdict(assignment),
                "backfills": plain(self._told_backfills),
            }
        )

    async def _follow(self, run: int, task: asyncio.Task[int], ended: dict[str, Any]) -> None:
        """Waits for the end of the driver."""
        error = ""
        try:
            code = await task
        except Exception as failure:  # noqa: BLE001 - one pipeline must not end the worker
            _log.exception("cannot run the driver of %s", self.name)
            error = f"the driver cannot be run: {failure}"
        else:
            error = self._killed_for or error_of(self.view, code, ended)
        self._driver = None
        completed = ended.get("state") == "COMPLETED"
        self._tell_lineage(lambda lineage: lineage.on_end(completed=completed, error=error))
        self._previews.close("its driver has ended: try again when it runs")
        self._told.mark_dirty()
        lease_ended = ended.get("event") == LEASE_ENDED
        self._end(run, error, completed=completed, lease_ended=lease_ended)

    def _end(
        self, run: int, error: str, *, completed: bool = False, lease_ended: bool = False
    ) -> None:
        seen = self._around.cluster.seen()
        self.handle(DriverEnded(run, completed, error, lease_ended, seen))

    def _tell_lineage(self, tell: Callable[[TaskLineage], None]) -> None:
        if self._lineage is not None:
            try:
                tell(self._lineage)
            except Exception:  # noqa: BLE001 - lineage must not disturb the pipeline
                _log.exception("cannot report the lineage of pipeline %s; it continues", self.name)

    def _stop(self, effect: StopDriver) -> None:
        if self._driver is None:
            self._cancelled.setdefault(effect.run, "")
        elif effect.at_once:
            self._driver.kill()
        else:
            self._driver.send({"stop": "soon"})

    def _on_event(self, run: int, event: Mapping[str, Any]) -> None:
        self.view.apply(event)
        self.figures.apply(event, self._around.clock.monotonic())
        self._told.mark_dirty()
        self._tell_lineage(lambda lineage: lineage.on_event(event))
        self._part.on_driver_event(event)
        match event.get("event"):
            case "preview":
                self._previews.answer(event)
            case "ready":
                self.handle(DriverReady(run))
            case "waiting":
                if run == self.machine.run and self.machine.phase in (Phase.ROUND, Phase.STOPPING):
                    self.rounds.ended = self.rounds.begun
                    self.rounds.last_s = boot_time() - self.rounds.began_at
                self.handle(RoundEnded(run))
            case "position":
                self._on_position(event)
            case "reset-dropped":
                self._on_reset_dropped(str(event.get("text") or ""))
            case _:
                pass

    async def preview(self, request: PreviewRequest) -> Preview:
        """Asks the driver for rows of a table."""
        table = table_named(self.view.graph, request.node)
        if self._driver is None:
            found = Preview(error="not running: rows can be shown only while the pipeline runs")
        elif why := refused(self.view.graph, request):
            found = Preview(error=why)
        else:
            found = await self._previews.ask(self._driver.send, request, table)
        outcome = "error" if found.error else "rows"
        self.figures.previews[outcome] = self.figures.previews.get(outcome, 0) + 1
        return found

    def sample(self, memory_bytes: int | None) -> PipelineSample:
        """Returns what metrics say about it."""
        now = self._now()
        status = self.machine.status(now)
        return PipelineSample(
            self.name,
            self.machine.state(now),
            0 if status is None else status.version,
            self.figures,
            {} if self._driver is None else dict(self.view.flows),
            memory_bytes,
            self.memory_max,
        )

    # -- backfills ------------------------------------------------------------------------------

    def _wanted_backfills(self) -> list[BackfillRequest]:
        deployment, _ = self._part.definition()
        return [] if deployment is None else self.backfills.wanted(deployment.backfills)

    def _tell_backfills(self) -> None:
        """Tells the driver which backfills are wanted, if that has changed."""
        wanted = self._wanted_backfills()
        if self._driver is not None and wanted != self._told_backfills:
            self._told_backfills = wanted
            self._driver.send({"backfills": plain(wanted)})

    def _on_position(self, event: Mapping[str, Any]) -> None:
        now = self._now()
        status = self.machine.status(now)
        if status is None or not self.machine.reports(now):
            return
        for what, text in self.backfills.on_event(event):
            worker = self._around.identity.worker
            told = Event(self.name, now.wall_ms, what, text, status.version, worker)
            self._effects.put_nowait(Record(told))

    def _on_reset_dropped(self, text: str) -> None:
        """Flows that were to begin again do not exist. It is said once."""
        if text != self._told_dropped:
            self._told_dropped, now_ms = text, self._now().wall_ms
            status, worker = self.machine.status(self._now()), self._around.identity.worker
            version = 0 if status is None else status.version
            told = Event(self.name, now_ms, "reset-dropped", text, version, worker)
            self._effects.put_nowait(Record(told))

    @property
    def is_starting(self) -> bool:
        """Whether it is about to run: see `starting`."""
        now = self._now()
        status = self.machine.status(now)
        return status is not None and is_starting(
            replace(status, run=self.view.as_dict()), now.wall_ms
        )
