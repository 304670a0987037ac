"""A pipeline in a test: give rows to topics, run the pipeline, look at its tables and topics."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.spark.options import parse_sink
from penstock.spark.pipelines.project import BOOTSTRAP_SETTING, find_project, read_spec
from penstock.testing.pipelines.definitions import Graph, load_definitions
from penstock.testing.pipelines.failures import PipelineTestFailed
from penstock.testing.pipelines.records import Time, Topics
from penstock.testing.pipelines.rounds import Round
from penstock.testing.pipelines.rows import Rows
from penstock.testing.pipelines.sources import FORMAT, Outbox, Sent, Sources

_NUMBERS: Final = itertools.count(1)
_OWN_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # The rows of a test are few: compiling code for a query takes longer than the query.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # The default starts a process for each file that it writes.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
}


class PipelineTest:
    """Runs the pipeline of a project on rows instead of topics, with tables of its own.

    Close it, or use it in a `with` statement: it then drops its tables. The fixture
    `penstock_pipeline` does so.
    """

    def __init__(self, project: str | Path, spark: Any, *, preview: bool = False) -> None:
        """With `preview`, streams read every record that was given, whatever their options say, and
        topics may be given that no flow reads."""
        self.project = find_project(Path(project))
        self._preview = preview
        self._spark = spark
        self._session: Any = spark.newSession()
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-pipeline-test-"))
        self._outbox = Outbox()
        self._topics = Topics(dict(self.project.topics))
        self._sources = Sources(
            self._topics, self._outbox, self._folder / "topics", from_start=preview
        )
        self._graph: Graph | None = None
        content = read_spec(self.project.spec)
        given = content.get("database", content.get("schema"))
        self._database = given or f"penstock_test_{next(_NUMBERS)}"
        for name, value in {
            BOOTSTRAP_SETTING: "localhost:9092",
            **self.project.configuration,
            **_OWN_SETTINGS,
        }.items():
            if name.startswith("spark.penstock.") or self._session.conf.isModifiable(name):
                self._session.conf.set(name, value)
        self._session.sql(f"CREATE DATABASE IF NOT EXISTS {self._database}")
        self._session.sql(f"USE {self._database}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops the tables, and removes all files of this test."""
        self._session.sql("USE default")
        self._session.sql(f"DROP DATABASE IF EXISTS {self._database} CASCADE")
        shutil.rmtree(self._folder, ignore_errors=True)

    def given(self, topic: str, rows: Iterable[Any], *, at: Time | None = None) -> Self:
        """Adds records to a topic. The next `run` reads all of them as one micro-batch.

        A row is the value of a record: bytes, text, None, or anything that JSON can hold. With
        `record` a row also has a key, headers, a partition or a timestamp. `at` is the timestamp of
        the rows that have none of their own; the default is that of the record before."""
        if isinstance(rows, Mapping | str | bytes):
            raise PipelineTestFailed("given takes a list of rows: write given(topic, [row])")
        self._topics.add(topic, rows, at)
        return self

    def given_topics(self, partitions: Mapping[str, int]) -> Self:
        """Adds topics that exist, with their numbers of partitions."""
        self._topics.partitions.update(partitions)
        return self

    def run(self) -> Self:
        """Runs the pipeline as `penstock pipeline run` does: reads all that is new, then stops."""
        with self._active(), self._sources.in_place(self._session):
            self._graph = load_definitions(self.project, self._session)
            Round(self._graph, self._session, self._database, self._folder, self._outbox).run()
        unread = sorted(set(self._topics.records) - self._sources.read_topics)
        if unread and not self._preview:
            raise PipelineTestFailed(
                f"no flow reads the topic {', '.join(unread)}: the pipeline reads "
                f"{', '.join(sorted(self._sources.read_topics)) or 'no topic'}. Correct the "
                "name in given()"
            )
        return self

    @property
    def read_topics(self) -> frozenset[str]:
        """The topics that the definitions read."""
        return frozenset(self._sources.read_topics)

    def outputs(self) -> dict[str, Rows]:
        """Returns the rows of every table and view, and what was sent to every topic. Views on
        streams are left out: they have no rows."""
        found = {}
        for target in self._ran().targets.values():
            if target.kind != "sink":
                with suppress(PipelineTestFailed):
                    found[target.name] = self.table(target.name)
        return found | {f"topic {name}": self.sent(name) for name in sorted(self._outbox.records)}

    def table(self, name: str) -> Rows:
        """Returns the rows of a table or view."""
        graph = self._ran()
        known = {one.name for one in graph.targets.values() if one.kind != "sink"}
        if name not in known:
            raise PipelineTestFailed(f"there is no table {name}: the tables are {_listed(known)}")
        try:
            found = self._session.table(name).toArrow()
        except AnalysisException as error:
            raise PipelineTestFailed(
                f"{name} is a view on a stream, which has no rows: look at a table that reads it"
            ) from error
        return Rows(name, found.to_pylist(maps_as_pydicts="strict"))

    def sent(self, topic: str) -> Rows:
        """Returns what the pipeline has sent to a topic since the test began.

        Each row has `key` and `value`, and `headers`, `partition` and `timestamp` if they were set.
        A value that is a JSON object is a dict; other keys and values are text, or bytes if they
        are not text. For a sink of another format, give the name of the sink."""
        graph = self._ran()
        known = self._written_topics(graph)
        if topic not in known and topic not in self._outbox.records:
            raise PipelineTestFailed(
                f"no flow sends to {topic}: the pipeline sends to {_listed(known)}"
            )
        return Rows(topic, map(_sent_row, self._outbox.records.get(topic, ())))

    def _written_topics(self, graph: Graph) -> set[str]:
        known = set(self._topics.partitions)
        for target in graph.targets.values():
            if target.kind == "sink":
                options = target.options or {}
                fixed = parse_sink(options).topic if target.format == FORMAT else target.name
                known |= {fixed} if fixed else set()
        return known

    def _ran(self) -> Graph:
        if self._graph is None:
            raise PipelineTestFailed("the pipeline has not run yet: call run() first")
        return self._graph

    @contextmanager
    def _active(self) -> Iterator[None]:
        """Makes the session of this test the one that `SparkSession.active()` returns."""
        sessions = getattr(self._session._jvm, "org.apache.spark.sql.classic.SparkSession")
        sessions.setActiveSession(self._session._jsparkSession)
        # PySpark keeps the active session also in Python.
        before = SparkSession._activeSession
        SparkSession._activeSession = self._session
        # PySpark would print every error of Spark, even of a flow that is tried again.
        printed = logging.getLogger("SQLQueryContextLogger")
        disabled, printed.disabled = printed.disabled, True
        try:
            yield
        finally:
            printed.disabled = disabled
            SparkSession._activeSession = before
            sessions.setActiveSession(self._spark._jsparkSession)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _sent_row(sent: Sent) -> dict[str, Any]:
    row = {"key": _plain(sent.key), "value": _plain(sent.value)}
    for name in ("headers", "partition", "timestamp"):
        if (value := getattr(sent, name)) is not None:
            row[name] = value
    return row


def _plain(data: Any) -> Any:
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError:
            return data
    if isinstance(data, str) and data.startswith("{"):
        try:
            return json.loads(data)
        except ValueError:
            return data
    return data
