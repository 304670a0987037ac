"""The pipelines page: shows the progress of Spark pipelines and queries.

`penstock pipeline run` writes its progress, as reported by Spark's listener, to a file in its
project. The user's list of projects says where these files are. Other Spark queries report to a
topic if they are set up to do so. This module does not import Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.console.queries import Queries
from penstock.ports import Executor
from penstock.spark.pipelines import state_files


class Pipelines:
    def __init__(self, executor: Executor, queries: Queries, *, with_files: bool) -> None:
        self._executor = executor
        self._queries = queries
        self._with_files = with_files

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
