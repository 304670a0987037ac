"""The process behind `penstock pipeline dev`: previews a project whenever a file of it changes.

`python -m penstock.testing.pipelines.dev` runs the project's definitions on the last records of its
topics, as a test runs them on given rows. It writes to no topic and to no table of the project.
Spark is started once, so a preview takes about as long as a test.

Previews are written to standard output, one JSON object per line. The process ends when its
standard input is closed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from penstock.client.errors import ClientError
from penstock.runtime import SystemClock
from penstock.spark.pipelines.driver import explained
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import find_project
from penstock.testing.pipelines.failures import PipelineTestFailed
from penstock.testing.pipelines.pipeline_test import PipelineTest
from penstock.testing.pipelines.rows import Rows
from penstock.testing.pipelines.sampling import Sample
from penstock.testing.pipelines.session import shared_spark

_LOOK_S: Final = 0.3
_TAIL_S: Final = 2.0
_WATCHED: Final = (".py", ".sql", ".yml", ".yaml")
_SKIPPED: Final = frozenset({".git", ".venv", ".penstock", "__pycache__", "spark-warehouse"})
_SHOWN_MAX: Final = 10
_TEXT_MAX: Final = 200


class Files:
    """The files of a project, and when each was last changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._told = self._last = self._look()

    def changed(self) -> list[str]:
        """Returns the names of files that were changed, added or removed since they were last
        returned. A file that is still being written is returned by a later call."""
        found = self._look()
        last, self._last = self._last, found
        if found != last:
            return []
        told, self._told = self._told, found
        return sorted(name for name in {*found, *told} if found.get(name) != told.get(name))

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for folder, folders, names in os.walk(self._root):
            folders[:] = [each for each in folders if each not in _SKIPPED]
            for name in names:
                if name.endswith(_WATCHED):
                    path = Path(folder, name)
                    try:
                        stat = path.stat()
                    except OSError:
                        continue  # It was removed since the folder was read.
                    found[str(path.relative_to(self._root))] = stat.st_mtime_ns, stat.st_size
        return found


class Previews:
    """Previews one project again and again."""

    def __init__(self, root: Path, spark: Any, sample: Sample) -> None:
        self._root = root
        self._spark = spark
        self._sample = sample
        self._topics: frozenset[str] = frozenset()
        self._before: dict[str, list[str]] = {}
        self._clock = SystemClock()

    def has_news(self) -> bool:
        """Returns whether topics of the last preview have new records."""
        return self._sample.refresh(self._topics)

    def make(self, number: int, reason: str) -> dict[str, Any]:
        """Runs the definitions. Returns what is shown; an error is shown, too."""
        began = self._clock.monotonic()
        error = ""
        outputs: dict[str, Rows] = {}
        try:
            outputs = self._run()
        except (PipelineTestFailed, PipelineError, ClientError) as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 (the definitions may raise anything)
            error = explained(failure)
        shown = [self._shown(name, rows) for name, rows in sorted(outputs.items())]
        if not error:
            self._before = {name: _texts(rows) for name, rows in outputs.items()}
        return {
            "event": "preview",
            "number": number,
            "reason": reason,
            "seconds": round(self._clock.monotonic() - began, 2),
            "topics": {
                topic: len(self._sample.records.get(topic, ())) for topic in sorted(self._topics)
            },
            "outputs": shown,
            "error": error,
        }

    def _run(self) -> dict[str, Rows]:
        while True:
            self._sample.refresh(self._topics)
            with PipelineTest(self._root, self._spark, preview=True) as test:
                test.given_topics(self._sample.partitions())
                for topic, records in self._sample.records.items():
                    test.given(topic, records)
                test.run()
                if test.read_topics <= self._topics:
                    return test.outputs()
                # The definitions read further topics: run again with their records.
                self._topics |= test.read_topics

    def _shown(self, name: str, rows: Rows) -> dict[str, Any]:
        texts = _texts(rows)
        before = self._before.get(name)
        fresh = Counter(texts) - Counter(before or ())
        marks = []
        for text in texts:
            marks.append(before is not None and fresh[text] > 0)
            fresh[text] -= 1
        # Changed rows first: they are what an edit is about.
        order = sorted(range(len(rows)), key=lambda at: not marks[at])[:_SHOWN_MAX]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        return {
            "name": name,
            "rows": len(rows),
            "changed": sum(marks),
            "columns": columns,
            "shown": [
                {"changed": marks[at], "cells": [_cell(rows[at].get(each)) for each in columns]}
                for at in order
            ],
        }


def _texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [json.dumps(dict(row), default=str, sort_keys=True) for row in rows]


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict | list):
        value = json.dumps(value, default=str, ensure_ascii=False)
    text = str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def run(given: argparse.Namespace, out: IO[str], ended: threading.Event) -> None:
    def tell(event: Mapping[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    root = find_project(Path(given.project)).root
    os.chdir(root)  # Errors name files as the user sees them.
    files = Files(root)
    sample = Sample(given.bootstrap, given.rows, SystemClock(), client_id="penstock-pipeline-dev")
    tell({"event": "phase", "text": "starting Spark"})
    with shared_spark() as spark:
        sample.start()
        try:
            previews = Previews(root, spark, sample)
            tell(previews.make(1, "first preview"))
            _follow(given, previews, files, tell, ended)
        finally:
            sample.close()


def _follow(
    given: argparse.Namespace,
    previews: Previews,
    files: Files,
    tell: Any,
    ended: threading.Event,
) -> None:
    clock = SystemClock()
    number, looked_at = 1, clock.monotonic()
    while not given.once and not ended.wait(_LOOK_S):
        reason = ", ".join(files.changed())
        if reason:
            reason += " changed"
        elif given.follow and clock.monotonic() - looked_at >= _TAIL_S:
            looked_at = clock.monotonic()
            try:
                reason = "new records" if previews.has_news() else ""
            except ClientError as error:
                tell({"event": "phase", "text": f"cannot read new records: {error}"})
        if reason:
            number += 1
            tell({"event": "phase", "text": reason})
            tell(previews.make(number, reason))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    # The definitions may print: that goes to the log, not among the previews.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, name="end of input", daemon=True).start()
    try:
        run(given, out, ended)
    except (PipelineError, ClientError) as error:
        out.write(json.dumps({"event": "end", "error": str(error)}) + "\n")
        out.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
