"""Runs a deployed pipeline: `python -m penstock.spark.pipelines.controlled_driver`.

A worker starts it, and controls it by standard input (`driver_control`). It starts Spark first and
learns only then which pipeline it runs, so that a worker can keep one in reserve. Its events go to
the file descriptor that it was given, as those of `driver`, and some more:

    {"event": "warm"}        Spark has started, and waits for a pipeline
    {"event": "rehearsed"}   did a step of the rehearsal; `left` says how many are left
    {"event": "ready"}       waits for its first round
    {"event": "waiting"}     a round was completed
    {"event": "refused"}     tables cannot be computed again; `text` says why

A project is run in rounds; if it is continuous, its streaming flows also run between them (see
`live_flows`). A script is run once: it has ended when it has returned and none of its
streaming queries is active. If a query fails after the script has returned, the run has failed.
While the script runs, its own code handles its queries.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.pipelines.cli import unpack_pipeline_spec

from penstock.spark import backfill_file
from penstock.spark.pipelines.driver import Events, Pipeline, Spark, explained
from penstock.spark.pipelines.driver_control import Assignment, Control, Watchdog
from penstock.spark.pipelines.driver_pipes import keep_private, take_input
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.graph import QueryGraphReport
from penstock.spark.pipelines.live_flows import LiveFlows
from penstock.spark.pipelines.preview import Previews, quoted
from penstock.spark.pipelines.project import BOOTSTRAP_SETTING, read_spec
from penstock.spark.pipelines.project_link import point_link
from penstock.spark.pipelines.query_watch import Watch
from penstock.spark.pipelines.recompute_scope import RecomputeRefused
from penstock.spark.pipelines.rehearsal import Rehearsal
from penstock.spark.pipelines.task_skew import TaskSkew
from penstock.spark.stream_position import BackfillRequest

_BACKFILLS: Final = "backfills.json"
_QUERIES_EVERY_S: Final = 1.0
_LIVE_ROUND_S: Final = 10.0
"""How long a round is if all flows run without an end and there is no materialized view."""
_WAREHOUSE: Final = "spark.sql.warehouse.dir"


class Job:
    """A pipeline in this driver's Spark."""

    def __init__(
        self, spark: Spark, assigned: Assignment, events: Events, control: Control
    ) -> None:
        self._spark = spark
        self._assigned = assigned
        self._events = events
        self._control = control
        self._round = 0
        self._project: Pipeline | None = None
        self._live: LiveFlows | None = None
        self._watch: Watch | None = None
        self._database = "default"

    @cached_property
    def previews(self) -> Previews:
        return Previews(self._spark.classic, self._database, self._events.write)

    def prepare(self) -> None:
        """Applies the settings of the pipeline."""
        assigned = self._assigned
        os.environ.update(assigned.environment)
        if assigned.link:
            point_link(Path(assigned.link), Path(assigned.root))
        os.chdir(assigned.root)
        sys.path.insert(0, assigned.root)
        settings = {**assigned.settings, BOOTSTRAP_SETTING: assigned.bootstrap}
        if assigned.kind == "project":
            spec_path = Path(assigned.root, assigned.entry)
            content = read_spec(spec_path)
            settings = {**content.get("configuration", {}), **settings}
            spec = unpack_pipeline_spec(
                {**content, "configuration": settings, "storage": assigned.storage}
            )
            self._database = f"{quoted(spec.catalog or 'spark_catalog')}." + quoted(
                spec.database or "default"
            )
            self._spark.connect()
            runs_on = assigned.live_interval_s is not None and self._spark.classic is not None
            self._project = Pipeline(spec_path, spec, self._spark, self._events, runs_on=runs_on)
        elif self._spark.classic is None:
            # The script's getOrCreate finds the session on the Connect server.
            self._spark.connect()
        self._spark.send_modules(Path(assigned.root))
        self._apply(settings)
        bootstrap = assigned.bootstrap
        graph = None if assigned.kind == "project" else QueryGraphReport(self._events.write).note
        self._watch = Watch(
            self._spark,
            self._events,
            self._control.stopping.is_set,
            bootstrap,
            graph,
            TaskSkew(self._spark.classic).of,
        )

    def _apply(self, settings: Mapping[str, str]) -> None:
        """Applies what a running Spark can still change. The worker starts Spark with the rest."""
        sessions = [each for each in (self._spark.classic, self._spark.session) if each is not None]
        for session in sessions:
            for name, value in settings.items():
                with suppress(PySparkException):
                    session.conf.set(name, value)

    def run_round(self) -> None:
        self._round += 1
        self._events.tell("round", number=self._round)
        assigned = self._assigned
        if self._live is not None:
            self._run_live(self._live)
        elif self._project is not None and assigned.recompute:
            self._recompute(self._project)
        elif self._project is not None:
            reset = assigned.reset if self._round == 1 else ()
            self._project.run(dry=False, full_refresh=False, reset=reset)
            self._keep_running(self._project)
        else:
            self._run_script()
        if self._watch is not None:
            self._watch.end_round(lag=False)

    def _recompute(self, project: Pipeline) -> None:
        assigned = self._assigned
        try:
            project.recompute(assigned.recompute, assigned.running_flows)
        except RecomputeRefused as refusal:
            self._events.tell("refused", text=str(refusal))
            raise

    @property
    def is_done(self) -> bool:
        """Whether there is no further round: a script is run once."""
        return self._project is None

    def _keep_running(self, project: Pipeline) -> None:
        """Lets the streaming flows of a continuous pipeline run on after their first round."""
        interval_s = self._assigned.live_interval_s
        if interval_s is not None and not self._control.stopping.is_set():
            self._live = project.keep_running(interval_s)

    def _run_live(self, live: LiveFlows) -> None:
        """A round while the streaming flows run: computes the materialized views."""
        live.check()
        if live.computed and self._project is not None:
            live.refresh_tables()
            self._project.compute(live.computed)
        else:
            live.wait(_LIVE_ROUND_S)

    def stop_queries(self) -> None:
        """Ends the queries that run without an end. Their checkpoints say where they go on."""
        if self._live is not None:
            self._live.stop()
        if self._project is None and self._round:
            for query in self._spark.streaming_queries():
                with suppress(Exception):  # It may have ended by itself.
                    query.stop()

    def close(self) -> None:
        if self._live is not None:
            with suppress(Exception):  # The JVM may have ended.
                self._live.stop()
                if self._watch is not None:
                    self._watch.end_round()
        if self._watch is not None:
            self._watch.close()

    def _run_script(self) -> None:
        path = os.path.join(self._assigned.root, self._assigned.entry)
        sys.argv = [path]
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"the script ended with {end.code!r}") from None
        finished = threading.Event()
        while self._spark.streaming_queries():
            if self._control.stopping.is_set():
                self.stop_queries()
                return
            self._check_queries()
            finished.wait(_QUERIES_EVERY_S)
        self._check_queries()

    def _check_queries(self) -> None:
        """Raises the error of a query that has failed."""
        classic = self._spark.classic
        # A script may have stopped Spark, or runs its queries on a Connect server.
        if classic is not None and not classic._jsc.sc().isStopped():
            classic.streams.awaitAnyTermination(0.001)


