"""Refuses tables in which Spark would lose rows silently.

A streaming table of a file format such as Parquet has one log of the batches that were written to
it, `_spark_metadata`, whichever query wrote them. Each flow counts its batches from 0, as its
checkpoint says. If the log has a batch already, Spark takes the batch for a repetition, skips it
and says that the flow has completed. So rows are lost

- if two flows write to one such table;
- if a flow begins without its checkpoint, since it was renamed or the checkpoint was deleted, while
  the table is still there.

Table formats with transactions of their own, such as Delta and Iceberg, have no such log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.explain import short_name
from penstock.spark.pipelines.jvm import connect_session, items
from penstock.spark.pipelines.recompute_scope import RecomputeRefused

FILE_FORMATS: Final = frozenset(
    {"parquet", "orc", "json", "csv", "text", "avro", "xml", "binaryfile"}
)


_BATCH: Final = re.compile(r"(\d+)(?:\.compact)?")
LOG_FOLDER: Final = "_spark_metadata"


class Flow(NamedTuple):
    name: str
    """Spark's identifier: catalog, database and name."""
    target: str


def check_writers(tables: Mapping[str, str], flows: Iterable[Flow]) -> None:
    """Raises `PipelineError` if several flows write to a table of a file format.

    Args:
        tables: the format of each streaming table.
        flows: all flows of the pipeline.
    """
    writers: dict[str, list[str]] = {}
    for flow in flows:
        writers.setdefault(flow.target, []).append(flow.name)
    for table, form in tables.items():
        found = sorted(map(short_name, writers.get(table, ())))
        if len(found) > 1 and form.lower() in FILE_FORMATS:
            raise PipelineError(
                f"the table {short_name(table)} has {len(found)} flows ({', '.join(found)}), and "
                f"Spark would silently lose rows of all but one: a table of the format {form} can "
                "have one flow. Write one flow that joins the others with union(), or use a format "
                "that allows several writers, such as delta or iceberg"
            )


def flows_to_reset(flows: Iterable[Flow], names: Iterable[str]) -> tuple[list[Flow], list[str]]:
    """Returns the flows of these names, and the names of which there is no flow. A flow that was to
    begin again may have been removed since, and the others must go on."""
    known = {short_name(flow.name): flow for flow in flows}
    wanted = list(dict.fromkeys(names))
    found = [known[short_name(name)] for name in wanted if short_name(name) in known]
    return found, [name for name in wanted if short_name(name) not in known]


def latest_batch(names: Iterable[str]) -> int:
    """Returns the number of the last batch in a log, from the names of its files; -1 if there is
    none."""
    return max((int(found[1]) for name in names if (found := _BATCH.fullmatch(name))), default=-1)


def check_log(flow: Flow, written: int, begun: int) -> None:
    """Raises `PipelineError` if the flow's next batches would be skipped.

    Args:
        flow: a flow of a table of a file format.
        written: the last batch in the log of the table; -1 if there is none.
        begun: the last batch in the flow's checkpoint; -1 if there is none.
    """
    if written > begun:
        table, name = short_name(flow.target), short_name(flow.name)
        raise PipelineError(
            f"the table {table} has {written + 1} batches, and the checkpoint of its flow {name} "
            f"has {begun + 1}: Spark would silently skip the next {written - begun} batches. Was "
            "the flow renamed, or its checkpoint deleted? Bring the checkpoint back, or empty the "
            "tables and read everything again: penstock pipeline run --full-refresh"
        )


