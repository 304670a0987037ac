"""Loads the definitions of a project: its Python and SQL files, as a list of outputs and flows."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.pipelines.cli import unpack_pipeline_spec
from pyspark.pipelines.flow import AutoCdcFlow
from pyspark.pipelines.flow import Flow as DefinedFlow
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import (
    MaterializedView,
    Output,
    Sink,
    StreamingTable,
    TemporaryView,
)
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import Project, read_spec
from penstock.spark.pipelines.table_writers import Flow, check_writers
from penstock.testing.pipelines.failures import PipelineTestFailed

_STATEMENTS: Final = re.compile(
    r"""(?P<kept>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/)|(?P<end>;)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A table, view or sink that flows write to."""

    name: str
    kind: str
    """table, materialized view, temporary view or sink"""
    format: str = "parquet"
    options: dict[str, str] | None = None
    schema: Any = None
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A flow: what it writes to, and the function that returns its rows."""

    name: str
    target: str
    query: Callable[[], DataFrame]


class Graph(GraphElementRegistry):
    """Collects what the files define."""

    def __init__(self, session: SparkSession) -> None:
        self.targets: dict[str, Target] = {}
        self.steps: list[Step] = []
        self._session: Any = session

    def register_output(self, output: Output) -> None:
        if isinstance(output, Sink):
            found = Target(output.name, "sink", output.format, dict(output.options))
        elif isinstance(output, TemporaryView):
            found = Target(output.name, "temporary view")
        elif isinstance(output, StreamingTable | MaterializedView):
            found = Target(
                output.name,
                "table" if isinstance(output, StreamingTable) else "materialized view",
                output.format or "parquet",
                schema=output.schema,
                partition_columns=tuple(output.partition_cols or ()),
            )
        else:
            raise PipelineTestFailed(
                f"{output.name} is a {type(output).__name__}, which tests do not support"
            )
        self.targets[output.name] = found

    def register_flow(self, flow: DefinedFlow) -> None:
        self.steps.append(Step(flow.name, flow.target, flow.func))

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise PipelineTestFailed(
            f"{flow.target} is written by create_auto_cdc_flow, which tests cannot run: "
            "try it with penstock pipeline run and a broker"
        )

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        for statement in split_statements(sql_text):
            plan = self._parsed(statement)
            kind = plan.getClass().getSimpleName()
            if kind not in _SQL:
                first = " ".join(statement.split())[:60]
                raise PipelineTestFailed(
                    f"{file_path} has a statement that tests cannot run: {first}"
                )
            target_kind, name_of, target_of, query_of = _SQL[kind]
            name, target = name_of(plan), target_of(plan)
            if target_kind:
                self.targets[target] = Target(target, target_kind)
            if query_of:
                self.steps.append(Step(name, target, self._query(statement, query_of)))

    def _parsed(self, statement: str) -> Any:
        return self._session._jsparkSession.sessionState().sqlParser().parsePlan(statement)

    def _query(self, statement: str, query_of: Callable[[Any], Any]) -> Callable[[], DataFrame]:
        session = self._session
        datasets = getattr(session._jvm, "org.apache.spark.sql.classic.Dataset")

        def rows() -> DataFrame:
            # Parsed each time: Spark's analyzer marks the plan that it has seen.
            plan = query_of(self._parsed(statement))
            return DataFrame(datasets.ofRows(session._jsparkSession, plan), session)

        return rows


def _name(plan: Any) -> str:
    return str(plan.name().nameParts().mkString("."))


def _flow_target(plan: Any) -> str:
    return str(plan.flowOperation().table().multipartIdentifier().mkString("."))


def _view_name(plan: Any) -> str:
    return str(plan.name().table())


_SQL: Final[Mapping[str, tuple[str, Any, Any, Any]]] = {
    "CreateMaterializedViewAsSelect": (
        "materialized view",
        _name,
        _name,
        lambda plan: plan.query(),
    ),
    "CreateStreamingTableAsSelect": ("table", _name, _name, lambda plan: plan.query()),
    "CreateStreamingTable": ("table", _name, _name, None),
    "CreateFlowCommand": ("", _name, _flow_target, lambda plan: plan.flowOperation().query()),
    "CreateViewCommand": ("temporary view", _view_name, _view_name, lambda plan: plan.plan()),
}
"""Spark's statement -> the kind of target that it defines, and how to get its name, its target and
its query from the plan."""


def split_statements(text: str) -> list[str]:
    """Splits SQL at semicolons that are not in text, names or comments. Comments are removed."""
    found = [""]
    at = 0
    for match in _STATEMENTS.finditer(text):
        found[-1] += text[at : match.start()]
        at = match.end()
        if match["end"]:
            found.append("")
        elif not match[0].startswith(("--", "/*")):
            found[-1] += match[0]
    found[-1] += text[at:]
    return [statement.strip() for statement in found if statement.strip()]


def load_definitions(project: Project, session: SparkSession) -> Graph:
    """Runs the files that the project file names, as a run does, and returns what they define."""
    content = read_spec(project.spec)
    spec = unpack_pipeline_spec({"storage": "file:///unused", **content})
    graph = Graph(session)
    with _folder(project.root), graph_element_registration_context(graph):
        for library in spec.libraries:
            for path in sorted(project.root.glob(library.include)):
                if path.is_file() and "__pycache__" not in path.parts:
                    _load_file(path, graph, session)
    if not graph.steps:
        raise PipelineTestFailed(f"{project.spec} names no file that defines a table or flow")
    _check_writers(graph)
    return graph


def _check_writers(graph: Graph) -> None:
    """Refuses what a run refuses."""
    formats = {one.name: one.format for one in graph.targets.values() if one.kind == "table"}
    try:
        check_writers(formats, [Flow(step.name, step.target) for step in graph.steps])
    except PipelineError as error:
        raise PipelineTestFailed(str(error)) from error


def _load_file(path: Path, graph: Graph, session: SparkSession) -> None:
    if path.suffix == ".sql":
        graph.register_sql(path.read_text("utf-8"), path)
        return
    if path.suffix != ".py":
        raise PipelineTestFailed(f"{path} is neither Python nor SQL: Spark refuses such a file")
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    module.__dict__["spark"] = session
    found.loader.exec_module(module)


@contextmanager
def _folder(root: Path) -> Iterator[None]:
    """Works in the project's folder, and writes no compiled files there."""
    before, compiled = os.getcwd(), sys.dont_write_bytecode
    os.chdir(root)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        os.chdir(before)
        sys.dont_write_bytecode = compiled
