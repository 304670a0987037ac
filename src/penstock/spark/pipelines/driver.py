"""The process that runs a pipeline: `python -m penstock.spark.pipelines.driver`.

The runner starts it, and it starts the JVM. It writes events to the file descriptor that it was
given. Standard output and error, to which the JVM and the pipeline's own code write, go to the log.
When the runner ends, the driver's standard input closes, and the driver ends too.

Two signals stop it. After SIGUSR1 it stops soon: if a round is running, after that round. Spark
empties a materialized view before it fills it again, so a round that is interrupted may leave a
view empty. After SIGTERM it stops at once.

Spark offers declarative pipelines only through Spark Connect, and Connect reports little about a
run. So the Connect server runs in this process's own JVM, whose streaming queries can then be asked
for their progress directly, in whichever session they were started. With a server elsewhere
(`sc://`) no rows are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

from pyspark import __version__ as spark_version
from pyspark.pipelines.cli import PipelineSpec, register_definitions, unpack_pipeline_spec
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

from penstock.runtime import SystemClock, SystemRandom
from penstock.spark.pipelines.driver_pipes import keep_private, take_input
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.events import flow_event
from penstock.spark.pipelines.executor_modules import ExecutorModules
from penstock.spark.pipelines.explain import one_line
from penstock.spark.pipelines.flow_polling import polling_settings
from penstock.spark.pipelines.graph import GraphReport
from penstock.spark.pipelines.jvm import PlannedRun, planned_run
from penstock.spark.pipelines.live_flows import LiveFlows
from penstock.spark.pipelines.project import (
    BOOTSTRAP_SETTING,
    RECOMPUTE_LIMIT,
    RECOMPUTE_LIMIT_SETTING,
    read_spec,
)
from penstock.spark.pipelines.quarantine_topics import TopicCheck
from penstock.spark.pipelines.query_watch import Watch
from penstock.spark.pipelines.recompute_graph import pipeline_parts, table_identifiers
from penstock.spark.pipelines.recompute_scope import (
    RecomputeRefused,
    batch_limit,
    check_scope,
)
from penstock.spark.pipelines.source_names import NamingClient
from penstock.spark.pipelines.table_writers import Definitions, flows_to_reset
from penstock.spark.pipelines.task_skew import TaskSkew
from penstock.spark.quarantine import topics_checked

_HAS_LINE: Final = re.compile(r"\S+, line \d+: ")
SOON: Final = signal.SIGUSR1
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 (the name of a variable)
_DEFAULTS: Final = {
    # A pipeline on a laptop needs no web UI, and two pipelines would compete for its port.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    # How long a query may take to stop. Without a limit, one that hangs would never end.
    "spark.sql.streaming.stopTimeout": "20s",
    # With a metastore the next run finds the tables again.
    "spark.sql.catalogImplementation": "hive",
}


class Stopped(BaseException):
    """Raised to stop. A BaseException, so that handlers of ordinary errors do not catch it."""


class Stop:
    """Handles the signals that stop this process."""

    def __init__(self) -> None:
        self.asked = False
        self._must_end_first = False

    def listen(self) -> None:
        signal.signal(SOON, self._soon)
        signal.signal(signal.SIGTERM, self._now)

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Delays SIGUSR1 to the end of the block. SIGTERM still stops at once."""
        self._must_end_first = True
        try:
            yield
        finally:
            self._must_end_first = False

    def _soon(self, _signal_number: int, _frame: object) -> None:
        self.asked = True
        if not self._must_end_first:
            raise Stopped

    def _now(self, signal_number: int, _frame: object) -> None:
        # The process is on its way out, so further signals are ignored.
        signal.signal(signal_number, signal.SIG_IGN)
        signal.signal(SOON, signal.SIG_IGN)
        raise Stopped


