"""Runs a project's flows once: streams read what is new and stop, views are computed again.

Spark's own runner looks only once a second whether a flow has ended, so a test of three flows would
take some seconds. This module starts the same streaming queries in the order of their dependencies,
with the same checkpoints, output mode and trigger.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.sql import DataFrame, SparkSession

from penstock.client.errors import ClientError
from penstock.spark.encoding import Encoder, check_columns
from penstock.spark.options import SinkOptions, parse_sink
from penstock.spark.pipelines.explain import one_line
from penstock.spark.quarantine import ExpectationInvalid
from penstock.testing.pipelines.definitions import Graph, Step, Target
from penstock.testing.pipelines.failures import PipelineTestFailed
from penstock.testing.pipelines.sources import FORMAT, Outbox, Sent

_MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"
_USED: Final = re.compile(r"SubqueryAlias (?:spark_catalog\.)?([\w.]+)")


class Round:
    """One run of all flows."""

    def __init__(
        self, graph: Graph, session: SparkSession, database: str, folder: Path, outbox: Outbox
    ) -> None:
        self._graph = graph
        self._session = session
        self._database = database
        self._folder = folder
        self._outbox = outbox
        self._pending = list(graph.steps)

    def run(self) -> None:
        for step in self._graph.steps:
            if step.target not in self._graph.targets:
                raise PipelineTestFailed(
                    f"the flow {step.name} writes to {step.target}, which is not defined: "
                    "define a table or sink of this name"
                )
        for target in self._graph.targets.values():
            self._prepare(target)
        while self._pending:
            reasons: list[str] = []
            done = [step.name for step in list(self._pending) if self._try(step, reasons)]
            if not done:
                raise PipelineTestFailed("; ".join(reasons))

    def _prepare(self, target: Target) -> None:
        """Removes the views of the run before, and creates tables whose columns are declared."""
        if target.kind == "temporary view":
            self._session.catalog.dropTempView(target.name)
        elif target.schema is not None and not self._session.catalog.tableExists(target.name):
            schema = target.schema
            columns = schema if isinstance(schema, str) else schema.toDDL()
            by = ", ".join(f"`{name}`" for name in target.partition_columns)
            self._session.sql(
                f"CREATE TABLE {target.name} ({columns}) USING {target.format}"
                + (f" PARTITIONED BY ({by})" if by else "")
            )

    def _try(self, step: Step, reasons: list[str]) -> bool:
        """Runs a flow if the tables that it reads are up to date. Returns whether it did."""
        try:
            rows = self._rows(step)
            waits = self._waits_for(step, rows)
        except AnalysisException as error:
            if error.getCondition() != _MISSING:
                raise PipelineTestFailed(f"{step.name}: {one_line(str(error))}") from error
            reasons.append(f"{step.name}: {one_line(str(error))}")
            return False
        except (ClientError, ExpectationInvalid) as error:
            raise PipelineTestFailed(f"{step.name}: {error}") from error
        if waits:
            reasons.append(f"{step.name} depends on {', '.join(waits)} in a cycle")
            return False
        try:
            self._write(step, self._graph.targets[step.target], rows)
        except PySparkException as error:
            raise PipelineTestFailed(f"{step.name}: {one_line(str(error))}") from error
        self._pending.remove(step)
        return True

    def _rows(self, step: Step) -> DataFrame:
        """Calls the function of a flow. An expectation may define the flow of its quarantine then,
        which also belongs to this run."""
        flows, targets = len(self._graph.steps), set(self._graph.targets)
        with graph_element_registration_context(self._graph):
            rows = step.query()
        self._pending += self._graph.steps[flows:]
        for name in self._graph.targets.keys() - targets:
            self._prepare(self._graph.targets[name])
        return rows

    def _waits_for(self, step: Step, rows: Any) -> list[str]:
        """Returns the tables that are read and that other flows still have to write."""
        plan = rows._jdf.queryExecution().analyzed().toString()
        used = {name.removeprefix(f"{self._database}.").lower() for name in _USED.findall(plan)}
        pending = {one.target.lower() for one in self._pending if one is not step}
        return sorted((used & pending) - {step.target.lower()})

    def _write(self, step: Step, target: Target, rows: DataFrame) -> None:
        if target.kind == "temporary view":
            rows.createOrReplaceTempView(target.name)
            return
        if rows.isStreaming == (target.kind == "materialized view"):
            raise PipelineTestFailed(
                f"{step.name} writes to the {target.kind} {target.name}, but its rows are "
                + (
                    "a stream: use spark.read, or declare the target as a table"
                    if rows.isStreaming
                    else "not a stream: use spark.readStream, or declare a materialized_view"
                )
            )
        if target.kind == "materialized view":
            self._overwrite(target, rows)
        else:
            self._stream(step, target, rows)
        if target.kind != "sink":
            self._session.catalog.refreshTable(target.name)

    def _overwrite(self, target: Target, rows: DataFrame) -> None:
        if target.schema is not None:
            columns = self._session.table(target.name).columns
            rows.select(*columns).write.mode("overwrite").insertInto(target.name)
            return
        writer = rows.write.mode("overwrite").format(target.format)
        writer.partitionBy(*target.partition_columns).saveAsTable(target.name)

    def _stream(self, step: Step, target: Target, rows: DataFrame) -> None:
        writer = (
            rows.writeStream.queryName(step.name)
            .outputMode("append")
            .option("checkpointLocation", str(self._folder / "checkpoints" / step.name))
            .trigger(availableNow=True)
        )
        if target.kind == "sink":
            query = writer.foreachBatch(self._collector(step, target, rows)).start()
        elif target.partition_columns and target.schema is None:
            query = writer.partitionBy(*target.partition_columns).toTable(
                target.name, format=target.format
            )
        else:
            query = writer.toTable(target.name, format=target.format)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _collector(
        self, step: Step, target: Target, rows: DataFrame
    ) -> Callable[[DataFrame, int], None]:
        if target.format != FORMAT:
            return lambda batch, _number: self._collect_rows(target.name, batch)
        try:
            options = parse_sink(target.options or {})
            check_columns(options, rows.schema)
            encoder = Encoder(options)
        except ClientError as error:
            raise PipelineTestFailed(f"{step.name}: {error}") from error
        return lambda batch, _number: self._collect(options, encoder, batch)

    def _collect(self, options: SinkOptions, encoder: Encoder, batch: DataFrame) -> None:
        for encoded in map(encoder.encode, batch.toArrow().to_batches()):
            for row in encoded.to_pylist(maps_as_pydicts="strict"):
                topic = row.pop("topic", None)
                self._outbox.add(options.topic or topic, Sent(**{"key": None, **row}))

    def _collect_rows(self, name: str, batch: DataFrame) -> None:
        for row in batch.toArrow().to_pylist(maps_as_pydicts="strict"):
            self._outbox.add(name, Sent(None, row))