def place(classic: Any, assigned: Assignment) -> None:
    """Tells Spark where tables and metastore are. Spark uses neither before its first query."""
    if classic is None:
        return
    classic._jvm.java.lang.System.setProperty("derby.system.home", assigned.metastore)
    classic._jsc.sc().conf().set(_WAREHOUSE, assigned.warehouse)
    shared = classic._jsparkSession.sharedState()
    shared.conf().set(_WAREHOUSE, assigned.warehouse)
    shared.hadoopConf().set("hive.metastore.warehouse.dir", assigned.warehouse)


def waited_for(spark: Spark, events: Events, control: Control) -> Assignment | None:
    """Waits for the pipeline, and rehearses in the meantime if the worker wants it."""
    rehearsal = Rehearsal(spark)

    def rehearse() -> None:
        rehearsal.step()
        if rehearsal.is_spoiled:
            raise PipelineError("the rehearsal of the driver has opened a metastore")
        events.tell("rehearsed", left=rehearsal.left)

    return control.assignment(rehearse)


def serve(given: argparse.Namespace, events: Events, control: Control) -> str:
    """Runs the pipeline that the worker assigns. Returns the state in which it ended."""
    events.tell("phase", text="starting Spark")
    spark = Spark(given.master, json.loads(given.settings), connect=False)
    job: Job | None = None
    try:
        events.tell("warm")
        assigned = waited_for(spark, events, control)
        if assigned is None:
            return "STOPPED"
        place(spark.classic, assigned)
        job = Job(spark, assigned, events, control)
        job.prepare()
        control.on_stop = job.stop_queries
        control.on_preview = job.previews.ask
        events.tell("ready")
        while control.command() == "round" and not control.stopping.is_set():
            job.run_round()
            if control.stopping.is_set():
                return "STOPPED"
            if job.is_done:
                return "COMPLETED"
            events.tell("waiting")
        return "STOPPED"
    finally:
        events.tell("phase", text="stopping")
        if job is not None:
            job.close()
        spark.close()


def _store(path: Path, requests: list[BackfillRequest]) -> None:
    """Tells the streams which backfills are wanted."""
    try:
        backfill_file.write_requests(path, requests)
    except OSError as error:
        # The thread that calls this also renews the lease.
        sys.stderr.write(
            f"cannot write the backfill requests for the streams: {path}: {error.strerror}\n"
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--events", type=int, required=True)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before the JVM starts: the processes in which it plans streams inherit the variable.
    backfills = Path.cwd() / _BACKFILLS
    backfill_file.remove(backfills)
    os.environ[backfill_file.VARIABLE] = str(backfills)
    keep_private(given.events)
    control = Control(
        take_input(),
        Watchdog(events=given.events),
        on_backfills=lambda requests: _store(backfills, requests),
    )
    # If the worker is gone, writing or closing the pipe raises BrokenPipeError.
    with suppress(BrokenPipeError), os.fdopen(given.events, "w", encoding="utf-8") as out:
        events = Events(out)
        try:
            state, error = serve(given, events, control), ""
        except Exception as failure:  # noqa: BLE001 (any error is reported; its traceback is in the log)
            import traceback  # noqa: PLC0415 (only after an error)

            traceback.print_exc()
            state, error = "FAILED", explained(failure)
        events.tell("end", state=state, error=error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