class Events:
    """Writes events to the runner. Errors are ignored: a runner that does not read them any more is
    about to end this process."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._lock = threading.Lock()

    def tell(self, kind: str, **fields: object) -> None:
        self.write({"event": kind, **fields})

    def write(self, event: Mapping[str, Any]) -> None:
        with self._lock, suppress(OSError, ValueError):
            self._out.write(json.dumps(event) + "\n")
            self._out.flush()


class Spark:
    """A Connect session to define pipelines in, and the JVM behind it if that is this process's."""

    def __init__(self, master: str, settings: Mapping[str, str], *, connect: bool = True) -> None:
        self.classic: Any = None
        self.session: Any = None
        self._modules = ExecutorModules(master)
        self._url = master if master.startswith("sc://") else self._serve(master, settings)
        if connect:
            self.connect()

    def connect(self) -> None:
        """Opens the Connect session. Scripts do without it."""
        # With this variable pyspark's functions build plans for Connect.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        from pyspark.sql.connect.session import (  # noqa: PLC0415 (reads the variable above)
            SparkSession as ConnectSession,
        )

        self.session = ConnectSession.builder.remote(self._url).getOrCreate()

    def _serve(self, master: str, settings: Mapping[str, str]) -> str:
        os.environ.setdefault(_TOKEN, SystemRandom().bytes(16).hex())
        from pyspark.sql.session import SparkSession  # noqa: PLC0415 (loads what starts the JVM)

        builder: Any = SparkSession.builder.appName("penstock-pipeline")
        for name, value in {
            **_DEFAULTS,
            **polling_settings(spark_version),
            **settings,
            "spark.master": master,
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "localhost",
            "spark.connect.grpc.binding.port": "0",
            "spark.sql.connect.serverStacktrace.enabled": "false",
        }.items():
            builder = builder.config(name, value)
        self.classic = builder.getOrCreate()
        service = getattr(
            self.classic._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"
        )
        return f"sc://localhost:{getattr(service, 'MODULE$').localPort()}"

    def send_modules(self, root: Path) -> None:
        """Lets executors on other machines import the Python files of a project."""
        self._modules.send(root, self.session, self.classic)

    def streaming_queries(self) -> list[Any]:
        """Returns all queries that run in this JVM, in whichever session they were started."""
        if self.classic is None:
            return []
        active = self.classic._jsparkSession.sharedState().activeStreamingQueries()
        return list(active.values())

    def close(self) -> None:
        try:
            for query in self.streaming_queries():
                query.stop()
            with suppress(Exception):  # The JVM ends with this process even if Connect fails.
                if self.session is not None:
                    self.session.stop()
            if self.classic is not None:
                self.classic.stop()
        finally:
            self._modules.close()


