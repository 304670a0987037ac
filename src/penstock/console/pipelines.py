"""The pipelines page: shows the progress of Spark pipelines and queries.

`penstock pipeline run` writes its progress, as reported by Spark's listener, to a file in its
project. The user's list of projects says where these files are. Other Spark queries report to a
topic if they are set up to do so. This module does not import Spark.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from penstock.console.progress import Progress
from penstock.console.queries import Queries
from penstock.ports import Clock, Executor
from penstock.spark.pipelines import state_files

_POLL_S: Final = 5.0
_UNDER_WAY: Final = ("RUNNING", "WAITING")
_log = logging.getLogger(__name__)


class Pipelines:
    def __init__(
        self,
        executor: Executor,
        queries: Queries,
        progress: Progress,
        clock: Clock,
        *,
        with_files: bool,
    ) -> None:
        self._executor = executor
        self._queries = queries
        self._progress = progress
        self._clock = clock
        self._with_files = with_files

    async def run(self) -> None:
        """Records the progress of running pipelines for the charts. Ends only by cancellation."""
        while self._with_files:
            try:
                for pipeline in await self._executor.run(_read):
                    self._record(pipeline)
            except OSError as error:
                _log.debug("cannot read the progress of pipelines: %s; retrying", error)
            await self._clock.sleep(_POLL_S)

    def _record(self, pipeline: dict[str, Any]) -> None:
        if pipeline["state"] not in _UNDER_WAY or type(pipeline["updated_ms"]) is not int:
            return
        run = str(pipeline["started_ms"])
        for flow in pipeline["flows"]:
            rows, lag = flow.get("rows"), flow.get("lag")
            batch_ms = flow.get("batch_ms")
            has_batch = flow.get("batch") is not None and type(batch_ms) is int
            if flow.get("streaming") and type(rows) is int:
                self._progress.add(
                    f"{pipeline['name']}: {flow.get('name')}",
                    run,
                    pipeline["updated_ms"],
                    self._clock.wall_ms(),
                    rows=rows,
                    lag=lag if type(lag) is int else None,
                    batch_ms=batch_ms if has_batch else None,
                )

    async def listed(self) -> dict[str, Any]:
        return {
            "pipelines": await self._executor.run(_read) if self._with_files else [],
            "queries": self._queries.listed(),
        }


def _read() -> list[dict[str, Any]]:
    return [_pipeline(root) for root in state_files.projects()]


def _pipeline(root: Path) -> dict[str, Any]:
    last = state_files.load_run(root)
    content = {} if last is None else last.content
    flows = content.get("flows")
    return {
        "name": str(content.get("name") or root.name),
        "path": str(root),
        "state": "NEVER RUN" if last is None else last.state,
        "round": content.get("round"),
        "master": content.get("master"),
        "started_ms": content.get("started_ms"),
        "updated_ms": content.get("updated_ms"),
        "error": str(content.get("error") or ""),
        "flows": [flow for flow in flows if isinstance(flow, dict)]
        if isinstance(flows, list)
        else [],
    }