class Definitions:
    """The definitions of a pipeline, as the JVM of this process has them before a run."""

    def __init__(self, classic: Any, session: Any, graph_id: str) -> None:
        self._classic = classic
        holder = connect_session(classic, session)
        defined = holder.dataflowGraphRegistry().getDataflowGraphOrThrow(graph_id)
        default = str(session.conf.get("spark.sql.sources.default", "parquet"))
        self._tables: dict[str, Any] = {}
        self.formats: dict[str, str] = {}
        """The format of each streaming table."""
        for table in items(defined.tables()):
            if table.isStreamingTable():
                name = str(table.identifier().unquotedString())
                self._tables[name] = table.identifier()
                given = table.format()
                self.formats[name] = default if given.isEmpty() else str(given.get())
        self.flows = [
            Flow(
                str(flow.identifier().unquotedString()),
                str(flow.destinationIdentifier().unquotedString()),
            )
            for flow in items(defined.flows())
        ]

    def check(self) -> None:
        """Raises `PipelineError` if several flows write to one table of files."""
        check_writers(self.formats, self.flows)

    def check_logs(self, storage: str | None) -> None:
        """Raises `PipelineError` if batches of a flow would be skipped."""
        for flow in self.flows:
            if self.formats.get(flow.target, "").lower() in FILE_FORMATS and storage:
                written = latest_batch(self._log(flow.target))
                if written >= 0:
                    check_log(flow, written, self._begun(storage, flow))

    def check_places(self, storage: str) -> None:
        """Raises `RecomputeRefused` if a table is in another storage: then the catalog is that of
        the running pipeline, too."""
        for name in self.formats:
            location = self._location(name)
            if location is not None and not _is_inside(location, storage):
                raise RecomputeRefused(
                    f"the table {short_name(name)} is in {location}, in a catalog that other "
                    "pipelines share: a recompute needs a catalog of its own. Move the pipeline's "
                    "tables to one"
                )

    def reset(self, storage: str, flows: Iterable[Flow]) -> list[str]:
        """Lets flows begin again. Returns the tables that the next run must refresh in full.

        A table is emptied and filled again: its log of batches would otherwise not fit to a new
        checkpoint. A sink keeps what it has, and its flow gets a new checkpoint. Spark uses the one
        with the highest number; the old one stays.
        """
        tables = []
        for flow in flows:
            if flow.target in self.formats:
                tables.append(flow.target)
                continue
            folder = self._checkpoints(storage, flow)
            number = latest_batch(self._names(folder))
            if self._names(f"{folder}/{number}"):
                path = self._path(f"{folder}/{number + 1}")
                path.getFileSystem(self._classic._jsc.hadoopConfiguration()).mkdirs(path)
        return sorted(set(tables))

    def _log(self, table: str) -> list[str]:
        location = self._location(table)
        return [] if location is None else self._names(f"{location}/{LOG_FOLDER}")

    def _location(self, table: str) -> str | None:
        """Returns where a table is; None if it does not exist yet."""
        catalog = self._classic._jsparkSession.sessionState().catalog()
        if not catalog.tableExists(self._tables[table]):
            return None
        return str(catalog.getTableMetadata(self._tables[table]).location().toString())

    def _begun(self, storage: str, flow: Flow) -> int:
        """Returns the last batch in the checkpoint. A full refresh begins a new checkpoint, with
        the next number."""
        folder = self._checkpoints(storage, flow)
        number = latest_batch(self._names(folder))
        return latest_batch(self._names(f"{folder}/{number}/offsets"))

    @staticmethod
    def _checkpoints(storage: str, flow: Flow) -> str:
        """Returns the folder with the numbered checkpoints of a flow."""
        parts = [part.strip("`") for part in flow.target.split(".")]
        return "/".join([storage.rstrip("/"), "_checkpoints", *parts, short_name(flow.name)])

    def _path(self, folder: str) -> Any:
        return self._classic._jvm.org.apache.hadoop.fs.Path(folder)

    def _names(self, folder: str) -> list[str]:
        """Returns the names in a folder of any file system that Spark can read."""
        path = self._path(folder)
        uri = path.toUri()
        if uri.getScheme() == "file":
            # Each name would be three calls to the JVM, and a round asks for hundreds of them.
            return local_names(str(uri.getPath()))
        files = path.getFileSystem(self._classic._jsc.hadoopConfiguration())
        if not files.exists(path):
            return []
        return [str(each.getPath().getName()) for each in files.listStatus(path)]


def local_names(folder: str) -> list[str]:
    """Returns the names in a local folder; none if there is no such folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_inside(location: str, storage: str) -> bool:
    return _plain_url(location).startswith(_plain_url(storage).rstrip("/") + "/")


def _plain_url(url: str) -> str:
    """Returns a URL in one form: Java writes file:/folder and escapes, others file:///folder."""
    plain = unquote(url)
    return f"file:/{plain[8:]}" if plain.startswith("file:///") else plain