class Pipeline:
    """Runs a project's definitions, once or repeatedly, in one session."""

    def __init__(
        self,
        spec_path: Path,
        spec: PipelineSpec,
        spark: Spark,
        events: Events,
        *,
        runs_on: bool = False,
    ) -> None:
        """`runs_on`: whether `keep_running` is called after the first round."""
        self._spec_path = spec_path
        self._spec = spec
        self._spark = spark
        self._events = events
        self._recompute_limit: str | None = None
        """Not None: a recompute was checked."""
        self._graph = GraphReport(spark, spec_path.parent.resolve(), events.write, SystemClock())
        self._runs_on = runs_on
        self._quarantine_topics = TopicCheck()
        self._planned: PlannedRun | None = None
        self._live: LiveFlows | None = None

    def run(self, *, dry: bool, full_refresh: bool, reset: Sequence[str] = ()) -> None:
        """Runs a round. The flows `reset` begin again first."""
        if reset:
            self._reset(reset)
        self._planned = None
        with self._defined() as (graph, definitions):
            if definitions is not None:
                definitions.check()
                if not full_refresh:
                    definitions.check_logs(self._spec.storage)
                self._graph.expect(definitions.flows)
            self._follow(graph, self._started(graph, dry=dry, full_refresh=full_refresh))

    def keep_running(self, interval_s: float) -> LiveFlows | None:
        """Lets the streaming flows of the last round run without an end. Returns None if there are
        none, or if they run on a server elsewhere."""
        planned = self._planned
        if planned is None:
            return None
        root = str(self._spec_path.parent)
        live = LiveFlows(
            self._spark.classic, planned, interval_s, root, self._events.write, SystemClock()
        )
        live.start()
        self._live = live if live.names else None
        return self._live

    def compute(self, tables: Sequence[str]) -> None:
        """Runs the flows of some tables, as materialized views, while other flows run."""
        with self._defined() as (graph, _definitions):
            self._follow(graph, self._started(graph, dry=False, only=tables))

    def recompute(self, tables: Sequence[str], running_flows: Sequence[str]) -> None:
        """Runs a round of a recompute: all tables, but no flow that writes to a topic."""
        if self._recompute_limit is None:
            self._recompute_limit = self._checked_limit(tables, running_flows)
        with self._defined(self._recompute_limit) as (graph, definitions):
            assert definitions is not None, "it was checked"
            definitions.check()
            definitions.check_places(self._spec.storage)
            definitions.check_logs(self._spec.storage)
            chosen = table_identifiers(self._spark.classic, self._spark.session, graph)
            self._follow(graph, self._started(graph, dry=False, only=chosen))

    def _checked_limit(self, tables: Sequence[str], running_flows: Sequence[str]) -> str:
        """Checks whether the tables can be recomputed. Returns the limit for sources without one.

        Only Spark's plan of the whole graph tells whether there is a watermark: the limit is added
        while a single flow is defined, and a view of another flow may have one. So the graph is
        defined here without a limit, and again for the round."""
        with self._defined() as (graph, definitions):
            if definitions is None:
                raise RecomputeRefused(
                    "tables on a Connect server (sc://) cannot be recomputed beside the "
                    "running ones: they would have the same names there"
                )
            if self._spec.catalog not in (None, "spark_catalog"):
                raise RecomputeRefused(
                    f"tables in the catalog {self._spec.catalog} cannot be recomputed beside "
                    "the running ones: they would have the same names there"
                )
            definitions.check()
            definitions.check_places(self._spec.storage)
            definitions.check_logs(self._spec.storage)
            parts = pipeline_parts(self._spark.classic, self._spark.session, graph)
            check_scope(parts, tables, running_flows)
        limit = self._spec.configuration.get(RECOMPUTE_LIMIT_SETTING, RECOMPUTE_LIMIT)
        return batch_limit(parts, limit)

    def _reset(self, flows: Sequence[str]) -> None:
        """Lets flows begin again, in a run of their tables only."""
        with self._defined() as (graph, definitions):
            if definitions is None:
                raise PipelineError(
                    "flows of a pipeline on a Connect server (sc://) cannot be reset: delete the "
                    "table and the checkpoint there, and deploy with --keep-checkpoint"
                )
            definitions.check()
            found, missing = flows_to_reset(definitions.flows, flows)
            if missing:
                text = (
                    f"{', '.join(missing)}: this flow no longer exists, so nothing was reset. If "
                    "it has a new name, deploy with --reset FLOW"
                )
                sys.stdout.write(text + "\n")
                self._events.tell("reset-dropped", flows=missing, text=text)
            if tables := definitions.reset(self._spec.storage, found):
                self._follow(graph, self._started(graph, dry=False, emptied=tables))

    @contextmanager
    def _defined(self, limit: str = "") -> Iterator[tuple[str, Definitions | None]]:
        """Creates the graph of one run. It is created for each, so an edited definition is used in
        the next one. Yields its id, and the definitions if they are in this process's JVM. `limit`:
        the size of a micro-batch for sources without a limit."""
        session = self._spark.session
        graph = create_dataflow_graph(
            session,
            default_catalog=self._spec.catalog,
            default_database=self._spec.database,
            sql_conf=self._changeable,
        )
        registry = SparkConnectGraphElementRegistry(session, graph)
        if self._spark.classic is not None:  # A server elsewhere does no backfills.
            registry._client = NamingClient(registry._client, limit)
        try:
            with topics_checked(self._quarantine_topics):
                register_definitions(self._spec_path, registry, self._spec, session, graph)
            classic = self._spark.classic
            yield graph, None if classic is None else Definitions(classic, session, graph)
        finally:
            with suppress(Exception):  # If the server is gone, so is the graph.
                self._drop(graph)

    def _follow(self, graph: str, events: Iterator[Any]) -> None:
        for event in events:
            sys.stdout.write(event.message + "\n")  # For the log of the run.
            told = flow_event(event.message, os.getcwd())
            # Spark reports flows that run all the time as excluded from a round.
            if told is not None and not (self._live and told["flow"] in self._live.names):
                self._events.write(told)
            if self._runs_on and self._live is None and not self._planned:
                self._planned = planned_run(self._spark.classic, self._spark.session, graph)
            self._graph.look(graph)

    @cached_property
    def _changeable(self) -> dict[str, str]:
        """The settings that a session may change; the JVM got the others at its start."""
        settings = self._spec.configuration
        if self._spark.classic is None:
            return dict(settings)
        conf = self._spark.session.conf
        return {name: value for name, value in settings.items() if conf.isModifiable(name)}

    def _started(
        self,
        graph: str,
        *,
        dry: bool,
        full_refresh: bool = False,
        emptied: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> Iterator[Any]:
        """Starts a run of all tables, of those that are emptied first, or of some only."""
        results = start_run(
            self._spark.session,
            graph,
            full_refresh=list(emptied),
            full_refresh_all=full_refresh,
            refresh=list(only),
            dry=dry,
            storage=self._spec.storage,
        )
        for result in results:
            if "pipeline_event_result" in result:
                yield result["pipeline_event_result"].event

    def _drop(self, graph: str) -> None:
        import pyspark.sql.connect.proto as messages  # noqa: PLC0415 (slow to import, but loaded by now)

        command = messages.Command()
        command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph
        self._spark.session.client.execute_command(command)


def run(given: argparse.Namespace, events: Events, stop: Stop) -> str:
    """Runs the pipeline and returns the state in which the run ended."""
    spec_path = Path(given.spec)
    content = read_spec(spec_path)
    settings = {**content.get("configuration", {}), **json.loads(given.settings)}
    spec = unpack_pipeline_spec({**content, "configuration": settings, **_storage(content)})
    events.tell("phase", text="starting Spark")
    spark = Spark(given.master, settings)
    watch = Watch(
        spark,
        events,
        lambda: stop.asked,
        settings.get(BOOTSTRAP_SETTING, ""),
        task_skew=TaskSkew(spark.classic).of,
    )
    try:
        spark.send_modules(spec_path.parent)
        pipeline = Pipeline(spec_path, spec, spark, events)
        number = 0
        while True:
            number += 1
            events.tell("round", number=number)
            with stop.put_off():
                pipeline.run(dry=given.dry, full_refresh=given.full_refresh and number == 1)
            watch.end_round()
            if not given.continuous:
                return "COMPLETED"
            if stop.asked:
                return "STOPPED"
            events.tell("waiting")
            threading.Event().wait(given.interval_s)
    finally:
        with stop.put_off():
            events.tell("phase", text="stopping")
            watch.close()
            spark.close()


def _storage(content: Mapping[str, Any]) -> dict[str, str]:
    """Returns the storage as a URL, which Spark needs. A project may name a relative folder, so
    that it can be moved."""
    given = content.get("storage")
    if not isinstance(given, str) or "://" in given:
        return {}
    return {"storage": f"file://{Path(given).resolve()}"}


def _end_with_runner(given: IO[str]) -> None:
    given.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec", required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--interval-s", type=float, default=1.0)
    for flag in ("--dry", "--continuous", "--full-refresh"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    stop = Stop()
    stop.listen()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_private(given.events)
    runner = threading.Thread(
        target=_end_with_runner, args=(take_input(),), name="penstock runner", daemon=True
    )
    runner.start()
    # If the runner is gone, writing or closing the pipe raises BrokenPipeError.
    with suppress(BrokenPipeError), os.fdopen(given.events, "w", encoding="utf-8") as out:
        events = Events(out)
        try:
            state, error = run(given, events, stop), ""
        except Stopped:
            state, error = "STOPPED", ""
        except Exception as failure:  # noqa: BLE001 (any error is reported; its traceback is in the log)
            import traceback  # noqa: PLC0415 (only after an error)

            traceback.print_exc()
            state, error = "FAILED", explained(failure)
        events.tell("end", state=state, error=error)
    return 0


def explained(failure: Exception) -> str:
    """Returns the error as one line; for the project's own code, with the file and line."""
    if isinstance(failure, SyntaxError):
        return f"{os.path.relpath(failure.filename or '?')}, line {failure.lineno}: {failure.msg}"
    text = one_line(str(failure), os.getcwd()) if str(failure) else type(failure).__name__
    where = ""
    trace = failure.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(os.getcwd() + os.sep):
            where = f"{os.path.relpath(name)}, line {trace.tb_lineno}: "
        trace = trace.tb_next
    if type(failure).__module__.partition(".")[0] in ("pyspark", "penstock", "py4j"):
        # The error of a Python worker has the line in its text.
        return text if _HAS_LINE.match(text) else f"{where}{text}"
    return f"{where}{type(failure).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main())
