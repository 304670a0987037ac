"""Reads a few rows of a table for people, in the driver, beside the streams.

The rows are read by a thread of its own, through the JVM and without Python workers. A job that
takes too long is cancelled. Values are cut in Spark, so that large ones do not reach the driver.
Rows are taken from the newest files of the table, if Spark says which files it has.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from penstock.spark.pipelines.explain import one_line

_CELL_CHARACTERS: Final = 500
_COLUMNS_MAX: Final = 100
_ROWS_MAX: Final = 50
_BYTES_MAX: Final = 400_000
"""Of all values together, as JSON: an event of a driver must stay small, and so must a record."""
_NAME_CHARACTERS: Final = 200
_FILES_MAX: Final = 500
"""With more files, it takes too long to find the newest."""
_WAITING_MAX: Final = 8
BUSY: Final = "the driver is busy with other previews: try again in a moment"

Write = Callable[[Mapping[str, Any]], None]


class Previews:
    """`database` is that of the pipeline's tables, with its catalog."""

    def __init__(self, classic: Any, database: str, write: Write) -> None:
        self._classic = classic
        self._database = database
        self._write = write
        self._asked: queue.Queue[Mapping[str, Any]] = queue.Queue(_WAITING_MAX)
        self._is_late = False
        threading.Thread(target=self._run, name="penstock previews", daemon=True).start()

    def ask(self, asked: Mapping[str, Any]) -> None:
        """Answers later with an event. Never blocks."""
        try:
            self._asked.put_nowait(asked)
        except queue.Full:
            self._tell(asked, error=BUSY)

    def _run(self) -> None:
        while True:
            asked = self._asked.get()
            try:
                found = self._read(asked)
            except Exception as error:  # noqa: BLE001 (a preview must not end the driver)
                self._tell(asked, error=one_line(str(error))[:1_000])
            else:
                self._tell(asked, **found)

    def _tell(self, asked: Mapping[str, Any], **found: object) -> None:
        self._write({"event": "preview", "id": str(asked.get("id")), **found})

    def _read(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self._classic is None:
            return {"error": "rows of a pipeline on a Connect server (sc://) are not shown"}
        limit = max(1, min(int(asked["limit"]), _ROWS_MAX))
        context = self._classic.sparkContext
        group = f"penstock-preview-{asked['id']}"
        context.setJobGroup(group, f"preview of {asked['table']}", interruptOnCancel=False)
        self._is_late = False
        timer = threading.Timer(float(asked["within_s"]), self._cancel, (group,))
        timer.daemon = True
        timer.start()
        try:
            return self._rows(str(asked["table"]), limit)
        finally:
            timer.cancel()

    def _cancel(self, group: str) -> None:
        self._is_late = True
        with suppress(Exception):  # The JVM may be shutting down.
            self._classic.sparkContext.cancelJobGroup(group)

    def _rows(self, table: str, limit: int) -> dict[str, Any]:
        name = f"{self._database}.{quoted(table)}"
        # Spark remembers the files of a table that it has read, and a stream adds files.
        self._classic._jsparkSession.catalog().refreshTable(name)
        rows = self._classic._jsparkSession.table(name)
        fields = list(rows.schema().fields())[:_COLUMNS_MAX]
        columns = [(str(each.name()), str(each.dataType().simpleString())) for each in fields]
        chosen = self._newest(rows)
        if self._is_late:
            raise TimeoutError("Spark takes too long to find the newest rows: try again later")
        found = chosen.limit(limit).selectExpr(self._cut([name for name, _ in columns]))
        cells = [
            [row.get(number) for number in range(len(columns))] for row in found.collectAsList()
        ]
        shown = [[name[:_NAME_CHARACTERS], kind[:_NAME_CHARACTERS]] for name, kind in columns]
        return {"columns": shown, "rows": bounded(cells)}

    def _cut(self, names: list[str]) -> Any:
        gateway = self._classic.sparkContext._gateway
        made = gateway.new_array(gateway.jvm.java.lang.String, len(names))
        for number, name in enumerate(names):
            made[number] = (
                f"substring(CAST({quoted(name)} AS STRING), 1, {_CELL_CHARACTERS}) AS c{number}"
            )
        return made

    def _newest(self, rows: Any) -> Any:
        """Returns the rows of the newest file with rows, or all rows if that is not known."""
        try:
            files = list(rows.inputFiles())
            if not 1 < len(files) <= _FILES_MAX:
                return rows
            jvm = self._classic._jvm
            settings = self._classic._jsparkSession.sessionState().newHadoopConf()
            times = []
            for each in files:
                if self._is_late:
                    return rows
                path = jvm.org.apache.hadoop.fs.Path(each)
                status = path.getFileSystem(settings).getFileStatus(path)
                times.append((int(status.getModificationTime()), str(path.getName())))
            names = [name for _, name in sorted(times, reverse=True)][:_ROWS_MAX]
            for name in names:
                newest = rows.where(f"_metadata.file_name = '{name}'")
                if self._is_late or not newest.isEmpty():
                    return newest
        except Exception:  # noqa: BLE001 (other formats have no such files: any rows will do)
            return rows
        return rows


def quoted(name: str) -> str:
    """Returns an identifier for SQL."""
    return "`" + name.replace("`", "``") + "`"


def bounded(rows: list[list[Any]]) -> list[list[str | None]]:
    """Returns as many of the rows as an event can hold, as text."""
    left = _BYTES_MAX
    kept: list[list[str | None]] = []
    for row in rows:
        cells = [None if cell is None else str(cell) for cell in row]
        # Characters that are not ASCII take up to twelve bytes.
        left -= len(json.dumps(cells))
        if left < 0:
            break
        kept.append(cells)
    return kept
